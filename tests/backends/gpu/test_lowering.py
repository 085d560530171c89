"""What is printed is what runs: the listing of an optimised network against the commands that a device records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.cards import card
from tests.helpers.device_figures import set_figures
from tests.helpers.fakes import Creator, Mock, registered
from tests.helpers.nets import Net, branching, chain, feeds
from tests.helpers.null_gpu import CAPS, NullDevice, null_gpu
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.saved_networks import as_saved
from weft.backends.cpu.pipeline import CpuPipeline
from weft.backends.gpu.device.device import BarrierCommand, Command, GpuDevice, LaunchCommand
from weft.backends.gpu.lowering.launches.micro_batches import MicroBatchFigures
from weft.backends.gpu.lowering.rewrites.merge_convolutions import MergeFigures
from weft.backends.gpu.selftest import verdict_store
from weft.core.contract.lowered import Launch, Lowered
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.core.registry.backend_registry import registry
from weft.errors import ExecutionError
from weft.extend import GpuOp
from weft.kernels.chooser import forget_decisions
from weft.kernels.matrix_shapes import HALVES
from weft.models import path as model_path
from weft_conformance.cases.table import tolerance

GPUS = ("opencl", "vulkan")
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NETWORKS = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
LARGE_GPU = replace(
    CAPS, matrices=(HALVES,), channels_last=True, shuffles=True, compute_units=132, max_local_items=1024,
    max_local_size=(1024, 1024, 64), local_memory=49152, max_buffer_range=1 << 31, max_allocation=1 << 33,
)


class Noted:
    """What a device was asked to record, by recordings."""

    def __init__(self) -> None:
        self.recordings: list[list[Command]] = []

    @property
    def launches(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the kernels of all launches and their grids, in order."""
        found = [c for commands in self.recordings for c in commands if isinstance(c, LaunchCommand)]
        return [(c.label, tuple(c.grid)) for c in found]

    @property
    def levels(self) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
        """Iterate over the launches between two barriers."""
        for commands in self.recordings:
            level: list[tuple[str, tuple[int, ...]]] = []
            for c in (*commands, BarrierCommand()):
                if isinstance(c, LaunchCommand):
                    level.append((c.label, tuple(c.grid)))
                elif isinstance(c, BarrierCommand):
                    yield level
                    level = []


@contextmanager
def noting(device: GpuDevice, patch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """Note what is recorded on a device in the block."""
    divides = type(device).record_divided is not GpuDevice.record_divided  # then `record` calls it
    noted, name = Noted(), "record_divided" if divides else "record"
    record = getattr(device, name)

    def note(commands: Sequence[Command], *rest: Any, **named: Any) -> Any:
        noted.recordings.append(list(commands))
        return record(commands, *rest, **named)

    with patch.context() as inner:
        inner.setattr(device, name, note)
        yield noted


def key(launch: Launch) -> tuple[str, tuple[int, ...]]:
    return launch.label, launch.grid  # type: ignore[attr-defined]


def assert_listed(noted: Noted, session: weft.Session) -> None:
    """Compare what was recorded with the report, the network and its text: kernels, grids, count and order."""
    listed = [launch for _, launch in session.report.launches]
    assert sorted(map(key, listed)) == sorted(noted.launches)
    place: dict[tuple[str, tuple[int, ...]], int] = {}
    for position, launch in enumerate(listed):
        place.setdefault(key(launch), position)
    for level in noted.levels:
        positions = [place[launch] for launch in level]
        assert positions == sorted(positions), "launches of a level keep the order of the list"
    parts = [part.listing for part in session.optimized.parts if part.listing is not None]
    assert [x for listing in parts for x in listing.launches] == listed
    text = str(session.optimized).splitlines()
    for launch in listed:
        assert text.count(f"    {launch}") >= 1
    assert sum(line.startswith("    ") for line in text) == len(listed)
    counted = sum(s.get("launches", 0) for s in session.report.statistics.values())
    assert counted == len(listed)
    assert_dependent_ones_are_in_order(noted, listed)


def assert_dependent_ones_are_in_order(noted: Noted, listed: Sequence[Launch]) -> None:
    """Two launches of which one writes what the other touches are recorded in the order of the list."""
    levels: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for number, level in enumerate(noted.levels):
        for launch in level:
            levels.setdefault(launch, []).append(number)
    touched: list[tuple[int, set[object], set[object]]] = []
    for planned in listed:
        reads, writes = ({spot(t) for t in getattr(planned, name)} for name in ("reads", "writes"))
        own = levels[key(planned)].pop(0)
        for earlier, read, written in touched:
            if writes & (read | written) or reads & written:
                assert earlier < own
        touched.append((own, reads, writes))


def spot(tensor: Any) -> object:
    """Return where a planned tensor lies; scratch and constants have roots that only their nodes share."""
    root = tensor.memory.root
    return (tensor.name if isinstance(root, tuple) else root, tensor.memory.first, tensor.memory.start)


@pytest.mark.covering
@pytest.mark.parametrize("caps", [CAPS, LARGE_GPU], ids=["small", "large"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_list_of_a_network_is_what_is_recorded(name: str, caps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with null_gpu() as device:
        device.caps = caps
        with noting(device, monkeypatch) as noted, weft.load(LIGHT / f"light_{name}.onnx", "null") as session:
            assert_listed(noted, session)


@given(graph=networks(12))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_the_list_of_a_random_network_is_what_is_recorded(graph: Graph) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        null_gpu() as device,
        noting(device, patch) as noted,
        weft.load(graph, "null", fallback="error") as session,
    ):
        assert_listed(noted, session)


def resizable() -> Graph:
    """A network with a convolution of several launches, a view, a branch and a sum."""
    net = Net()
    x = net.input("x", "N", 8, 12, 12)
    a = net.add("Relu", net.add("Conv", x, net.random(16, 8, 3, 3), pads=(1,) * 4))
    parts = [net.add("Conv", a, net.random(8, 16, 1, 1)) for _ in range(2)]
    both = net.add("Concat", *parts, axis=1)
    pooled = net.add("GlobalAveragePool", net.add("Add", both, a))
    return net.finish(net.add("Softmax", net.add("Flatten", pooled, axis=1), name="y"))


@pytest.mark.alike
@pytest.mark.parametrize("gpu", GPUS)
def test_on_devices_also_after_a_resize_and_a_save(gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, graph = registry.find(gpu).runtime(0).device, resizable()  # type: ignore[attr-defined]
    with noting(device, monkeypatch) as noted, weft.load(graph, gpu, shapes={"x": (1, 8, 12, 12)}) as session:
        assert_listed(noted, session)
        for batch in (3, 2):
            noted.recordings.clear()
            session.resize({"x": (batch, 8, 12, 12)})
            assert_listed(noted, session)
        before, network = session.report.launches, session.optimized
        network.save(tmp_path / "n.weft")
    read = OptimizedNetwork.load(tmp_path / "n.weft")
    assert str(read) == str(as_saved(network)), "a saved file tells all but the launches"
    with noting(device, monkeypatch) as noted, weft.load(read) as session:
        assert_listed(noted, session)
        assert [x.facts for _, x in session.report.launches] == [x.facts for _, x in before]
        assert not [n for n in session.report.notes if "does not launch" in n]
        fed = {"x": np.random.default_rng(0).standard_normal((2, 8, 12, 12), np.float32)}
        (want,) = outputs(bind(graph, {"x": (2, 8, 12, 12)}), fed)
        np.testing.assert_allclose(session.run(fed)[0], want, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.parametrize("gpu", GPUS)
def test_inspect_prints_it(gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.cli import main

    device = registry.find(gpu).runtime(0).device  # type: ignore[attr-defined]
    with noting(device, monkeypatch) as noted, weft.load(model_path("shapes"), gpu,
                                                         shapes={"image": (1, 3, 128, 128)}) as session:
        assert_listed(noted, session)
        listed = [f"    {launch}" for _, launch in session.report.launches]
    with pytest.raises(SystemExit):
        main(["inspect", str(model_path("shapes")), "--devices", gpu, "--shape", "image=1x3x128x128", "--launches"])
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("    ")] == listed
    with pytest.raises(SystemExit):
        main(["inspect", str(model_path("shapes")), "--devices", gpu, "--shape", "image=1x3x128x128"])
    short = capsys.readouterr().out
    assert f"on {gpu}:0: {len(listed)} launches for " in short and "    relayout" not in short


def of_each_kind() -> Graph:
    """A convolution, a product with weights, and an attention."""
    net = Net()
    x = net.conv(net.input("x", 2, 8, 12, 12), 16, 3, pads=(1,) * 4, name="conv")
    rows = net.add("Reshape", x, np.array([2, 4, 36, 16]))
    tokens = net.add("weft::Attention", rows, rows, rows, name="attention")
    return net.finish(net.add("MatMul", tokens, net.random(16, 8), name="product"))


@pytest.mark.parametrize("caps", [CAPS, LARGE_GPU], ids=["small", "large"])
def test_what_was_chosen_is_told_for_convolutions_products_and_attention(caps: Any) -> None:
    with null_gpu() as device:
        device.caps = caps
        (part,) = weft.optimize(of_each_kind(), "null", fallback="error").parts
        assert part.lowered is not None and part.listing is not None
        for name in ("n_conv", "n_attention", "n_product"):
            told = "\n".join(map(str, part.lowered.decisions[name]))
            kernels = [launch.kernel for launch in part.listing.launches if launch.node == name]
            (taken,) = [line for line in told.splitlines() if line.endswith(", taken") and "as a conv" not in line]
            assert taken.partition(": ")[0] in kernels and ("cost 1.00" in taken or " us, taken" in taken), told
            assert ": no, " in told or "not asked, since" in told
        text = part.listing.text(part.lowered.decisions)
        assert "      chosen by 'conv_gemm':\n        conv_int8: no, " in text
        assert "chosen by" not in str(part.listing)


def test_inspect_prints_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    from weft.cli import main

    with null_gpu(), pytest.raises(SystemExit):
        main(["inspect", str(model_path("shapes")), "--devices", "null", "--shape", "image=1x3x128x128", "--choices"])
    printed = capsys.readouterr().out
    assert printed.count("chosen by 'conv_gemm':") > 1 and "    conv_gemm: " in printed


def test_the_journal_tells_what_lowering_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    x = net.add("MaxPool", net.input("x", 8, 4, 16, 16), kernel_shape=(2, 2), strides=(2, 2), name="pool")
    x = net.conv(x, 8, name="first")
    parts = [net.conv(x, 4, kernel, pads=(kernel // 2,) * 4, name=f"half{kernel}") for kernel in (1, 3)]
    x = net.add("Concat", net.add("Concat", *parts, axis=1), net.add("Sigmoid", x), axis=1, name="joined")
    graph = net.finish(net.add("Reshape", x, np.array([8, -1]), name="y"))
    monkeypatch.setattr("weft.backends.gpu.recording.chunked_upload.LEAST", 1)
    set_figures(monkeypatch, MicroBatchFigures, pixels=1)
    set_figures(monkeypatch, MergeFigures, reused_pixels=0)
    rewrites = "weft.backends.gpu.lowering.rewrites"
    monkeypatch.setattr(f"{rewrites}.merge_convolutions.cheap_zero_products", lambda device: 1 << 30)
    monkeypatch.setattr("weft.backends.gpu.lowering.fusion.pools.pooling_pays", lambda *_: True)
    with null_gpu() as device:
        device.computes_ahead = True
        network = weft.optimize(graph, "null", fallback="error")
        (part,) = network.parts
        assert part.lowered is not None
        why = {name: "\n".join(network.why(name)) for name in ("n_pool", "n_half1", "n_half3", "n_first", "joined")}
        assert "null:0 fuse_pools" in why["n_pool"] and "'n_pool' is merged into 'n_first'" in why["n_pool"]
        assert "null:0 merge_convolutions" in why["n_half3"] and "'n_half3' is merged into 'n_half1'" in why["n_half3"]
        assert "now: 'n_half1' runs on null:0" in why["n_half3"] and "now: 'n_half3'" not in why["n_half3"]
        assert "null:0 find_views" in why["n_half1"] and "lies in 'joined', from channel block 0 on" in why["n_half1"]
        assert "null:0 split_batch" in why["n_first"] and "for each of 2 micro-batches" in why["n_first"]
        relayout = next(n.name for n in part.lowered.graph.nodes if n.op.type == "Relayout")
        assert "null:0 assign_layouts (Store each value as its kernels want it" in network.why(relayout)[0]
        network.save(tmp_path / "n.weft")
        read = OptimizedNetwork.load(tmp_path / "n.weft")
        assert read.journal == network.journal
        with weft.load(read) as session:
            assert session.report.journal == network.journal, "what was lowered anew is told once"


def test_optimising_takes_nothing_of_the_device_and_is_the_same_each_time() -> None:
    with null_gpu() as device:
        first = weft.optimize(branching(8, batch=2), "null")
        assert (device.stats.allocations, device.stats.compiles, device.stats.live_recordings) == (0, 0, 0)
        second = weft.optimize(branching(8, batch=2), "null")
    (a, *_), (b, *_) = (network.parts for network in (first, second))
    assert a.listing is not None and a.listing == b.listing and a.listing.launches
    nodes = {n.name: n for n in a.listing.nodes}
    assert nodes["n_stem"].kind == "Conv + Relu" and nodes["n_stem"].flops > 0
    (stem,) = nodes["n_stem"].outputs
    assert stem.layout is Layout.NC4HW4 and stem.view is not None and stem.view.root == "both"
    assert [n.name for n in first.graph.nodes] == [n.name for n in a.graph.nodes], "the graph is as it was"
    assert all(layout is Layout.NCHW for layout in a.graph.layouts.values())


def test_a_part_of_a_batch_is_listed_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.backends.gpu.recording.chunked_upload.LEAST", 1 << 10)
    set_figures(monkeypatch, MicroBatchFigures, pixels=1)
    for name in ("computes_ahead", "sends_ahead"):
        monkeypatch.setattr(NullDevice, name, True, raising=False)
    net = Net()
    x = net.conv(net.input("x", 8, 4, 16, 16), 8, 3, pads=(1,) * 4)
    graph = net.finish(net.add("GlobalAveragePool", net.conv(x, 8), name="y"))
    with null_gpu() as device, noting(device, monkeypatch) as noted, weft.load(graph, "null") as session:
        assert_listed(noted, session)
        kernels = [launch.node for _, launch in session.report.launches]
        assert kernels.count(kernels[0]) == 2, "the first nodes run in halves"


# -- what another device runs --------------------------------------------------------------------------------


def test_another_device_says_that_it_launches_something_else(tmp_path: Path) -> None:
    with null_gpu() as device:
        network = weft.optimize(LIGHT / "light_squeezenet.onnx", "null")
        device.caps = replace(LARGE_GPU, matrices=())
        with weft.load(network) as session:
            assert any("does not launch what the optimised network lists" in n for n in session.report.notes)


# -- backends of users ---------------------------------------------------------------------------------------


def test_a_backend_may_list_launches_and_gets_back_what_it_lowered() -> None:
    class Planning(Mock):
        log: list[object] = []

        def lower(self, graph: Graph) -> Lowered:
            own = Launch(graph.nodes[0].name, "spin", (2, 1, 1), (8, 1, 1), 24, 12)
            return Lowered(graph, (own,), plan="mine")

        def onLowered(self, lowered: Lowered) -> None:
            self.log += [lowered.plan]

        def onCreate(self, *given: Any) -> Any:
            self.log += ["onCreate"]
            return super().onCreate(*given)

    graph = chain("Relu")
    with registered(Creator(Planning)), weft.load(graph, "acme") as session:
        assert Planning.log == ["mine", "onCreate"]
        assert [(d, str(x)) for d, x in session.report.launches] == [
            ("acme:0", "spin: 2x1x1 groups of 8x1x1, reads 24 bytes, writes 12")
        ]
        assert "    spin: 2x1x1 groups of 8x1x1, reads 24 bytes, writes 12" in str(session.optimized)
        for got, want in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_pipeline_may_see_what_other_sizes_change_once() -> None:
    class Curious(CpuPipeline):
        wants_other_sizes = True
        shown: list[object] = []
        broken = True

        def show(self, other: Part) -> None:
            assert other.lowered is not None
            self.shown.append(other.lowered.plan)
            if self.broken:
                raise ExecutionError("something of its own")

    class Planning(Mock):
        pipeline_type = Curious

        def lower(self, graph: Graph) -> Lowered:
            return Lowered(graph, (), plan=graph.specs[graph.inputs[0]].shape)

    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "n", 3), name="y"))
    with registered(Creator(Planning)), weft.load(graph, "acme", shapes={"x": (2, 3)}) as session:
        with pytest.raises(ExecutionError, match="of its own"):
            session.resize({"x": (5, 3)})
        Curious.broken = False
        for n in (5, 6, 7):
            session.resize({"x": (n, 3)})
        assert Curious.shown == [(10, 3), (12, 3)], "a resize that failed leaves a session without a first shape"


def test_a_backend_that_lowers_nothing_has_no_listing() -> None:
    network = weft.optimize(branching(), "cpu")
    assert [part.listing for part in network.parts] == [None] and "launches" not in str(network)


def test_what_an_op_says_of_a_constant_is_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.ops.gpu.softmax import SoftmaxOnGpu

    made: list[int] = []

    def array() -> np.ndarray[Any, Any]:
        made.append(1)
        return np.zeros(4, np.float32)

    def lies(shape: tuple[int, ...]) -> Callable[..., None]:
        def launches(self: GpuOp, op: Any, k: Any, inputs: Any, outputs: Any) -> None:
            table = k.constant("table", array, spec=TensorSpec(shape, DType.FLOAT32))
            k.launch("move", reads={"x": inputs[0], "t": table}, writes={"y": outputs[0]}, grid=(1, 1, 1),
                     local=(1, 1, 1), ints={}, variant={})

        return launches

    net = Net()
    graph = net.finish(net.add("Softmax", net.input("x", 2, 3), name="y"))
    with null_gpu():
        monkeypatch.setattr(SoftmaxOnGpu, "launches", lies((5,)))
        monkeypatch.setattr("weft.backends.gpu.lowering.launches.builder.render", lambda request, dialect: _source())
        weft.optimize(graph, "null")
        assert not made, "planning makes no array that an op describes"
        with pytest.raises(weft.errors.BackendError, match="another shape or type than its op announced"):
            weft.load(graph, "null", fallback="error")


def test_a_resize_plans_without_making_constants_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.ops.gpu.softmax import SoftmaxOnGpu

    made: list[int] = []

    def array() -> np.ndarray[Any, Any]:
        made.append(1)
        return np.zeros(4, np.float32)

    def launches(self: GpuOp, op: Any, k: Any, inputs: Any, outputs: Any) -> None:
        table = k.constant("table", array, spec=TensorSpec((4,), DType.FLOAT32))
        k.launch("move", reads={"x": inputs[0], "t": table}, writes={"y": outputs[0]}, grid=(1, 1, 1), local=(1, 1, 1))

    net = Net()
    graph = net.finish(net.add("Softmax", net.input("x", "N", 3), name="y"))
    monkeypatch.setattr(SoftmaxOnGpu, "launches", launches)
    monkeypatch.setattr("weft.backends.gpu.lowering.launches.builder.render", lambda request, dialect: _source())
    with null_gpu(), weft.load(graph, "null", shapes={"x": (2, 3)}, fallback="error") as session:
        session.resize({"x": (5, 3)})
        assert made == [1]


@pytest.mark.parametrize("api", ["", "opencl", "vulkan"])
@pytest.mark.parametrize("precision", ["high", "normal"])
def test_planning_packs_no_weights(api: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_store, "examine", lambda *_, **__: [])
    net = Net()
    weights = np.random.default_rng(0).standard_normal((512, 512, 3, 3), np.float32)
    weights.setflags(write=False)  # a session copies what its owner may change
    x = net.input("x", 1, 512, 14, 14)
    for _ in range(3):
        x = net.add("Conv", x, weights, pads=(1,) * 4)
    graph = net.finish(x)
    with null_gpu() as device:
        if api:
            card(device, api)
        weft.optimize(graph, "null", precision=precision, fallback="error")  # what it imports does not count
        forget_decisions()
        tracemalloc.start()
        try:
            weft.optimize(graph, "null", precision=precision, fallback="error")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < weights.nbytes / 4


def _source() -> Any:
    from weft.kernels.source import KernelCode, KernelSource

    return KernelSource("main", KernelCode(""), (), ())
