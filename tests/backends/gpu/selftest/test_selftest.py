"""Special kernels are tested by value, in a process of their own, once for a device, driver and version of Weft."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers import fake_kernels as fakes
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.lowering.launches import builder as launch_builder
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import child, value_check, verdict_store
from weft.backends.gpu.tuning import tuner
from weft.core.contract.backend import BackendInfo, DeviceInfo, StorageType
from weft.core.contract.backend_options import Options
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import Tensor
from weft.core.host.disk_cache import DiskCache
from weft.core.registry.backend_registry import registry
from weft.errors import (
    BackendError,
    CompileError,
    ConfigError,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    UnsupportedOps,
)
from weft.kernels import chooser, gpu_op, special
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.verdict import Verdict

SHIPPED = [k for k in (*special.special_kernels(), *special.kernel_families()) if k.module.startswith("weft.")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    yield
    fakes.WANTED.clear()


@pytest.fixture(params=["opencl", "vulkan"])
def runtime(request: pytest.FixtureRequest) -> GpuRuntime:
    return _runtime(request.param)


def _runtime(name: str) -> GpuRuntime:
    creator = registry.find(name)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0)


def whys(runtime: GpuRuntime, *names: str, timeout: float = 60.0) -> dict[str, str]:
    fakes.WANTED.clear()
    fakes.WANTED.update(names)
    kinds = [kind for kind in special.special_kernels() if kind.present(runtime.device.caps)]
    found = verdict_store.verdicts(runtime, kinds, timeout)
    return {name: verdict.why for name, verdict in found.items() if verdict.why is not None}


def in_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(child, "_start", refuse)


def test_right_kernels_stay_and_the_next_start_reads_it(
    runtime: GpuRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "weft.selftest"):
        assert whys(runtime, "right", "noisy") == {}
    assert [r.args[0] for r in caplog.records if isinstance(r.args, tuple)] == ["right", "noisy"]
    in_no_child(monkeypatch)
    assert whys(runtime, "right", "noisy") == {}


@pytest.mark.usefixtures("warm_children")
def test_a_wrong_kind_is_refused_with_its_difference(
    runtime: GpuRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = whys(runtime, "wrong", "noisy")
    assert list(found) == ["wrong"] and "Softmax of (5, 33) was wrong by" in found["wrong"]
    in_no_child(monkeypatch)
    again = whys(runtime, "wrong", "noisy")
    assert again["wrong"].startswith(found["wrong"]) and "earlier start" in again["wrong"]


@pytest.mark.usefixtures("warm_children")
def test_a_crash_is_blamed_on_its_kind_and_the_others_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime("opencl")
    names = ("named", "crashing", "noisy", "leaving")
    found = whys(runtime, *names)
    assert set(found) == {"crashing", "named", "leaving"}
    assert "was ended by SIGABRT" in found["crashing"] and "ended with status 3" in found["leaving"]
    in_no_child(monkeypatch)
    assert set(whys(runtime, *names)) == set(found), "crashes are remembered, for they would come again"


@pytest.mark.usefixtures("warm_children")
def test_a_hang_is_remembered_for_a_day_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime("opencl")
    found = whys(runtime, "hanging", "noisy", timeout=5.0)
    assert list(found) == ["hanging"] and "did not end within 5 s" in found["hanging"]
    in_no_child(monkeypatch)
    assert whys(runtime, "noisy") == {}
    assert "earlier start" in whys(runtime, "hanging")["hanging"]
    now = time.time() + verdict_store.KEPT
    monkeypatch.setattr(time, "time", lambda: now)
    with pytest.raises(AssertionError, match="was started"):
        whys(runtime, "hanging")


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("beside", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 9))])
def test_children_side_by_side_find_what_one_finds(beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails beside others is tested once more, in a child of its own each time."""
    started: list[list[str]] = []
    start = child._start

    def noted(device: DeviceInfo, options: Options, kinds: Sequence[special.SpecialKernel], *pipes: Any) -> Any:
        started.append([kind.name for kind in kinds])
        return start(device, options, kinds, *pipes)

    monkeypatch.setattr(child, "_start", noted)
    device = _runtime("opencl").device.info
    kinds = [fakes.RECOVERING, fakes.NOISY, fakes.CRASHING, fakes.RAISING]
    found = child.verdicts(device, kinds, 60.0, beside)
    assert "SIGABRT" in str(found["crashing"].why) and "KeyError" in str(found["raising"].why)
    assert found["noisy"].why is None and found["recovering"].why is None
    together, alone = started[: min(beside, 4)], started[min(beside, 4) :]
    assert all(names == [kind.name for kind in kinds] for names in together), "who is free tests the next"
    assert alone == [["recovering", "crashing", "raising"], ["raising"]]


@pytest.mark.usefixtures("warm_children")
def test_a_child_must_find_the_same_card() -> None:
    """Software devices have no UUID, so a child that is not told of one finds another card on GPUs alone."""
    device = replace(_runtime("opencl").device.info, uuid="GPU-of-another")
    assert "in place of" in str(child.verdicts(device, [fakes.NOISY], 60.0)["noisy"].why)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.long
def test_a_hang_beside_others_ends_too() -> None:
    device = _runtime("opencl").device.info
    found = child.verdicts(device, [fakes.HANGING, fakes.NOISY], 5.0, beside=2)
    assert "did not end within 5 s" in str(found["hanging"].why) and found["noisy"].why is None


@pytest.mark.usefixtures("warm_children")
def test_what_a_test_raises_is_a_verdict(runtime: GpuRuntime) -> None:
    assert "KeyError" in whys(runtime, "raising")["raising"]


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("mode", ["auto", "child", "process", "off"])
def test_the_variable_chooses_where_tests_run(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", mode)
    runtime, here = _runtime("opencl"), f"{fakes.TESTED}{os.getpid()}"
    found = whys(runtime, "named").get("named", "")
    assert (found == "") == (mode == "off") and (found == here) == (mode == "process")


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "perhaps")
    with pytest.raises(ConfigError, match="perhaps"):
        whys(_runtime("opencl"), "noisy")
    with null_gpu() as device, pytest.raises(ConfigError, match="perhaps"):
        verdict_store.verify(GpuRuntime(device))


@pytest.mark.parametrize("broken", ["", "/no/such/python", sys.executable])
def test_where_no_child_starts_the_kernels_are_not_used_this_time(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", broken)
    if broken == sys.executable and broken:
        monkeypatch.setattr(child, "PROGRAM", "import sys; sys.exit('no such module')")
    found = whys(_runtime("opencl"), "noisy", "right")
    assert set(found) == {"noisy", "right"} and all("WEFT_SELFTEST=process" in why for why in found.values())
    monkeypatch.undo()
    in_no_child(monkeypatch)
    with pytest.raises(AssertionError, match="was started"):
        whys(_runtime("opencl"), "noisy")


@pytest.mark.usefixtures("warm_children")
def test_a_device_that_the_child_does_not_know_is_not_trusted() -> None:
    with null_gpu() as device:
        why = whys(GpuRuntime(device), "noisy")["noisy"]
    assert "null" in why and "WEFT_SELFTEST=process" in why


def small() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", 2, 3), name="y"))


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("name", ["right", "crashing"])
def test_a_report_says_what_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `weft.load`, on a runtime that is new."""
    creator = registry.find("opencl")
    assert isinstance(creator, GpuCreator)
    fresh = GpuRuntime(creator.open(0))
    monkeypatch.setattr(creator, "_leased", lambda index, options, lease: fresh)
    items = fresh.device.caps.max_local_items
    fakes.WANTED.add(name)
    try:
        with weft.load(small(), "opencl", fallback="error") as session:
            notes = [n for n in session.report.notes if "are not used" in n]
        assert fresh.verdicts.seconds > 0
        assert fresh.device.caps.max_local_items == (items if name == "right" else items // 2)
    finally:
        fresh.close()
    assert len(notes) == (name == "crashing")
    if notes:
        assert "kernels that are crashing are not used: its test in a process of its own" in notes[0]


class Unseen:
    """A device that nobody has tested, and what its tests are said to find."""

    def __init__(self, runtime: GpuRuntime) -> None:
        self.runtime, self.tested, self.wrong = runtime, list[list[str]](), set[str]()
        self.may_end = threading.Event()
        self.may_end.set()

    def verdicts(
        self, device: DeviceInfo, kinds: Sequence[special.SpecialKernel], *_: object
    ) -> dict[str, Verdict]:
        self.tested.append([kind.name for kind in kinds])
        assert self.may_end.wait(60)
        return {kind.name: Verdict("wrong" if kind.name in self.wrong else None) for kind in kinds}


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Unseen]:
    creator = registry.find("opencl")
    assert isinstance(creator, GpuCreator)
    made = Unseen(GpuRuntime(creator.open(0)))
    monkeypatch.setenv("WEFT_SELFTEST", "child")
    monkeypatch.setattr(child, "verdicts", made.verdicts)
    monkeypatch.setattr(creator, "_leased", lambda index, options, lease: made.runtime)
    yield made
    made.runtime.close()


def pooled() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.add("MaxPool", net.input("x", 1, 8, 9, 9), kernel_shape=(3, 3)), name="y"))


def test_kernels_are_tested_before_a_network_first_uses_them(unseen: Unseen) -> None:
    for graph, precision in ((small(), "high"), (small(), "high"), (pooled(), "high"), (small(), "low")):
        weft.load(graph, "opencl", fallback="error", precision=precision).close()
    first, second, third = unseen.tested
    assert "elementwise" in first and not {"pool", "conv_gemm", "fp16_storage", "int8_storage"} & {*first}
    assert "pool" in second and not {*first} & {*second}, "each is tested once"
    assert "fp16_storage" in third, "what shows in a kernel is tested where it does"
    verdict_store.verify(unseen.runtime)
    verdicts = unseen.runtime.verdicts
    assert "conv_gemm" in unseen.tested[-1] and verdicts.known and not verdicts.untested


def test_programs_that_start_at_once_test_one_after_the_other(unseen: Unseen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one finds what the first one kept."""
    came, events, turn = threading.Event(), list[str](), DiskCache.turn

    @contextmanager
    def noted(cache: DiskCache, seconds: float) -> Iterator[bool]:
        came.set()
        with turn(cache, seconds) as alone:
            events.append("the second program's turn")
            yield alone

    first = GpuRuntime(registry.find("opencl").open(0))  # type: ignore[attr-defined]
    with DiskCache("selftest").turn(0.0):
        monkeypatch.setattr(DiskCache, "turn", noted)
        second = threading.Thread(target=verdict_store.verify, args=(unseen.runtime, ["pool"]))
        second.start()
        assert came.wait(60)
        monkeypatch.setattr(DiskCache, "turn", lambda cache, seconds: nullcontext(True))
        verdict_store.verify(first, ["pool"])
        events.append("the first program ends")
    second.join()
    first.close()
    assert events == ["the first program ends", "the second program's turn"]
    assert len([names for names in unseen.tested if "pool" in names]) == 1


def test_a_program_waits_as_long_as_others_get_on(unseen: Unseen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tests beside them only if one had its turn for the whole time, and nothing new was kept."""
    kept, looks = [b"{}", b'{"other": 1}', b'{"other": 1}'], list[float]()

    def never_its_own(cache: DiskCache, seconds: float) -> AbstractContextManager[bool]:
        looks.append(seconds)
        return nullcontext(False)

    monkeypatch.setattr(DiskCache, "turn", never_its_own)
    monkeypatch.setattr(DiskCache, "get", lambda cache, key: kept[min(len(looks), 2)])
    verdict_store.verify(unseen.runtime, ["pool"])
    assert looks[:2] == [verdict_store.TIMEOUT] * 2 and unseen.tested


def test_a_network_is_planned_anew_if_its_kernels_are_wrong(unseen: Unseen) -> None:
    unseen.wrong = {"pool", "pool_planar", "max_pool_planar"}
    with weft.load(pooled(), "opencl") as session:
        placed = {*session.report.placement.values()}
    assert placed == {"cpu", "opencl"}


def test_two_sessions_that_meet_a_wrong_kernel_at_once_are_both_planned_anew(
    unseen: Unseen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has planned, and asks for a test, before the first one's has ended."""
    unseen.wrong = {"pool", "pool_planar", "max_pool_planar"}
    unseen.may_end.clear()
    asked, placed, verify = list[object](), list[set[str]](), verdict_store.verify

    def noted(runtime: GpuRuntime, templates: Collection[str] | None = None) -> bool:
        if templates:
            asked.append(templates)
        if len(asked) == 2:
            unseen.may_end.set()
        return verify(runtime, templates)

    def load() -> None:
        with weft.load(pooled(), "opencl") as session:
            placed.append({*session.report.placement.values()})

    monkeypatch.setattr(verdict_store, "verify", noted)
    verdict_store.recall(unseen.runtime)  # a session that waits for this while the other one tests would never ask
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert placed == [{"cpu", "opencl"}] * 2


@pytest.mark.parametrize("wrong", [False, True])
def test_a_copy_tests_its_kernels_and_does_without_wrong_ones(unseen: Unseen, wrong: bool) -> None:
    unseen.wrong = {"relayout"} if wrong else set()
    backend = registry.find("opencl").onCreate(BackendInfo("opencl", 0))
    given = np.arange(30, dtype=np.float32).reshape(1, 5, 3, 2)
    plain, packed = (Tensor("t", given.shape, DType.FLOAT32, layout) for layout in (Layout.NCHW, Layout.NC4HW4))
    try:
        for tensor in (plain, packed):
            assert backend.onAcquireBuffer(tensor, StorageType.STATIC)
        got = Tensor.empty(given.shape, DType.FLOAT32, Layout.NC4HW4, "got")
        for source, target in ((Tensor.from_numpy(given), plain), (plain, packed), (packed, got)):
            backend.onCopyBuffer(source, target)
    finally:
        backend.close()
    np.testing.assert_array_equal(got.numpy(), given)
    assert [names for names in unseen.tested if "relayout" in names]


def test_a_saved_network_whose_kernels_are_wrong_is_to_be_optimised_again(
    unseen: Unseen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    weft.optimize(pooled(), "opencl").save(tmp_path / "pooled.weft")
    monkeypatch.setenv("WEFT_SELFTEST", "child")
    unseen.runtime.verdicts.known = unseen.runtime.verdicts.recalled = False
    unseen.wrong = {"pool", "pool_planar", "max_pool_planar"}
    with pytest.raises(UnsupportedOps) as caught:
        weft.load(tmp_path / "pooled.weft")
    assert "optimise the model again" in caught.value.fix


def test_a_kind_is_tested_without_those_that_might_take_its_place() -> None:
    runtime, seen = _runtime("opencl"), []
    fakes.WANTED.update(("noisy", "named"))
    watched = special.SpecialKernel(
        "watched",
        "watched",
        lambda caps: True,
        lambda caps: caps,
        check=lambda r: seen.append(r.device.caps.max_local_items),  # type: ignore[func-returns-value]
    )
    items = runtime.device.caps.max_local_items
    assert value_check.check(watched, runtime, [fakes.NOISY, watched]) is None
    assert seen == [items // 2] and runtime.device.caps.max_local_items == items


def test_what_takes_the_place_of_a_wrong_kind_is_tested_then(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def kind(name: str, why: str | None, there: Callable[[DeviceCaps], bool]) -> special.SpecialKernel:
        def check(_: object) -> str | None:
            tested.append(name)
            return why

        return special.SpecialKernel(
            name, name, there, lambda caps: replace(caps, without=caps.without | {name}), check=check
        )

    large = kind("large", "wrong", lambda caps: "large" not in caps.without)
    small = kind("small", None, lambda caps: "large" in caps.without)
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    monkeypatch.setattr(verdict_store, "special_kernels", lambda: [small, large])
    monkeypatch.setattr(verdict_store, "kernel_families", list)
    creator = registry.find("opencl")
    assert isinstance(creator, GpuCreator)
    runtime = GpuRuntime(creator.open(0))
    try:
        verdict_store.verify(runtime)
        assert tested == ["large", "small"] and runtime.device.caps.without >= {"large"}
        assert "small" not in runtime.device.caps.without and runtime.notes == ["large are not used: wrong"]
    finally:
        runtime.close()


def test_what_did_not_run_says_nothing_of_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used with a note, and it is kept; those for special hardware are not used."""
    pool = next(family for family in special.kernel_families() if family.name == "pool")
    elsewhere = replace(pool, templates=("lrn",), withdraw=lambda caps: replace(caps, without=frozenset({"pool"})))
    odd = replace(fakes.RIGHT, template="lrn")
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    monkeypatch.setattr(verdict_store, "special_kernels", lambda: [odd])
    monkeypatch.setattr(verdict_store, "kernel_families", lambda: [elsewhere])
    fakes.WANTED.add("right")
    creator = registry.find("vulkan")
    assert isinstance(creator, GpuCreator)
    for known in (False, True):
        runtime = GpuRuntime(creator.open(0))
        try:
            verdict_store.verify(runtime)
        finally:
            runtime.close()
        right, portable = runtime.notes
        assert "that are right are not used: none of its cases ran" in right
        assert "pools are used untested: none of its cases ran on such kernels (lrn)" in portable
        assert ("earlier start" in portable) == known and "pool" not in runtime.device.caps.without
        assert runtime.verdicts.by_name["pool"].word == "untested" and not runtime.verdicts.by_name["pool"].is_fault


def test_special_and_portable_kernels_share_one_round_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[int, list[float], list[str]]] = []

    def start(
        device: DeviceInfo, options: Options, kinds: Sequence[special.SpecialKernel], timeout: float, count: int, _: Any
    ) -> Any:
        rounds.append((count, [kind.seconds for kind in kinds], sorted(kind.name for kind in kinds)))
        return [({kind.name: Verdict(None) for kind in kinds}, "")]

    families = special.kernel_families()
    monkeypatch.setattr(child, "_children", start)
    monkeypatch.setattr(verdict_store, "special_kernels", lambda: [fakes.NOISY])
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    fakes.WANTED.add("noisy")
    with null_gpu() as device:
        found = verdict_store.examine(GpuRuntime(device), families=True)
    present = ["noisy", *(family.name for family in families if family.present(device.caps))]
    [(count, seconds, names)] = rounds
    assert count == verdict_store.MOST_CHILDREN and names == sorted(present)
    assert seconds == sorted(seconds, reverse=True), "or the longest may run when the others are done"
    assert [kind.name for kind, _ in found] == present


@pytest.mark.parametrize("fails", ["__init__", "difference"])
def test_a_device_that_is_full_is_tested_again_another_time(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutOfMemory("16 bytes cannot be allocated")

    monkeypatch.setattr(value_check.ReadyNode, fails, full)
    verdict = verdict_store.verdict(fakes.RIGHT, _runtime("vulkan"))
    assert not verdict.lasting and "no memory" in str(verdict.why)


@pytest.mark.parametrize("fails", ["__init__", "difference"])
@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (CompileError("the kernel 'k' does not compile"), True),
        (DeviceLost("the device does not answer"), False),
        (DeviceError("a submit failed"), False),
        (RuntimeError("a submit failed"), False),
    ],
    ids=repr,
)
def test_what_the_device_fails_at_is_tested_again_after_a_day_and_what_does_not_compile_is_not(
    fails: str, error: Exception, for_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    runtime = _runtime("vulkan")
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    with monkeypatch.context() as patch:
        patch.setattr(value_check.ReadyNode, fails, fail)
        found = whys(runtime, "right")["right"]
    assert str(error).partition("\n")[0] in found
    assert whys(runtime, "right")["right"] == f"{found} ({verdict_store.AGAIN})"
    later = time.time() + verdict_store.KEPT + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert bool(whys(runtime, "right")) == for_good


def test_the_key_of_a_verdict_does_not_depend_on_the_order_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _runtime("opencl").device
    names = [f"kind{k}" for k in range(9)]
    keys = set()
    for order in (names, names[::-1], names[4:] + names[:4]):
        monkeypatch.setattr(device, "caps", replace(device.caps, without=frozenset(order)))
        keys.add(verdict_store.key_of(device))
    assert len(keys) == 1 and str(names) in keys.pop().replace("(", "[").replace(")", "]")


def test_the_key_of_a_verdict_changes_with_the_driver() -> None:
    device = _runtime("opencl").device
    before = verdict_store.key_of(device)
    assert before == verdict_store.key_of(device)
    with null_gpu() as other:
        assert verdict_store.key_of(other) != before


def test_the_key_of_a_verdict_follows_from_every_module_that_chooses_launches() -> None:
    read = set(verdict_store.launching_modules())
    forms = [type(form) for form in gpu_op._GPU_OPS.values() if type(form).__module__.startswith("weft.")]
    assert {Path(inspect.getfile(form)) for form in forms} <= read
    assert {Path(str(sys.modules[kind.module].__file__)) for kind in SHIPPED} <= read
    assert {Path(launch_builder.__file__), Path(tuner.__file__), Path(chooser.__file__)} <= read


@pytest.mark.usefixtures("warm_children")
def test_a_verdict_of_other_code_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime("opencl")
    assert whys(runtime, "noisy") == {}
    monkeypatch.setattr(verdict_store, "_code", lambda module: "edited")
    in_no_child(monkeypatch)
    with pytest.raises(AssertionError, match="was started"):
        whys(runtime, "noisy")


@pytest.mark.usefixtures("warm_children")
def test_all_verdicts_of_a_device_are_one_file_and_later_ones_join(tmp_path: Path) -> None:
    runtime = _runtime("opencl")
    assert whys(runtime, "noisy") == {} and set(whys(runtime, "named")) == {"named"}
    [file] = (tmp_path / "selftest").iterdir()
    assert b"noisy" in file.read_bytes() and b"named" in file.read_bytes()


def test_it_is_told_before_the_last_ones_are_tested() -> None:
    told = threading.Event()
    kinds = [fakes.NOISY, fakes.RIGHT, fakes.NAMED, fakes.RAISING]
    found = child.verdicts(_runtime("opencl").device.info, kinds, 60.0, beside=2, nearly_done=told.set)
    assert told.is_set() and len(found) == 4


def test_a_name_is_registered_once() -> None:
    with pytest.raises(BackendError, match="right"):
        special.register_kernels(fakes.RIGHT)
    with pytest.raises(BackendError, match="a family of kernels has that name"):
        special.register_kernels(replace(fakes.RIGHT, name=special.kernel_families()[0].name))
