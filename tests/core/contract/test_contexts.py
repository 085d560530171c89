"""Contract row A10: a runtime loads networks under ids and tells backends' contexts, of sessions too."""

from __future__ import annotations

import gc
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, mock, registered
from tests.helpers.nets import Net, chain, feeds
from tests.helpers.noting_contexts import NOTICES, Told, WithContext, network, said, two_backends
from weft.core.graph.interpreter import outputs
from weft.core.session import loader
from weft.core.session.loader import close_forgotten
from weft.core.session.runtime import default_runtime
from weft.errors import BackendError, ClosedError, InputError

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
    graph = chain("Relu", "Tanh")
    with registered(Creator(mock()), "acme"), weft.Runtime() as runtime:
        id_ = runtime.load(network())
        assert set(runtime.session(id_).report.placement.values()) == {"acme"}
        np.testing.assert_array_equal(runtime.run(id_, feeds(graph))[0], outputs(graph, feeds(graph))[0])
        runtime.unload(id_)
        assert runtime.networks == []


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
    gc.collect()
    close_forgotten()  # what tests before this one left, and what is said of it
    caplog.clear()
    session = weft.load(chain("Relu"), "acme")
    id_ = session.id
    acme.answers["before_unload"] = not refuses
    acme.heard.clear()
    del session
    gc.collect()
    assert not acme.heard and loader._forgotten
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
