"""Element-wise steps that the 1 x 1 convolution behind them applies as it loads: a prologue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import KINDS, OPENCL, VULKAN, card
from tests.helpers.conv_problems import conv_problem, take_where_it_fits
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.backends.vulkan import glslang
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Step, earlier
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.tensor import TensorSpec
from weft.core.registry.backend_registry import registry
from weft.kernels.device_caps import DeviceCaps
from weft.ops.binary import Add, Mul
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.fused.prologue import PrologueConv, why_no_prologue
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.matrix.staged import MatrixConv, MatrixTile
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv, UnstagedTile
from weft.ops.unary import Relu
from weft_conformance.cases.table import tolerance


def scaled(
    *, images: int = 1, channels: int = 6, co: int = 8, size: int = 5, kind: str = "Mul", **more: object
) -> Graph:
    """Return an image times a number for each channel that is computed, a ReLU, and a convolution with a residual."""
    net = Net()
    x = net.conv(net.input("x", images, 3, size, size), channels, 3, pads=(1, 1, 1, 1), name="image")
    gate = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", x), channels, name="inner"), name="gate")
    steps = net.add("Relu", net.add(kind, x, gate), name="steps")
    return net.finish(net.add("HardSwish", net.conv(steps, co, **more), name="y"))  # type: ignore[arg-type]


def normalized(channels: int = 8, co: int = 8) -> Graph:
    """Return two convolutions of joined images, each after a batch norm and a ReLU, as in DenseNet."""
    net = Net()
    joined = net.conv(net.input("x", 2, 3, 6, 7), channels, 3, pads=(1, 1, 1, 1))
    for _ in range(2):
        count = net.shape(joined)[1]
        stored = [net.random(count), net.random(count), net.random(count), np.abs(net.random(count))]
        x = net.add("Relu", net.add("BatchNormalization", joined, *stored))
        joined = net.add("Concat", joined, net.conv(x, co), axis=1)
    return net.finish(net.add("Relu", joined, name="y"))


# -- where it is done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
def test_what_one_convolution_reads_alone_is_no_launch(precision: str) -> None:
    loose = 0.05 if precision == "low" else 1e-5
    assert "elementwise_c4" not in planned_kernels(scaled(), precision)
    assert_plan_computes(scaled(images=2), precision, loose)
    assert planned_kernels(normalized(), precision).count("elementwise_c4") == 1  # of the last ReLU
    assert_plan_computes(normalized(), precision, loose)


@pytest.mark.parametrize(
    "graph",
    [scaled(co=520), scaled(kernel=3), scaled(strides=(2, 2)), scaled(group=2), scaled(kind="Pow")],
    ids=["channels", "taps", "stride", "groups", "dear"],
)
def test_another_scale_is_a_launch(graph: Graph) -> None:
    assert any(kernel.startswith("elementwise") for kernel in planned_kernels(graph))


def test_a_value_that_others_read_too_is_a_launch() -> None:
    graph = scaled()
    graph.outputs.append("steps")
    assert any(kernel.startswith("elementwise") for kernel in planned_kernels(graph))


def test_nothing_is_joined_where_that_was_found_wrong_or_is_switched_off() -> None:
    with null_gpu() as device:
        device.caps = replace(CAPS, without=frozenset({"conv_prologue"}))
        with weft.load(scaled(), "null", fallback="error") as session:
            assert "elementwise_c4" in kernels(session)
    with null_gpu(), weft.load(scaled(), "null", fallback="error", fusing=False) as session:
        assert "elementwise_c4" in kernels(session)


def test_the_journal_tells_it() -> None:
    with null_gpu():
        network = weft.optimize(scaled(), "null", fallback="error")
        assert any("fuse_prologues" in line for line in network.why("n_steps"))


# -- what comes of it -----------------------------------------------------------------------------------------


def test_it_is_an_op_that_is_both() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (np.asarray(rng.standard_normal(s), np.float32) for s in ((2, 3, 4, 5), (6, 3, 1, 1), (6,)))
    gate, shift = (np.asarray(rng.standard_normal(s), np.float32) for s in ((2, 3, 1, 1), (3, 1, 1)))
    steps = [(Mul(), (RUNNING, 3)), (Add(), (RUNNING, 4)), (Relu(), (RUNNING,)), (Add(), (RUNNING, earlier(0)))]
    op = PrologueConv(Conv(), 3, tuple(Step(*step) for step in steps))
    y = Conv().reference(np.maximum(x * gate + shift, 0) + x, w, b)
    np.testing.assert_array_equal(op.reference(x, w, b, gate, shift), y)
    arrays = (x, w, b, gate, shift)
    specs = [TensorSpec(a.shape, DType.FLOAT32) for a in arrays]
    assert op.infer(specs, [None, *arrays[1:]]) == (TensorSpec(y.shape, DType.FLOAT32),)
    assert op.flops([a.shape for a in arrays], [y.shape]) == Conv().flops([x.shape, w.shape], [y.shape]) + 4 * x.size


def _assert_right(graph: Graph, device: str, kind: DType = DType.FLOAT32) -> None:
    """Fail unless a GPU computes what the references do, without a launch for the steps."""
    (want,) = outputs(graph, feeds(graph))
    precision = "high" if kind is DType.FLOAT32 else "low"
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        assert "elementwise_c4" not in kernels(session)
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))


def _why_not(x: tuple[int, ...], channels: int, caps: DeviceCaps) -> str | None:
    weight = (channels, x[1], 1, 1)
    return why_no_prologue(Conv(kernel_shape=(1, 1)), TensorSpec(x, DType.FLOAT16), weight, 3, caps, False)


@pytest.mark.parametrize("caps", [OPENCL, VULKAN], ids=["opencl", "vulkan"])
def test_matrix_units_take_steps_where_that_is_faster_than_a_launch(caps: DeviceCaps) -> None:
    """Scales of EfficientNet, batch norms of DenseNet; large products are for kernels that stage by themselves."""
    for channels_in, size, channels in ((672, 14, 112), (1152, 7, 192), (256, 28, 128), (992, 7, 128)):
        assert _why_not((1, channels_in, size, size), channels, caps) is None
    assert _why_not((1, 44, 14, 14), 64, caps) is None  # not in pieces of eight, so that only `conv_matrix` fits
    for shape in ((8, 512, 56, 56), (1, 2048, 28, 28)):
        assert "us longer" in (_why_not(shape, 512, caps) or "")


def _planned(graph: Graph, api: str, *without: str) -> dict[str, str]:
    """Return the texts of the kernels that an H200 would run in fp16, without what failed a self-test, by template."""
    with null_gpu() as device:
        card(device, api)
        device.caps = replace(OPENCL if api == "opencl" else VULKAN, without=frozenset(without))
        registry.find("null").runtime(0).trust()  # type: ignore[attr-defined]
        with weft.load(graph, "null", precision="low", fallback="error") as session:
            planned = session.pipelines[0].backend.recording.run.planned  # type: ignore[attr-defined]
            return {each.plan.kernel: each.plan.source.text for each in planned}


@pytest.mark.parametrize("api", APIS)
def test_a_kernel_that_failed_its_self_test_takes_no_steps(api: str) -> None:
    graph, steps = scaled(channels=1152, co=192, size=7), "loaded"
    assert steps in _planned(graph, api)["conv_unstaged"]
    assert steps in _planned(graph, api, "conv_unstaged_prologue")["conv_matrix"]
    found = _planned(graph, api, "conv_unstaged_prologue", "conv_matrix_prologue")
    assert "elementwise_c4" in found and not any(steps in text for text in found.values())


@pytest.mark.parametrize("kind", ["conv_unstaged_prologue", "conv_matrix_prologue"])
def test_the_self_test_finds_the_tiles_that_it_names(kind: str) -> None:
    cases = KINDS[kind].cases()
    assert any("InParts" in case.prefer for case in cases) and any(case.inputs["i0"].shape[0] > 1 for case in cases)
    for case in cases:
        (node,), x, weight = case.nodes, case.inputs["i0"], case.constants["i1"]
        assert isinstance(node.op, PrologueConv)
        problem = conv_problem(x.shape, weight.shape, VULKAN, prologue_steps=len(node.op.steps))
        assert any(text.startswith(case.prefer) for text in CONVOLUTIONS.decide(problem).candidates)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_channels_that_fill_no_vector_and_several_images_are_right(device: str) -> None:
    _assert_right(scaled(images=3, channels=7, co=9), device)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_no_infinity_is_made_of_the_zeros_behind_the_last_channel(device: str) -> None:
    _assert_right(scaled(channels=6, kind="Div"), device)


def _launched(graph: Graph, api: str) -> list[str]:
    """Return the kernels of a device with matrix units; fail unless they compute what the CPU does in fp16."""
    given = {name: x.astype(np.float16).astype(np.float32) for name, x in feeds(graph).items()}
    with weft.load(graph, "cpu", precision="low") as session:
        (want,) = session.run(given)
    load = partial(weft.load, precision="low", fallback="error")
    with emulated_gpu(api, channels_last=True), load(graph, "emulated") as session:
        launched = kernels(session)
        (got,) = session.run(given)
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT16, "reduction"))
    return launched


WHOLE, SLICED, FOUR = UnstagedTile(1, 1, 1, 2), UnstagedTile(1, 2, 2, 1), UnstagedTile(2, 2, 1, 2)


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("tile", "channels", "images"),
    [(WHOLE, 8, 1), (SLICED, 72, 1), (FOUR, 40, 3), (InParts(WHOLE, 4), 264, 2)],
    ids=str,
)
def test_matrix_units_scale_each_channel_of_each_image(
    tile: object, channels: int, images: int, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_where_it_fits(monkeypatch, UnstagedConv(), tile)
    launched = _launched(scaled(images=images, channels=channels, co=20, size=7), api)
    assert "conv_unstaged" in launched and "elementwise_c4" not in launched


@pytest.mark.covering
@pytest.mark.parametrize(
    ("tile", "channels", "images"),
    [
        (MatrixTile(2, 1, 2, 2), 72, 1),
        (MatrixTile(1, 1, 1, 2, 4), 264, 3),
        (InParts(MatrixTile(1, 1, 1, 2), 2), 134, 2),
    ],
    ids=str,
)
def test_tiles_in_work_group_memory_get_them_too(
    tile: object, channels: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_where_it_fits(monkeypatch, MatrixConv(), tile)
    launched = _launched(scaled(images=images, channels=channels, co=20, size=7), "opencl")
    assert "conv_matrix" in launched and "elementwise_c4" not in launched


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("channels", [13, 72])
def test_the_twin_in_glsl_compiles(channels: int, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take_where_it_fits(monkeypatch, MatrixConv(), MatrixTile(2, 1, 2, 2))
    text = _planned(scaled(images=images, channels=channels, co=20, size=7), "vulkan")["conv_matrix"]
    compiler = glslang.find_compiler()
    assert compiler is not None and "loaded" in text
    assert compiler.compile(text, "conv_matrix").startswith(glslang.SPIRV_MAGIC)


@pytest.mark.alike
@pytest.mark.parametrize("api", APIS)
def test_matrix_units_apply_a_batch_norm_and_a_relu(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_where_it_fits(monkeypatch, UnstagedConv(), WHOLE if api == "vulkan" else FOUR)
    launched = _launched(normalized(channels=16), api)
    assert launched.count("conv_unstaged") == 2 and launched.count("elementwise_c4") == 1  # of the last ReLU


@given(
    images=st.integers(1, 3), channels=st.integers(1, 40), co=st.integers(1, 70), size=st.integers(1, 9),
    kind=st.sampled_from(["Mul", "Add", "Sub", "Max", "Div"]),
)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_any_sizes_play_right(images: int, channels: int, co: int, size: int, kind: str) -> None:
    assert_plan_computes(scaled(images=images, channels=channels, co=co, size=size, kind=kind))
