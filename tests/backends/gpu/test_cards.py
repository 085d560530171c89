"""Which card a name means, and which cards the variables of GPU vendors hide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.helpers import fake_opencl_driver
from tests.helpers.cli import Cli
from tests.helpers.fake_opencl_driver import Cards
from tests.helpers.fakes import AsynchronousBackend, Creator, registered
from tests.helpers.nets import Net
from weft.backends.gpu.device.cards import Card, uuid_text, visible
from weft.backends.vulkan import physical
from weft.core.contract.backend import DeviceInfo
from weft.core.graph.graph import Graph
from weft.core.placement.optimized_network import Copy
from weft.errors import ConfigError, ModelError, NoDevice

ROOT = Path(__file__).parents[3]
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
H100, A100 = "NVIDIA H100", "NVIDIA A100"
FIRST, SECOND, THIRD = (f"GPU-{k}0010203-0405-0607-0809-0a0b0c0d0e0f" for k in "abc")
CARDS = [
    Card(H100, NVIDIA, FIRST, "0000:65:00.0"),
    Card("Radeon", AMD, "GPU-4b2c000000000001", "0000:03:00.0"),
    Card(H100, NVIDIA, SECOND, "0000:17:00.0"),
    Card("Radeon", AMD, "GPU-4b2c000000000002", "0000:02:00.0"),
    Card("Arc", INTEL, "0000abcd-0000-0000-0000-000000000000", "0000:01:00.0"),
    Card(H100, NVIDIA, THIRD, "0000:31:00.0"),
    Card("a CPU", INTEL, "", "", software=True),
]
ALL = list(range(len(CARDS)))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, ALL),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [2, 1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [0, 1, 2, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 2 "}, [5, 1, 0, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, [5, 1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "1,1,0"}, [1, 3, 4, 6]),
        ({"HIP_VISIBLE_DEVICES": "1,1,0"}, [0, 1, 2, 4, 5, 6]),
        ({"CUDA_VISIBLE_DEVICES": "1,,0"}, [5, 1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-C0010203"}, [2, 1, 5, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-d"}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "b0010203"}, [1, 3, 4, 6]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-a0010203-0405/1/0"}, [1, 3, 4, 6]),
        ({"HIP_VISIBLE_DEVICES": "0"}, [0, 3, 2, 4, 5, 6]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-4b2c000000000001,0"}, ALL),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, [0, 3, 2, 4, 5, 6]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, [0, 2, 4, 5, 6]),
        ({"ZE_AFFINITY_MASK": ""}, ALL),
        ({"ZE_AFFINITY_MASK": "0.1"}, ALL),
        ({"ZE_AFFINITY_MASK": "3,1"}, [0, 1, 2, 3, 5, 6]),
        ({"ZE_AFFINITY_MASK": "x,0"}, ALL),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_variables_hide_the_cards_of_their_vendor(given: dict[str, str], shown: list[int]) -> None:
    found = visible(CARDS, given)
    assert found.shown == shown
    assert len([note for note in found.notes if "is hidden by" in note]) == len(CARDS) - len(shown)


def test_what_is_hidden_is_told_with_the_variable_and_where_its_list_ends() -> None:
    notes = visible(CARDS, {"CUDA_VISIBLE_DEVICES": "1,9,0"}).notes
    assert f"{H100} ({SECOND}, 0000:17:00.0) is hidden by CUDA_VISIBLE_DEVICES=1,9,0, whose list ends at '9'" in notes
    (note, *_) = visible(CARDS, {"CUDA_VISIBLE_DEVICES": ""}).notes
    assert note.endswith("is hidden by CUDA_VISIBLE_DEVICES=''")


def test_a_driver_that_obeys_a_variable_is_not_filtered_again() -> None:
    obeys = [replace(card, obeyed=frozenset({"CUDA_VISIBLE_DEVICES"})) for card in CARDS[:1]]
    found = visible(obeys, {"CUDA_VISIBLE_DEVICES": "1"})
    assert found.shown == [0]
    assert found.notes == ["NVIDIA's own driver obeys CUDA_VISIBLE_DEVICES=1, and lists what it shows"]


@pytest.mark.parametrize(("order", "told"), [(None, 1), ("FASTEST_FIRST", 1), ("PCI_BUS_ID", 0)])
def test_numbers_of_different_cards_are_told_to_depend_on_the_order(order: str | None, told: int) -> None:
    mixed = [CARDS[0], replace(CARDS[2], name=A100)]
    given = {"CUDA_VISIBLE_DEVICES": "0", **({} if order is None else {"CUDA_DEVICE_ORDER": order})}
    found = visible(mixed, given)
    assert found.shown == [1]
    assert sum("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in found.notes) == told
    assert not any("ORDER" in note for note in visible(mixed, {"CUDA_VISIBLE_DEVICES": FIRST}).notes)


@given(st.text(alphabet="0123456789,-. GPUMIGabcdef/", max_size=40))
def test_no_value_of_a_variable_shows_a_card_twice_or_hides_those_of_others(value: str) -> None:
    for name, vendor in (("CUDA_VISIBLE_DEVICES", NVIDIA), ("HIP_VISIBLE_DEVICES", AMD), ("ZE_AFFINITY_MASK", INTEL)):
        shown = visible(CARDS, {name: value}).shown
        assert len(set(shown)) == len(shown)
        others = {i for i, card in enumerate(CARDS) if card.vendor != vendor or card.software}
        assert others <= set(shown)


def test_a_uuid_is_told_as_the_vendors_tools_print_it(tmp_path: Path) -> None:
    raw = bytes([0xA0, *range(1, 16)])
    assert uuid_text(raw, NVIDIA) == "GPU-a0010203-0405-0607-0809-0a0b0c0d0e0f"
    assert uuid_text(raw, INTEL) == "a0010203-0405-0607-0809-0a0b0c0d0e0f"
    assert uuid_text(bytes(16), NVIDIA) == uuid_text(b"", NVIDIA) == ""
    (tmp_path / "0000:03:00.0").mkdir()
    (tmp_path / "0000:03:00.0" / "unique_id").write_text("4b2c000000000001\n")
    assert uuid_text(raw, AMD, "0000:03:00.0", tmp_path) == "GPU-4b2c000000000001"
    assert uuid_text(raw, AMD, "0000:04:00.0", tmp_path) == "a0010203-0405-0607-0809-0a0b0c0d0e0f"


# -- the names of devices --------------------------------------------------------------------------------------


class WithCards(Creator):
    """Lists devices with the identities of `CARDS`, in an order that a test may change."""

    order: tuple[int, ...] = (0, 2, 4, 6)

    def devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(self.id, at, CARDS[k].name, uuid=CARDS[k].uuid, pci=CARDS[k].pci)
            for at, k in enumerate(self.order)
        ]


@pytest.fixture
def acme() -> Iterator[WithCards]:
    creator = WithCards(AsynchronousBackend)
    with registered(creator):
        yield creator


def small() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.add("Neg", net.input("x", 2, 3), name="first"), name="last"))


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("acme:1", 1),
        (f"acme:{SECOND}", 1),
        (f"ACME:{SECOND.upper()}", 1),
        ("acme:GPU-b", 1),
        (f"acme:{SECOND.removeprefix('GPU-')}", 1),
        ("acme:b0010203", 1),
        ("acme:0000abcd-0000", 2),
        ("acme:GPU-0000abcd", 2),
        ("acme:0000:17:00.0", 1),
        ("acme:00000000:17:00.0", 1),
        ("acme:17:00.0", 1),
        ("acme:17:0", 1),
    ],
)
def test_a_device_is_known_by_its_uuid_and_pci_address(acme: WithCards, name: str, index: int) -> None:
    with weft.load(small(), name, hints={"n_first": name}, fallback="error") as session:
        assert set(session.report.placement.values()) == {"acme" if index == 0 else f"acme:{index}"}
        np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], 0)


@pytest.mark.parametrize("name", ["acme:GPU-d", "acme:18:00.0", "acme:9", f"acme:{THIRD}"])
def test_an_unknown_name_lists_what_there_is(acme: WithCards, name: str) -> None:
    with pytest.raises(NoDevice, match=f"there is no device {name}") as caught:
        weft.load(small(), name)
    assert f"acme:1 ({H100}, {SECOND}, 0000:17:00.0)" in str(caught.value)
    assert "acme:3 (a CPU)" in str(caught.value)


def test_a_name_of_several_devices_is_refused_with_these(acme: WithCards) -> None:
    acme.order = (0, 0, 2)
    with pytest.raises(NoDevice, match="acme:GPU-a means several devices") as caught:
        weft.load(small(), "acme:GPU-a")
    assert "acme:0" in str(caught.value) and "acme:1" in str(caught.value) and "acme:2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("acme:", "something follows its colon"), ("acme:one", "'one' is neither an index, which is 0 or more, nor"),
        ("acme:GPU-", "'GPU-' is no UUID"),
        ("acme:GPU-zz", "'GPU-zz' is no UUID: digits from 0 to 9 and a to f follow"),
        ("acme:65:00.9", "'65:00.9' is neither"), ("acme:b00", "'b00' is neither"), ("acme:-1", "'-1' is neither"),
        ("GPU-b", "a UUID follows the id of an API"), ("an id", "an id is letters, digits and _"),
    ],
)
def test_what_cannot_be_a_name_is_refused_before_the_model_is_read(acme: WithCards, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match="is not a device") as caught:
        weft.load("no such model.onnx", name)
    assert why in str(caught.value) and "`weft devices` lists them" in str(caught.value)


def test_a_saved_network_runs_on_the_card_that_was_named_wherever_it_is_listed(
    acme: WithCards, tmp_path: Path
) -> None:
    path = tmp_path / "net.weft"
    network = weft.optimize(small(), ["acme:GPU-b", "cpu"], hints={"n_last": "cpu"})
    assert network.placement == {"n_first": "acme:1", "n_last": "cpu:0"}
    assert network.named == {"acme:1": f"acme:{SECOND}"} and network.copies
    network.save(path)
    acme.order = (2, 4, 0)
    with weft.load(path) as session:
        assert session.report.placement == {"n_first": "acme", "n_last": "cpu"}
        copied = [(n.op.source, n.op.target) for n in session.optimized.copies if isinstance(n.op, Copy)]
        assert copied == [("acme:0", "cpu:0")]
        session.optimized.save(tmp_path / "again.weft")
        np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], 0)
    acme.order = (4, 0, 2)
    with weft.load(tmp_path / "again.weft") as session:
        assert session.report.placement == {"n_first": "acme:2", "n_last": "cpu"}
    acme.order = (4, 0)
    with pytest.raises(NoDevice, match=f"there is no device acme:{SECOND}"):
        weft.load(path)


def test_a_network_that_was_saved_by_index_keeps_the_index(acme: WithCards, tmp_path: Path) -> None:
    weft.optimize(small(), "acme:1").save(tmp_path / "net.weft")
    acme.order = (4, 0, 2)
    with weft.load(tmp_path / "net.weft") as session:
        assert set(session.report.placement.values()) == {"acme:1"} and session.optimized.named == {}


def test_a_file_cannot_send_a_network_to_another_backend(acme: WithCards, tmp_path: Path) -> None:
    network = replace(weft.optimize(small(), "acme:GPU-b"), named={"acme:1": "cpu:0"})
    network.save(tmp_path / "net.weft")
    with pytest.raises(ModelError, match="a device of another backend"):
        weft.load(tmp_path / "net.weft")


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_gpu_devices_are_known_by_what_their_drivers_say(device: str) -> None:
    """Software devices have a UUID or none; each that has one is found by it, in its own process and in others."""
    found = [d for d in weft.devices() if d.id == device and d.uuid]
    assert found, "Intel's runtime and llvmpipe have UUIDs"
    for info in found:
        with weft.load(small(), f"{device}:{info.uuid[:13]}", fallback="error") as session:
            np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], 0)


# -- through a driver that pretends to have cards ---------------------------------------------------------------

FACTS = """
import json, weft
def chosen(name):
    try:
        return weft.registry.choose(name)[0].device
    except weft.WeftError as e:
        return str(e)
listed = [d for d in weft.devices() if d.name == "card of the day"]
facts = {
    "cards": [(d.index, d.uuid, d.pci) for d in listed], "hidden": weft.registry.hidden().get("opencl", []),
    "absent": weft.registry.absent().get("opencl"), "named": chosen("opencl:GPU-a1"),
}
print(json.dumps(facts))
"""


def with_driver(folder: Path, platform: str, cards: Cards, **variables: str) -> dict[str, Any]:
    """Return what a process finds that has a driver with these cards, and these variables."""
    fake_opencl_driver.install(folder, platform, fake_opencl_driver.GPU, cards=cards)
    own = {"OCL_ICD_VENDORS": str(folder), "WEFT_SELFTEST": "off", "WEFT_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", FACTS], cwd=ROOT, env={**os.environ, **own, **variables}, capture_output=True,
        text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


KHRONOS = "cl_khr_device_uuid cl_khr_pci_bus_info"


@pytest.mark.parametrize(
    ("vendor", "extensions", "uuid", "pci"),
    [
        (NVIDIA, KHRONOS, FIRST, "0000:65:00.0"),
        (NVIDIA, "cl_khr_device_uuid cl_nv_device_attribute_query", FIRST, "0000:65:00.0"),
        (AMD, "cl_amd_device_attribute_query", "", "0000:65:00.0"),
        (INTEL, KHRONOS, FIRST.removeprefix("GPU-"), "0000:65:00.0"),
        (0xFA4E, "", "", ""),
    ],
)
def test_opencl_asks_for_the_identity_as_each_vendor_tells_it(
    vendor: int, extensions: str, uuid: str, pci: str, tmp_path: Path
) -> None:
    found = with_driver(tmp_path, "Fake", Cards(2, vendor, extensions))
    assert found["cards"][0] == [0, uuid, pci] and found["cards"][1][2] == pci.replace("65", "55")


def test_a_driver_that_does_not_know_the_variable_hides_the_card_nevertheless(tmp_path: Path) -> None:
    cards = Cards(3, NVIDIA, KHRONOS)
    found = with_driver(tmp_path, "Fake", cards, CUDA_VISIBLE_DEVICES="0,1")
    assert [each[2] for each in found["cards"]] == ["0000:45:00.0", "0000:55:00.0"]
    assert found["hidden"] == [f"card of the day ({FIRST}, 0000:65:00.0) is hidden by CUDA_VISIBLE_DEVICES=0,1"]
    assert found["named"] == "opencl:1"
    found = with_driver(tmp_path, "Fake", cards, CUDA_VISIBLE_DEVICES=FIRST)
    assert "there is no device opencl:GPU-a1" in found["named"] and "is hidden by CUDA_VISIBLE" in found["named"]


def test_nvidias_own_driver_hides_them_itself(tmp_path: Path) -> None:
    """It lists one card, as it does of two with this variable: it must not be taken for card 0."""
    found = with_driver(tmp_path, "NVIDIA CUDA", Cards(1, NVIDIA, KHRONOS), CUDA_VISIBLE_DEVICES="1")
    assert [each[:2] for each in found["cards"]] == [[0, FIRST]]
    assert found["hidden"] == ["NVIDIA's own driver obeys CUDA_VISIBLE_DEVICES=1, and lists what it shows"]


def test_vulkan_devices_are_hidden_and_the_reason_says_by_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """llvmpipe stands for a card: no software device is hidden."""
    card = Card("llvmpipe", NVIDIA, FIRST, "0000:65:00.0")
    monkeypatch.setattr(physical.Physical, "card", card)
    monkeypatch.setattr(physical, "visible", lambda cards: visible(cards, {"CUDA_VISIBLE_DEVICES": "-1"}))
    told = f"llvmpipe ({FIRST}, 0000:65:00.0) is hidden by CUDA_VISIBLE_DEVICES=-1, whose list ends at '-1'"
    assert weft.registry.hidden() == {"vulkan": [told]}
    assert told in weft.registry.absent()["vulkan"]
    with pytest.raises(NoDevice, match="is hidden by CUDA_VISIBLE_DEVICES=-1"):
        weft.load(small(), "vulkan")
    assert "vulkan: llvmpipe" in Cli(capsys)("devices").out


def test_devices_prints_uuids_and_addresses(acme: WithCards, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(Cli(capsys)("devices", "--json").out)["devices"]
    listed = {d["use_as"]: (d["uuid"], d["pci"]) for d in found}
    assert listed["acme:1"] == (SECOND, "0000:17:00.0") and listed["acme:3"] == ("", "")
