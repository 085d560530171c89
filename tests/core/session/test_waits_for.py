"""`weft.load(..., wait=)`: a session that runs soon, and what takes the place of what it began with."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.decoders import decoder
from tests.helpers.fakes import Creator, registered
from tests.helpers.texts import Reference, close
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, BackendOption, Wait
from weft.core.contract.backend_options import Options
from weft.core.contract.lowered import Lowered, TakesLong
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.session import later
from weft.errors import BackendError, ConfigError, InputError, OutOfMemory, WeftError

X = np.array([[1, -2, 3]], np.float32)
SOON = BackendOption("soon", False, "Run sooner.")


class SlowBackend(CpuBackend):
    """A CPU whose parts take long to lower, except with the option `soon`; a thread passes only an open gate."""

    gate = threading.Event()
    errors: list[WeftError] = []
    """What the next parts that take long end with."""
    ran: list[bool] = []
    """Of each run, whether it had the option."""
    opened: list[SlowBackend] = []
    says: list[bool] = []
    """Whether the next parts take long, where it does not follow from whether that was said."""

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.soon, self.said, self.closed = bool(info.options["soon"]), False, False
        self.opened.append(self)

    def lower(self, graph: Graph) -> Lowered:
        if self.soon:
            return Lowered(graph)
        says = self.says.pop(0) if self.says else self.info.wait is Wait.FIRST and not self.said
        if says:
            self.said = True
            raise TakesLong("the part runs later", why="it is slow")
        if threading.current_thread() is not threading.main_thread():
            assert self.gate.wait(30)
        if self.errors:
            raise self.errors.pop(0)
        return Lowered(graph)

    def onExecuteBegin(self) -> None:
        super().onExecuteBegin()
        self.ran.append(self.soon)

    def close(self) -> None:
        super().close()
        self.closed = True


class SlowCreator(Creator):
    """Makes these backends."""

    options: Sequence[BackendOption] = (SOON,)

    def sooner(self, options: Options) -> Options:
        return Options({**options, "soon": True})


@pytest.fixture(autouse=True)
def slow() -> Iterator[None]:
    """Register the backend as "slow", with the gate closed."""
    SlowBackend.gate, SlowBackend.errors, SlowBackend.ran, SlowBackend.opened = threading.Event(), [], [], []
    with registered(SlowCreator(SlowBackend, id="slow"), "slow"):
        yield
        SlowBackend.gate.set()


def relu(shape: tuple[int | str, ...] = (1, 3)) -> weft.Network:
    net = weft.Network("small")
    net.add_output("y", net.add_layer("Relu", net.add_layer("Neg", net.add_input("x", shape))))
    return net


def loaded(wait: str = "first", shape: tuple[int | str, ...] = (1, 3), **options: Any) -> weft.Session:
    return weft.load(relu(shape), "slow", fallback="error", wait=wait, **options)


def is_right(results: Sequence[Array], x: Array = X) -> bool:
    return bool((results[0] == np.maximum(-x, 0)).all())


def test_it_runs_before_everything_is_there_and_then_with_everything() -> None:
    with loaded() as session:
        assert is_right(session.run(X)) and SlowBackend.ran == [True]
        assert not session.report.final
        assert any("until better ones are ready: it is slow" in note for note in session.report.notes)
        network = session.id
        SlowBackend.gate.set()
        session.wait_all()
        assert session.report.final and not any("general" in note for note in session.report.notes)
        assert is_right(session.run(X)) and SlowBackend.ran == [True, False]
        assert session.id == network and set(session.report.placement.values()) == {"slow"}
        session.wait_all()
    assert all(backend.closed for backend in SlowBackend.opened)


def test_a_run_takes_what_is_ready_without_being_told() -> None:
    with loaded() as session:
        session.run(X)
        SlowBackend.gate.set()
        while SlowBackend.ran[-1]:  # the thread is not far
            assert is_right(session.run(X))


@pytest.mark.parametrize("wait", ["all", "auto"])
def test_it_waits_for_all_if_asked_and_on_software_devices(wait: str) -> None:
    SlowBackend.gate.set()
    with loaded(wait) as session:
        assert session.report.final and is_right(session.run(X)) and SlowBackend.ran == [False]


@pytest.mark.parametrize("options", [{"profile": True}, {"memory": "limit"}, {"debug": lambda record: None}])
def test_some_sessions_wait_for_all(options: Mapping[str, Any]) -> None:
    with loaded(**options) as session:
        assert session.report.final and is_right(session.run(X)) and set(SlowBackend.ran) == {False}


def test_an_error_in_the_thread_leaves_the_session_as_it_is() -> None:
    SlowBackend.errors.append(BackendError("it does not compile"))
    SlowBackend.gate.set()
    with loaded() as session:
        session.wait_all()
        assert session.report.final
        assert any("general kernels stay" in note and "it does not compile" in note for note in session.report.notes)
        assert is_right(session.run(X)) and SlowBackend.ran == [True]
        session.resize({"x": (1, 3)})
        assert is_right(session.run(X))


def test_without_memory_for_both_the_first_ones_go_before_the_others_come() -> None:
    SlowBackend.errors.append(OutOfMemory("no memory is left"))
    SlowBackend.gate.set()
    with loaded() as session:
        session.wait_all()
        assert is_right(session.run(X)) and SlowBackend.ran == [False]
        assert session.report.final and not any("general" in note for note in session.report.notes)


def test_a_callback_of_that_load_may_not_run_the_session() -> None:
    sessions: list[weft.Session] = []
    refused: list[str] = []

    def progress(done: int, count: int) -> None:
        for session in sessions:
            with pytest.raises(InputError, match="during its wait_all") as raised:
                session.run(X)
            refused.append(str(raised.value))

    SlowBackend.errors.append(OutOfMemory("no memory is left"))
    SlowBackend.gate.set()
    with loaded(progress=progress) as session:
        sessions.append(session)
        session.wait_all()
        sessions.clear()
        assert refused and is_right(session.run(X)) and SlowBackend.ran == [False]


def test_if_it_fails_there_too_the_first_ones_come_back() -> None:
    SlowBackend.errors += [OutOfMemory("no memory is left"), OutOfMemory("none at all")]
    SlowBackend.gate.set()
    with loaded() as session:
        session.wait_all()
        assert is_right(session.run(X)) and SlowBackend.ran == [True]
        assert any("general kernels stay" in note and "none at all" in note for note in session.report.notes)


def test_a_session_that_is_closed_stops_what_is_prepared() -> None:
    session = loaded()
    session.run(X)
    closing = threading.Thread(target=session.close)
    closing.start()
    SlowBackend.gate.set()
    closing.join(30)
    assert not closing.is_alive() and session.is_closed
    assert all(backend.closed for backend in SlowBackend.opened)
    assert not [thread for thread in threading.enumerate() if thread.name == "weft-later"]


def test_another_shape_waits_for_all() -> None:
    with loaded(shape=("n", 3), shapes={"x": (1, 3)}) as session:
        session.run(X)
        SlowBackend.gate.set()
        x = np.ones((2, 3), np.float32)
        assert is_right(session.run(-x), -x) and SlowBackend.ran == [True, False]
        assert is_right(session.run(X)) and session.report.final


def test_shapes_of_a_first_run_begin_soon_too() -> None:
    with loaded(shape=("n", 3)) as session:
        assert is_right(session.run(X)) and SlowBackend.ran == [True] and not session.report.final
        SlowBackend.gate.set()
        session.wait_all()
        assert is_right(session.run(X)) and SlowBackend.ran == [True, False]


def test_outputs_of_a_submitted_run_are_not_lost() -> None:
    with loaded() as session:
        session.submit(X)
        SlowBackend.gate.set()
        session.wait_all()
        assert is_right(session.wait())
        assert is_right(session.run(X)) and SlowBackend.ran == [True, False]


def test_arrays_in_the_devices_reach_are_those_of_all_later_runs() -> None:
    SlowBackend.gate.set()
    with loaded() as session:
        arrays, given = session.input_arrays(), session.output_arrays()
        arrays["x"][...] = X
        assert session.run(arrays, outputs=given)[0] is given["y"] and is_right([given["y"]])
        assert SlowBackend.ran == [False]


def test_what_was_optimised_is_what_stays() -> None:
    SlowBackend.gate.set()
    with loaded() as session:
        assert session.optimized.parts[0].device == "slow:0" and session.report.final


def test_an_optimised_network_begins_soon_too() -> None:
    network = weft.optimize(relu(), "slow", fallback="error")
    with weft.load(network, wait="first") as session:
        assert is_right(session.run(X)) and SlowBackend.ran == [True] and not session.report.final
        SlowBackend.gate.set()
        session.wait_all()
        assert is_right(session.run(X)) and SlowBackend.ran == [True, False]


def test_the_next_session_stops_what_is_prepared_for_a_dropped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the collection, which may be at any time: this thread may hold the locks that a stop takes."""
    gave_up, stops = later.Later.give_up, list[str]()

    def give_up(self: later.Later) -> None:
        stops.append(self.why)
        gave_up(self)

    monkeypatch.setattr(later.Later, "give_up", give_up)
    loaded().run(X)
    gc.collect()
    assert not stops
    with weft.load(relu(), "cpu"):
        assert stops == ["it is slow"]
    SlowBackend.gate.set()
    for thread in [each for each in threading.enumerate() if each.name == "weft-later"]:
        thread.join(30)
        assert not thread.is_alive()


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="wait='soon' is not known"):
        weft.load(relu(), "slow", wait="soon")


def test_a_network_of_a_runtime_begins_soon_if_asked() -> None:
    with weft.Runtime() as runtime:
        network = runtime.load(weft.optimize(relu(), "slow", fallback="error"), wait="first")
        assert is_right(runtime.run(network, X)) and SlowBackend.ran == [True]
        SlowBackend.gate.set()
        runtime.session(network).wait_all()
        assert is_right(runtime.run(network, X)) and SlowBackend.ran == [True, False]
        assert runtime.networks == [network]
        runtime.unload(network)
    assert all(backend.closed for backend in SlowBackend.opened)


def test_a_runtime_that_closes_stops_what_is_prepared() -> None:
    with weft.Runtime() as runtime:
        runtime.load(weft.optimize(relu(), "slow", fallback="error"), wait="first")
        SlowBackend.gate.set()
    assert all(backend.closed for backend in SlowBackend.opened)


def said(session: weft.Session, reference: Reference, *words: int) -> bool:
    """Tell whether a text goes on as ONNX Runtime's does."""
    new = np.array([words], np.int64)
    return close(session.run(reference.feeds(new))[0], reference.run(new)) and session.state.length == reference.length


def test_a_text_begins_soon_and_goes_on_with_everything() -> None:
    """A prompt, and words, which have a plan of their own, do not wait; what comes later has the same state."""
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "slow", fallback="error", wait="first", state=True) as session:
        assert said(session, reference, 5, 6, 7, 8) and said(session, reference, 9) and said(session, reference, 3)
        assert SlowBackend.ran == [True] * 3 and not session.report.final
        SlowBackend.gate.set()
        session.wait_all()
        assert said(session, reference, 1) and said(session, reference, 4, 1, 5) and said(session, reference, 2)
        assert SlowBackend.ran[3:] == [False] * 3 and session.report.final
    assert all(backend.closed for backend in SlowBackend.opened)


def test_a_second_plan_does_not_turn_to_other_kernels() -> None:
    """The backends of what is loaded plan it: launches that they plan run on no others."""
    SlowBackend.says[:] = [False, True]
    SlowBackend.gate.set()
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "slow", fallback="error", wait="first", state=True) as session:
        assert said(session, reference, 5, 6, 7, 8) and said(session, reference, 9)
        assert not SlowBackend.says and SlowBackend.ran == [False, False] and session.report.final
    assert not any(backend.soon for backend in SlowBackend.opened)


def test_a_text_that_outgrows_its_capacity_meanwhile_goes_on() -> None:
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "slow", fallback="error", wait="first", state=True) as session:
        assert said(session, reference, 5, 6, 7, 8)
        SlowBackend.gate.set()
        assert said(session, reference, *range(40, 120), *range(190)) and said(session, reference, 3)
        session.wait_all()
        assert said(session, reference, 1) and SlowBackend.ran[-1] is False and session.report.final


@pytest.mark.parametrize("kind", [BackendError, OutOfMemory])
def test_a_text_goes_on_where_nothing_better_comes(kind: type[WeftError]) -> None:
    """Without memory for both kinds of kernels, the first ones go."""
    reference = Reference("genai")
    SlowBackend.errors.append(kind("no"))
    with weft.load(decoder("tiny", "genai"), "slow", fallback="error", wait="first", state=True) as session:
        assert said(session, reference, 5, 6, 7, 8)
        SlowBackend.gate.set()
        session.wait_all()
        assert said(session, reference, 9) and SlowBackend.ran == [True, kind is BackendError]
        assert said(session, reference, 9, 4) and session.report.final


def test_what_is_prepared_later_begins_once_the_call_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would take the interpreter from a prompt's run, and children that test kernels the driver."""
    monkeypatch.setattr(later, "QUIET", 0.0)
    order = list[str]()
    with loaded() as session:
        thread = later.Later(session._planner, lambda _: order.append("planned"), (), "it is slow", held=True)
        assert thread.also(lambda _: order.append("planned more"))
        order.append("the call ends")
        thread.release()
        thread.wait()
        thread.take(lambda planner: Spare())  # type: ignore[arg-type, return-value]  # it is only closed
        assert thread.end(30)
    assert order == ["the call ends", "planned", "planned more"]


class Spare:
    """A planner that the thread closes."""

    def close(self) -> None:
        """Do nothing."""
