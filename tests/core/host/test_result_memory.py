"""Results in the memory of results that their caller dropped."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.opened import opened
from weft.backends.gpu.pipeline import GpuPipeline
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.host import result_memory
from weft.core.host.result_memory import KEPT
from weft.errors import DeviceError

SHAPE = (3, 1 << 18)
"""A result of 3 MiB."""


@pytest.fixture(params=["cpu", "vulkan"])
def session(request: pytest.FixtureRequest) -> Iterator[weft.Session]:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", SHAPE[1])))
    with weft.load(graph, request.param, shapes={"x": SHAPE}, fallback="error") as session:
        yield session


def full(value: float, rows: int = SHAPE[0]) -> Array:
    return np.full((rows, SHAPE[1]), value, np.float32)


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_dropped_result_gives_its_memory_to_a_later_one(session: weft.Session) -> None:
    places = set[int]()
    held = None
    for value in range(8):
        (held,) = session.run(full(value))
        assert (held == value).all()
        places.add(address(held))
    assert len(places) == 2  # the one that is held while a run writes the other


def test_a_result_stays_as_long_as_something_of_it_is_held(session: weft.Session) -> None:
    whole = [session.run(full(value))[0] for value in range(4)]
    parts = [session.run(full(value))[0].reshape(-1)[5::7][None] for value in range(4)]
    seen = [session.run(full(value))[0].data for value in range(4)]
    for value in range(50, 50 + 2 * KEPT):
        session.run(full(value))
    gc.collect()
    for value in range(4):
        assert all((np.asarray(held[value]) == value).all() for held in (whole, parts, seen))


def test_another_shape_and_the_end_leave_what_is_held(session: weft.Session) -> None:
    (before,) = session.run(full(1))
    (after,) = session.run(full(2, rows=5))
    assert after.shape == (5, SHAPE[1])
    session.close()
    assert (before == 1).all()
    assert (after == 2).all()
    before[...] = 3
    assert before.flags.writeable
    assert (after == 2).all()


def test_few_blocks_are_kept(session: weft.Session) -> None:
    given = full(1)
    tracemalloc.start()
    try:
        many = [session.run(given)[0] for _ in range(6)]
        held = tracemalloc.get_traced_memory()[0]
        many.clear()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held // given.nbytes == 6
    assert kept // given.nbytes == KEPT


# -- memory that the device reaches --------------------------------------------------------------------

GPUS = ("opencl", "vulkan")
"""The GPUs that reach memory of the process."""
COLUMNS = (1 << 17) + 3
TWO = np.array(2, np.float32)


def double(rows: int | str = 2) -> Graph:
    """Return a network with two outputs of an odd size of more than a MB, and one that is known."""
    net = Net()
    x = net.input("x", rows, COLUMNS)
    return net.finish(net.add("Relu", x, name="y"), net.add("Neg", x, name="z"), net.add("Neg", TWO, name="two"))


def numbers(seed: int, rows: int = 2) -> Array:
    """Return numbers that fp16 has as well."""
    return np.random.default_rng(seed).integers(-99, 99, (rows, COLUMNS)).astype(np.float32)


def check(results: Sequence[Array], x: Array) -> None:
    for got, right in zip(results, (np.maximum(x, 0), -x, -TWO), strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offer memory as soon as it was dropped; return the addresses of what devices took."""
    took, reach = list[int](), GpuPipeline.reach

    def noted(pipeline: GpuPipeline, memory: Array) -> object:
        hold = reach(pipeline, memory)
        took.extend([address(memory)] * (hold is not None))
        return hold

    monkeypatch.setattr(result_memory, "PATIENCE", 0)
    monkeypatch.setattr(GpuPipeline, "reach", noted)
    return took


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
def test_devices_leave_results_in_dropped_memory(device: str, precision: str, reached: list[int]) -> None:
    """The host's staging memory stays as it was. The caller holds the last results, and all of them at the end."""
    with weft.load(double(), device, precision=precision, fallback="error") as session:
        (pipeline,) = session.pipelines
        last: tuple[Array, Sequence[Array]] | None = None
        for seed in range(6):
            x = numbers(seed)[:, :: 1 - 2 * (seed % 2)]
            for name in "yz":
                pipeline.mapped[name][...] = -1000
            results = session.run(x)
            check(results, x)
            assert {address(a) in reached for a in results[:2]} == {seed >= 2}
            assert {(pipeline.mapped[name] == -1000).all() for name in "yz"} == {seed >= 2}
            if last is not None:
                check(last[1], last[0])
            last = x, results
        assert len(set(reached)) == len(reached) == 2 * KEPT
        held = [(x, session.run(x)) for x in map(numbers, range(4))]
        for x, results in held:
            check(results, x)
        for x in (numbers(7).astype(np.float16), numbers(8).astype(np.float16)):
            check(session.run(x), x.astype(np.float32))
        mine = np.empty_like(results[0])
        assert session.run(numbers(9), outputs={"y": mine})[0] is mine
        check([mine, -numbers(9), -TWO], numbers(9))


@pytest.mark.parametrize("device", GPUS)
def test_arrays_that_come_with_wait_get_what_is_there(device: str, reached: list[int]) -> None:
    with weft.load(double(), device, precision="low", fallback="error") as session:
        for seed in range(4):
            out = session.output_arrays()
            session.submit(numbers(seed))
            y, z, _ = session.wait(outputs={"y": out["y"]} if seed == 3 else None)
            check([y, z, -TWO], numbers(seed))
        assert y is out["y"] and y.dtype == np.float16
        assert address(z) in reached


@pytest.mark.parametrize("device", GPUS)
def test_after_a_run_that_failed_results_are_right(
    device: str, reached: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with weft.load(double(), device, fallback="error") as session:
        held = [session.run(numbers(seed)) for seed in (0, 1)][1]
        for seed in range(2, 5):
            held = session.run(numbers(seed))
        wait = opened(device).wait

        def fail(recording: object) -> None:
            wait(recording)
            raise DeviceError("it failed")

        for seed in range(5, 8):
            with monkeypatch.context() as patch, pytest.raises(DeviceError, match="it failed"):
                patch.setattr(opened(device), "wait", fail)
                session.run(numbers(seed))
            check(held, numbers(4))
            check(session.run(numbers(seed)), numbers(seed))
        assert len(reached) == 2 * KEPT


@pytest.mark.parametrize("device", GPUS)
def test_results_outlive_a_resize_and_the_session(device: str, reached: list[int]) -> None:
    gc.collect()
    with weft.load(double(), device):  # frees what nobody uses any more
        before = opened(device).stats.live_buffers
    with weft.load(double("N"), device, shapes={"x": (2, COLUMNS)}, fallback="error") as session:
        for _ in range(3):
            small = session.run(numbers(1))
        for _ in range(3):
            large = session.run(numbers(2, rows=3))
        assert address(small[0]) in reached and address(large[0]) in reached
        again = session.run(numbers(3))
    check(small, numbers(1))
    check(large, numbers(2, rows=3))
    check(again, numbers(3))
    small[0][...] = 7
    assert (small[0] == 7).all()
    del small, large, again, session
    gc.collect()
    with weft.load(double(), device):
        assert opened(device).stats.live_buffers == before


@pytest.mark.parametrize("device", GPUS)
def test_threads_with_sessions_of_their_own(device: str, reached: list[int]) -> None:
    def work(start: int) -> None:
        with weft.load(double(), device, fallback="error") as session:
            results = list[Array]()
            for seed in range(start, start + 8):
                results = session.run(numbers(seed))
                check(results, numbers(seed))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (0, 10, 20)))
    assert len(reached) == 3 * 2 * KEPT


@pytest.mark.parametrize("device", GPUS)
def test_a_device_that_refuses_is_asked_once_for_each_result(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Array]()
    monkeypatch.setattr(result_memory, "PATIENCE", 0)
    with weft.load(double(), device, fallback="error") as session:
        monkeypatch.setattr(opened(device), "adopt", asked.append)
        for seed in range(5):
            check(session.run(numbers(seed)), numbers(seed))
    assert len(asked) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("device", GPUS)
def test_a_forked_process_keeps_the_results_that_it_had(device: str, reached: list[int]) -> None:
    with weft.load(double(), device, fallback="error") as session:
        results = list[Array]()
        for _ in range(4):
            results = session.run(numbers(0))
        assert address(results[0]) in reached
        there, here = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(there, 1)
            os._exit(0 if np.array_equal(results[1], -numbers(0)) else 1)
        places = set[int]()
        for seed in range(1, 4):
            results = session.run(numbers(seed))
            check(results, numbers(seed))
            places.add(address(results[0]))
        assert places == {*reached[:: 2]}
        os.write(here, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(there)
        os.close(here)
