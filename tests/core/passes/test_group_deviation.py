"""Deviations of groups of channels: each form before and after, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.norms import deviation
from tests.helpers.onnx_models import assert_right_for_open_sizes
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import PASSES, run_passes
from weft.core.passes.patterns import fuse_group_deviation

FOUND = "weft::GroupDeviation"


def alone(groups: int, dims: tuple[int, ...] = (2, 6, 5, 3), dtype: DType = DType.FLOAT32, **form: Any) -> Graph:
    net = Net()
    return net.finish(deviation(net, net.add("Sigmoid", net.input("x", *dims, dtype=dtype)), groups, **form))


def only_deviation(graph: Graph) -> Graph:
    """Return the graph after the pass, which must be a deviation behind the sigmoid."""
    after = fuse_group_deviation(graph)
    assert kinds(after) == ["Sigmoid", FOUND]
    assert fuse_group_deviation(after) is after
    return after


def test_the_pass_runs_before_that_of_layer_norms() -> None:
    names = [p.name for p in PASSES]
    assert names.index("fuse_group_deviation") < names.index("fuse_layer_norm")


@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize(("keepdims", "reshaped"), [(1, "mean"), (0, "mean"), (0, "root")])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_each_form_is_found(groups: int, keepdims: int, reshaped: str, square: str) -> None:
    graph = alone(groups, keepdims=keepdims, reshaped=reshaped, square=square)
    after = only_deviation(graph)
    assert after.nodes[1].op.attributes() == {"num_groups": groups, "epsilon": 0.5}
    assert_same(graph, after)
    assert kinds(run_passes(graph)) == ["Sigmoid", FOUND]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = alone(3, dtype=dtype)
    assert_same(graph, only_deviation(graph), {DType.FLOAT16: 2e-3, DType.FLOAT64: 1e-15}[dtype])


@pytest.mark.parametrize("dims", [(2, 6, 7), (1, 6, 1, 1), (2, 6, 2, 3, 2), (0, 6, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_any_rank_is_found(groups: int, dims: tuple[int, ...]) -> None:
    graph = alone(groups, dims)
    assert_same(graph, only_deviation(graph))


def test_no_epsilon_is_one_of_0() -> None:
    graph = alone(2, epsilon=0)
    assert only_deviation(graph).nodes[1].op.attributes()["epsilon"] == 0
    assert_same(graph, only_deviation(graph))


# -- what stays --------------------------------------------------------------------------------------------

X = (2, 6, 5, 4)


def _root(net: Net, value: str, axes: tuple[int, ...], mean: tuple[int, ...] | None = None) -> str:
    centred = net.add("Sub", value, net.add("ReduceMean", value, np.array(mean or axes)))
    variance = net.add("ReduceMean", net.add("Mul", centred, centred), np.array(axes))
    return net.add("Sqrt", net.add("Add", variance, np.asarray(0.5, np.float32)))


def _over_the_rows_alone(net: Net, x: str) -> str:
    return net.add("Expand", _root(net, x, (3,)), np.array(X))


def _about_another_mean(net: Net, x: str) -> str:
    return net.add("Expand", _root(net, x, (2, 3), mean=(3,)), np.array(X))


def _not_spread(net: Net, x: str) -> str:
    return net.add("Mul", x, _root(net, x, (2, 3)))


def _spread_further(net: Net, x: str) -> str:
    return net.add("Expand", _root(net, net.input("z", 1, 6, 5, 4), (2, 3)), np.array(X))


def _spread_to_groups_of_the_rows(net: Net, x: str) -> str:
    root = net.add("Reshape", _root(net, x, (2, 3)), np.array((2, 1, 6, 1)))
    return net.add("Reshape", net.add("Expand", root, np.array((2, 10, 6, 2))), np.array(X))


STAYS = [
    _over_the_rows_alone,
    _about_another_mean,
    _not_spread,
    _spread_further,
    _spread_to_groups_of_the_rows,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_deviation_stays(build: Callable[[Net, str], str]) -> None:
    net = Net()
    graph = net.finish(build(net, net.input("x", *X)))
    assert fuse_group_deviation(graph) is graph


@pytest.mark.parametrize("read", ["Mul", "Add", "Sqrt", "Expand"])
def test_what_is_read_elsewhere_keeps_the_parts(read: str) -> None:
    net = Net()
    y = deviation(net, net.input("x", 2, 6, 5, 3), 2)
    (value,) = (n.outputs[0] for n in net.graph.nodes if n.op.type == read)
    graph = net.finish(y, value)
    after = fuse_group_deviation(graph)
    assert after is graph


# -- on devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 3, 6, 24])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_an_evo_norm_is_one_launch_behind_a_convolution(device: str, groups: int) -> None:
    net = Net()
    x = net.conv(net.input("x", 2, 3, 9, 7), 24)
    divisor = deviation(net, x, groups, epsilon=1e-3)
    y = net.add("Div", net.add("Mul", x, net.add("Sigmoid", x)), divisor)
    y = net.add("Add", net.add("Mul", y, net.random(1, 24, 1, 1)), net.random(1, 24, 1, 1))
    graph = net.finish(net.conv(y, 5))
    if device != "cpu":
        told = planned_kernels(run_passes(graph))
        norms = [kernel for kernel in told if not kernel.startswith(("conv", "planar", "relayout"))]
        assert norms == ["normalize_images"]
    (want,) = outputs(graph, feeds(graph))
    for precision, atol in (("high", 2e-5), ("low", 3e-2)):
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=0, atol=atol)


EVO = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, rows, 8] x) => (float[n, 8, rows] y)
<float least = {0.5}, int64[2] axes = {2, 3}, int64[4] grouped = {0, 2, 4, -1}>
{
  turned = Transpose <perm = [0, 2, 1]> (x)
  parts = Reshape(turned, grouped)
  mean = ReduceMean(parts, axes)
  centred = Sub(parts, mean)
  squares = Mul(centred, centred)
  variance = ReduceMean(squares, axes)
  raised = Add(variance, least)
  root = Sqrt(raised)
  whole = Shape(parts)
  spread = Expand(root, whole)
  shape = Shape(turned)
  divisor = Reshape(spread, shape)
  y = Div(turned, divisor)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    assert_right_for_open_sizes(onnx.parser.parse_model(EVO), device)
