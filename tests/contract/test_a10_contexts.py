"""Contract row A10: a runtime loads networks and returns ids; backends' contexts are told, and may refuse."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import weft
from tests.contract.fakes import Creator, Mock, mock, registered
from tests.core.nets import Net, feeds, outputs
from weft.core import session as sessions
from weft.core.backend import Backend
from weft.core.graph import Graph
from weft.core.runtime import default_runtime
from weft.core.session import close_forgotten
from weft.errors import BackendError, ClosedError, ExecutionError, InputError, OutOfMemory

NOTICES = ("before_load", "after_load", "before_unload", "after_unload")


class Told(weft.BackendContext):
    """Notes what it is told; answers `answer[notice]`, which may be an exception."""

    def __init__(self, creator: WithContext) -> None:
        self.creator = creator

    def _hear(self, what: str, network: int) -> bool:
        self.creator.heard.append((self.creator.id, what, network))
        answer = self.creator.answers.get(what, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def before_load(self, network: int) -> bool:
        return self._hear("before_load", network)

    def after_load(self, network: int) -> bool:
        return self._hear("after_load", network)

    def before_unload(self, network: int) -> bool:
        return self._hear("before_unload", network)

    def after_unload(self, network: int) -> bool:
        return self._hear("after_unload", network)


Heard = list[tuple[str, str, int]]


class WithContext(Creator):
    """A creator whose contexts note what they hear in one list."""

    def __init__(self, made: type[Backend] = Mock, heard: Heard | None = None) -> None:
        super().__init__(made)
        self.heard: Heard = [] if heard is None else heard
        self.answers: dict[str, bool | Exception] = {}
        self.contexts = 0

    def create_context(self) -> weft.BackendContext | None:
        self.contexts += 1
        return Told(self)


@pytest.fixture
def acme() -> Iterator[WithContext]:
    with registered(creator := WithContext(mock()), "acme"):
        yield creator


@contextmanager
def two_backends() -> Iterator[tuple[WithContext, WithContext]]:
    heard: Heard = []
    one, two = WithContext(mock("Relu"), heard), WithContext(mock(), heard)
    with registered(one, "one"), registered(two, "two"):
        yield one, two


def chain(*types: str) -> Graph:
    net = Net()
    value = net.input("x", 2, 3)
    for k, kind in enumerate(types):
        value = net.add(kind, value, name=f"v{k}")
    return net.finish(value)


def network(device: str | list[str] = "acme") -> weft.OptimizedNetwork:
    return weft.optimize(chain("Relu", "Tanh"), device)


def said(heard: Heard) -> list[tuple[str, int]]:
    return [(what, n) for _, what, n in heard]


# -- ids and order ---------------------------------------------------------------------------------------------


def test_A10_networks_get_ids_and_contexts_hear_of_them_in_order(acme: WithContext) -> None:
    graph = chain("Relu", "Tanh")
    with weft.Runtime() as runtime:
        first = runtime.load(network())
        assert said(acme.heard) == [("before_load", first), ("after_load", first)]
        second = runtime.load(network())
        assert first != second and runtime.networks == [first, second]
        for id_ in (first, second, first):
            (y,) = runtime.run(id_, feeds(graph))
            np.testing.assert_array_equal(y, outputs(graph, feeds(graph))[0])
            given = [np.empty((2, 3), np.float32)]
            assert runtime.run(id_, *feeds(graph).values(), outputs=given)[0] is given[0]
        acme.heard.clear()
        runtime.unload(first)
        assert said(acme.heard) == [("before_unload", first), ("after_unload", first)]
        assert runtime.networks == [second]
        runtime.run(second, feeds(graph))
        acme.heard.clear()
    assert said(acme.heard) == [("before_unload", second), ("after_unload", second)]
    assert acme.contexts == 1


def test_A10_one_network_is_loaded_twice(acme: WithContext) -> None:
    graph, one = chain("Relu", "Tanh"), network()
    with weft.Runtime() as runtime:
        first, second = runtime.load(one), runtime.load(one)
        runtime.unload(first)
        np.testing.assert_array_equal(runtime.run(second, feeds(graph))[0], outputs(graph, feeds(graph))[0])
        third = runtime.load(one)
        assert len({first, second, third}) == 3 and runtime.networks == [second, third]


def test_A10_the_context_hears_before_and_after_what_is_done(acme: WithContext) -> None:
    made: list[int] = []

    class Watching(Told):
        def _hear(self, what: str, network: int) -> bool:
            made.append(len(acme.backends))
            return True

    acme.create_context = lambda: Watching(acme)  # type: ignore[method-assign]
    with weft.Runtime() as runtime:
        optimised = network()
        before = len(acme.backends)
        runtime.load(optimised)
        assert made == [before, before + 1], "the backend object is made between the two notices"


def test_A10_every_backend_of_the_network_is_told_in_the_order_of_preference() -> None:
    with two_backends() as (one, _), weft.Runtime() as runtime:
        id_ = runtime.load(network(["one", "two"]))
        runtime.unload(id_)
        assert one.heard == [(device, what, id_) for what in NOTICES for device in ("one", "two")]


def test_A10_a_context_lives_as_long_as_its_runtime(acme: WithContext) -> None:
    with weft.Runtime() as one, weft.Runtime() as two:
        ids = [runtime.load(network()) for runtime in (one, one, two)]
        assert acme.contexts == 2, "one for each runtime"
        one.unload(ids[0])
        one.unload(ids[1])
        one.load(network())
        assert acme.contexts == 2
        assert two.networks == [ids[2]]
        with pytest.raises(InputError):
            two.unload(99)
    assert acme.contexts == 2


def test_A10_backends_without_a_context_are_left_alone() -> None:
    with registered(Creator(mock()), "acme"), weft.Runtime() as runtime:
        runtime.unload(runtime.load(network()))


def test_A10_threads_load_run_and_unload_at_the_same_time(acme: WithContext) -> None:
    graph, optimised = chain("Relu", "Tanh"), network()
    wanted = outputs(graph, feeds(graph))[0]

    def work(runtime: weft.Runtime) -> list[int]:
        ids = []
        for _ in range(5):
            ids.append(runtime.load(optimised))
            np.testing.assert_array_equal(runtime.run(ids[-1], feeds(graph))[0], wanted)
            if len(ids) % 2:
                runtime.unload(ids[-1])
        return ids

    with weft.Runtime() as runtime:
        with ThreadPoolExecutor(4) as pool:
            ids = [i for done in [pool.submit(work, runtime) for _ in range(4)] for i in done.result()]
        assert len(set(ids)) == 20 and len(runtime.networks) == 8
    assert acme.contexts == 1
    for id_ in ids:
        assert [what for what, n in said(acme.heard) if n == id_] == list(NOTICES)


def test_A10_an_id_that_is_not_loaded_is_an_error_that_says_what_is(acme: WithContext) -> None:
    with weft.Runtime() as runtime:
        id_ = runtime.load(network())
        for call in (runtime.session, runtime.run, runtime.unload):
            with pytest.raises(InputError, match=f"no network 77 is loaded[\\s\\S]*loaded are {id_}"):
                call(77)
        runtime.unload(id_)
        with pytest.raises(InputError, match="none"):
            runtime.run(id_, np.zeros((2, 3), np.float32))
        assert said(acme.heard)[-1] == ("after_unload", id_), "nobody hears of an unknown id"


def test_A10_a_closed_runtime_loads_nothing(acme: WithContext) -> None:
    optimised = network()
    runtime = weft.Runtime()
    runtime.close()
    runtime.close()
    with pytest.raises(ClosedError):
        runtime.load(optimised)
    assert not acme.heard and not runtime.networks


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notice", ["before_load", "after_load"])
@pytest.mark.parametrize("answer", [False, RuntimeError("no room")])
def test_A10_a_refused_load_is_an_error_and_followed_by_the_unload_notices(
    acme: WithContext, notice: str, answer: bool | Exception
) -> None:
    optimised = network()
    with weft.Runtime() as runtime:
        acme.answers[notice] = answer
        wanted = ExecutionError if isinstance(answer, Exception) else BackendError
        with pytest.raises(wanted) as caught:
            runtime.load(optimised)
        assert "acme" in str(caught.value) and notice in str(caught.value)
        if wanted is ExecutionError:
            assert "no room" in caught.value.why
        else:
            assert caught.value.what == "backend 'acme' refused to load network 1"
        told = NOTICES if notice == "after_load" else ("before_load", "before_unload", "after_unload")
        assert said(acme.heard) == [(what, 1) for what in told]
        assert runtime.networks == []
        acme.answers.clear()
        assert runtime.load(optimised) == 2, "the runtime is as it was, and ids are not used twice"


def test_A10_those_that_were_not_told_of_a_load_hear_nothing_of_its_end() -> None:
    with two_backends() as (one, _), weft.Runtime() as runtime:
        one.answers["before_load"] = False
        with pytest.raises(BackendError, match="'one' refused to load"):
            runtime.load(network(["one", "two"]))
        assert {device for device, _, _ in one.heard} == {"one"}


def test_A10_a_load_that_fails_is_followed_by_the_unload_notices() -> None:
    happened: Heard = []

    class Broken(Mock):
        views: list[list[str]] = []

        def onAllocateBuffer(self) -> bool:
            return False

        def close(self) -> None:
            happened.append(("acme", "close", 1))
            super().close()

    with registered(WithContext(Broken, happened), "acme"), weft.Runtime() as runtime:
        optimised = network()
        happened.clear()
        with pytest.raises(OutOfMemory):
            runtime.load(optimised)
        # When after_unload says that the network is gone, it is.
        assert said(happened) == [(what, 1) for what in ("before_load", "close", "before_unload", "after_unload")]
        assert runtime.networks == []


@pytest.mark.parametrize("answer", [False, RuntimeError("still needed")])
def test_A10_a_refused_unload_leaves_the_network_loaded(acme: WithContext, answer: bool | Exception) -> None:
    graph = chain("Relu", "Tanh")
    with weft.Runtime() as runtime:
        id_ = runtime.load(network())
        acme.answers["before_unload"] = answer
        for _ in range(2):
            with pytest.raises(weft.WeftError) as caught:
                runtime.unload(id_)
            assert "acme" in str(caught.value) and "before_unload" in str(caught.value)
        assert said(acme.heard)[-1] == ("before_unload", id_) and runtime.networks == [id_]
        np.testing.assert_array_equal(runtime.run(id_, feeds(graph))[0], outputs(graph, feeds(graph))[0])
        acme.answers.clear()
        runtime.unload(id_)
        assert runtime.networks == []


@pytest.mark.parametrize("answer", [False, RuntimeError("dirty")])
def test_A10_an_unload_that_cannot_clean_up_says_so_and_the_network_is_gone(answer: bool | Exception) -> None:
    with two_backends() as (one, _), weft.Runtime() as runtime:
        id_ = runtime.load(network(["one", "two"]))
        one.answers["after_unload"] = answer
        with pytest.raises(BackendError, match=r"unloaded, but[\s\S]*after_unload of 'one'"):
            runtime.unload(id_)
        assert runtime.networks == []
        assert one.heard[-1] == ("two", "after_unload", id_), "the others hear of it all the same"
        with pytest.raises(InputError):
            runtime.run(id_, np.zeros((2, 3), np.float32))


def test_A10_closing_a_runtime_unloads_all_that_it_may() -> None:
    with two_backends() as (one, two):
        runtime = weft.Runtime()
        kept = runtime.load(weft.optimize(chain("Relu"), ["one"], fallback="error"))
        runtime.load(weft.optimize(chain("Tanh"), ["two"], fallback="error"))
        one.answers["before_unload"] = False
        with pytest.raises(BackendError, match="'one' refused to unload"):
            runtime.close()
        assert runtime.networks == [kept]
        assert ("two", "after_unload", 2) in two.heard
        one.answers.clear()
        runtime.close()
        assert runtime.networks == [] and one.heard[-1] == ("one", "after_unload", kept)


def test_A10_a_context_that_cannot_be_made_is_an_error_that_names_the_backend(acme: WithContext) -> None:
    def broken() -> weft.BackendContext:
        raise OSError("no such bus")

    acme.create_context = broken  # type: ignore[method-assign]
    with weft.Runtime() as runtime, pytest.raises(ExecutionError, match=r"context[\s\S]*acme[\s\S]*no such bus"):
        runtime.load(network())


# -- sessions --------------------------------------------------------------------------------------------------


def test_A10_sessions_of_weft_load_are_networks_of_the_process_runtime(acme: WithContext) -> None:
    with weft.load(chain("Relu"), "acme") as session:
        assert session.runtime is default_runtime() and session.id is not None
        assert said(acme.heard) == [("before_load", session.id), ("after_load", session.id)]
        id_ = session.id
    assert said(acme.heard)[2:] == [("before_unload", id_), ("after_unload", id_)]
    session.close()
    assert len(acme.heard) == 4, "a second close does nothing"
    with weft.load(chain("Relu"), "acme") as other:
        assert other.id not in (None, id_) and acme.contexts == 1


def test_A10_a_session_is_loaded_when_its_shapes_are_known_and_a_resize_is_no_load(acme: WithContext) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", 2)))
    with weft.load(graph, "acme") as session:
        assert session.id is None and not acme.heard
        session.run(np.ones((1, 2), np.float32))
        session.run(np.ones((3, 2), np.float32))
        assert session.id is not None and [what for _, what, _ in acme.heard] == ["before_load", "after_load"]


def test_A10_a_session_that_was_refused_can_be_closed_and_its_unload_too(acme: WithContext) -> None:
    acme.answers["before_unload"] = False
    session = weft.load(chain("Relu"), "acme")
    with pytest.raises(BackendError, match="refused to unload"):
        session.close()
    np.testing.assert_array_equal(session.run(-np.ones((2, 3), np.float32))[0], np.zeros((2, 3)))
    acme.answers.clear()
    session.close()
    with pytest.raises(ClosedError):
        session.run(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("refuses", [False, True])
def test_A10_the_end_of_a_session_that_nobody_closed_is_told_later(
    acme: WithContext, refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = weft.load(chain("Relu"), "acme")
    id_ = session.id
    acme.answers["before_unload"] = not refuses
    acme.heard.clear()
    del session
    gc.collect()
    assert not acme.heard and sessions._forgotten
    with caplog.at_level(logging.WARNING, "weft.session"), weft.load(chain("Relu"), "cpu"):
        assert said(acme.heard) == [("before_unload", id_), ("after_unload", id_)]
    assert bool(caplog.records) is refuses, "its refusal comes too late, which is said"
    close_forgotten()
    assert len(acme.heard) == 2


def test_A10_a_session_of_a_runtime_ends_with_it(acme: WithContext) -> None:
    with weft.Runtime() as runtime:
        session = weft.load(chain("Relu"), "acme", runtime=runtime)
        assert session.runtime is runtime and runtime.networks == []
        forgotten = weft.load(chain("Tanh"), "acme", runtime=runtime)
        ids = [session.id, forgotten.id]
        del forgotten
        gc.collect()
    assert sorted(n for what, n in said(acme.heard) if what == "after_unload") == ids
    with pytest.raises(ClosedError):
        session.run(np.ones((2, 3), np.float32))
    session.close()
    assert acme.contexts == 1 and len(acme.heard) == 8
    with pytest.raises(ClosedError, match="runtime is closed"):
        weft.load(chain("Relu"), "acme", runtime=runtime)
