"""Sums of stacked values: each form before and after, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.random_parts import total
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import find_pass, run_passes

rewrite = find_pass("add_stacked_parts")
DIMS = (2, 3, 4, 5)


def stack(net: Net, count: int, axis: int, dims: tuple[int, ...] = DIMS, dtype: DType = DType.FLOAT32) -> str:
    """Add inputs that are stacked along a new axis."""
    parts = [net.input(f"x{k}", *dims, dtype=dtype) for k in range(count)]
    return net.add("Concat", *(net.add("Unsqueeze", x, np.array([axis])) for x in parts), axis=axis)


def selective(*, channels: int = 8, branches: int = 2) -> Graph:
    """Return a selective kernel: branches, weights of each by their sum, and the sum with these."""
    net = Net()
    x = net.conv(net.input("x", 2, 3, 9, 7), channels)
    parts = [net.add("Relu", net.conv(x, channels, 3, pads=(1, 1, 1, 1))) for _ in range(branches)]
    joined = net.add("Concat", *(net.add("Unsqueeze", p, np.array([1])) for p in parts), axis=1)
    pooled = net.add("GlobalAveragePool", total(net, joined, 1))
    weights = net.conv(net.add("Relu", net.conv(pooled, 4)), branches * channels)
    weights = net.add("Reshape", weights, np.array([2, branches, channels, 1, 1]))
    weighted = net.add("Mul", joined, net.add("Softmax", weights, axis=1))
    return net.finish(net.conv(total(net, weighted, 1), 4))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2, 4])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_sum_of_stacked_values_adds_them(count: int, axis: int, keepdims: int) -> None:
    net = Net()
    graph = net.finish(total(net, stack(net, count, axis), axis, keepdims))
    after = rewrite(graph)
    assert kinds(after).count("Add") == count - 1 and not {"Concat", "ReduceSum"} & set(kinds(after))
    assert_same(graph, after)
    assert rewrite(after) is after
    if not keepdims:
        assert kinds(run_passes(graph)) == ["Add"] * (count - 1)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    "factor", [(2, 2, 3, 1, 1), (1, 2, 1, 1, 1), (2, 1, 1, 1), (2, 1, 3, 1, 1), (4, 5), (1,), (), (2, 3, 4, 5)]
)
def test_parts_may_be_multiplied_before(factor: tuple[int, ...], keepdims: int, swapped: bool) -> None:
    for constant in (False, True):
        net = Net()
        joined = stack(net, 2, 1)
        by: object = net.random(*factor) if constant else net.input("by", *factor)
        product = net.add("Mul", *((by, joined) if swapped else (joined, by)))  # type: ignore[arg-type]
        graph = net.finish(total(net, product, 1, keepdims), total(net, joined, 1))
        after = rewrite(graph)
        assert not {"Concat", "ReduceSum"} & set(kinds(after)) and kinds(after).count("Mul") == 2
        assert_same(graph, after)


def test_values_of_size_one_need_no_new_axis() -> None:
    net = Net()
    joined = net.add("Concat", net.input("a", 3, 1, 4), net.input("b", 3, 1, 4), axis=-2)
    graph = net.finish(total(net, joined, 1))
    assert_same(graph, rewrite(graph))
    assert "Concat" not in kinds(rewrite(graph))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    net = Net()
    graph = net.finish(total(net, stack(net, 3, 1, dtype=dtype), 1))
    after = rewrite(graph)
    assert "Add" in kinds(after)
    assert_same(graph, after, {DType.FLOAT16: 2e-3, DType.BFLOAT16: 2e-2, DType.FLOAT64: 1e-15}[dtype])


# -- what stays --------------------------------------------------------------------------------------------


def _another_axis(net: Net) -> str:
    return total(net, stack(net, 2, 1), 2)


def _two_axes(net: Net) -> str:
    return net.add("ReduceSum", stack(net, 2, 1), np.array([1, 2]), keepdims=0)


def _a_mean(net: Net) -> str:
    return net.add("ReduceMean", stack(net, 2, 1), np.array([1]), keepdims=0)


def _many(net: Net) -> str:
    return total(net, stack(net, 5, 1), 1)


def _longer_parts(net: Net) -> str:
    return total(net, net.add("Concat", net.input("a", 3, 2, 4), net.input("b", 3, 1, 4), axis=1), 1)


def _integers(net: Net) -> str:
    return total(net, stack(net, 2, 1, dtype=DType.INT32), 1)


def _squares(net: Net) -> str:
    joined = stack(net, 2, 1)
    return total(net, net.add("Mul", joined, joined), 1)


def _a_wider_product(net: Net) -> str:
    joined = net.add("Concat", net.input("a", 3, 1, 1), net.input("b", 3, 1, 1), axis=1)
    return total(net, net.add("Mul", joined, net.random(3, 2, 5)), 1)


def _read_elsewhere(net: Net) -> str:
    joined = stack(net, 2, 1)
    return net.add("Mul", net.add("Relu", joined), total(net, joined, 1, keepdims=1))


def _a_product_read_elsewhere(net: Net) -> str:
    product = net.add("Mul", stack(net, 2, 1), net.random(2, 1, 1, 1))
    return net.add("Mul", product, total(net, product, 1, keepdims=1))


STAYS = [
    _another_axis,
    _two_axes,
    _a_mean,
    _many,
    _longer_parts,
    _integers,
    _squares,
    _a_wider_product,
    _read_elsewhere,
    _a_product_read_elsewhere,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_sum_stays(build: Callable[[Net], str]) -> None:
    net = Net()
    graph = net.finish(build(net))
    assert rewrite(graph) is graph


def test_a_stack_that_is_a_result_stays() -> None:
    net = Net()
    joined = stack(net, 2, 1)
    product = net.add("Mul", joined, net.random(2, 1, 1, 1))
    for results in ((joined,), (product,)):
        graph = net.finish(total(net, product, 1), *results)
        assert rewrite(graph) is graph


# -- on devices --------------------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("branches", [2, 3])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_selective_kernel_is_right_and_joins_no_two_branches(device: str, branches: int, precision: str) -> None:
    graph = selective(branches=branches)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
        assert device == "cpu" or ("reduce" in kernels(session)) == (branches > 2)
    largest = float(np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=largest * (1e-2 if precision == "low" else 1e-5))


MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, 4, w] a, float[n, 4, w] b, float[n, 2, 1, 1] by) => (float[n, 4, w] y)
<int64[1] axes = {1}>
{
  first = Unsqueeze(a, axes)
  second = Unsqueeze(b, axes)
  both = Concat<axis = 1>(first, second)
  weighted = Mul(both, by)
  y = ReduceSum<keepdims = 0>(weighted, axes)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    model, random = onnx.parser.parse_model(MODEL), np.random.default_rng(0)
    with weft.load(model, device, fallback="error") as session:
        for n, w in ((1, 3), (2, 5), (1, 1)):
            shapes = {"a": (n, 4, w), "b": (n, 4, w), "by": (n, 2, 1, 1)}
            fed = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            want = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, fed)]
            np.testing.assert_allclose(session.run(fed), want, rtol=1e-5, atol=1e-6)
