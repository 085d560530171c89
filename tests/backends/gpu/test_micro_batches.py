"""The first nodes of a network run on micro-batches of a large batch while the host still copies the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.device_figures import set_figures
from tests.helpers.nets import Net, feeds
from tests.helpers.opened import STARTS, opened
from tests.helpers.random_nets import SLOW, assert_session_is_right, networks
from weft.backends.gpu.lowering.launches import micro_batches as find_micro_batches
from weft.backends.gpu.lowering.launches.micro_batches import MicroBatchFigures
from weft.backends.gpu.recording import chunked_upload
from weft.backends.gpu.recording.micro_batches import MicroBatches
from weft.backends.gpu.recording.pipeline_recording import PipelineRecording
from weft.backends.gpu.tuning.tuner import open_problems
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft_conformance.cases.table import tolerance

pytestmark = pytest.mark.usefixtures("sizes_are_pushed")

DEVICES = ("opencl", "vulkan")
WAYS = tuple((device, ahead) for device in DEVICES for ahead in (False, True))
"""Devices that compute where the host writes, or send the input in chunks: llvmpipe can do both, PoCL the second."""
STREAMED = tuple(way for way in WAYS if way != ("opencl", False))
"""Those that send the input in pieces, so that a part can begin before the rest is there."""
BATCH = 8
DTYPES = {"high": DType.FLOAT32, "low": DType.FLOAT16}


@pytest.fixture(autouse=True)
def small_batches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do on the CPU, with little, what pays for large batches on a GPU."""
    for device in DEVICES:
        monkeypatch.setattr(opened(device), "computes_ahead", True)
        monkeypatch.setattr(opened(device), "uploads_directly", False)
    monkeypatch.setattr(chunked_upload, "LEAST", 1 << 10)
    monkeypatch.setattr(chunked_upload, "CHUNK", 3_000)
    set_figures(monkeypatch, MicroBatchFigures, pixels=1, copied=1e-6)


def recorded(session: weft.Session) -> PipelineRecording:
    (pipeline,) = session.pipelines
    found = pipeline.backend.recording  # type: ignore[attr-defined]
    assert isinstance(found, PipelineRecording)
    return found


def chain(batch: int = BATCH) -> Graph:
    net = Net()
    x = net.add("Relu", net.conv(net.input("x", batch, 3, 16, 16), 8, 3, pads=(1,) * 4))
    x = net.add("MaxPool", net.conv(x, 16), kernel_shape=(2, 2), strides=(2, 2))
    return net.finish(net.add("Softmax", net.add("Flatten", net.add("GlobalAveragePool", x)), name="y"))


def branches() -> Graph:
    """A residual, and a concat whose inputs are parts of its output's memory."""
    net = Net()
    x = net.conv(net.input("x", BATCH, 4, 16, 16), 8, 3, pads=(1,) * 4)
    x = net.add("Relu", net.add("Add", net.conv(x, 8), x))
    x = net.add("Concat", net.conv(x, 4), net.conv(x, 8, 3, pads=(1,) * 4), axis=1)
    return net.finish(net.add("GlobalAveragePool", net.conv(x, 8), name="y"))


def scratch() -> Graph:
    """More live at once in the first nodes than after them: what dies in a micro-batch is needed again by the next."""
    net = Net()
    x = net.input("x", BATCH, 4, 16, 16)
    for _ in range(4):
        x = net.add("Relu", net.conv(x, 8, 3, pads=(1,) * 4))
    x = net.conv(net.add("GlobalAveragePool", x), 8)
    return net.finish(net.add("Sigmoid", net.conv(x, 8), name="y"))


def a_constant_for_each_image() -> Graph:
    """A constant for each image, which ends micro-batches."""
    net = Net()
    x = net.conv(net.input("x", BATCH, 4, 16, 16), 4, 3, pads=(1,) * 4)
    x = net.add("Mul", x, net.random(BATCH, 1, 1, 1))
    return net.finish(net.add("GlobalAveragePool", net.conv(x, 8), name="y"))


def a_joined_constant_for_each_image() -> Graph:
    """A constant for each image, joined along the channels, which ends the micro_batches, too."""
    net = Net()
    x = net.conv(net.input("x", BATCH, 4, 16, 16), 4, 3, pads=(1,) * 4)
    x = net.add("Concat", x, net.random(BATCH, 4, 16, 16), axis=1)
    return net.finish(net.add("GlobalAveragePool", net.conv(x, 8), name="y"))


def a_result_that_is_reshaped() -> Graph:
    """The last nodes would fill the device, too, but lie in the result, or are it."""
    net = Net()
    x = net.conv(net.input("x", BATCH, 4, 16, 16), 8, 3, pads=(1,) * 4)
    seen = net.add("Sigmoid", net.conv(x, 8), name="seen")
    return net.finish(net.add("Flatten", net.add("GlobalAveragePool", net.add("Relu", x)), name="y"), seen)


def other_ops() -> Graph:
    """Other ops that take each image by itself, and weights that the network computes."""
    net = Net()
    x = net.input("x", BATCH, 4, 16, 16)
    x = net.add("InstanceNormalization", x, net.random(4), net.random(4))
    x = net.add("ConvTranspose", x, net.random(4, BATCH, 3, 3), pads=(1,) * 4)
    x = net.add("GroupNormalization", x, net.random(BATCH), net.random(BATCH), num_groups=2)
    x = net.add("LRN", net.add("LpPool", x, kernel_shape=(2, 2), strides=(2, 2)), size=3)
    x = net.add("Conv", x, net.add("Tanh", net.add("GlobalMaxPool", x)))
    return net.finish(net.add("GlobalAveragePool", net.conv(x, 8), name="y"))


def check(session: weft.Session, graph: Graph, runs: int = 3) -> None:
    """Compare runs with other inputs each, so that what is left of the run before would be seen."""
    for seed in range(runs):
        fed = feeds(graph, seed)
        for got, want in zip(session.run(fed), outputs(graph, fed), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


def check_into_arrays(session: weft.Session, graph: Graph) -> None:
    """Compare runs from and into arrays of the session, and from others."""
    given, into = session.input_arrays(), session.output_arrays()
    for seed in range(2):
        fed = feeds(graph, seed)
        for name, array in given.items():
            array[...] = fed[name]
        for inputs in (fed, given):
            for array in into.values():
                array[...] = np.nan
            session.run(inputs, outputs=into)
            for name, want in zip(graph.outputs, outputs(graph, fed), strict=True):
                np.testing.assert_allclose(into[name], want, *tolerance(DType.FLOAT32, "reduction"))


def check_against_the_whole(session: weft.Session, whole: weft.Session, graph: Graph) -> None:
    """Compare with runs of the same precision in which nothing is divided."""
    for seed in range(3):
        fed = feeds(graph, seed)
        for got, want in zip(session.run(fed), whole.run(fed), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT16, "reduction"))


PARTS = [("high", 2), ("high", 4), ("low", 2)]
"""Precisions and numbers of parts; where nothing is sent ahead the first stands for all in the short run."""
WAYS_AND_PARTS = [
    pytest.param(*way, *parts, marks=[pytest.mark.long] * (not way[1] and parts != PARTS[0]))
    for way in WAYS
    for parts in PARTS
]


NETWORKS = [
    chain, branches, scratch, other_ops, a_result_that_is_reshaped, a_constant_for_each_image,
    a_joined_constant_for_each_image,
]


def _runs() -> list[Any]:
    """Return networks with ways and parts; those that differ from `branches` in nodes run in one way of parts."""
    return [
        pytest.param(make, *case.values, marks=[*case.marks, *[pytest.mark.long] * is_more])
        for make in NETWORKS
        for case in WAYS_AND_PARTS
        for is_more in [make is not branches and case.values[2:] != PARTS[0]]
    ]


@pytest.mark.covering
@pytest.mark.parametrize(("make", "device", "ahead", "precision", "parts"), _runs())
def test_results_are_right_whatever_runs_in_parts(
    device: str, ahead: bool, precision: str, parts: int, make: Callable[[], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened(device), "sends_ahead", ahead)
    monkeypatch.setattr(find_micro_batches, "COUNT", parts)
    graph = make()
    with monkeypatch.context() as patch:
        patch.setattr(opened(device), "computes_ahead", False)
        whole = weft.load(graph, device=device, precision=precision, fallback="error")
    with whole, weft.load(graph, device=device, precision=precision, fallback="error") as session:
        assert not recorded(whole).run.of_micro_batches
        recording = recorded(session)
        assert recording.run.micro_batches.count == parts
        assert sorted(recording.run.of_micro_batches) == list(range(parts))
        if precision == "high":
            check(session, graph)
            check_into_arrays(session, graph)
        else:
            check_against_the_whole(session, whole, graph)


@pytest.mark.parametrize("device", DEVICES)
def test_nodes_behind_enough_work_run_on_the_whole_batch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = scratch()
    with weft.load(graph, device=device, fallback="error") as session:
        every = recorded(session).run.micro_batches
    assert len(every.nodes) == 5 and every.depth == 5
    set_figures(monkeypatch, MicroBatchFigures, pixels=1, copied=1e12)
    with weft.load(graph, device=device, fallback="error") as session:
        few = recorded(session).run.micro_batches
        assert few.count == 2 and len(few.nodes) < len(every.nodes) and few.depth < every.depth
        check(session, graph)


def test_work_hides_the_copy_of_the_other_images_from_its_time_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 images of 3 KiB, the others are 9 KiB if there are four micro-batches, and 6 KiB if there are two."""
    set_figures(monkeypatch, MicroBatchFigures, pixels=1, copied=100.0)
    net = Net()
    graph = net.finish(net.conv(net.input("x", 4, 3, 16, 16), 8))
    for count, least in ((4, 92.16), (2, 61.44)):
        batches = MicroBatches("x", count, 1, frozenset({"conv"}))
        for device in DEVICES:
            assert find_micro_batches.cover_the_copy(batches, graph, least, opened(device))
            assert not find_micro_batches.cover_the_copy(batches, graph, 0.99 * least, opened(device))


@pytest.mark.parametrize(("device", "ahead"), STREAMED)
def test_each_part_begins_when_its_images_are_there(device: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened(device), "sends_ahead", ahead)
    graph = chain()
    with weft.load(graph, device=device, fallback="error") as session:
        recording, fed = recorded(session), feeds(graph)
        (stream,), x, host = recording._streams.values(), fed["x"], session.pipelines[0].mapped["x"]
        halves = [x.nbytes // 2, x.nbytes]
        assert [stream._ends.count(end) for end in halves] == [1 + ahead] * 2, "no chunk is in two parts"
        host[...] = np.nan
        there: list[int] = []

        def noting(start: Callable[[Any], None]) -> Callable[[Any], None]:
            def note(handle: Any) -> None:
                there.append(arrived(host, x))
                start(handle)

            return note

        for name in STARTS[device]:
            monkeypatch.setattr(recording.device, name, noting(getattr(recording.device, name)))
        check(session, graph, runs=1)
        assert all(come >= end for come, end in zip(there, stream._ends, strict=False))
        assert len(there) == len(recording.handles) == len(stream._ends) + 1


def arrived(host: Array, x: Array) -> int:
    """Return how many bytes of an input are in its lasting array, from the first on."""
    same = (host == x).reshape(-1)
    return x.nbytes if same.all() else int(same.argmin()) * x.itemsize


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize(("device", "ahead"), STREAMED)
def test_arrays_of_the_session_are_divided_only_where_they_are_sent_in_chunks(
    device: str, ahead: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere one submit does everything, whatever runs came before."""
    monkeypatch.setattr(opened(device), "sends_ahead", ahead)
    graph = chain()
    with weft.load(graph, device=device, precision=precision, fallback="error") as session:
        arrays, starts = session.input_arrays(), list[str]()
        session.run(arrays)  # which plans a LOW session anew, for arrays of fp16
        recording = recorded(session)
        assert sorted(recording.run.of_micro_batches) == [0, 1] and bool(recording.run.undivided) is not ahead
        for name in STARTS[device]:
            monkeypatch.setattr(recording.device, name, noted(getattr(recording.device, name), name, starts))
        for seed in range(4):
            fed = feeds(graph, seed)
            (want,) = outputs(graph, fed)
            arrays["x"][...] = fed["x"]
            for given in (arrays, fed):
                starts.clear()
                (got,) = session.run(given)
                assert (len(starts) == 1) is (given is arrays and not ahead)
                np.testing.assert_allclose(got, want, *tolerance(DTYPES[precision], "reduction"))


def noted(start: Callable[[Any], None], name: str, starts: list[str]) -> Callable[[Any], None]:
    """Return a device's method that notes its name when it is called."""

    def note(handle: Any) -> None:
        starts.append(name)
        start(handle)

    return note


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_that_the_caller_puts_there_himself_are_run_all_the_same(device: str) -> None:
    """Nothing is begun before the submit then."""
    graph = chain()
    with weft.load(graph, device=device, fallback="error") as session:
        (pipeline,) = session.pipelines
        fed = feeds(graph, 5)
        pipeline.mapped["x"][...] = fed["x"]
        pipeline.execute()
        pipeline.wait()
        got, (want,) = pipeline.port("y").numpy(), outputs(graph, fed)
        np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_parts_leave_to_tuning_counts_for_each_of_them(device: str) -> None:
    with weft.load(chain(), device=device, fallback="error") as session:
        recording, (pipeline,) = recorded(session), session.pipelines
        every = [choice for task in pipeline.tasks for choice in getattr(task.execution, "choices", ())]
        launched = [*recording.run.planned, *recording.run.undivided]
        assert {id(x) for choice in every for x in choice.launches} <= {id(x.plan) for x in launched}
        for task in pipeline.tasks:
            execution: Any = task.execution
            if execution.label in recording.run.micro_batches.nodes and execution.choices:
                whole = [t.shape for t in execution.planned[execution.choices[-1].key][1]]
                assert len(execution.choices) == recording.run.micro_batches.count + 1, "and the whole batch"
                assert all(shape[0] == BATCH for shape in whole)
        problems = open_problems(session.pipelines)
        assert sum(problem.nodes for problem in problems) < len(every), "a node is one, in however many parts"


@pytest.mark.parametrize("device", DEVICES)
def test_another_batch_has_other_parts(device: str) -> None:
    graph = chain()
    for name in {o for node in graph.nodes for o in node.outputs}:
        del graph.specs[name]
    graph.specs["x"] = TensorSpec(("n", 3, 16, 16), DType.FLOAT32)
    with weft.load(graph, device=device, fallback="error") as session:
        for batch, parts in ((8, 2), (6, 2), (5, 1), (2, 1), (16, 2)):
            x = feeds(chain(batch), batch)
            (y,) = session.run(x)
            np.testing.assert_allclose(y, outputs(chain(batch), x)[0], *tolerance(DType.FLOAT32, "reduction"))
            assert recorded(session).run.micro_batches.count == parts


@pytest.mark.parametrize("device", DEVICES)
def test_no_parts_with_a_profile_or_little_memory(device: str) -> None:
    graph = chain()
    for how in ({"profile": True}, {"memory": "limit"}):
        with weft.load(graph, device=device, fallback="error", **how) as session:  # type: ignore[arg-type]
            assert not recorded(session).run.of_micro_batches
            check(session, graph, runs=1)


def test_a_driver_that_does_not_tell_its_units_has_a_typical_number(monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, MicroBatchFigures, pixels=20)  # half of the batch has 1024 pixels, 256 after the pool
    device = opened("vulkan")
    for units, nodes in ((16, 2), (1, 2), (2, 3)):
        monkeypatch.setattr(device, "caps", replace(device.caps, compute_units=units))
        with weft.load(chain(), device="vulkan", fallback="error") as session:
            assert len(recorded(session).run.micro_batches.nodes) == nodes


def test_no_parts_where_they_would_not_fill_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, MicroBatchFigures, pixels=1 << 20)
    with weft.load(chain(), device="vulkan", fallback="error") as session:
        assert not recorded(session).run.of_micro_batches


@pytest.mark.parametrize(
    ("device", "ahead"), [pytest.param(*way, marks=[pytest.mark.long] * (way[0] == "vulkan")) for way in WAYS]
)
@given(graph=networks(8, batches=(8, 16), sides=(8,), padded_first=True))
@settings(max_examples=8, deadline=None, suppress_health_check=SLOW)
def test_a_random_network_is_right(device: str, ahead: bool, graph: Graph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened(device), "sends_ahead", ahead)
        with weft.load(graph, device=device, fallback="error") as session:
            assert recorded(session).run.micro_batches.count == find_micro_batches.COUNT
            assert_session_is_right(session, graph, 1e-4)
            arrays, fed = session.input_arrays(), feeds(graph, 9)
            for name, array in arrays.items():
                array[...] = fed[name]
            plain = session.run(fed)
            for results in (session.run(arrays), session.run(fed, outputs=session.output_arrays())):
                for got, want in zip(results, plain, strict=True):
                    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))
