"""A7: constants, dead nodes, identities, pads and batch norms, one pass at a time; and passes by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import Net, kinds, op
from tests.helpers.python_calls import python_calls
from tests.helpers.rewrites import assert_same, text
from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes import PASSES, PassContext, find_pass, run_passes, with_members
from weft.core.placement.prepare import prepare_network, steps
from weft.errors import ConfigError

MINUS_INFINITY = np.array(-np.inf, np.float32)
ZERO = np.array(0, np.float32)


def alone(name: str, graph: Graph) -> Graph:
    """Return the graph after one pass, which must leave its own result and the graph it was given."""
    before = str(graph)
    result = run_passes(graph, (find_pass(name),))
    assert str(graph) == before
    assert str(run_passes(result, (find_pass(name),))) == str(result)
    assert_same(graph, result, 1e-6)
    return result


# -- the list of passes --------------------------------------------------------------------------------------


def test_each_pass_can_be_found_by_its_name_and_says_what_it_does() -> None:
    for each in (each for item in PASSES for each in with_members(item)):
        assert find_pass(each.name) == each
        assert each.description.endswith(".")


def test_an_unknown_pass_is_answered_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match=r"no pass 'fold_all'[^$]*fold_constants, .*squash_moves, .*fold_pads"):
        find_pass("fold_all")


def test_what_each_pass_did_is_recorded() -> None:
    net = Net()
    a = net.add("Transpose", net.add("Relu", net.input("x", 2, 3)))
    prepared = prepare_network(net.finish(net.add("Transpose", a, name="y")), Precision.LOW)
    changed = [(r.name, r.before, r.after) for r in prepared.passes if r.before != r.after]
    assert changed == [("settle_moves", 3, 1), ("store_as_float16", 1, 3)]
    assert [r.name for r in prepared.passes] == [s.name for s in steps(Precision.LOW)]


# -- nodes without outputs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sink(Op):
    """An op that is there for what it does."""

    type = "Sink"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return ()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return ()


@pytest.mark.parametrize("name", dict.fromkeys(p.name for p in PASSES))
def test_a_node_without_outputs_is_never_dead(name: str) -> None:
    net = Net()
    x = net.input("x", 2)
    read = net.add("Exp", x, name="read")
    graph = net.finish(net.add("Relu", x, name="y"))
    known = net.constant(np.ones(2, np.float32), "k")
    graph.nodes += [Node("sink", Sink(), (read,), ()), Node("sink2", Sink(), (known,), ())]
    result = run_passes(graph, (find_pass(name),))
    assert text(result) == ["read = Exp()(x)", "y = Relu()(x)", " = Sink()(read)", " = Sink()(k)"]
    assert "k" in result.constants


def test_a_value_that_a_sink_reads_is_not_folded_away() -> None:
    net = Net()
    conv = net.conv(net.input("x", 1, 2, 4, 4), 3, name="conv")
    graph = net.finish(net.add("BatchNormalization", conv, *np.ones((4, 3), np.float32), name="y"))
    graph.nodes.append(Node("sink", Sink(), (conv,), ()))
    assert kinds(run_passes(graph)) == ["Conv", "BatchNormalization", "Sink"]


# -- constants, identities, dead nodes -----------------------------------------------------------------------


def test_constants_are_folded() -> None:
    net = Net()
    x = net.input("x", 2, 3)
    half = net.add("Neg", np.array([0.5], np.float32), name="half")
    graph = net.finish(net.add("Mul", net.add("Reshape", x, net.add("Shape", x, name="s"), name="r"), half, name="y"))
    assert text(graph) == [
        "half = Neg()(c)",
        "s = Shape(start=0, end=None)(x)",
        "r = Reshape(allowzero=0)(x, s)",
        "y = Mul()(r, half)",
    ]
    assert text(alone("fold_constants", graph)) == ["r = Reshape(allowzero=0)(x, s)", "y = Mul()(r, half)"]


def test_a_constant_stays_whatever_computing_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no way")

    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 3), net.add("ReduceSum", np.ones(3, np.float32), name="made")))
    monkeypatch.setattr(type(graph.producers()["made"].op), "reference", fails)
    assert kinds(run_passes(graph, (find_pass("fold_constants"),))) == ["ReduceSum", "Add"]


def test_identities_go_and_what_made_their_input_makes_the_output() -> None:
    net = Net()
    r = net.add("Relu", net.add("Identity", net.input("x", 2, 3), name="i"), name="r")
    graph = net.finish(net.add("Identity", r, name="y"), net.add("Exp", r, name="z"))
    assert text(graph) == ["i = Identity()(x)", "r = Relu()(i)", "y = Identity()(r)", "z = Exp()(r)"]
    assert text(alone("remove_identities", graph)) == ["y = Relu()(x)", "z = Exp()(y)"]


def test_an_identity_between_two_names_that_stay_stays() -> None:
    net = Net()
    x = net.input("x", 2)
    r = net.add("Relu", x, name="r")
    k = net.constant(np.ones(2, np.float32), "k")
    graph = net.finish(r, *(net.add("Identity", v, name=f"{v}.out") for v in (x, r, k)))
    assert text(alone("remove_identities", graph)) == text(graph)


def test_of_two_names_for_one_value_each_stays() -> None:
    net = Net()
    r = net.add("Relu", net.input("x", 2), name="r")
    graph = net.finish(net.add("Identity", r, name="y"), net.add("Identity", r, name="z"))
    assert text(alone("remove_identities", graph)) == ["y = Relu()(x)", "z = Identity()(y)"]


def test_tests_and_casts_read_what_a_widening_cast_reads() -> None:
    net = Net()
    x = net.input("x", 2, dtype=DType.FLOAT16)
    wide = net.add("Cast", net.add("Cast", x, to=DType.FLOAT32, name="w"), to=DType.FLOAT64, name="v")
    half = net.add("Cast", wide, to=DType.FLOAT16, name="half")
    graph = net.finish(net.add("IsInf", wide, name="a"), net.add("IsNaN", wide, name="b"), half)
    after = alone("read_through_casts", graph)
    assert kinds(after) == ["Cast", "IsInf", "IsNaN"]
    assert all(node.inputs == (x,) for node in after.nodes)


def test_a_cast_back_to_a_type_that_is_still_wider_is_read_through_as_well() -> None:
    net = Net()
    value = x = net.input("x", 2, dtype=DType.FLOAT16)
    for to in (DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16):
        value = net.add("Cast", value, to=to)
    after = alone("read_through_casts", net.finish(value))
    assert [(kind.op.type, kind.inputs) for kind in after.nodes] == [("Cast", (x,))]


def test_integers_are_read_through_wider_ones_that_hold_them() -> None:
    net = Net()
    a, b = (net.input(t.value, 2, dtype=t) for t in (DType.UINT8, DType.INT8))
    wide = [net.add("Cast", v, to=t) for v, t in ((a, DType.INT16), (b, DType.UINT16), (b, DType.FLOAT32))]
    graph = net.finish(*(net.add("Cast", v, to=DType.INT32, name=f"y{i}") for i, v in enumerate(wide)))
    after = alone("read_through_casts", graph).producers()
    assert [after[y].inputs[0] for y in graph.outputs] == [a, *wide[1:]]


def test_a_cast_that_rounds_is_not_read_through() -> None:
    net = Net()
    x = net.input("x", 2)
    made = [net.add("Cast", x, to=t) for t in (DType.FLOAT16, DType.BFLOAT16, DType.INT32)]
    tested = [net.add("IsInf", v) for v in made[:2]]
    graph = net.finish(*(net.add("Cast", v, to=DType.FLOAT64) for v in made), *tested)
    assert text(alone("read_through_casts", graph)) == text(graph)


def test_dead_nodes_go() -> None:
    net = Net()
    x = net.input("x", 2)
    net.add("Exp", net.add("Neg", x, name="n"), name="e")
    graph = net.finish(net.add("Relu", x, name="y"))
    assert text(graph) == ["n = Neg()(x)", "e = Exp()(n)", "y = Relu()(x)"]
    assert text(alone("remove_dead_nodes", graph)) == ["y = Relu()(x)"]


# -- fold_pads -----------------------------------------------------------------------------------------------

EDGE = np.array([0, 0, 1, 0, 0, 0, 1, 2])


def pooled(above: str, fill: Array | None, amounts: Array = EDGE, kind: str = "MaxPool", **window: Any) -> Graph:
    """Return a pool behind a Pad, of what `above` makes."""
    net = Net()
    r = net.add(above, net.input("x", 1, 2, 5, 5), name="r")
    p = net.add("Pad", r, amounts, *([] if fill is None else [fill]), name="p")
    return net.finish(net.add(kind, p, name="y", **{"kernel_shape": (3, 3), **window}))


def test_padding_goes_into_a_convolution() -> None:
    net = Net()
    p = net.add("Pad", net.input("x", 1, 2, 5, 5), EDGE, name="p")
    graph = net.finish(net.conv(net.add("Pad", p, EDGE, name="p2"), 3, 3, name="y", pads=(1, 1, 1, 1)))
    shown = "auto_pad=NOTSET, dilations=(), group=1, kernel_shape=()"
    assert text(graph) == [
        "p = Pad(mode=constant)(x, c)",
        "p2 = Pad(mode=constant)(p, c.1)",
        f"y = Conv({shown}, pads=(1, 1, 1, 1), strides=())(p2, c.2, c.3)",
    ]
    assert text(alone("fold_pads", graph)) == [f"y = Conv({shown}, pads=(3, 1, 3, 5), strides=())(x, c.2, c.3)"]


def test_padding_with_minus_infinity_goes_into_a_maximum() -> None:
    graph = pooled("Neg", MINUS_INFINITY)
    shown = "kernel_shape=(3, 3), auto_pad=NOTSET, ceil_mode=0, dilations=()"
    rest = "strides=(), storage_order=0, outputs=1"
    assert text(graph) == [
        "r = Neg()(x)",
        "p = Pad(mode=constant)(r, c, c.1)",
        f"y = MaxPool({shown}, pads=(), {rest})(p)",
    ]
    assert text(alone("fold_pads", graph)) == ["r = Neg()(x)", f"y = MaxPool({shown}, pads=(1, 0, 1, 2), {rest})(r)"]


@pytest.mark.parametrize("above", ["Relu", "Sigmoid", "Exp", "Abs", "Softplus"])
def test_zeros_behind_what_is_not_negative_go_into_a_maximum(above: str) -> None:
    assert kinds(alone("fold_pads", pooled(above, ZERO, pads=(0, 1, 0, 0)))) == [above, "MaxPool"]
    assert kinds(alone("fold_pads", pooled(above, None, strides=(2, 2)))) == [above, "MaxPool"]


def test_zeros_stay_behind_integers_whose_opposite_overflows() -> None:
    net = Net()
    r = net.add("Abs", net.input("x", 1, 2, 5, 5, dtype=DType.INT8), name="r")  # of -128 it is -128
    graph = net.finish(net.add("MaxPool", net.add("Pad", r, EDGE), name="y", kernel_shape=(3, 3)))
    assert kinds(alone("fold_pads", graph)) == ["Abs", "Pad", "MaxPool"]


@pytest.mark.parametrize(("low", "folds"), [(0.0, True), (0.5, True), (-0.5, False), (None, False)])
def test_zeros_behind_a_clip_go_if_it_clips_at_zero(low: float | None, folds: bool) -> None:
    net = Net()
    bound = "" if low is None else np.array(low, np.float32)
    r = net.add("Clip", net.input("x", 1, 2, 5, 5), bound, np.array(6, np.float32), name="r")
    graph = net.finish(net.add("MaxPool", net.add("Pad", r, EDGE), name="y", kernel_shape=(3, 3)))
    assert kinds(alone("fold_pads", graph)) == ["Clip", *([] if folds else ["Pad"]), "MaxPool"]


def test_zeros_go_into_averages_and_norms() -> None:
    after = alone("fold_pads", pooled("Neg", ZERO, kind="AveragePool"))
    assert kinds(after) == ["Neg", "AveragePool"] and after.nodes[1].op.attributes()["count_include_pad"] == 1
    assert kinds(alone("fold_pads", pooled("Neg", ZERO, kind="LpPool"))) == ["Neg", "LpPool"]


FAR: dict[str, Any] = {"kernel_shape": (2, 2), "dilations": (7, 7)}

STAYING_PADS: dict[str, Graph] = {
    "zeros, and what is below them": pooled("Neg", ZERO),
    "ones": pooled("Relu", np.array(1, np.float32)),
    "not a number": pooled("Relu", np.array(np.nan, np.float32)),
    "a window that sees padding alone": pooled("Relu", ZERO, np.array([0, 0, 3, 0, 0, 0, 0, 0])),
    "taps that step over the image": pooled("Relu", ZERO, np.array([0, 0, 1, 1, 0, 0, 2, 2]), **FAR),
    "a last window that may drop": pooled("Relu", ZERO, ceil_mode=1),
    "what is not zero before an average": pooled("Relu", np.array(-1, np.float32), kind="AveragePool"),
    "an average with padding of its own": pooled("Relu", ZERO, kind="AveragePool", pads=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("case", STAYING_PADS)
def test_padding_stays_where_the_numbers_would_change(case: str) -> None:
    graph = STAYING_PADS[case]
    assert text(alone("fold_pads", graph)) == text(graph)


def test_padding_stays_where_a_maximum_tells_its_place() -> None:
    net = Net()
    p = net.add("Pad", net.add("Relu", net.input("x", 1, 2, 5, 5)), EDGE)
    y = net.add(op("MaxPool", kernel_shape=(3, 3), outputs=2), p, name="y", outputs=2)
    assert kinds(alone("fold_pads", net.finish(y, f"{y}.1"))) == ["Relu", "Pad", "MaxPool"]


def test_padding_of_an_empty_image_goes_into_the_convolution() -> None:
    net = Net()
    p = net.add("Pad", net.input("x", 1, 2, 0, 5), np.array([0, 0, 3, 0, 0, 0, 0, 0]))
    assert kinds(alone("fold_pads", net.finish(net.conv(p, 3, 3, name="y")))) == ["Conv"]


# -- fold_batch_norm -----------------------------------------------------------------------------------------


def norm(net: Net, x: str, name: str) -> str:
    c = net.shape(x)[1]
    return net.add("BatchNormalization", x, *(net.random(c) for _ in range(3)), net.random(c) ** 2, name=name)


def test_a_batch_norm_goes_into_a_convolution_and_so_does_the_next() -> None:
    net = Net()
    conv = net.conv(net.input("x", 2, 4, 5, 5), 8, 3, name="conv")
    graph = net.finish(norm(net, norm(net, conv, "n"), "y"))
    shown = "Conv(auto_pad=NOTSET, dilations=(), group=1, kernel_shape=(), pads=(), strides=())"
    assert text(graph) == [
        f"conv = {shown}(x, c, c.1)",
        "n = BatchNormalization(epsilon=1e-05, momentum=0.9)(conv, c.2, c.3, c.4, c.5)",
        "y = BatchNormalization(epsilon=1e-05, momentum=0.9)(n, c.6, c.7, c.8, c.9)",
    ]
    assert text(alone("fold_batch_norm", graph)) == [f"y = {shown}(x, n_conv.weight, n_conv.bias)"]


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_norm_goes_into_a_transposed_convolution(group: int, bias: bool) -> None:
    net = Net()
    x = net.input("x", 2, 4, 5, 5)
    more = [net.random(3 * group)] if bias else []
    y = net.add("ConvTranspose", x, net.random(4, 3, 2, 2), *more, group=group, strides=(2, 2), name="t")
    after = alone("fold_batch_norm", net.finish(norm(net, y, "y")))
    assert kinds(after) == ["ConvTranspose"] and after.nodes[0].outputs == ("y",)


@pytest.mark.parametrize("shape", [None, (), (1,), (5,), (1, 5), (1, 1)])
@pytest.mark.parametrize("turned", [0, 1])
def test_a_batch_norm_goes_into_a_gemm(shape: tuple[int, ...] | None, turned: int) -> None:
    net = Net()
    x, w = net.input("x", 2, 4), net.random(*((5, 4) if turned else (4, 5)))
    more = [] if shape is None else [net.random(*shape)]
    y = net.add("Gemm", x, w, *more, alpha=0.5, beta=2.0, transB=turned, name="g")
    assert text(alone("fold_batch_norm", net.finish(norm(net, y, "y")))) == [
        f"y = Gemm(alpha=0.5, beta=1.0, transA=0, transB={turned})(x, n_g.weight, n_g.bias)"
    ]


def test_a_batch_norm_makes_a_gemm_of_a_product_of_matrices() -> None:
    net = Net()
    m = net.add("MatMul", net.input("x", 2, 4), net.random(4, 5), name="m")
    graph = net.finish(norm(net, m, "y"))
    assert text(graph)[0] == "m = MatMul()(x, c)" and kinds(graph) == ["MatMul", "BatchNormalization"]
    assert text(alone("fold_batch_norm", graph)) == [
        "y = Gemm(alpha=1.0, beta=1.0, transA=0, transB=0)(x, n_m.weight, n_m.bias)"
    ]


def test_a_batch_norm_of_flattened_rows_goes_into_the_product_of_a_stack() -> None:
    net = Net()
    product = net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5), name="m")
    rows = net.add("Reshape", product, np.array([6, 5]), name="rows")
    graph = net.finish(net.add("Reshape", norm(net, rows, "n"), np.array([2, 3, 5]), name="y"))
    assert text(alone("fold_batch_norm", graph)) == [
        "m.normed = MatMul()(x, n_m.weight)",
        "m.normed.1 = Add()(m.normed, n_m.bias)",
        "n = Reshape(allowzero=0)(m.normed.1, c.1)",
        "y = Reshape(allowzero=0)(n, c.6)",
    ]
    assert kinds(run_passes(graph)) == ["MatMul", "Add"]


def after_moves_and_sums_of_an_image() -> Graph:
    net = Net()
    image = net.add("Add", net.conv(net.input("x", 2, 4, 5, 3), 8, 3), net.random(8, 1, 1))
    rows = net.add("Flatten", net.add("Transpose", image, perm=(0, 2, 3, 1)), axis=3)
    return net.finish(norm(net, net.add("Add", net.random(1), rows), "y"))


def after_a_biased_product_with_the_channels_first() -> Graph:
    net = Net()
    biased = net.add("Add", net.random(5), net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5)))
    return net.finish(norm(net, net.add("Transpose", biased, perm=(0, 2, 1)), "y"))


def after_a_product_with_matrices_of_each_image() -> Graph:
    net = Net()
    product = net.add("MatMul", net.input("x", 2, 3, 4), net.random(2, 4, 5))
    return net.finish(norm(net, net.add("Reshape", product, np.array([6, 5])), "y"))


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (after_moves_and_sums_of_an_image, ["Conv", "Transpose", "Flatten"]),
        (after_a_biased_product_with_the_channels_first, ["MatMul", "Add", "Transpose"]),
        (after_a_product_with_matrices_of_each_image, ["MatMul", "Add", "Reshape"]),
    ],
)
def test_a_batch_norm_goes_past_moves_and_sums(make: Any, left: list[str]) -> None:
    assert kinds(alone("fold_batch_norm", make())) == left


def of_a_stack() -> Graph:
    net = Net()
    return net.finish(norm(net, net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5)), "y"))


def of_divided_columns() -> Graph:
    net = Net()
    product = net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 10))
    return net.finish(norm(net, net.add("Reshape", product, np.array([12, 5])), "y"))


def of_rows_that_another_reads() -> Graph:
    net = Net()
    rows = net.add("Reshape", net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5)), np.array([6, 5]))
    return net.finish(norm(net, rows, "y"), rows)


def of_a_product_that_another_reads() -> Graph:
    net = Net()
    product = net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5))
    return net.finish(norm(net, net.add("Reshape", product, np.array([6, 5])), "y"), product)


def of_a_sum_for_each_row() -> Graph:
    net = Net()
    summed = net.add("Add", net.add("MatMul", net.input("x", 2, 3, 4), net.random(4, 5)), net.random(3, 5))
    return net.finish(norm(net, net.add("Reshape", summed, np.array([6, 5])), "y"))


def of_a_product_with_a_vector() -> Graph:
    net = Net()
    return net.finish(norm(net, net.add("MatMul", net.input("x", 2, 3, 4), net.random(4)), "y"))


def of_rows() -> Graph:
    net = Net()
    g = net.add("Gemm", net.input("x", 2, 4), net.random(4, 5), net.random(2, 5))
    return net.finish(norm(net, g, "y"))


def of_computed_weights() -> Graph:
    net = Net()
    return net.finish(norm(net, net.add("MatMul", net.input("x", 2, 4), net.input("w", 4, 5)), "y"))


def of_a_factor_that_is_none() -> Graph:
    net = Net()
    conv = net.conv(net.input("x", 1, 2, 4, 4), 2, name="conv")
    ones = np.ones(2, np.float32)
    return net.finish(net.add("BatchNormalization", conv, ones, ones, ones, -ones, name="y"))


def row_of_norms(*factors: float) -> Graph:
    """Return a convolution and a row of norms that multiply by these numbers."""
    net = Net()
    x = net.conv(net.input("x", 1, 2, 4, 4), 2, name="conv")
    zeros, ones = np.zeros(2, np.float32), np.ones(2, np.float32)
    for k, factor in enumerate(factors):
        x = net.add("BatchNormalization", x, np.float32(factor) * ones, zeros, zeros, ones, epsilon=0.0, name=f"n{k}")
    return net.finish(x)


@pytest.mark.parametrize(
    ("factors", "folded"),
    [([1e30] * 4, 1), ([1e10] * 9, 3), ([1e5] * 9, 7), ([1e30, 1e30, 1e-30, 1e-30, 1e30, 1e30], 5), ([np.inf, 1], 0)],
)
def test_as_many_norms_of_a_row_fold_as_leave_weights_finite(factors: list[float], folded: int) -> None:
    fold, context = find_pass("fold_batch_norm"), PassContext()
    after = fold(row_of_norms(*factors), context)
    left = [f"n{k}" for k in range(folded, len(factors))]
    assert [node.outputs[0] for node in after.nodes] == [f"n{folded - 1}" if folded else "conv", *left]
    assert {name.removeprefix("n_") for name in context.left} == {*left}
    assert str(fold(after)) == str(after)


def test_norms_that_cannot_fold_take_steps_in_proportion() -> None:
    few, many = (row_of_norms(1e30, *[1e3] * count) for count in (25, 100))
    fold = find_pass("fold_batch_norm")
    assert python_calls(lambda: fold(many)) < 5 * python_calls(lambda: fold(few))


STAYING = (
    of_a_stack,
    of_divided_columns,
    of_rows_that_another_reads,
    of_a_product_that_another_reads,
    of_a_sum_for_each_row,
    of_a_product_with_a_vector,
    of_rows,
    of_computed_weights,
)


@pytest.mark.parametrize("make", STAYING)
def test_a_batch_norm_stays_where_weights_cannot_do_its_work(make: Any) -> None:
    graph = make()
    assert text(alone("fold_batch_norm", graph)) == text(graph)


def test_a_batch_norm_whose_factors_are_no_numbers_stays() -> None:
    graph = of_a_factor_that_is_none()
    assert text(run_passes(graph, (find_pass("fold_batch_norm"),))) == text(graph)
