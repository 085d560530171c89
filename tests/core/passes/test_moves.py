"""A7: transposes and reshapes are squashed, moved up, and turned into each other, one pass at a time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.nets import Net, kinds
from tests.helpers.rewrites import assert_identical, assert_same, text
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.passes import find_pass, run_passes

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def check(name: str, graph: Graph, before: list[str], after: list[str]) -> Graph:
    """Fail unless the pass makes `after` of `before`, nothing of that, and leaves the numbers as they are."""
    assert text(graph) == before
    result = run_passes(graph, (find_pass(name),))
    assert text(result) == after
    assert text(graph) == before, "the given graph stays as it is"
    assert text(run_passes(result, (find_pass(name),))) == after
    assert_identical(graph, result)
    return result


# -- squash_moves --------------------------------------------------------------------------------------------


def test_consecutive_transposes_become_one() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), name="a", perm=(1, 0, 2))
    graph = net.finish(net.add("Transpose", a, name="y", perm=(0, 2, 1)))
    check(
        "squash_moves",
        graph,
        ["a = Transpose(perm=(1, 0, 2))(x)", "y = Transpose(perm=(0, 2, 1))(a)"],
        ["y = Transpose(perm=(1, 2, 0))(x)"],
    )


def test_inverse_transposes_vanish() -> None:
    net = Net()
    r = net.add("Relu", net.input("x", 2, 3, 4, 5), name="r")
    back = net.add("Transpose", net.add("Transpose", r, name="a", perm=TO_LAST), name="b", perm=TO_FIRST)
    check(
        "squash_moves",
        net.finish(net.add("Neg", back, name="y")),
        [
            "r = Relu()(x)",
            "a = Transpose(perm=(0, 2, 3, 1))(r)",
            "b = Transpose(perm=(0, 3, 1, 2))(a)",
            "y = Neg()(b)",
        ],
        ["r = Relu()(x)", "y = Neg()(r)"],
    )


def test_a_transpose_without_a_perm_reverses_and_undoes_itself() -> None:
    net = Net()
    a = net.add("Transpose", net.add("Relu", net.input("x", 2, 3, 4), name="r"), name="a")
    check(
        "squash_moves",
        net.finish(net.add("Neg", net.add("Transpose", a, name="b"), name="y")),
        ["r = Relu()(x)", "a = Transpose(perm=())(r)", "b = Transpose(perm=())(a)", "y = Neg()(b)"],
        ["r = Relu()(x)", "y = Neg()(r)"],
    )


def test_consecutive_reshapes_of_every_kind_become_one() -> None:
    net = Net()
    a = net.add("Reshape", net.input("x", 2, 3, 4), ints(1, 6, -1), name="a")
    u = net.add("Unsqueeze", net.add("Squeeze", a, ints(0), name="b"), ints(1), name="u")
    result = check(
        "squash_moves",
        net.finish(net.add("Flatten", u, name="y", axis=0)),
        [
            "a = Reshape(allowzero=0)(x, c)",
            "b = Squeeze()(a, c.1)",
            "u = Unsqueeze()(b, c.2)",
            "y = Flatten(axis=0)(u)",
        ],
        ["y = Reshape(allowzero=0)(x, n_y.shape)"],
    )
    np.testing.assert_array_equal(result.constants["n_y.shape"], [1, 24])


def test_inverse_reshapes_vanish() -> None:
    net = Net()
    a = net.add("Unsqueeze", net.add("Relu", net.input("x", 2, 3), name="r"), ints(0), name="a")
    check(
        "squash_moves",
        net.finish(net.add("Neg", net.add("Squeeze", a, ints(0), name="b"), name="y")),
        ["r = Relu()(x)", "a = Unsqueeze()(r, c)", "b = Squeeze()(a, c.1)", "y = Neg()(b)"],
        ["r = Relu()(x)", "y = Neg()(r)"],
    )


def test_a_reshape_to_an_empty_shape_says_that_zero_means_zero() -> None:
    net = Net()
    a = net.add("Unsqueeze", net.input("x", 0, 3), ints(0), name="a")
    result = check(
        "squash_moves",
        net.finish(net.add("Flatten", a, name="y")),
        ["a = Unsqueeze()(x, c)", "y = Flatten(axis=1)(a)"],
        ["y = Reshape(allowzero=1)(x, n_y.shape)"],
    )
    np.testing.assert_array_equal(result.constants["n_y.shape"], [1, 0])


def test_equal_siblings_become_one_whatever_they_are_called() -> None:
    net = Net()
    x = net.input("x", 2, 3, 4)
    a = [net.add("Transpose", x, name="a", perm=(2, 1, 0)), net.add("Transpose", x, name="b")]
    c = [net.add("Reshape", x, ints(2, -1), name="c1"), net.add("Flatten", x, name="d")]
    graph = net.finish(net.add("Add", *a, name="y"), net.add("Add", *c, name="z"))
    check(
        "squash_moves",
        graph,
        [
            "a = Transpose(perm=(2, 1, 0))(x)",
            "b = Transpose(perm=())(x)",
            "c1 = Reshape(allowzero=0)(x, c)",
            "d = Flatten(axis=1)(x)",
            "y = Add()(a, b)",
            "z = Add()(c1, d)",
        ],
        [
            "a = Transpose(perm=(2, 1, 0))(x)",
            "c1 = Reshape(allowzero=0)(x, c)",
            "y = Add()(a, a)",
            "z = Add()(c1, c1)",
        ],
    )


def test_what_others_read_stays_and_is_bypassed() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), name="a", perm=(1, 0, 2))
    graph = net.finish(net.add("Transpose", a, name="y", perm=(0, 2, 1)), net.add("Relu", a, name="z"))
    check(
        "squash_moves",
        graph,
        ["a = Transpose(perm=(1, 0, 2))(x)", "y = Transpose(perm=(0, 2, 1))(a)", "z = Relu()(a)"],
        ["a = Transpose(perm=(1, 0, 2))(x)", "y = Transpose(perm=(1, 2, 0))(x)", "z = Relu()(a)"],
    )


def test_outputs_of_the_network_keep_their_names() -> None:
    net = Net()
    r = net.add("Relu", net.input("x", 2, 3), name="r")
    a = net.add("Transpose", r, name="a")
    graph = net.finish(net.add("Transpose", a, name="y"), a, net.add("Transpose", r, name="b"))
    check(
        "squash_moves",
        graph,
        ["r = Relu()(x)", "a = Transpose(perm=())(r)", "y = Transpose(perm=())(a)", "b = Transpose(perm=())(r)"],
        ["y = Relu()(x)", "a = Transpose(perm=())(y)", "b = Transpose(perm=())(y)"],
    )


def test_a_pair_between_an_input_and_an_output_leaves_one_node() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3), name="a")
    check(
        "squash_moves",
        net.finish(net.add("Transpose", a, name="y")),
        ["a = Transpose(perm=())(x)", "y = Transpose(perm=())(a)"],
        ["y = Transpose(perm=(0, 1))(x)"],
    )


def test_a_transpose_and_a_reshape_stay_two() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), name="a", perm=(2, 0, 1))
    lines = ["a = Transpose(perm=(2, 0, 1))(x)", "y = Flatten(axis=1)(a)"]
    check("squash_moves", net.finish(net.add("Flatten", a, name="y")), lines, lines)


def test_a_transpose_that_moves_axes_of_one_joins_reshapes() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 1, 1), name="a", perm=TO_LAST)
    check(
        "squash_moves",
        net.finish(net.add("Flatten", a, name="y")),
        ["a = Transpose(perm=(0, 2, 3, 1))(x)", "y = Flatten(axis=1)(a)"],
        ["y = Reshape(allowzero=0)(x, n_y.shape)"],
    )


# -- transposes_as_reshapes ----------------------------------------------------------------------------------


def test_a_transpose_that_moves_axes_of_one_is_a_reshape() -> None:
    net = Net()
    x = net.input("x", 2, 3, 1, 1)
    graph = net.finish(
        net.add("Transpose", x, name="y", perm=TO_LAST), net.add("Transpose", x, name="z", perm=(1, 0, 2, 3))
    )
    result = check(
        "transposes_as_reshapes",
        graph,
        ["y = Transpose(perm=(0, 2, 3, 1))(x)", "z = Transpose(perm=(1, 0, 2, 3))(x)"],
        ["y = Reshape(allowzero=0)(x, n_y.shape)", "z = Transpose(perm=(1, 0, 2, 3))(x)"],
    )
    np.testing.assert_array_equal(result.constants["n_y.shape"], [2, 1, 1, 3])


# -- move_transposes_up --------------------------------------------------------------------------------------


def test_a_transpose_moves_up_through_elements_to_its_inverse_and_both_vanish() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4, 5), name="a", perm=TO_LAST)
    half = net.add("Mul", net.add("Relu", a, name="r"), np.array([0.5], np.float32), name="h")
    check(
        "move_transposes_up",
        net.finish(net.add("Transpose", half, name="y", perm=TO_FIRST)),
        [
            "a = Transpose(perm=(0, 2, 3, 1))(x)",
            "r = Relu()(a)",
            "h = Mul()(r, c)",
            "y = Transpose(perm=(0, 3, 1, 2))(h)",
        ],
        ["r.transposed = Relu()(x)", "y = Mul()(r.transposed, c)"],
    )


def test_it_takes_in_another_transpose() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), name="a", perm=(1, 0, 2))
    check(
        "move_transposes_up",
        net.finish(net.add("Transpose", net.add("Relu", a, name="r"), name="y", perm=(0, 2, 1))),
        ["a = Transpose(perm=(1, 0, 2))(x)", "r = Relu()(a)", "y = Transpose(perm=(0, 2, 1))(r)"],
        ["a.transposed = Transpose(perm=(1, 2, 0))(x)", "y = Relu()(a.transposed)"],
    )


def test_it_moves_through_a_sum_of_two_and_through_a_bias() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4, 5), name="a", perm=TO_LAST)
    b = net.add("Transpose", net.input("x2", 2, 3, 4, 5), name="b", perm=TO_LAST)
    biased = net.add("Add", a, net.random(3), name="biased")
    total = net.add("Add", net.add("Mul", biased, net.add("Sigmoid", biased, name="s"), name="m"), b, name="t")
    result = check(
        "move_transposes_up",
        net.finish(net.add("Transpose", total, name="y", perm=TO_FIRST)),
        [
            "a = Transpose(perm=(0, 2, 3, 1))(x)",
            "b = Transpose(perm=(0, 2, 3, 1))(x2)",
            "biased = Add()(a, c)",
            "s = Sigmoid()(biased)",
            "m = Mul()(biased, s)",
            "t = Add()(m, b)",
            "y = Transpose(perm=(0, 3, 1, 2))(t)",
        ],
        [
            "biased.transposed = Add()(x, c.transposed)",
            "s.transposed = Sigmoid()(biased.transposed)",
            "m.transposed = Mul()(biased.transposed, s.transposed)",
            "y = Add()(m.transposed, x2)",
        ],
    )
    assert result.constants["c.transposed"].shape == (1, 3, 1, 1)


def test_a_transpose_that_others_read_stays_for_them() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), name="a", perm=(0, 2, 1))
    y = net.add("Transpose", net.add("Relu", a, name="r"), name="y", perm=(0, 2, 1))
    check(
        "move_transposes_up",
        net.finish(y, net.add("CumSum", a, ints(0), name="z")),
        [
            "a = Transpose(perm=(0, 2, 1))(x)",
            "r = Relu()(a)",
            "y = Transpose(perm=(0, 2, 1))(r)",
            "z = CumSum(exclusive=0, reverse=0)(a, c)",
        ],
        ["a = Transpose(perm=(0, 2, 1))(x)", "y = Relu()(x)", "z = CumSum(exclusive=0, reverse=0)(a, c)"],
    )


def lone() -> Graph:
    net = Net()
    r = net.add("Relu", net.input("x", 2, 3, 4), name="r")
    return net.finish(net.add("Transpose", r, name="y"))


def through_a_softmax() -> Graph:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4))
    return net.finish(net.add("Transpose", net.add("Softmax", a), name="y"))


def between_read_elsewhere() -> Graph:
    net = Net()
    r = net.add("Relu", net.add("Transpose", net.input("x", 2, 3, 4)))
    return net.finish(net.add("Transpose", r, name="y"), r)


def above_read_elsewhere() -> Graph:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4), perm=(1, 0, 2))
    return net.finish(net.add("Transpose", net.add("Relu", a), name="y", perm=(0, 2, 1)), a)


def one_side_is_no_transpose() -> Graph:
    net = Net()
    total = net.add("Add", net.add("Transpose", net.input("x", 2, 3)), net.input("x2", 3, 2))
    return net.finish(net.add("Transpose", total, name="y"))


def broadcast_between() -> Graph:
    net = Net()
    a, b = (net.add("Transpose", net.input(n, *s)) for n, s in (("x", (2, 3)), ("x2", (2, 1))))
    return net.finish(net.add("Transpose", net.add("Add", a, b), name="y"))


def two_free_ones_above() -> Graph:
    net = Net()
    free = (0, 2, 1, 3)
    a, b = (net.add("Transpose", net.input(n, 2, 1, 3, 4), perm=free) for n in ("x", "x2"))
    return net.finish(net.add("Transpose", net.add("Add", a, b), name="y", perm=(3, 1, 0, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lone,
        through_a_softmax,
        between_read_elsewhere,
        above_read_elsewhere,
        one_side_is_no_transpose,
        broadcast_between,
        two_free_ones_above,
    ],
)
def test_a_transpose_stays_where_moving_it_gains_nothing(make: object) -> None:
    assert callable(make)
    graph = make()
    check("move_transposes_up", graph, text(graph), text(graph))


def test_types_stay_right_where_a_cast_is_passed() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3), name="a")
    whole = net.add("Neg", net.add("Cast", a, name="i", to=DType.INT32), name="n")
    graph = net.finish(net.add("Transpose", whole, name="y"))
    result = run_passes(graph, (find_pass("move_transposes_up"),))
    assert text(result)[-1] == "y = Neg()(i.transposed)" and result.specs["i.transposed"].dtype is DType.INT32
    assert_identical(graph, result)


# -- settle_moves --------------------------------------------------------------------------------------------


def test_passes_that_make_work_for_each_other_run_until_nothing_is_left() -> None:
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3, 4, 5), name="a", perm=TO_LAST)
    flat = net.add("Reshape", net.add("Relu", a, name="r"), ints(2, 20, 3), name="f")
    back = net.add("Reshape", flat, ints(2, 4, 5, 3), name="b")
    pooled = net.add("GlobalAveragePool", net.add("Transpose", back, name="t", perm=TO_FIRST), name="p")
    check(
        "settle_moves",
        net.finish(net.add("Flatten", net.add("Transpose", pooled, name="l", perm=TO_LAST), name="y")),
        [
            "a = Transpose(perm=(0, 2, 3, 1))(x)",
            "r = Relu()(a)",
            "f = Reshape(allowzero=0)(r, c)",
            "b = Reshape(allowzero=0)(f, c.1)",
            "t = Transpose(perm=(0, 3, 1, 2))(b)",
            "p = GlobalAveragePool()(t)",
            "l = Transpose(perm=(0, 2, 3, 1))(p)",
            "y = Flatten(axis=1)(l)",
        ],
        ["t = Relu()(x)", "p = GlobalAveragePool()(t)", "y = Reshape(allowzero=0)(p, n_y.shape)"],
    )


# -- down --------------------------------------------------------------------------------------------------


def test_a_sum_of_transposed_values_is_computed_before() -> None:
    net = Net()
    x, y = (net.add("Relu", net.input(name, 2, 3, 4)) for name in "xy")
    total = net.add("Add", *(net.add("Transpose", v, perm=(0, 2, 1)) for v in (x, y)))
    graph = net.finish(net.add("Mul", total, net.random(4, 1)))
    after = run_passes(graph, (find_pass("move_transposes_down"),))
    assert kinds(after) == ["Relu", "Relu", "Add", "Mul", "Transpose"]
    assert_same(graph, after, 0)


def test_a_stream_to_which_rows_are_added_stays_in_rows() -> None:
    net = Net()
    rows = net.add("LayerNormalization", net.input("x", 1, 4, 4, 8), net.random(8), axis=-1)
    image = net.add("Transpose", rows, perm=(0, 3, 1, 2))
    for _ in range(2):
        inside = net.add("Transpose", net.conv(image, 8), perm=(0, 2, 3, 1))
        inside = net.add("Transpose", net.add("MatMul", inside, net.random(8, 8)), perm=(0, 3, 1, 2))
        image = net.add("Add", image, net.add("Mul", inside, net.random(8, 1, 1)))
    graph = net.finish(net.conv(image, 4))
    after = run_passes(graph)
    assert kinds(after).count("Transpose") == kinds(graph).count("Transpose")
    makers = after.producers()
    for node in after.nodes:
        if node.op.type == "Add":
            above = [makers[i].op.type for i in node.inputs]
            assert "Transpose" not in above and "Conv" not in above
    assert_same(graph, after, 1e-5)


def test_a_node_goes_before_a_transpose_whose_other_reader_another_transpose_cancels() -> None:
    net = Net()
    turned = net.add("Relu", net.add("Transpose", net.input("x", 2, 3, 4), perm=(0, 2, 1)))
    graph = net.finish(net.add("Relu", turned, name="y"), net.add("Transpose", turned, name="back", perm=(0, 2, 1)))
    after = run_passes(graph)
    assert text(after) == ["back = Relu()(x)", "y.before = Relu()(back)", "y = Transpose(perm=(0, 2, 1))(y.before)"]
    assert str(run_passes(after)) == str(after)
    assert_same(graph, after, 0)


@pytest.mark.parametrize("other", ["another order", "both read elsewhere", "not transposed"])
def test_a_sum_stays_where_it_would_cost_a_transpose(other: str) -> None:
    net = Net()
    x, y = (net.add("Relu", net.input(name, 3, 3, 3)) for name in "xy")
    first = net.add("Transpose", x, perm=(0, 2, 1))
    order = (2, 1, 0) if other == "another order" else (0, 2, 1)
    second = y if other == "not transposed" else net.add("Transpose", y, perm=order)
    elsewhere = [net.add("Softmax", v) for v in (first, second)] if "elsewhere" in other else []
    graph = net.finish(net.add("Add", first, second), *elsewhere)
    assert str(run_passes(graph, (find_pass("move_transposes_down"),))) == str(graph)
