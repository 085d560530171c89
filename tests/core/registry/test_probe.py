"""Contract row A21: whatever a creator answers, its devices are listed, or it is absent with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.fakes import Creator, registered
from tests.helpers.plugins import C_FACTORY, C_ID, C_TABLE, C_VERSION, needs_compiler, new_registry, write
from weft.core.contract.backend import Backend, BackendInfo, DeviceInfo
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.errors import DeviceError, NoDevice, brief
from weft.plugins.native import MOST_DEVICES


def raising(error: BaseException) -> Callable[[], object]:
    def devices() -> object:
        raise error

    return devices


def one(index: object = 0, name: object = "x", **more: object) -> Callable[[], object]:
    return lambda: [DeviceInfo("acme", index, name, **more)]  # type: ignore[arg-type]


WRONG: dict[str, tuple[str, Callable[[], object], str]] = {
    "raises": ("devices", raising(RuntimeError("no\ncard")), "Creator.devices raised RuntimeError: no card"),
    "exits": ("devices", raising(SystemExit(3)), "Creator.devices raised SystemExit: 3"),
    "error of ours": ("devices", raising(DeviceError("it broke", why="hot")), "raised DeviceError: it broke: hot"),
    "none": ("devices", lambda: None, "Creator.devices returned None, which is not a list of DeviceInfo"),
    "a text": ("devices", lambda: "acme:0", "returned 'acme:0', which is not a list of DeviceInfo"),
    "texts": ("devices", lambda: ["x"], "returned 'x' among the devices, which is not a DeviceInfo"),
    "empty": ("devices", list, "found no device, though its creator says that there is one"),
    "twice": ("devices", lambda: [DeviceInfo("acme", 1, "x")] * 2, "lists two devices with the index 1"),
    "index": ("devices", one(True), "the index True, which is not a number from 0 on"),
    "negative": ("devices", one(-1), "the index -1, which is not a number from 0 on"),
    "name": ("devices", one(0, None), "gave device 0 a name or driver that is no text"),
    "details": ("devices", one(0, details=3), "gave device 0 details that are not a mapping: 3"),
    "software": ("devices", one(0, software="no"), "says of device 0 that it is software: 'no', not True or False"),
    "absent raises": ("absent", raising(OSError("bus")), "Creator.absent raised OSError: bus"),
    "absent exits": ("absent", raising(SystemExit()), "Creator.absent raised SystemExit"),
    "absent says yes": ("absent", lambda: True, "absent() of its creator returned True, which is not a reason"),
    "absent is silent": ("absent", lambda: " ", "its creator gives no reason"),
}


@pytest.mark.parametrize("case", WRONG)
def test_A21_a_creator_that_does_not_answer_is_absent_with_that_reason(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, answer, reason = WRONG[case]
    made, creator = new_registry(), Creator(id="acme")
    made.insert("acme", creator)
    monkeypatch.setattr(creator, function, answer)
    assert reason in made.absent()["acme"]
    assert [d.id for d in made.devices()] == ["cpu"]
    for name in ("acme", "acme:0"):
        with pytest.raises(NoDevice, match="acme cannot be used here") as caught:
            made.choose(name)
        assert reason in caught.value.why
    assert [c.device for c in made.choose(["acme", "cpu"])] == ["cpu:0"]


def test_A21_auto_passes_over_a_creator_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made, creator = new_registry(), Creator(id="acme")
    creator.auto_rank = 0
    made.insert("acme", creator)
    monkeypatch.setattr(creator, "devices", raising(RuntimeError("no card")))
    (choice,) = made.choose("auto")
    assert choice.device == "cpu:0" and "no card" in choice.why


def test_A21_an_interrupt_while_devices_are_listed_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made, creator = new_registry(), Creator(id="acme")
    made.insert("acme", creator)
    monkeypatch.setattr(creator, "devices", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        made.devices()


def test_A21_a_device_bears_the_id_of_its_creator(monkeypatch: pytest.MonkeyPatch) -> None:
    made, creator = new_registry(), Creator(id="acme")
    made.insert("acme", creator)
    monkeypatch.setattr(creator, "devices", lambda: [DeviceInfo("other", 0, "o"), DeviceInfo("", 1, "p")])
    assert [(d.id, d.name) for d in made.devices() if d.id != "cpu"] == [("acme", "o"), ("acme", "p")]
    assert made.choose("acme:1")[0].device == "acme:1"


def test_A21_an_id_alone_is_its_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made, creator = new_registry(), Creator(id="acme")
    made.insert("acme", creator)
    monkeypatch.setattr(creator, "devices", lambda: [DeviceInfo("acme", 9, "nine"), DeviceInfo("acme", 7, "seven")])
    assert [d.index for d in made.devices() if d.id == "acme"] == [7, 9]
    assert made.choose("acme")[0].device == "acme:7"
    assert made.choose("acme:9")[0].device == "acme:9"
    with pytest.raises(NoDevice, match="there is no device acme:0") as caught:
        made.choose("acme:0")
    assert "acme:7 (seven), acme:9 (nine)" in caught.value.why


def test_A21_a_creator_that_fails_when_it_is_opened_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(info: BackendInfo) -> Backend:
        raise ValueError(4)

    creator = Creator(id="acme")
    with registered(creator, "acme"):
        monkeypatch.setattr(creator, "onCreate", fails)
        with pytest.raises(DeviceError, match="acme:0 cannot be used") as caught:
            registry.choose("acme")[0].open(BackendInfo("acme").config)
        assert caught.value.why == "ValueError: 4"


def test_A21_a_long_reason_is_cut() -> None:
    made = new_registry()
    made.insert("acme", Creator(id="acme", absent="x" * 9999))
    assert made.absent()["acme"] == brief("x" * 9999) == "x" * 500 + "... (9499 more characters)"
    made.skip("/there", "y" * 9999)
    assert made.failures["/there"] == brief("y" * 9999)


# -- devices that a library counts ----------------------------------------------------------------------------


def counting(folder: Path, count: int | None, absent: str = "") -> BackendRegistry:
    """Return a registry with a library that counts so many devices, and says so why there is none."""
    functions = f"static int32_t count(void) {{ return {count}; }}\n" if count is not None else ""
    functions += f"static int32_t absent(char *r, size_t n) {{ {absent} return 1; }}\n" if absent else ""
    fields = (".device_count = count," if count is not None else "") + (".absent = absent," if absent else "")
    table = C_TABLE.replace("static const weft_backend", functions + "static const weft_backend")
    source = table.replace(".supports", f"{fields} .supports") + C_ID + C_VERSION + C_FACTORY
    write(folder / "acme_npu_backend.so", source)
    made = new_registry()
    made.rescan([folder])
    return made


@needs_compiler
@pytest.mark.parametrize("count", [2_000_000_000, MOST_DEVICES + 1, -1])
def test_A21_a_library_that_cannot_count_is_absent(count: int, tmp_path: Path) -> None:
    made = counting(tmp_path, count)
    file = tmp_path / "acme_npu_backend.so"
    why = f"device_count returned {count}, which is not a number from 0 to 64 ({file})"
    assert made.absent() == {"acme": why} and [d.id for d in made.devices()] == ["cpu"]
    made.close()


@needs_compiler
def test_A21_a_library_with_no_device_and_one_with_many(tmp_path: Path) -> None:
    made = counting(tmp_path / "none", 0)
    assert "device_count returned 0: the library finds no device" in made.absent()["acme"]
    made.close()
    made = counting(tmp_path / "many", MOST_DEVICES)
    assert made.absent() == {} and len(made.devices()) == MOST_DEVICES + 1
    made.close()


@needs_compiler
def test_A21_a_library_that_is_absent_without_a_reason_is_named(tmp_path: Path) -> None:
    made = counting(tmp_path, None, absent="(void)r; (void)n;")
    file = tmp_path / "acme_npu_backend.so"
    assert made.absent() == {"acme": f"absent returned 1 and wrote no reason ({file})"}
    made.close()
