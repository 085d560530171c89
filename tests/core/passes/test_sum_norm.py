"""Values divided by their sum or mean: each form before and after, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.norms import ADDED, sum_norm
from tests.helpers.onnx_models import assert_right_for_open_sizes
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import PASSES, run_passes
from weft.core.passes.patterns import fuse_sum_norm

FOUND = "weft::SumNormalization"


def alone(dims: tuple[int, ...] = (2, 3, 8), dtype: DType = DType.FLOAT32, **form: Any) -> Graph:
    net = Net()
    return net.finish(sum_norm(net, net.add("Sigmoid", net.input("x", *dims, dtype=dtype)), **form))


def only_norm(graph: Graph) -> Graph:
    """Return the graph after the pass, which must be a norm behind the sigmoid."""
    after = fuse_sum_norm(graph)
    assert kinds(after) == ["Sigmoid", FOUND]
    assert fuse_sum_norm(after) is after
    return after


def test_the_pass_runs_before_that_of_attention() -> None:
    names = [p.name for p in PASSES]
    assert names.index("fuse_sum_norm") < names.index("fuse_attention")


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean"])
def test_each_form_is_found(kind: str, added: str, expand: bool) -> None:
    graph = alone(kind=kind, added=added, expand=expand)
    after = only_norm(graph)
    epsilon = 0.0 if added == "none" else 2.5
    assert after.nodes[1].op.attributes() == {"axis": -1, "mean": kind == "ReduceMean", "epsilon": epsilon}
    assert_same(graph, after)
    assert kinds(run_passes(graph)) == ["Sigmoid", FOUND]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = alone(dtype=dtype)
    tolerance = {DType.FLOAT16: 2e-3, DType.BFLOAT16: 2e-2, DType.FLOAT64: 1e-15}[dtype]
    assert_same(graph, only_norm(graph), tolerance)


@pytest.mark.parametrize("dims", [(8,), (3, 1), (2, 0, 4), (2, 3, 4, 5), (0, 3)])
def test_any_axis_may_be_the_one(dims: tuple[int, ...]) -> None:
    for axis in range(len(dims)):
        graph = alone(dims, axes=(axis,))
        assert only_norm(graph).nodes[1].op.attributes()["axis"] == axis - len(dims)
        assert_same(graph, only_norm(graph))


def test_zeros_and_no_numbers_are_as_before() -> None:
    x = np.array([[0, 0, 0], [1, -1, 2], [np.nan, 1, 2], [np.inf, 1, 2], [1, -1, 0]], np.float32)
    for added in ("behind", "none"):
        net = Net()
        graph = net.finish(sum_norm(net, net.input("x", *x.shape), added=added))
        after = fuse_sum_norm(graph)
        assert kinds(after) == [FOUND]
        with np.errstate(invalid="ignore", divide="ignore"):
            want = outputs(graph, {"x": x})[0]
            np.testing.assert_allclose(outputs(after, {"x": x})[0], want, rtol=1e-6)
        for device in ("opencl", "vulkan"):
            with weft.load(after, device, precision="high", fallback="error") as session:
                # What is not finite may differ on a device.
                got = session.run({"x": x})[0]
            finite = [0, 1, 4] if added == "behind" else [1]
            np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5)


# -- what stays --------------------------------------------------------------------------------------------


def _several_axes(net: Net, x: str) -> str:
    return sum_norm(net, x, (1, 2))


def _of_another_value(net: Net, x: str) -> str:
    return net.add("Div", net.input("z", 3, 3, 3), net.add("ReduceSum", x, np.array([-1])))


def _sum_over_x(net: Net, x: str) -> str:
    return net.add("Div", net.add("ReduceSum", x, np.array([-1])), x)


def _without_axes(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("ReduceSum", x, np.array([-1]), keepdims=0))


def _a_number_of_each_row(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("Add", net.add("ReduceSum", x, np.array([-1])), net.random(3, 1)))


def _the_greatest(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("ReduceMax", x, np.array([-1])))


def _a_number_without_reciprocal(net: Net, x: str) -> str:
    return sum_norm(net, x, epsilon=1e-39)


STAYS = [
    _several_axes,
    _of_another_value,
    _sum_over_x,
    _without_axes,
    _a_number_of_each_row,
    _the_greatest,
    _a_number_without_reciprocal,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_norm_stays(build: Callable[[Net, str], str]) -> None:
    net = Net()
    graph = net.finish(build(net, net.input("x", 3, 3, 3)))
    assert fuse_sum_norm(graph) is graph


@pytest.mark.parametrize("read", ["ReduceMean", "Add", "Expand"])
def test_what_is_read_elsewhere_keeps_the_parts(read: str) -> None:
    net = Net()
    y = sum_norm(net, net.input("x", 2, 3, 8), expand=True)
    (value,) = (n.outputs[0] for n in net.graph.nodes if n.op.type == read)
    graph = net.finish(y, value)
    assert fuse_sum_norm(graph) is graph


# -- on devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [6, 40])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_global_response_norm_takes_two_launches_before_the_scaling(device: str, channels: int) -> None:
    net = Net()
    x = net.add("Gelu", net.conv(net.input("x", 2, 3, 9, 7), channels))
    response = net.add("ReduceL2", x, np.array([2, 3]))
    factor = sum_norm(net, response, (1,), epsilon=1e-6)
    scaled = net.add("Mul", net.random(1, channels, 1, 1), net.add("Mul", x, factor))
    graph = net.finish(net.add("Add", x, net.add("Add", net.random(1, channels, 1, 1), scaled)))
    if device != "cpu":
        told = planned_kernels(graph)
        assert told.count("reduce") == 1 and sum(kernel.startswith("normalize") for kernel in told) == 1
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision="high", fallback="error") as session:
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=0, atol=1e-5)


NORM = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, rows, 8] x) => (float[n, rows, 8] y)
<float least = {0.5}, int64[1] axes = {-1}>
{
  a = Abs(x)
  mean = ReduceMean(a, axes)
  raised = Add(mean, least)
  shape = Shape(x)
  spread = Expand(raised, shape)
  y = Div(a, spread)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    assert_right_for_open_sizes(onnx.parser.parse_model(NORM), device)
