"""Rotary embeddings: which signs other factors take, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_identical
from tests.helpers.rotary import rotary, turned, turned_in_pairs
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget, Limits
from weft.core.passes import PASSES, PassContext, PassGroup, run_passes
from weft.core.passes.negations import fold_negations


def weights(net: Net, like: str, *shape: int) -> Array:
    return net.random(*shape).astype(net.graph.specs[like].dtype.numpy)


def rewritten(graph: Graph, negations: int = 0) -> Graph:
    """Return the graph after the pass: well formed, with the same bits, so many Negs and no node more."""
    after = fold_negations(graph)
    assert_identical(graph, after)
    assert kinds(after).count("Neg") == negations
    assert len(after.nodes) <= len(graph.nodes)
    assert str(fold_negations(after)) == str(after)
    return after


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("turn", [turned, turned_in_pairs])
def test_a_constant_takes_the_signs(turn: Callable[[Net, str], str], dtype: DType) -> None:
    net = Net()
    x = net.input("x", 2, 3, 5, 8, dtype=dtype)
    sin = weights(net, x, 1, 1, 5, 8)
    graph = net.finish(rotary(net, x, weights(net, x, 1, 1, 5, 8), sin, turn))
    after = rewritten(graph)
    assert len(after.nodes) == len(graph.nodes) - 1
    signs = np.array([-1] * 4 + [1] * 4 if turn is turned else [-1, 1] * 4)
    found = [v for v in after.constants.values() if v.shape == sin.shape and (v == sin * signs.astype(v.dtype)).all()]
    assert len(found) == 1
    assert not any(v.shape == sin.shape and (v == sin).all() for v in after.constants.values())


def test_a_constant_that_several_read_is_changed_once() -> None:
    net = Net()
    q, k = net.input("q", 2, 3, 5, 8), net.input("k", 2, 1, 5, 8)
    cos, sin = net.constant(net.random(1, 1, 5, 8)), net.constant(net.random(1, 1, 5, 8))
    graph = net.finish(rotary(net, q, cos, sin), rotary(net, k, cos, sin))
    after = rewritten(graph)
    assert sum(v.shape == (1, 1, 5, 8) for v in after.constants.values()) == 2


def test_what_a_run_computes_is_changed_by_one_node_for_all() -> None:
    net = Net()
    q, k, angles = net.input("q", 2, 3, 5, 8), net.input("k", 2, 1, 5, 8), net.input("angles", 2, 1, 5, 8)
    cos, sin = net.add("Cos", angles), net.add("Sin", angles)
    # The product with k comes before that with q, but its parts are joined later.
    first = turned(net, q)
    late = net.add("Mul", turned(net, k), sin)
    graph = net.finish(net.add("Add", net.add("Mul", q, cos), net.add("Mul", first, sin)), late)
    after = rewritten(graph)
    assert kinds(after).count("Mul") == kinds(graph).count("Mul") + 1


def test_a_computed_factor_of_full_size_stays() -> None:
    """It takes as much to change it as the Neg did."""
    net = Net()
    x = net.input("x", 2, 3, 5, 8)
    graph = net.finish(net.add("Mul", turned(net, x), net.input("gate", 2, 3, 5, 8)))
    assert rewritten(graph, 1) is graph


def test_parts_may_be_several_and_along_any_axis() -> None:
    for axis in range(3):
        net = Net()
        shape = [2, 3, 4]
        parts = [net.input(name, *(k if a == axis else s for a, s in enumerate(shape))) for k, name in enumerate("abc")]
        parts[1:] = [net.add("Neg", part) for part in parts[1:]]
        shape[axis] = 3
        y = net.add("Concat", *parts, axis=axis)
        graph = net.finish(net.add("Mul", net.random(*shape[axis:]), y))
        assert kinds(rewritten(graph)) == ["Concat", "Mul"]


def test_both_factors_may_be_joined() -> None:
    net = Net()
    x, z = net.input("x", 2, 3, 5, 8), net.input("z", 1, 1, 5, 8)
    graph = net.finish(net.add("Mul", turned(net, x), turned(net, z)))
    after = rewritten(graph)
    assert kinds(after).count("Mul") == 2


def _read_negation(net: Net, x: str) -> list[str]:
    y = net.add("Mul", turned(net, x), net.random(8))
    return [y, next(n.outputs[0] for n in net.graph.nodes if n.op.type == "Neg")]


def _read_concat(net: Net, x: str) -> list[str]:
    joined = turned(net, x)
    return [net.add("Mul", joined, net.random(8)), net.add("Relu", joined)]


def _a_scalar(net: Net, x: str) -> list[str]:
    return [net.add("Mul", turned(net, x), net.random(1))]


def _a_sum(net: Net, x: str) -> list[str]:
    return [net.add("Add", turned(net, x), net.random(8))]


def _a_square(net: Net, x: str) -> list[str]:
    joined = turned(net, x)
    return [net.add("Mul", joined, joined)]


def _larger(net: Net, x: str) -> list[str]:
    return [net.add("Mul", turned(net, x), net.random(2, 1, 1, 1, 8))]


def _another_row(net: Net, x: str) -> list[str]:
    """The last axis is no multiple of the parts' length."""
    return [net.add("Mul", net.add("Reshape", turned(net, x), np.array([2, 3, 10, 4])), net.random(4))]


@pytest.mark.parametrize("build", [_read_negation, _read_concat, _a_scalar, _a_sum, _a_square, _larger, _another_row])
def test_what_stays(build: Callable[[Net, str], list[str]]) -> None:
    net = Net()
    graph = net.finish(*build(net, net.input("x", 2, 3, 5, 8)))
    assert rewritten(graph, 1) is graph


def test_a_dead_reader_keeps_nothing() -> None:
    net = Net()
    joined = turned(net, net.input("x", 2, 3, 5, 8))
    y = net.add("Mul", joined, net.random(8))
    net.add("Relu", joined)
    rewritten(net.finish(y))


def test_a_constant_beyond_the_budget_stays_and_the_journal_says_so() -> None:
    net = Net()
    graph = net.finish(net.add("Mul", turned(net, net.input("x", 2, 512)), net.random(512)))
    context = PassContext(Budget(Limits(folding_bytes=0)))
    assert fold_negations(graph, context) is graph
    assert not context.budget.left
    assert "folding_bytes" in context.left[next(n.name for n in graph.nodes if n.op.type == "Concat")]


def test_a_negation_that_moves_bring_to_its_concat_is_found() -> None:
    net = Net()
    x, a = net.input("x", 2, 3, 4), net.input("a", 2, 3, 4)
    negative = net.add("Transpose", net.add("Neg", net.add("Transpose", x, perm=(0, 2, 1))), perm=(0, 2, 1))
    graph = net.finish(net.add("Mul", net.add("Concat", negative, a, axis=2), net.random(8)))
    assert fold_negations(graph) is graph
    after = run_passes(graph)
    assert kinds(after) == ["Concat", "Mul"]
    assert_identical(graph, after)
    assert fold_negations in next(p.members for p in PASSES if isinstance(p, PassGroup) and p.name == "settle_moves")


ROTARY = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, 3, rows, 8] x) => (float[n, 3, rows, 8] y)
<int64[1] axis = {3}, int64[1] zero = {0}, int64[1] four = {4}, int64[1] eight = {8}, int64[1] two = {2},
 float[8] rates = {1, 0.5, 0.25, 0.125, 1, 0.5, 0.25, 0.125}, int64 start = {0}, int64 step = {1}, int64[1] last = {-1}>
{
  shape = Shape(x)
  rows_of = Gather(shape, two)
  stop = Squeeze(rows_of)
  places = Range(start, stop, step)
  wide = Cast<to = 1>(places)
  column = Unsqueeze(wide, last)
  angles = Mul(column, rates)
  cos = Cos(angles)
  sin = Sin(angles)
  first = Slice(x, zero, four, axis)
  second = Slice(x, four, eight, axis)
  negative = Neg(second)
  turned = Concat<axis = -1>(negative, first)
  a = Mul(x, cos)
  b = Mul(turned, sin)
  y = Add(a, b)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    model = onnx.parser.parse_model(ROTARY)
    with weft.load(model, device, fallback="error") as session:
        for shape in ((1, 3, 5, 8), (2, 3, 7, 8), (1, 3, 1, 8)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            want = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, {"x": x})]
            np.testing.assert_allclose(session.run({"x": x}), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("turn", [turned, turned_in_pairs])
def test_a_rotary_embedding_is_one_launch_on_a_gpu(turn: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.add("Transpose", net.input("x", 2, 10, 4, 16), perm=(0, 2, 1, 3))
    graph = net.finish(rotary(net, x, net.random(1, 1, 10, 16), net.random(1, 1, 10, 16), turn))
    assert planned_kernels(graph) == ["elementwise"]
    with weft.load(graph, "opencl", precision="high", fallback="error") as session:
        (want,) = outputs(graph, feeds(graph))
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-6, atol=1e-6)
