"""Two convolutions of single pixels as one launch: the small layers of squeeze-and-excite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, most_buffers, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Step
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.tensor import TensorSpec
from weft.ops.conv import Conv
from weft.ops.gpu.conv.fused.pair import ConvPair
from weft.ops.unary import Relu
from weft_conformance.cases.table import tolerance


def excited(
    *, images: int = 1, channels: int = 12, hidden: int = 5, size: int = 4, bias: bool = True, swish: bool = True,
    group: int = 1,
) -> Graph:
    """Return squeeze-and-excite: the means of channels, two small layers, and a scale."""
    net = Net()
    x = net.conv(net.input("x", images, 3, size, size), channels, 3, pads=(1, 1, 1, 1))
    inner = net.conv(net.add("GlobalAveragePool", x), hidden, bias=bias, name="inner")
    if swish:
        inner = net.add("Mul", inner, net.add("Sigmoid", inner))
    else:
        inner = net.add("Clip", inner, np.array(-1, np.float32), np.array(6, np.float32))
    gate = net.add("HardSigmoid", net.conv(inner, channels, bias=bias, group=group, name="outer"))
    return net.finish(net.add("Mul", x, gate, name="y"))


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("swish", [False, True])
def test_both_layers_are_one_launch(precision: str, swish: bool) -> None:
    told = planned_kernels(excited(swish=swish), precision)
    assert told.count("conv_pair") == 1 and told.count("conv_gemm") == 1
    assert_plan_computes(excited(images=3, swish=swish, bias=False), precision, 0.05 if precision == "low" else 1e-5)


def test_other_layers_stay_two() -> None:
    graph = excited(hidden=6, group=2)
    assert "conv_pair" not in planned_kernels(graph)
    graph = excited()
    graph.outputs.append("inner")
    assert "conv_pair" not in planned_kernels(graph)
    assert "conv_pair" not in planned_kernels(excited(channels=800, hidden=100))  # much work for each group to repeat
    with null_gpu() as device:
        device.caps = replace(CAPS, without=frozenset({"conv_pair"}))
        with weft.load(excited(), "null", fallback="error") as session:
            assert "conv_pair" not in kernels(session)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [1, 5])
def test_no_kernel_binds_more_buffers_than_the_device_takes(hidden: int, bias: bool) -> None:
    """A bias of one element is a buffer, too."""
    for most in (4, 5, 6, 8):
        with null_gpu() as device:
            device.caps = replace(CAPS, max_buffers=most)
            with weft.load(excited(hidden=hidden, bias=bias), "null") as session:
                assert most_buffers(session) <= most


def test_weights_of_a_pair_fit_one_argument() -> None:
    """Blocks of weights are 8 x 5 x 16 bytes here; the image of the first convolution takes less."""
    for most, count in ((640, 1), (639, 0)):
        with null_gpu() as device:
            device.caps = replace(CAPS, max_buffer_range=most)
            graph = excited(channels=32, hidden=5, size=1)
            with weft.load(graph, ["null", "cpu"]) as session:
                planned = [launch.kernel for _, launch in session.report.launches]
            assert planned.count("conv_pair") == count


def test_it_is_an_op_that_is_both() -> None:
    rng = np.random.default_rng(0)
    shapes = (2, 3, 1, 1), (4, 3, 1, 1), (4,), (5, 4, 1, 1)
    x, w, b, v = (np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes)
    op = ConvPair(Conv(), 3, (Step(Relu(), (RUNNING,)),), Conv(), 1)
    y = Conv().reference(np.maximum(Conv().reference(x, w, b), 0), v)
    np.testing.assert_array_equal(op.reference(x, w, b, v), y)
    specs = [TensorSpec(a.shape, DType.FLOAT32) for a in (x, w, b, v)]
    assert op.infer(specs, [None, w, b, v]) == (TensorSpec(y.shape, DType.FLOAT32),)
    assert op.flops([a.shape for a in (x, w, b, v)], [y.shape]) == 2 * 8 * 3 + 8 + 2 * y.size * 4


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=["high", "low"])
def test_a_device_computes_it_right(device: str, precision: DType) -> None:
    graph = excited(images=2, channels=270, hidden=7)
    (want,) = outputs(graph, feeds(graph))
    level = "high" if precision is DType.FLOAT32 else "low"
    with weft.load(graph, device, precision=level, fallback="error") as session:
        assert "conv_pair" in kernels(session)
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(precision, "reduction"))


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=["high", "low"])
def test_a_gpu_computes_it_right(api: str, precision: DType) -> None:
    """Several rounds of loads of both weights, and several groups for an image."""
    graph = excited(images=2, channels=357, hidden=150, size=1)
    (want,) = outputs(graph, feeds(graph))
    level = "high" if precision is DType.FLOAT32 else "low"
    with (
        emulated_gpu(api, channels_last=True, software=False, compute_units=132, max_local_items=512),
        weft.load(graph, "emulated", precision=level, fallback="error") as session,
    ):
        assert "conv_pair" in kernels(session)
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(precision, "reduction"))


@given(
    images=st.integers(1, 3), channels=st.integers(1, 90), hidden=st.integers(1, 70), bias=st.booleans(),
    swish=st.booleans(),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
def test_any_sizes_play_right(images: int, channels: int, hidden: int, bias: bool, swish: bool) -> None:
    assert_plan_computes(excited(images=images, channels=channels, hidden=hidden, bias=bias, swish=swish))
