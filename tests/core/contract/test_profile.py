"""Contract row A13: backends report timed events and counters, which appear in the session's profile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import AsynchronousBackend, Inputs, Mock, Outputs, mock, mocks
from tests.helpers.nets import branching, chain, feeds
from weft.core.contract.backend import Backend
from weft.core.contract.profile import Profile, ProfilingContext
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.errors import BackendError, ClosedError, ConfigError

DEVICES = ("cpu", "opencl", "vulkan")


class Reporting(Mock):
    """Reports what it did, by its own names and times."""

    takes = frozenset({"Relu"})
    runs = 0

    def onExecuteEnd(self) -> None:
        assert self.info.profiling is not None
        type(self).runs += 1
        self.info.profiling.event("acme works", 0.25)
        self.info.profiling.event("acme waits", 0.5)
        self.info.profiling.counter("runs", self.runs)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Reporting.runs = 0


def test_A13_events_and_counters_of_a_backend_are_in_the_profile() -> None:
    with mocks(acme=Reporting), weft.load(chain("Relu", "Tanh"), "acme", profile=True) as session:
        profile = session.profile
        assert profile.events == [] and profile.counters == {}, "nothing has run"
        for runs in (1, 2, 3):
            session.run(feeds(chain("Relu")))
            assert [(e.name, e.seconds) for e in profile.events if e.name.startswith("acme")] == [
                ("acme works", 0.25),
                ("acme waits", 0.5),
            ]
            assert profile.counters == {("acme:0", "runs"): runs}
        assert session.profile is profile, "it is that of the last run, always"
        assert profile.seconds() == pytest.approx(sum(e.seconds for e in profile.events))
        assert 0.75 < profile.seconds("acme:0") < profile.seconds()
        text = str(profile)
        assert "250000.0 us  acme:0  acme works" in text and "3  acme:0  runs" in text


def test_A13_nodes_on_the_host_and_copies_are_events() -> None:
    graph = chain("Relu", "Tanh", "Relu")
    with mocks(one=mock("Relu"), two=mock("Tanh")) as ids, weft.load(graph, ids, profile=True) as session:
        for _ in range(2):
            session.run(feeds(graph))
            events = session.profile.events
            assert [(e.device, e.name) for e in events] == [
                ("one:0", "n_v0"),
                ("two:0", "copy v0: one:0 -> two:0"),
                ("two:0", "n_v1"),
                ("one:0", "copy v1: two:0 -> one:0"),
                ("one:0", "n_v2"),
            ]
            assert all(e.seconds > 0 for e in events)


def test_A13_every_node_of_the_cpu_is_an_event_in_order() -> None:
    graph = branching()
    with weft.load(graph, "cpu", profile=True) as session:
        session.run(feeds(graph))
        assert [e.name for e in session.profile.events] == [n.name for n in session.optimized.graph.nodes]


def test_A13_a_backend_that_works_later_reports_when_it_is_done() -> None:
    class Late(AsynchronousBackend):
        def onWaitFinish(self) -> bool:
            if self.queue:
                assert self.info.profiling is not None
                self.info.profiling.event("late", 1.0)
            return super().onWaitFinish()

    graph = chain("Relu")
    with mocks(late=Late), weft.load(graph, "late", profile=True) as session:
        for _ in range(2):
            session.submit(feeds(graph))
            assert session.profile.events == []
            session.wait()
            assert [(e.device, e.name, e.seconds) for e in session.profile.events] == [("late:0", "late", 1.0)]
        session.submit(feeds(graph))
        session.submit(feeds(graph))
        session.wait()
        assert len(session.profile.events) == 1, "the first run's events are not those of the last"


def test_A13_a_profile_names_the_devices_that_tell_no_times() -> None:
    graph = chain("Relu", "Tanh")
    with mocks(silent=AsynchronousBackend) as ids, weft.load(graph, [*ids, "cpu"], profile=True) as session:
        profile = session.profile
        for _ in range(2):
            session.submit(feeds(graph))
            assert profile.untimed == [], "it may still tell them"
            session.wait()
            assert profile.untimed == ["silent:0"]
        assert f"{'no times':>15}  silent:0" in str(profile)


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("event", (3, 1.0), "reported 3 (of type int)"),
        ("event", ("n", "1.0"), "reported 'n' as '1.0'"),
        ("event", ("n", None), "reported 'n' as None"),
        ("event", ("n", -1.0), "reported 'n' as -1.0"),
        ("event", ("n", float("nan")), "reported 'n' as nan"),
        ("event", ("n", True), "reported 'n' as True"),
        ("event", ("n", 1.0, "work"), "the event 'n' has work 'work'"),
        ("counter", (b"n", 1), "reported b'n'"),
        ("counter", ("n", np.array([1, 2])), "reported 'n' as array([1, 2])"),
        ("counter", ("n", np.True_), "reported 'n' as np.True_"),
    ],
)
def test_A13_what_is_no_event_and_no_counter_is_refused(method: str, arguments: tuple[Any, ...], said: str) -> None:
    context: Any = ProfilingContext("acme:0", Profile())
    with pytest.raises(BackendError) as caught:
        getattr(context, method)(*arguments)
    assert said in caught.value.what and caught.value.where == f"acme:0: ProfilingContext.{method}"
    context.event("n", np.float32(0.5))
    context.counter("n", np.int64(-3))
    assert context.profile.seconds() == 0.5 and context.profile.counters == {("acme:0", "n"): -3}


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_A13_a_gpu_reports_its_launches_by_the_names_of_nodes(device: str, memory: str) -> None:
    graph = branching(8)
    with weft.load(graph, device, profile=True, memory=memory, fallback="error") as session:
        assert session.profile.events == []
        for _ in range(2):
            (y,) = session.run(feeds(graph))
            np.testing.assert_allclose(y, outputs(graph, feeds(graph))[0], atol=1e-5)
            events = session.profile.events
            assert {e.device for e in events} == {f"{device}:0"} and all(e.seconds >= 0 for e in events)
            names = Counter(e.name for e in events)
            made = {o for n in session.optimized.graph.nodes for o in n.outputs}
            convolutions = [n.outputs[0] for n in session.optimized.graph.nodes if "Conv" in str(n.op)]
            assert convolutions and all(any(o in name for name in names) for o in convolutions)
            assert len([n for n in names if any(o in n for o in made)]) >= len(convolutions)
            if memory == "normal":
                # Vulkan computes on the host's memory where it may.
                assert names["upload x"] == names[f"download {graph.outputs[0]}"] == (device == "opencl")
            count = len(events)
        session.run(feeds(graph))
        assert len(session.profile.events) == count
        assert session.profile.seconds(f"{device}:0") > 0


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_A13_a_gpu_may_report_the_span_of_a_run_alone(device: str) -> None:
    graph = branching(8)
    with weft.load(graph, device, profile="span", fallback="error") as session:
        for _ in range(2):
            (y,) = session.run(feeds(graph))
            np.testing.assert_allclose(y, outputs(graph, feeds(graph))[0], atol=1e-5)
            assert session.profile.events == [] and session.profile.untimed == []
            assert 0 < session.profile.counters[f"{device}:0", "span"] < 10


def test_A13_what_can_be_profiled_is_told() -> None:
    with pytest.raises(ConfigError, match="profile='launches' is not known"):
        weft.load(branching(8), "cpu", profile="launches")  # type: ignore[arg-type]
    wrongs: list[Any] = [2, None, [], "Span"]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="is not known"):
            weft.load(branching(8), "cpu", profile=wrong)
    with weft.load(branching(8), "cpu", profile="span") as session:
        session.run(feeds(branching(8)))
        assert session.profile.events and not session.profile.untimed


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_A13_one_and_numpys_truth_profile_as_true_does(device: str) -> None:
    counts, ways = list[int](), list[Any]([True, 1, np.True_])
    for profile in ways:
        with weft.load(branching(8), device, profile=profile) as session:
            session.run(feeds(branching(8)))
            counts.append(len(session.profile.events))
    assert counts[0] > 0 and len(set(counts)) == 1


def test_A13_an_unrelated_counter_is_no_time() -> None:
    context = ProfilingContext("acme:0", Profile(timed="span"))
    context.profile.start([context])
    context.counter("launches", 3)
    context.profile.end(["acme:0"])
    assert context.profile.untimed == ["acme:0"]
    context.counter("span", 0.5)
    assert context.profile.untimed == []


def test_A13_a_network_on_three_devices_has_one_profile() -> None:
    graph = chain("Sigmoid", "Tanh", "Exp")
    order = ["vulkan", "opencl", "cpu"]
    hints = {f"n_v{k}": d for k, d in enumerate(order)}
    with weft.load(graph, order, hints=hints, profile=True) as session:
        session.run(feeds(graph))
        events = session.profile.events
        assert {e.device for e in events} == {f"{d}:0" for d in order}
        assert [e.name for e in events if e.name.startswith("copy")] == [
            "copy v0: vulkan:0 -> opencl:0",
            "copy v1: opencl:0 -> cpu:0",
        ]
        assert ("cpu:0", "n_v2") in [(e.device, e.name) for e in events]


@pytest.mark.parametrize("device", DEVICES)
def test_A13_a_session_that_is_not_profiled_has_no_profile_and_its_backends_no_context(device: str) -> None:
    with weft.load(branching(8), device) as session:
        session.run(feeds(branching(8)))
        assert all(p.backend.info.profiling is None for p in session.pipelines)
        with pytest.raises(ConfigError, match="profile=True"):
            _ = session.profile
    with pytest.raises(ClosedError):
        _ = session.profile


def test_A13_an_optimised_network_is_profiled_too() -> None:
    graph = branching()
    network = weft.optimize(graph, "cpu")
    with weft.Runtime() as runtime:
        id_ = runtime.load(network, profile=True)
        runtime.run(id_, feeds(graph))
        assert len(runtime.session(id_).profile.events) == len(network.graph.nodes)
    with weft.load(network, profile=True) as session:
        session.run(feeds(graph))
        assert len(session.profile.events) == len(network.graph.nodes)


def test_A13_each_session_has_a_profile_of_its_own() -> None:
    graph = chain("Relu")
    with (
        mocks(acme=Reporting),
        weft.load(graph, "acme", profile=True) as one,
        weft.load(graph, "acme", profile=True) as two,
    ):
        one.run(feeds(graph))
        assert one.profile.events and not two.profile.events


def test_A13_executions_and_optimisers_may_report_too() -> None:
    """Whoever has the info may report: what is reported at load stays until a run begins."""

    class Early(mock()):  # type: ignore[misc]
        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> weft.Execution | None:
            assert isinstance(self, Backend) and self.info.profiling is not None
            self.info.profiling.event(f"compiled {op.type}", 2.0)
            return super().onCreate(inputs, outputs, op)  # type: ignore[no-any-return, misc]

    with mocks(acme=Early), weft.load(chain("Relu"), "acme", profile=True) as session:
        assert [e.name for e in session.profile.events] == ["compiled Relu"]
        session.run(feeds(chain("Relu")))
        assert [e.name for e in session.profile.events] == ["n_v0"]


def test_A13_a_copy_between_devices_is_not_the_time_of_the_device_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("weft.core.session.executable.perf_counter", lambda: clock[0])

    class Slow(AsynchronousBackend):
        def onWaitFinish(self) -> bool:
            clock[0] += bool(self.queue)  # it takes a second to compute
            return super().onWaitFinish()

    order, hints = ["slow", "cpu"], {"n_v1": "cpu"}
    with mocks(slow=Slow), weft.load(chain("Relu", "Tanh"), order, hints=hints, profile=True) as session:
        session.run(np.ones((2, 3), np.float32))
        copies = [e for e in session.profile.events if e.name.startswith("copy ")]
    assert [e.seconds for e in copies] == [0.0]
