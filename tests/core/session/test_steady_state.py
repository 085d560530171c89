"""Runs allocate and compile nothing, sessions leave nothing behind, and threads get the right answers."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, branching, feeds
from tests.helpers.opened import held, stats
from tests.helpers.waits import ended, soon
from weft.core.contract.backend import Backend
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.core.session.loader import close_forgotten
from weft.core.session.pipeline import Pipeline

DEVICES = ("cpu", "opencl", "vulkan")
GPUS = ("opencl", "vulkan")
WINDOWS, MOST_LEFT = 6, 300
"""How many windows of sessions are made and closed, and the bytes a session that one of these may leave."""
GRAPH = branching(8)


def flexible() -> Graph:
    """Return a network with an open batch and a bit of everything that a plan knows."""
    net = Net()
    x = net.input("x", "N", 4, 6, 6)
    stem = net.add("Relu", net.add("Conv", x, net.random(8, 4, 3, 3), net.random(8), pads=(1, 1, 1, 1)))
    left = net.add("Conv", stem, net.random(4, 8, 1, 1), net.random(4))
    both = net.add("Concat", stem, left, axis=1)
    pooled = net.add("Flatten", net.add("GlobalAveragePool", both))
    return net.finish(net.add("Softmax", net.add("Gemm", pooled, net.random(12, 5), net.random(5)), name="y"))


def free() -> None:
    """Free what nobody holds, and sessions that nobody closed."""
    gc.collect()
    close_forgotten()
    gc.collect()


def objects() -> dict[str, int]:
    """Return how many objects of the kinds that a session owns are alive."""
    free()
    kinds = (weft.Session, Pipeline, Backend, Tensor, weft.Execution, Graph)
    alive = Counter(map(type, gc.get_objects()))  # a question for each type: abstract ones take long to answer
    return {kind.__name__: sum(n for made, n in alive.items() if issubclass(made, kind)) for kind in kinds}


# -- a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_a_run_allocates_no_device_memory_and_compiles_nothing(device: str, memory: str) -> None:
    with weft.load(GRAPH, device=device, memory=memory, fallback="error") as session:
        found = stats(device)
        assert found is not None
        before, submits = astuple(found), found.submits
        for seed in range(5):
            (y,) = session.run(feeds(GRAPH, seed))
            np.testing.assert_allclose(y, outputs(GRAPH, feeds(GRAPH, seed))[0], rtol=1e-4, atol=1e-6)
        session.submit(feeds(GRAPH))
        session.wait()
        assert found.submits == submits + 6, "a run is one submit"
        found.submits = submits
        assert astuple(found) == before


@pytest.mark.parametrize("device", GPUS)
def test_a_resize_to_shapes_of_before_compiles_nothing(device: str) -> None:
    with weft.load(flexible(), device=device, fallback="error") as session:
        found = stats(device)
        assert found is not None
        for n in (1, 2):
            session.resize({"x": (n, 4, 6, 6)})
        compiled = found.compiles
        for n in (1, 2):  # both stay loaded from now on
            session.resize({"x": (n, 4, 6, 6)})
        before = held(device)
        for n in (1, 2, 1, 2):
            session.resize({"x": (n, 4, 6, 6)})
        assert found.compiles == compiled
        assert held(device) == before


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_leaves_no_objects_behind(device: str) -> None:
    with weft.load(GRAPH, device=device) as session:
        session.run(feeds(GRAPH))
        before = objects()
        for _ in range(20):
            session.run(feeds(GRAPH))
        assert objects() == before


# -- sessions ------------------------------------------------------------------------------------------------


def use(device: str) -> None:
    """Open, run, resize, run and close."""
    graph = flexible()
    with weft.load(graph, device=device, shapes={"x": (1, 4, 6, 6)}) as session:
        for n in (1, 2):
            session.resize({"x": (n, 4, 6, 6)})
            assert session.run(np.zeros((n, 4, 6, 6), np.float32))[0].shape == (n, 5)


def drop(device: str) -> None:
    """Open, run, and forget to close."""
    weft.load(GRAPH, device=device).run(feeds(GRAPH))


@pytest.mark.covering
@pytest.mark.parametrize("window", [10, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("once", [use, drop])
def test_sessions_leave_nothing_behind(device: str, once: Callable[[str], None], window: int) -> None:
    once(device)
    objects_before, held_before, growth = objects(), held(device), [float("inf")]
    tracemalloc.start()
    try:
        # A leak grows in every window; caches of limited size, of re, abc and pyopencl, fill up in some.
        while len(growth) < 3 or (min(growth) > MOST_LEFT and len(growth) <= WINDOWS):
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(window):
                once(device)
            free()
            growth.append((tracemalloc.get_traced_memory()[0] - before) / window)
            objects_after = objects()  # which fills caches of abc
    finally:
        tracemalloc.stop()
    assert objects_after == objects_before
    assert held(device) == held_before
    assert min(growth) <= MOST_LEFT, f"each session leaves {min(growth):.0f} bytes of Python objects"


@pytest.mark.parametrize("device", GPUS)
def test_what_a_session_had_on_the_device_is_free_after_its_close(device: str) -> None:
    before = held(device)
    session = weft.load(GRAPH, device=device)
    session.run(feeds(GRAPH))
    assert held(device) > before
    session.close()
    assert held(device) == before


@pytest.mark.parametrize("device", GPUS)
def test_a_session_that_nobody_closed_is_freed_when_the_next_is_made(device: str) -> None:
    close_forgotten()
    before = held(device)
    session = weft.load(GRAPH, device=device)
    one = held(device)
    del session
    gc.collect()
    with weft.load(GRAPH, device=device):
        assert held(device) == one
    assert held(device) == before


# -- threads -------------------------------------------------------------------------------------------------


def in_threads(*work: Callable[[], None]) -> None:
    """Run functions at the same time; raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    ended(*threads)
    if errors:
        raise errors[0]


def many_runs(session: weft.Session, graph: Graph, seeds: range) -> Callable[[], None]:
    expected: list[tuple[dict[str, Array], Array]] = [
        (feeds(graph, seed), outputs(graph, feeds(graph, seed))[0]) for seed in seeds
    ]

    def work() -> None:
        for _ in range(10):
            for fed, y in expected:
                np.testing.assert_allclose(session.run(fed)[0], y, rtol=1e-4, atol=1e-6)

    return work


@pytest.mark.parametrize("device", DEVICES)
def test_two_sessions_on_one_device_from_two_threads_give_the_right_answers(device: str) -> None:
    other = branching(12, 4)
    with weft.load(GRAPH, device=device) as one, weft.load(other, device=device) as two:
        in_threads(many_runs(one, GRAPH, range(4)), many_runs(two, other, range(4, 8)))


@pytest.mark.parametrize("device", DEVICES)
def test_one_session_in_two_threads_gives_each_its_own_answers(device: str) -> None:
    with weft.load(GRAPH, device=device) as session:
        in_threads(many_runs(session, GRAPH, range(4)), many_runs(session, GRAPH, range(4, 8)))


@pytest.mark.parametrize("device", DEVICES)
def test_sessions_may_come_and_go_while_others_run(device: str) -> None:
    def come_and_go() -> None:
        for _ in range(10):
            use(device)

    before = held(device)
    with weft.load(GRAPH, device=device) as session:
        in_threads(many_runs(session, GRAPH, range(4)), come_and_go, come_and_go)
    assert held(device) == before


@pytest.mark.parametrize("device", DEVICES)
def test_a_close_from_another_thread_waits_for_the_run(device: str) -> None:
    session = weft.load(GRAPH, device=device)
    started = threading.Event()

    def runs() -> None:
        with pytest.raises(weft.WeftError, match="the session is closed"):
            while True:
                (y,) = session.run(feeds(GRAPH))
                assert y.sum() == pytest.approx(1, abs=1e-4)
                started.set()

    def closes() -> None:
        soon(started)
        session.close()

    in_threads(runs, closes)


@pytest.mark.parametrize("pair", [("opencl", "vulkan"), ("cpu", "vulkan")])
def test_two_devices_work_at_the_same_time(pair: tuple[str, str]) -> None:
    with weft.load(GRAPH, device=pair[0]) as one, weft.load(GRAPH, device=pair[1]) as two:
        in_threads(many_runs(one, GRAPH, range(4)), many_runs(two, GRAPH, range(4, 8)))
