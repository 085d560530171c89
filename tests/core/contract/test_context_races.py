"""Contract row A10: a close concurrent with loads, and the first use of the process's runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Mock, registered
from tests.helpers.nets import Net, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.session import runtime as runtimes
from weft.core.session.load_gate import LoadGate
from weft.core.session.runtime import Runtime, default_runtime
from weft.errors import BackendError, ClosedError, InputError

WAIT = 60
"""Seconds after which a test that hangs fails."""


def relu() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", 2, 3), name="y"))


class Held(Mock):
    """Waits in the middle of a load until it is let go."""

    begun, go = threading.Event(), threading.Event()

    def onResizeBegin(self) -> None:
        self.begun.set()
        assert self.go.wait(WAIT)
        super().onResizeBegin()


@pytest.fixture
def held() -> Iterator[type[Held]]:
    Held.begun.clear()
    Held.go.clear()
    with registered(Creator(Held), "held"):
        yield Held
        Held.go.set()


def test_A10_a_close_waits_for_a_load_and_unloads_what_it_loaded(held: type[Held]) -> None:
    network = weft.optimize(relu(), "held")
    runtime = weft.Runtime()
    with ThreadPoolExecutor(2) as pool:
        load = pool.submit(runtime.load, network)
        assert held.begun.wait(WAIT)
        closed = closing(pool, runtime)
        assert not closed.done()
        with pytest.raises(ClosedError):
            runtime.load(network)
        with pytest.raises(ClosedError):
            weft.load(relu(), "cpu", runtime=runtime)
        held.go.set()
        load.result(WAIT)
        closed.result(WAIT)
    assert runtime.networks == [] and not runtime.is_open
    with pytest.raises(InputError):
        runtime.run(load.result(), feeds(relu()))


def closing(pool: ThreadPoolExecutor, runtime: Runtime) -> Future[None]:
    """Start a close and return once it keeps loads out."""
    begun = threading.Event()
    changed = runtime._gate._changed
    wait = changed.wait_for

    def noted(predicate, timeout=None):  # type: ignore[no-untyped-def]
        if runtime._gate._closer is not None:
            begun.set()
        return wait(predicate, timeout)

    changed.wait_for = noted  # type: ignore[method-assign]
    closed = pool.submit(runtime.close)
    assert begun.wait(WAIT)
    return closed


def test_A10_a_session_of_a_load_in_flight_is_closed_with_the_runtime(held: type[Held]) -> None:
    runtime = weft.Runtime()
    with ThreadPoolExecutor(2) as pool:
        load = pool.submit(weft.load, relu(), "held", runtime=runtime)
        assert held.begun.wait(WAIT)
        closed = closing(pool, runtime)
        held.go.set()
        session = load.result(WAIT)
        closed.result(WAIT)
    with pytest.raises(ClosedError):
        session.run(feeds(relu()))


def test_A10_a_load_that_fails_lets_a_close_go_on(held: type[Held], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Held) -> None:
        raise ValueError("broken")

    network = weft.optimize(relu(), "held")
    monkeypatch.setattr(held, "onResizeEnd", broken)
    runtime = weft.Runtime()
    with ThreadPoolExecutor(2) as pool:
        load = pool.submit(runtime.load, network)
        assert held.begun.wait(WAIT)
        closed = closing(pool, runtime)
        held.go.set()
        assert "broken" in str(load.exception(WAIT))
        closed.result(WAIT)
    assert not runtime.is_open


def test_A10_a_load_cannot_close_its_own_runtime() -> None:
    runtime, said = weft.Runtime(), []

    def progress(done: int, total: int) -> None:
        with pytest.raises(InputError, match="cannot be closed here") as e:
            runtime.close()
        said.append(e)

    network = runtime.load(weft.optimize(relu(), "cpu"), progress=progress)
    assert said and runtime.is_open
    np.testing.assert_array_equal(runtime.run(network, feeds(relu()))[0], outputs(relu(), feeds(relu()))[0])
    runtime.close()
    runtime.close()
    assert not runtime.is_open


class Stays(weft.BackendContext):
    """Refuses to unload as long as `refuses`."""

    refuses = True

    def before_unload(self, network: int) -> bool:
        return not self.refuses


class WithStays(Creator):
    def create_context(self) -> weft.BackendContext | None:
        return Stays()


def test_A10_a_runtime_that_could_not_be_closed_takes_loads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(WithStays(Mock), "acme"):
        runtime = weft.Runtime()
        network = weft.optimize(relu(), "acme")
        runtime.load(network)
        with pytest.raises(BackendError, match="refused to unload"):
            runtime.close()
        assert runtime.is_open
        runtime.load(network)
        monkeypatch.setattr(Stays, "refuses", False)
        runtime.close()
        assert runtime.networks == []


def test_A10_two_closes_go_one_after_the_other() -> None:
    gate, inside, go = LoadGate("the gate"), threading.Event(), threading.Event()
    order = []

    def close(name: str) -> None:
        with gate.closing():
            order.append(name)
            inside.set()
            assert go.wait(WAIT)
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(close, "first")
        assert inside.wait(WAIT)
        second = pool.submit(close, "second")
        assert not gate.is_open
        go.set()
        first.result(WAIT)
        second.result(WAIT)
    assert order == ["first", "first", "second", "second"]


class Watched:
    """A lock that counts who wants it."""

    def __init__(self) -> None:
        self.lock, self.wanted = threading.Lock(), threading.Semaphore(0)

    def __enter__(self) -> None:
        self.wanted.release()
        assert self.lock.acquire(timeout=WAIT)

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def test_A10_threads_that_ask_first_at_the_same_time_get_one_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, inside, go, made = Watched(), threading.Event(), threading.Event(), []

    class Slow(Runtime):
        def __init__(self) -> None:
            made.append(self)
            inside.set()
            assert go.wait(WAIT)
            super().__init__()

    monkeypatch.setattr(runtimes, "_default", None)
    monkeypatch.setattr(runtimes, "_default_lock", lock)
    monkeypatch.setattr(runtimes, "Runtime", Slow)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(default_runtime) for _ in range(4)]
        came = inside.wait(WAIT) and all(lock.wanted.acquire(timeout=WAIT) for _ in asked)
        go.set()
        got = {id(each.result(WAIT)) for each in asked}
    assert came and len(made) == len(got) == 1


def test_A10_who_asks_after_a_close_gets_another_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_default", None)
    first = default_runtime()
    first.close()
    assert default_runtime() is not first and default_runtime() is default_runtime()
