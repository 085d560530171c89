"""Norms over the channels of images in parts: one launch on rows of channels, which images are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import weft
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.backends.gpu.lowering.layout.norm_rows import norm_rows
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.passes import PASSES
from weft.core.passes.patterns import fuse_channel_norms

ROWS = {"rms": "RMSNormalization", "layer": "LayerNormalization"}


def number(net: Net, value: float, like: str) -> Array:
    return np.asarray(value, net.graph.specs[like].dtype.numpy)


def weight(net: Net, like: str, *shape: int) -> Array:
    return np.asarray(1 + net.random(*shape, scale=0.25), net.graph.specs[like].dtype.numpy)


def of_channels(net: Net, x: str) -> tuple[int, ...]:
    return (net.shape(x)[1], *[1] * (len(net.shape(x)) - 2))


def normed(
    net: Net,
    x: str,
    kind: str = "rms",
    *,
    axes: tuple[int, ...] = (1,),
    shape: Callable[[Net, str], tuple[int, ...]] | None = of_channels,
    divide: bool = False,
    keepdims: int = 1,
) -> str:
    """Add a norm in parts; `shape` is that of its scale and shift, None for none."""
    if kind == "layer":
        x = net.add("Sub", x, net.add("ReduceMean", x, np.array(axes)))
    squares = net.add("ReduceMean", net.add("Pow", x, number(net, 2, x)), np.array(axes), keepdims=keepdims)
    root = net.add("Sqrt", net.add("Add", squares, number(net, 1e-5, x)))
    y = net.add("Div", x, root) if divide else net.add("Mul", x, net.add("Div", number(net, 1, x), root))
    if shape is None:
        return y
    y = net.add("Mul", y, weight(net, x, *shape(net, x)))
    return net.add("Add", y, weight(net, x, *shape(net, x))) if kind == "layer" else y


def alone(kind: str, *, dims: tuple[int, ...] = (2, 8, 5, 3), dtype: DType = DType.FLOAT32, **form: object) -> Graph:
    net = Net()
    return net.finish(normed(net, net.input("x", *dims, dtype=dtype), kind, **form))  # type: ignore[arg-type]


def block(kind: str, channels: int = 8, *, rank: int = 4, images: int = 2, residual: bool = True) -> Graph:
    """Return a norm with an activation, and the sum with its image, between convolutions."""
    net = Net()
    x = net.input("x", images, channels, *[5] * (rank - 2))

    def conv(value: str) -> str:
        return net.add("Conv", value, net.random(channels, channels, *[1] * (rank - 2), scale=0.3))

    x = conv(x)
    y = net.add("Relu", normed(net, x, kind))
    return net.finish(conv(net.add("Add", y, x) if residual else y))


# -- the pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("dims", [(2, 8, 5), (2, 8, 5, 3), (1, 3, 4, 1, 2), (2, 1, 3, 3), (0, 4, 3, 3)])
@pytest.mark.parametrize("kind", ROWS)
def test_a_norm_over_channels_becomes_one_of_rows(kind: str, dims: tuple[int, ...], divide: bool) -> None:
    graph = alone(kind, dims=dims, divide=divide)
    after = fuse_channel_norms(graph)
    assert kinds(after) == ["Transpose", ROWS[kind], "Transpose"]
    assert_same(graph, after)
    assert fuse_channel_norms(after) is after


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
@pytest.mark.parametrize("kind", ROWS)
def test_each_float_type_is_found(kind: str, dtype: DType) -> None:
    graph = alone(kind, dtype=dtype)
    after = fuse_channel_norms(graph)
    assert kinds(after) == ["Transpose", ROWS[kind], "Transpose"]
    assert_same(graph, after, {DType.FLOAT16: 4e-3, DType.BFLOAT16: 4e-2, DType.FLOAT64: 1e-14}[dtype])


@pytest.mark.parametrize("shape", [None, (), (1,), (8, 1, 1), (1, 8, 1, 1)])
@pytest.mark.parametrize("kind", ROWS)
def test_a_scale_of_channels_is_taken_in(kind: str, shape: tuple[int, ...] | None) -> None:
    graph = alone(kind, shape=shape if shape is None else lambda net, x: shape)
    after = fuse_channel_norms(graph)
    single = kind == "layer" and shape is not None and len(shape) < 3
    assert kinds(after) == ["Transpose", ROWS[kind], "Transpose", *(["Mul", "Add"] if single else [])]
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(3,), (5, 1), (8, 5, 1), (2, 1, 1, 1)])
@pytest.mark.parametrize("kind", ROWS)
def test_a_scale_along_other_axes_stays_behind(kind: str, shape: tuple[int, ...]) -> None:
    graph = alone(kind, shape=lambda net, x: shape)
    after = fuse_channel_norms(graph)
    assert kinds(after)[:4] == ["Transpose", ROWS[kind], "Transpose", "Mul"]
    assert_same(graph, after)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("kind", ROWS)
def test_norms_over_other_axes_stay(kind: str, axes: tuple[int, ...]) -> None:
    graph = alone(kind, axes=axes)
    assert fuse_channel_norms(graph) is graph


def test_last_axes_are_those_of_the_standard_passes() -> None:
    graph = alone("rms", dims=(3, 8), shape=None)
    assert fuse_channel_norms(graph) is graph
    assert fuse_channel_norms.name not in {each.name for each in PASSES}


def test_a_mean_that_drops_its_axes_stays() -> None:
    graph = alone("rms", dims=(3, 3, 3), shape=None, keepdims=0)
    assert fuse_channel_norms(graph) is graph


def test_a_root_that_is_read_elsewhere_keeps_the_parts() -> None:
    net = Net()
    y = normed(net, net.input("x", 2, 8, 5))
    (root,) = (n.outputs[0] for n in net.graph.nodes if n.op.type == "Sqrt")
    graph = net.finish(y, root)
    assert fuse_channel_norms(graph) is graph


# -- on GPUs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("kind", ROWS)
def test_a_norm_is_one_launch_with_what_follows(kind: str, rank: int, precision: str) -> None:
    told = planned_kernels(block(kind, 40, rank=rank), precision)
    assert [k for k in told if not k.startswith("conv")] == ["relayout", "normalize_rows", "relayout"]
    assert_plan_computes(block(kind, rank=rank), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.parametrize("kind", ROWS)
def test_channels_in_no_whole_vectors_take_no_more_launches_than_parts(kind: str) -> None:
    told = planned_kernels(block(kind, 6))
    assert told.count("reduce") == 0 and told.count("normalize_lines") == 1 and told.count("relayout") == 4
    assert_plan_computes(block(kind, 6))


@pytest.mark.parametrize("kind", ROWS)
def test_without_convolutions_a_norm_reads_columns(kind: str) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", normed(net, net.add("Sin", net.input("x", 2, 40, 7, 5)), kind)))
    assert planned_kernels(graph) == ["elementwise", "normalize_rows"]
    assert_plan_computes(graph)


@pytest.mark.alike
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("channels", [6, 8, 40])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("device", GPUS)
def test_a_device_computes_it_right(device: str, kind: str, channels: int, precision: str) -> None:
    graph = block(kind, channels)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
        assert set(session.report.placement.values()) == {device} and "reduce" not in kernels(session)
    largest = float(np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=largest * (4e-3 if precision == "low" else 1e-5))


def test_large_numbers_overflow_no_longer_in_fp16() -> None:
    graph = alone("rms", dims=(1, 40, 3, 3))
    x = feeds(graph)["x"] * 1000
    (want,) = outputs(graph, {"x": x})
    with weft.load(graph, "opencl", precision="low", fallback="error") as session:
        np.testing.assert_allclose(session.run({"x": x})[0], want, rtol=2e-3, atol=2e-3)


def test_the_cpu_keeps_the_parts() -> None:
    """It would have to run the transposes."""
    network = weft.optimize(block("rms"), "cpu", fallback="error")
    assert "Transpose" not in kinds(network.graph)


@pytest.mark.parametrize("custom", ["ReduceMean", "Sqrt", "RMSNormalization", "Transpose"])
def test_what_a_creator_makes_stays(custom: str) -> None:
    graph = block("rms")
    assert norm_rows(graph, lambda op: op.type == custom, CAPS) is graph
    assert norm_rows(graph, lambda op: op.type == "Softmax", CAPS) is not graph


def test_without_index_maps_or_fusing_the_parts_stay() -> None:
    with null_gpu() as device:
        with weft.load(block("rms"), "null", fallback="error", fusing=False) as session:
            assert "reduce" in kernels(session)
        device.caps = replace(CAPS, without=frozenset({"index_maps"}))
        with weft.load(block("rms"), "null", fallback="error") as session:
            assert "reduce" in kernels(session)


def test_norms_that_the_self_test_found_wrong_are_not_made() -> None:
    with null_gpu() as device:
        device.caps = replace(CAPS, without=frozenset({"normalize_lines"}))
        with weft.load(block("rms"), "null", fallback="error") as session:
            assert "reduce" in kernels(session)


NORM = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, 8, h, w] x) => (float[n, 8, h, w] y)
<float two = {2}, float epsilon = {0.01}, int64[1] axes = {1}, float[8, 1, 1] scale = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  mean = ReduceMean(x, axes)
  centred = Sub(x, mean)
  squares = Pow(centred, two)
  variance = ReduceMean(squares, axes)
  sum = Add(variance, epsilon)
  root = Sqrt(sum)
  normed = Div(centred, root)
  y = Mul(scale, normed)
}
"""


@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    model = onnx.parser.parse_model(NORM)
    with weft.load(model, device, fallback="error") as session:
        for shape in ((1, 8, 3, 4), (2, 8, 5, 6), (1, 8, 1, 1)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            want = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, {"x": x})]
            np.testing.assert_allclose(session.run({"x": x}), want, rtol=2e-5, atol=2e-5)


@given(
    kind=st.sampled_from(sorted(ROWS)), channels=st.sampled_from([1, 3, 4, 8, 12]), rank=st.integers(3, 5),
    images=st.integers(1, 2), residual=st.booleans(),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
def test_any_block_plays_right(kind: str, channels: int, rank: int, images: int, residual: bool) -> None:
    # A layer norm of one channel is its shift: without a residual nothing is left to compute.
    assert_plan_computes(block(kind, channels, rank=rank, images=images, residual=residual), drawn=True)
