"""Choices by a comparison: what becomes one op, what stays, and the numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx.reference import ReferenceEvaluator

import weft
from tests.helpers.choices import ACTIVATIONS, COMPARISONS, choice_networks, chosen, scalar
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_identical
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.validate import validate
from weft.core.passes import PASSES, run_passes
from weft.core.passes.constants import fold_constants
from weft.core.passes.patterns import fuse_compare_select

FOUND = "weft::CompareSelect"
LEFT = {*COMPARISONS, "And", "Or", "Not", "Where"}


def net_of(dtype: DType = DType.FLOAT32) -> tuple[Net, str, str]:
    net = Net()
    return net, net.input("x", 2, 3, 4, dtype=dtype), net.input("z", 3, 1, dtype=dtype)


def assert_same_bits(before: Graph, after: Graph) -> None:
    """Fail unless a well-formed graph puts out the same bits as another, NaN included."""
    validate(after)
    fed = feeds(before)
    for got, want in zip(outputs(after, fed), outputs(before, fed), strict=True):
        assert (got.shape, got.dtype, got.tobytes()) == (want.shape, want.dtype, want.tobytes())


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_found(name: str, dtype: DType) -> None:
    net, x, _ = net_of(dtype)
    graph = net.finish(ACTIVATIONS[name](net, x))
    after = fuse_compare_select(graph)
    assert FOUND in kinds(after) and not LEFT & {*kinds(after)}
    assert len(after.nodes) < len(graph.nodes)
    assert_identical(graph, after)


@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize("kind", COMPARISONS)
def test_nan_is_compared_as_before(kind: str, opposite: bool) -> None:
    """Of NaN neither a comparison nor its inverse holds, but the opposite of each does."""
    net, x, z = net_of()
    condition = net.add(kind, net.add("Sqrt", x), net.add("Relu", x))
    condition = net.add("Not", condition) if opposite else condition
    graph = net.finish(net.add("Where", condition, x, z))
    after = fuse_compare_select(graph)
    assert FOUND in kinds(after) and not LEFT & {*kinds(after)}
    assert (feeds(graph)["x"] < 0).any(), "of which the root is NaN"
    assert_identical(graph, after)


def test_a_condition_may_decide_several_choices_and_their_opposites() -> None:
    net, x, z = net_of()
    condition = net.add("Less", x, z)
    reverse = net.add("Not", condition)
    net.finish(net.add("Where", condition, x, z), net.add("Where", reverse, x, scalar(net, x, 0)))
    net.graph.outputs.append(net.add("Where", net.add("Not", reverse), z, x))
    after = fuse_compare_select(net.graph)
    assert kinds(after) == [FOUND] * 3
    assert_identical(net.graph, after)


def test_a_joint_condition_adds_no_node() -> None:
    for count, found in ((1, True), (2, True), (3, False)):
        net, x, z = net_of()
        both = net.add("And", net.add("Less", x, z), net.add("Greater", x, scalar(net, x, -1)))
        graph = net.finish(*(net.add("Where", both, x, scalar(net, x, k)) for k in range(count)))
        after = fuse_compare_select(graph)
        assert (kinds(after) == [FOUND] * 2 * count) is found
        assert_identical(graph, after)


def _as_output(net: Net, x: str, z: str) -> list[str]:
    y = chosen(net, "Less", x, z, x, 0)
    return [y, net.graph.nodes[0].outputs[0]]


def _beside_a_cast(net: Net, x: str, z: str) -> list[str]:
    condition = net.add("Less", x, z)
    return [net.add("Where", condition, x, z), net.add("Cast", condition, to=DType.FLOAT32)]


def _beside_another_type(net: Net, x: str, z: str) -> list[str]:
    condition, numbers = net.add("Less", x, z), [np.array(v) for v in (3, 4)]
    return [net.add("Where", condition, x, z), net.add("Where", condition, *numbers)]


def _in_an_xor(net: Net, x: str, z: str) -> list[str]:
    return [net.add("Where", net.add("Xor", net.add("Less", x, z), net.add("Equal", x, z)), x, z)]


def _from_elsewhere(net: Net, x: str, z: str) -> list[str]:
    given = net.input("condition", 3, 4, dtype=DType.BOOL)
    return [net.add("Where", net.add("And", net.add("Less", x, z), given), x, z)]


def _integers(net: Net, x: str, z: str) -> list[str]:
    return [net.add("Where", net.add("Less", net.input("n", 3, 4, dtype=DType.INT64), np.array(2)), x, z)]


def _read_by_two_joints(net: Net, x: str, z: str) -> list[str]:
    shared, more = net.add("Less", x, z), net.add("Equal", x, z)
    return [net.add("Where", net.add(kind, shared, more), x, z) for kind in ("And", "Or")]


def _far_away(net: Net, x: str, z: str) -> list[str]:
    condition = net.add("Less", x, z)
    for _ in range(2000):
        condition = net.add("Not", condition)
    return [net.add("Where", condition, x, z)]


STAYS = [
    *(_as_output, _beside_a_cast, _beside_another_type, _in_an_xor, _from_elsewhere, _integers, _read_by_two_joints),
    _far_away,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_else_reads_or_decides_a_condition_keeps_it(build: object) -> None:
    net, x, z = net_of()
    assert callable(build)
    graph = net.finish(*build(net, x, z))
    assert fuse_compare_select(graph) is graph


def test_a_comparison_that_moves_bring_to_its_choice_is_found() -> None:
    net, x, z = net_of()
    turned = net.add("Less", *(net.add("Transpose", v, perm=(0, 2, 1)) for v in (x, net.input("w", 2, 3, 4))))
    graph = net.finish(net.add("Where", net.add("Transpose", turned, perm=(0, 2, 1)), x, z))
    assert fuse_compare_select(graph) is graph
    after = run_passes(graph)
    assert kinds(after) == [FOUND]
    assert_identical(graph, after)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 3, 4)])
def test_one_number_in_any_shape_becomes_a_scalar(shape: tuple[int, ...]) -> None:
    net, x, z = net_of()
    number = np.full(shape, np.nan, np.float32)
    graph = net.finish(net.add("Where", net.add("Greater", x, np.zeros(shape, np.float32)), z, number))
    after = fuse_compare_select(graph)
    assert [value.shape for value in after.constants.values()] == [(), ()]
    assert_same_bits(graph, after)


def test_a_constant_that_differs_or_makes_the_shape_stays() -> None:
    zeros = np.zeros((2, 3, 4), np.float32)
    signed = zeros.copy()
    signed[1, 2, 3] = -0.0
    net, x, z = net_of()
    graph = net.finish(net.add("Where", net.add("Equal", x, signed), x, zeros))
    after = fuse_compare_select(graph)
    assert sorted(value.shape for value in after.constants.values()) == [(), (2, 3, 4)]
    assert_same_bits(graph, after)
    net, x, z = net_of()
    graph = net.finish(net.add("Where", net.add("Equal", z, zeros), z, zeros.copy()))
    after = fuse_compare_select(graph)
    assert sorted(value.shape for value in after.constants.values()) == [(), (2, 3, 4)], "one must give the shape"
    assert_same_bits(graph, after)


def test_the_pass_runs_before_moves_and_after_them() -> None:
    names = [p.name for p in PASSES]
    assert names.count("fuse_compare_select") == 2
    assert names.index("fuse_compare_select") < names.index("settle_moves")


@given(graph=choice_networks())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
def test_random_choices_keep_every_bit_and_add_no_node(graph: Graph) -> None:
    bound = fold_constants(graph)
    after = fuse_compare_select(bound)
    assert len(after.nodes) <= len(bound.nodes)
    assert_same_bits(bound, after)
    assert fuse_compare_select(after) is after


@given(graph=choice_networks(floats=("float32", "float64")))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_a_session_computes_random_choices_as_the_references_do(graph: Graph) -> None:
    fed = feeds(graph)
    with weft.load(graph, "cpu") as session:
        for got, want in zip(session.run(fed), outputs(graph, fed), strict=True):
            np.testing.assert_array_equal(got, want)


LEAKY = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, h, 5] x) => (float[n, 3, h, 5] y)
<float zero = {0}, float slope = {0.1}>
{
  low = Less(x, zero)
  small = Mul(slope, x)
  y = Where(low, small, x)
}
"""


def test_a_model_of_open_sizes_computes_what_onnx_does() -> None:
    model = onnx.parser.parse_model(LEAKY)
    with weft.load(model, "cpu") as session:
        for shape in ((1, 3, 4, 5), (2, 3, 7, 5)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            x[0, 0, 0] = [np.nan, np.inf, -np.inf, 0, -0.0]
            (want,) = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_array_equal(session.run({"x": x})[0], want)
