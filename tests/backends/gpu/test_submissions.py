"""Long runs are divided into submissions, which no watchdog takes for a hang: where, and with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.recording.submissions import CAUTION, LONGEST, SLACK, TRIALS, Division, Submissions
from weft.core.contract.backend_options import Options
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError

GPUS = ("opencl", "vulkan")
LAYERS = 6


def layers() -> Graph:
    """Return launches that wait for each other."""
    net = Net()
    x = net.input("x", 2, 8, 12, 10)
    for _ in range(LAYERS):
        x = net.add("MaxPool", net.conv(x, 8), kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
    return net.finish(x)


def limit(device: str, seconds: float) -> dict[str, Any]:
    return {"backend_options": {device: {"submit_seconds": seconds}}, "fallback": "error"}


def submits(session: weft.Session, device: str) -> int:
    """Return how many submissions a run takes, as the report tells."""
    return session.report.statistics[device]["submissions"]


def counted(session: weft.Session) -> int:
    """Return how many times work was submitted to the device so far."""
    submitted: int = session.pipelines[0].backend.device.stats.submits  # type: ignore[attr-defined]
    return submitted


@pytest.mark.parametrize("device", GPUS)
def test_a_run_is_divided_and_its_numbers_stay_the_same(device: str) -> None:
    graph = layers()
    fed = feeds(graph)
    without, smallest = limit(device, 0.0), limit(device, 1e-9)
    with weft.load(graph, device, **without) as whole, weft.load(graph, device, **smallest) as cut:
        assert submits(whole, device) == 1 and submits(cut, device) > LAYERS
        before = counted(cut)
        for _ in range(3):
            np.testing.assert_array_equal(cut.run(fed)[0], whole.run(fed)[0])
        assert counted(cut) - before == 3 * submits(cut, device)
        given, into = cut.input_arrays(), cut.output_arrays()
        given["x"][...] = fed["x"]
        np.testing.assert_array_equal(cut.run(given, outputs=into)[0], whole.run(fed)[0])


@pytest.mark.parametrize("device", GPUS)
def test_no_limit_holds_by_default_on_a_cpu(device: str) -> None:
    """It has no watchdog."""
    with weft.load(layers(), device, fallback="error") as session:
        for _ in range(2):
            session.run(feeds(layers()))
        assert submits(session, device) == 1


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("profile", [True, "span"])
def test_a_divided_run_has_the_same_profile(device: str, profile: Any) -> None:
    graph = layers()
    with weft.load(graph, device, profile=profile, **limit(device, 1e-9)) as session:
        (got,) = session.run(feeds(graph))
        np.testing.assert_allclose(got, outputs(graph, feeds(graph))[0], rtol=1e-4, atol=1e-4)
        assert submits(session, device) > 1
        names = [event.name for event in session.profile.events]
        if profile is True:
            assert len(names) > LAYERS and all(event.seconds > 0 for event in session.profile.events)
        else:
            assert [seconds > 0 for (_, name), seconds in session.profile.counters.items() if name == "span"] == [True]


@pytest.mark.parametrize("device", GPUS)
def test_a_divided_session_resizes_and_keeps_its_limit(device: str) -> None:
    net = Net()
    x = net.add("MaxPool", net.input("x", "n", 8, 12, 10), kernel_shape=(3, 3))
    graph = net.finish(net.add("MaxPool", x, kernel_shape=(3, 3)))
    with weft.load(graph, device, shapes={"x": (1, 8, 12, 10)}, **limit(device, 1e-9)) as session:
        for count in (1, 3, 2):
            fed = np.random.default_rng(count).random((count, 8, 12, 10), np.float32)
            pooled = np.lib.stride_tricks.sliding_window_view(fed, (5, 5), axis=(2, 3)).max((-1, -2))
            np.testing.assert_array_equal(session.run(fed)[0], pooled)
            assert submits(session, device) > 1


@pytest.mark.parametrize("device", GPUS)
def test_a_launch_that_is_too_long_by_itself_is_told(device: str) -> None:
    with weft.load(layers(), device, **limit(device, 1e-9)) as session:
        told = [note for note in session.report.notes if "cannot be divided" in note]
        assert told and all("watchdog" in note and "smaller batch" in note for note in told)
        assert not any("upload" in note for note in told)
    with weft.load(layers(), device, **limit(device, 100.0)) as session:
        assert not any("cannot be divided" in note for note in session.report.notes)


def one(kind: str) -> Graph:
    """Return a network of about one launch with many work-groups, along one axis or another."""
    net = Net()
    if kind == "MatMul":
        return net.finish(net.add("MatMul", net.input("x", 130, 70), net.random(70, 90)))
    if kind == "float64":  # a number of eight bytes comes before the constants of a part
        return net.finish(net.add("LRN", net.input("x", 2, 7, 3, 4, dtype=DType.FLOAT64), size=4, alpha=0.5))
    x = net.input("x", 2, 8, 33, 31)
    if kind == "Conv":
        return net.finish(net.conv(x, 24))
    if kind == "depthwise":
        return net.finish(net.add("Conv", x, net.random(8, 1, 3, 3), group=8))
    if kind == "fused":
        return net.finish(net.add("Tanh", net.add("Mul", net.add("Add", x, net.random(8, 1, 1)), x)))
    if kind == "MaxPool":
        return net.finish(net.add("MaxPool", x, kernel_shape=(3, 3)))
    return net.finish(net.add("Transpose", x, perm=(0, 2, 3, 1)) if kind == "Transpose" else net.add("Softmax", x))


@pytest.mark.parametrize("kind", ["fused", "float64", "MatMul", "Conv", "depthwise", "MaxPool", "Transpose", "Softmax"])
@pytest.mark.parametrize("device", GPUS)
def test_a_long_launch_becomes_several_that_compute_the_same(device: str, kind: str) -> None:
    graph = one(kind)
    fed = feeds(graph)
    without, smallest = limit(device, 0.0), limit(device, 1e-9)
    with weft.load(graph, device, **without) as whole, weft.load(graph, device, **smallest) as cut:
        assert whole.report.nodes_by_device.keys() == cut.report.nodes_by_device.keys() == {device}
        launches, copies = cut.report.statistics[device]["launches"], 2
        assert launches == whole.report.statistics[device]["launches"]
        assert submits(cut, device) > launches + copies
        before = counted(cut)
        for _ in range(2):
            np.testing.assert_array_equal(cut.run(fed)[0], whole.run(fed)[0])
        assert counted(cut) - before == 2 * submits(cut, device)


@pytest.mark.parametrize("device", GPUS)
def test_one_kernel_serves_all_parts_of_a_launch_and_short_launches_keep_theirs(device: str) -> None:
    options = limit(device, 100.0)
    options["backend_options"][device]["kernels_kept"] = 0
    with weft.load(one("fused"), device, **options) as session:
        found = session.pipelines[0].backend.device.stats  # type: ignore[attr-defined]
        before = found.compiles
        assert submits(session, device) == 1
    options["backend_options"][device]["submit_seconds"] = 1e-9
    with weft.load(one("fused"), device, **options) as session:
        found = session.pipelines[0].backend.device.stats  # type: ignore[attr-defined]
        assert submits(session, device) > 8 and found.compiles <= before + 1


@pytest.mark.parametrize("wrong", [-2.0, "long", float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="submit_seconds"):
        weft.load(layers(), "vulkan", **limit("vulkan", wrong))


def test_a_gpu_has_a_limit_by_default() -> None:
    with null_gpu():
        creator: Any = registry.find("null")
        assert creator.runtime(0).longest_submission == LONGEST
        assert creator.runtime(0, Options({"submit_seconds": 0.0})).longest_submission == 0


# -- the rule ----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), max_size=40), st.floats(1e-3, 10))
def test_each_submission_is_within_the_limit_or_one_launch(weights: list[float], longest: float) -> None:
    made = Submissions(longest)
    division = made.divide(weights)
    assert sorted(set(division.cuts)) == list(division.cuts) and 0 not in division.cuts
    assert sum(division.parts) == pytest.approx(sum(weights))
    begins = (0, *division.cuts)
    for begin, end in zip(begins, (*division.cuts, len(weights)), strict=True):
        part = [us for us in weights[begin:end] if us]
        assert len(part) <= 1 or sum(part) * CAUTION * 1e-6 <= longest * 1.000001


def test_the_time_of_runs_decides_and_the_first_one_is_cautious() -> None:
    weights = [1e5] * 10  # a second in all
    made = Submissions(LONGEST)
    made.begin()
    first = made.divide(weights)
    assert len(first.cuts) == 9, "the device may be slower than the model"
    assert not made.learn(first, 1.0, waited=True)
    assert len(made.divide(weights).cuts) == 1
    assert made.learn(Division(tuple(weights), (5,)), 3.0, waited=True)
    assert len(made.divide(weights).cuts) == 9
    assert [at for at, _ in made.too_long(first)] == []
    assert not made.learn(first, 30.0, waited=True), "it cannot be divided further"
    assert len(made.too_long(first)) == 10


def test_a_run_is_recorded_anew_if_a_long_launch_can_become_more() -> None:
    made = Submissions(LONGEST)
    made.begin()
    division = made.divide([1e3, 1e4], divisible=[1])
    assert not made.learn(division, 0.1, waited=True)
    assert made.learn(division, 10.0, waited=True)
    assert not made.learn(made.divide([1e3, *[5e2] * 20], divisible=range(1, 21)), 10.0, waited=True)


def test_a_run_that_was_asked_for_late_is_not_taken_for_a_long_one() -> None:
    whole = Division((1e3, 1e3))
    made = Submissions(LONGEST)
    made.begin()
    assert not made.learn(whole, 0.002, waited=True)
    assert not made.learn(whole, 60.0, waited=False)
    assert made.learn(whole, 2 * LONGEST * SLACK, waited=True)


def test_short_runs_are_timed_a_few_times_only() -> None:
    made = Submissions(LONGEST)
    made.begin()
    for left in range(TRIALS, 0, -1):
        assert made.watches, left
        made.learn(Division((10.0,)), 1e-3, waited=True)
    assert not made.watches
