"""Values divided by their 2-norm: each form before and after, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.norms import L2_NORMS, LIMITS, l2_norm, norm_of, number
from tests.helpers.onnx_models import assert_right_for_open_sizes
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import PASSES, run_passes
from weft.core.passes.patterns import fuse_l2_norm

FOUND = "weft::L2Normalization"


def alone(dims: tuple[int, ...] = (2, 3, 8), dtype: DType = DType.FLOAT32, **form: Any) -> Graph:
    net = Net()
    return net.finish(l2_norm(net, net.input("x", *dims, dtype=dtype), **form))


def only_norm(graph: Graph) -> Graph:
    """Return the graph after the pass, which must be a norm alone."""
    after = fuse_l2_norm(graph)
    assert kinds(after) == [FOUND]
    assert fuse_l2_norm(after) is after
    return after


def test_the_pass_runs_before_that_of_attention() -> None:
    names = [p.name for p in PASSES]
    assert names.index("fuse_l2_norm") < names.index("fuse_attention")


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("form", L2_NORMS)
def test_each_form_is_found(form: str, limit: str, expand: bool) -> None:
    graph = alone(form=form, limit=limit, expand=expand, least=2.5)
    after = only_norm(graph)
    assert after.nodes[0].op.attributes() == {"axis": -1, "least": 0.0 if limit == "none" else 2.5}
    assert_same(graph, after)
    assert kinds(run_passes(graph)) == [FOUND]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = alone(dtype=dtype)
    tolerance = {DType.FLOAT16: 2e-3, DType.BFLOAT16: 2e-2, DType.FLOAT64: 1e-15}[dtype]
    assert_same(graph, only_norm(graph), tolerance)


@pytest.mark.parametrize("dims", [(8,), (3, 1), (2, 0, 4), (2, 3, 4, 5), (0, 3)])
def test_any_axis_may_be_the_one(dims: tuple[int, ...]) -> None:
    for axis in range(len(dims)):
        graph = alone(dims, axes=(axis,))
        assert only_norm(graph).nodes[0].op.attributes()["axis"] == axis - len(dims)
        assert_same(graph, only_norm(graph))


def test_small_and_no_numbers_are_as_before() -> None:
    x = np.array([[0, 0, 0], [1e-13, 0, 0], [np.nan, 1, 2], [np.inf, 1, 2], [3, 0, 4]], np.float32)
    for limit in ("Clip", "none"):
        graph = alone(x.shape, limit=limit)
        after = only_norm(graph)
        with np.errstate(invalid="ignore", divide="ignore"):
            want = outputs(graph, {"x": x})[0]
            np.testing.assert_allclose(outputs(after, {"x": x})[0], want, rtol=1e-6)
        for device in ("opencl", "vulkan"):
            with weft.load(after, device, precision="high", fallback="error") as session:
                # What is not finite may differ on a device, but for a line of zeros.
                got = session.run({"x": x})[0]
            np.testing.assert_allclose(got[[1, 4]], want[[1, 4]], rtol=1e-5)
            if limit == "Clip":
                assert not got[0].any()


# -- what stays --------------------------------------------------------------------------------------------


def _several_axes(net: Net, x: str) -> str:
    return l2_norm(net, x, (1, 2))


def _of_another_value(net: Net, x: str) -> str:
    return net.add("Div", net.input("z", 3, 3, 3), norm_of(net, x, (-1,), "ReduceL2"))


def _norm_over_x(net: Net, x: str) -> str:
    return net.add("Div", norm_of(net, x, (-1,), "ReduceL2"), x)


def _without_axes(net: Net, x: str) -> str:
    return net.add("Div", x, norm_of(net, x, (-1,), "ReduceL2", keepdims=0))


def _at_most(net: Net, x: str) -> str:
    norm = norm_of(net, x, (-1,), "ReduceL2")
    return net.add("Div", x, net.add("Clip", norm, number(net, 0.5, x), number(net, 2, x)))


def _less_than_zero(net: Net, x: str) -> str:
    return l2_norm(net, x, least=-1.0)


def _no_limit_of_fp32(net: Net, x: str) -> str:
    return l2_norm(net, x, least=1e-40)


def _a_limit_that_is_no_number(net: Net, x: str) -> str:
    return l2_norm(net, x, least=np.nan)


def _a_limit_of_each_row(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("Max", norm_of(net, x, (-1,), "ReduceL2"), net.random(3, 1)))


def _sum_of_products(net: Net, x: str) -> str:
    total = net.add("ReduceSum", net.add("Mul", x, net.input("z", 3, 3, 3)), np.array([-1]))
    return net.add("Div", x, net.add("Sqrt", total))


def _no_root(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("ReduceSumSquare", x, np.array([-1])))


STAYS = [
    _several_axes,
    _of_another_value,
    _norm_over_x,
    _without_axes,
    _at_most,
    _less_than_zero,
    _no_limit_of_fp32,
    _a_limit_that_is_no_number,
    _a_limit_of_each_row,
    _sum_of_products,
    _no_root,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_norm_stays(build: Callable[[Net, str], str]) -> None:
    net = Net()
    graph = net.finish(build(net, net.input("x", 3, 3, 3)))
    assert fuse_l2_norm(graph) is graph


@pytest.mark.parametrize("read", ["ReduceSumSquare", "Sqrt", "Clip", "Expand"])
def test_what_is_read_elsewhere_keeps_the_parts(read: str) -> None:
    net = Net()
    y = l2_norm(net, net.input("x", 2, 3, 8), form="ReduceSumSquare", expand=True)
    (value,) = (n.outputs[0] for n in net.graph.nodes if n.op.type == read)
    graph = net.finish(y, value)
    assert fuse_l2_norm(graph) is graph


def test_squares_that_are_read_elsewhere_stay_for_their_readers() -> None:
    net = Net()
    y = l2_norm(net, net.input("x", 2, 3, 8), form="product")
    graph = net.finish(y, net.graph.nodes[0].outputs[0])
    after = fuse_l2_norm(graph)
    assert sorted(kinds(after)) == ["Mul", FOUND]
    assert_same(graph, after)


# -- on devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
def test_cosine_attention_takes_a_launch_for_each_norm(precision: str) -> None:
    """The queries get a factor for each head as their norm is stored; rows of a product are read in place."""
    net = Net()
    qkv = net.add("MatMul", net.input("x", 2, 49, 96), net.random(96, 288, scale=0.1))
    heads = net.add("Transpose", net.add("Reshape", qkv, np.array([2, 49, 3, 3, 32])), perm=(2, 0, 3, 1, 4))
    q, k, v = (net.add("Gather", heads, np.array(part), axis=0) for part in range(3))
    q, k = (l2_norm(net, each, expand=True) for each in (q, k))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.add("Mul", scores, np.abs(net.random(1, 3, 1, 1)))
    graph = net.finish(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))
    told = planned_kernels(graph, precision)
    assert sum(kernel.startswith("normalize") for kernel in told) == 2
    assert not {"reduce", "move"} & set(told)
    for device in ("cpu", "opencl", "vulkan"):
        (want,) = outputs(graph, feeds(graph))
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            (got,) = session.run(feeds(graph))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if precision == "low" else 1e-4)


@pytest.mark.parametrize("channels", [6, 40])
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_channels_of_images_are_normalized_as_rows(device: str, channels: int) -> None:
    """Descriptors of images: of a convolution, at each pixel."""
    net = Net()
    x = net.conv(net.input("x", 2, 3, 9, 7), channels, 3)
    graph = net.finish(net.conv(net.add("Relu", l2_norm(net, x, (1,), expand=True)), 4))
    told = planned_kernels(graph)
    assert "reduce" not in told and (channels == 6 or told.count("relayout") == 1)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision="high", fallback="error") as session:
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=0, atol=1e-5)


NORM = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, rows, 8] x) => (float[n, rows, 8] y)
<float least = {0.5}, int64[1] axes = {-1}>
{
  norm = ReduceL2(x, axes)
  limited = Clip(norm, least)
  shape = Shape(x)
  spread = Expand(limited, shape)
  y = Div(x, spread)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    assert_right_for_open_sizes(onnx.parser.parse_model(NORM), device)
