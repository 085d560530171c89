"""Attention as exporters write it for images: moves of joined axes, Einsums, and factors of heads around it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import weft
from tests.helpers.attention_forms import (
    LOWEST,
    MASKS,
    WINDOWS,
    capped,
    cosine,
    filled,
    later,
    rows_first,
    windows,
)
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from tests.helpers.transformers import number
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.passes import run_passes
from weft.core.passes.patterns import fuse_attention

# -- rows before the batch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_rows_before_the_batch_takes_two_launches(batch: int) -> None:
    net = Net()
    graph = net.finish(rows_first(net, net.input("x", 5, batch, 16), 2))
    after = run_passes(graph)
    assert {"Softmax", "Mul"}.isdisjoint(kinds(after))
    assert [n.op.attributes()["scale"] for n in after.nodes if n.op.type == "weft::Attention"] == [0.25]
    assert_same(graph, after)
    assert len(planned_kernels(graph)) == 2
    with weft.load(graph, "opencl", precision="high", fallback="error") as session:
        (want,) = outputs(graph, feeds(graph))
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-4, atol=1e-5)


def test_rows_before_a_batch_of_any_size() -> None:
    net = Net()
    parts = [net.input(name, 5, "n", 16) for name in "qkv"]
    sizes = net.add("Shape", parts[0])
    batch = net.add("Gather", sizes, np.array([1]))
    shape = net.add("Concat", batch, np.array([2, 5, 8]), axis=0)
    swapped = net.add("Concat", batch, np.array([2, 8, 5]), axis=0)
    q, k, v = (net.add("Reshape", value, np.array([5, -1, 8])) for value in parts)
    q, v = (net.add("Reshape", net.add("Transpose", each, perm=(1, 0, 2)), shape) for each in (q, v))
    k = net.add("Reshape", net.add("Transpose", k, perm=(1, 2, 0)), swapped)
    graph = net.finish(net.add("MatMul", net.add("Softmax", net.add("MatMul", q, k), axis=-1), v))
    for n in (1, 2, 3):
        shapes = dict.fromkeys("qkv", (5, n, 16))
        bound = bind(graph, shapes)
        with weft.load(graph, "cpu") as session:
            (found,) = session.run(feeds(bound))
        np.testing.assert_allclose(found, outputs(bound, feeds(bound))[0], rtol=1e-4, atol=1e-5)
    after = run_passes(bind(graph, shapes))
    assert kinds(after).count("weft::Attention") == 1
    assert "Softmax" not in kinds(after)


# -- windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(24,), (6, 4)], ids=["one axis", "two axes"])
def test_axes_of_windows_are_joined(shape: tuple[int, ...], mask: str) -> None:
    net = Net()
    graph = net.finish(windows(net, shape, MASKS[mask]))
    after = fuse_attention(graph)
    assert sorted(set(kinds(after))) == ["Reshape", "weft::Attention"]
    (found,) = (n for n in after.nodes if n.op.type == "weft::Attention")
    assert after.specs[found.outputs[0]].dims == (6, 4, 5, 6)
    assert len(after.nodes) < len(graph.nodes)
    assert_same(graph, after)
    assert str(fuse_attention(after)) == str(after)


def test_a_mask_that_cannot_be_joined_stays() -> None:
    net = Net()
    graph = net.finish(windows(net, (24,), lambda net: net.input("mask", 2, 1, 4, 5, 7)))
    assert fuse_attention(graph).nodes == graph.nodes


def test_a_result_that_is_read_as_it_is_and_reshaped_stays() -> None:
    net = Net()
    y = windows(net, (24,), None)
    product = next(n.outputs[0] for n in reversed(net.graph.nodes) if n.op.type == "MatMul")
    graph = net.finish(y, product)
    assert fuse_attention(graph).nodes == graph.nodes


def test_an_attention_to_the_result_of_another_is_found() -> None:
    """What the first read is gone when the second is found."""
    net = Net()
    y = windows(net, (24,), None)
    keys = net.add("Transpose", net.input("k2", 2, 3, 4, 7, 6), perm=(0, 1, 2, 4, 3))
    scores = net.add("MatMul", y, keys)
    shares = net.add("Softmax", net.add("Mul", scores, number(0.5)), axis=-1)
    mixed = net.add("MatMul", shares, net.input("v2", 2, 3, 4, 7, 3))
    graph = net.finish(mixed)
    after = fuse_attention(graph)
    assert kinds(after).count("weft::Attention") == 2
    assert {"MatMul", "Softmax"}.isdisjoint(kinds(after)), "nothing reads what the first was made of"
    assert_same(graph, after)


def test_rows_that_are_joined_with_other_axes_stay() -> None:
    """The reshapes around the softmax must leave the last two axes alone."""
    net = Net()
    q, k, v = net.input("q", 2, 3, 5, 4), net.input("k", 2, 3, 4, 7), net.input("v", 2, 15, 7, 6)
    scores = net.add("Reshape", net.add("MatMul", q, k), np.array([2, 15, 1, 7]))
    graph = net.finish(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))
    assert fuse_attention(graph).nodes == graph.nodes


# -- Einsums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first, second",
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bhid"),
        ("... i d, ... j d -> ... i j", "... i j, ... j d -> ... i d"),
        ("bhjd,bhid->bhij", "bhjd,bhij->bhid"),
        ("bhid,bjhd->bhij", "bhij,bhjd->bhid"),
        ("bhid,bhdj->bhij", "bhij,bjhd->bhid"),
    ],
)
def test_products_may_be_einsums(first: str, second: str) -> None:
    letters = dict(zip("bhijd", (2, 3, 5, 7, 4), strict=True))
    net, shapes = Net(), dict[str, tuple[int, ...]]()
    terms = "".join(first.split()).replace("...", "bh").partition("->")[0].split(",")
    values = "".join(second.split()).replace("...", "bh").partition("->")[0].split(",")
    for name, term in (("q", next(t for t in terms if "i" in t)), ("k", next(t for t in terms if "j" in t)),
                       ("v", next(t for t in values if "i" not in t))):
        shapes[name] = tuple(letters[c] for c in term)
    q, k, v = (net.input(name, *shape) for name, shape in shapes.items())
    operands = (q, k) if "i" in terms[0] else (k, q)
    scores = net.add("Mul", net.add("Einsum", *operands, equation=first), number(0.5))
    shares = net.add("Softmax", scores, axis=-1)
    mixed = net.add("Einsum", *((shares, v) if "i" in values[0] else (v, shares)), equation=second)
    graph = net.finish(mixed)
    after = fuse_attention(graph)
    assert kinds(after)[-1] == "weft::Attention"
    assert set(kinds(after)) <= {"Transpose", "weft::Attention"}
    assert_same(graph, after)


@pytest.mark.parametrize(
    "first, second",
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bihd"),  # a result in another order takes a move more
        ("bhid,bhjd->bhji", "bhij,bhjd->bhid"),  # the softmax of the columns
        ("bhid,bhjd->bij", "bij,bhjd->bhid"),  # heads are summed up
    ],
)
def test_other_sums_of_products_stay(first: str, second: str) -> None:
    net = Net()
    q, k, v = (net.input(name, 2, 3, 5, 4) for name in "qkv")
    shares = net.add("Softmax", net.add("Einsum", q, k, equation=first), axis=-1)
    graph = net.finish(net.add("Einsum", shares, v, equation=second))
    after = fuse_attention(graph)
    if first.endswith("bhji"):  # which are the rows, if queries and keys change places
        assert kinds(after) == ["weft::Attention"]
        assert after.nodes[0].inputs[:2] == (k, q)
    else:
        assert after.nodes == graph.nodes
    assert_same(graph, after)


def test_what_values_are_multiplied_by_stays() -> None:
    """Unlike that of queries and keys, no attribute of the op holds it."""
    net = Net()
    q, k, v = net.input("q", 2, 3, 5, 4), net.input("k", 2, 3, 7, 4), net.input("v", 2, 3, 6, 7)
    shares = net.add("Softmax", net.add("Einsum", q, k, equation="bhid,bhjd->bhij"), axis=-1)
    mixed = net.add("Einsum", shares, net.add("Mul", v, number(0.5)), equation="bhij,bhdj->bhid")
    graph = net.finish(mixed)
    after = fuse_attention(graph)
    assert kinds(after) == ["Mul", "Transpose", "weft::Attention"]
    assert_same(graph, after)


def test_five_axes_of_einsums_become_one_attention() -> None:
    """As window attention is written: heads apart, scaled keys, a bias for each head."""
    net = Net()
    x = net.input("x", 1, 6, 5, 48)
    parts = []
    for k in range(3):
        part = net.add("Slice", x, np.array([16 * k]), np.array([16 * k + 16]), np.array([3]))
        apart = net.add("Reshape", part, np.array([1, 6, 5, 2, 8]))
        parts.append(net.add("Transpose", apart, perm=(0, 1, 3, 2, 4)))
    keys = net.add("Mul", parts[1], number(0.3))
    scores = net.add("Einsum", parts[0], keys, equation="B G H I D, B G H J D -> B G H I J")
    shares = net.add("Softmax", net.add("Add", scores, net.random(1, 2, 5, 5)), axis=-1)
    mixed = net.add("Einsum", shares, parts[2], equation="B G H I J, B G H J D -> B G H I D")
    back = net.add("Reshape", net.add("Transpose", mixed, perm=(0, 1, 3, 2, 4)), np.array([1, 6, 5, 16]))
    graph = net.finish(back)
    after = run_passes(graph)
    assert {"Einsum", "Softmax", "Mul"}.isdisjoint(kinds(after))
    assert_same(graph, after)


# -- factors of heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Mul", "Div"])
@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (3, 4, 5, 1), (5, 1)])
def test_a_factor_of_heads_or_rows_is_given_to_queries(kind: str, shape: tuple[int, ...]) -> None:
    net = Net()
    factor = np.asarray(1 + np.arange(prod(shape)).reshape(shape) / 8, np.float32)
    graph = net.finish(cosine(net, factor, kind, masks=2))
    after = fuse_attention(graph)
    assert sorted(kinds(after)) == sorted(["ReduceL2", "ReduceL2", "Div", "Div", kind, "weft::Attention"])
    assert_same(graph, after)
    (taken,) = (n for n in after.nodes if n.op.type == "weft::Attention")
    assert len(taken.inputs) == 4, "constant masks are added up"


@pytest.mark.parametrize("what", ["of keys", "zero", "infinite", "behind a mask", "of the first operand"])
def test_other_factors_stay(what: str) -> None:
    net = Net()
    factor = np.ones((4, 1, 7) if what == "of keys" else (4, 1, 1), np.float32)
    factor[0] = {"zero": 0, "infinite": np.inf}.get(what, 2)
    if what == "of the first operand":
        q, k, v = (net.input(name, *shape[1:]) for name, shape in WINDOWS.items())
        scores = net.add("Div", factor, net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2))))
        graph = net.finish(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))
    else:
        graph = net.finish(cosine(net, factor, first=what == "behind a mask"))
    assert fuse_attention(graph).nodes == graph.nodes


# -- caps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize(
    "divided, times, scale, cap",
    [
        (5.0, 5.0, 0.25, 5.0),
        (0.5, 2.0, 1.0, 2.0),  # 2 tanh(x / 0.5) is the cap 2 of scores that are four times as large
        (None, 30.0, 7.5, 30.0),
        (None, None, 0.25, 1.0),
        (2.0, -2.0, -0.25, -2.0),
    ],
)
def test_scores_with_a_cap_are_found(
    mask: bool, divided: float | None, times: float | None, scale: float, cap: float
) -> None:
    net = Net()
    added = net.input("mask", 3, 1, 5, 7) if mask else ""
    graph = net.finish(capped(net, divided=divided, times=times, mask=added)[0])
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"]
    attributes = after.nodes[0].op.attributes()
    assert attributes["scale"] == pytest.approx(scale) and attributes["softcap"] == cap
    assert_same(graph, after)
    assert str(fuse_attention(after)) == str(after)


def test_a_factor_of_heads_within_a_cap_is_given_to_queries() -> None:
    net = Net()
    factor = np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1)
    graph = net.finish(capped(net, inner_factor=factor)[0])
    after = fuse_attention(graph)
    assert kinds(after) == ["Mul", "weft::Attention"]
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["a mask within", "a factor of heads", "two caps", "read elsewhere"])
def test_other_caps_stay(what: str) -> None:
    net = Net()
    mixed, tanh = capped(
        net,
        inner=net.input("mask", 3, 1, 5, 7) if what == "a mask within" else "",
        factor=np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1) if what == "a factor of heads" else None,
        twice=what == "two caps",
    )
    graph = net.finish(mixed, *[tanh] * (what == "read elsewhere"))
    assert fuse_attention(graph).nodes == graph.nodes


@pytest.mark.parametrize("heads", [4, 2])
def test_a_cap_outlives_what_is_done_to_an_attention(heads: int) -> None:
    """Heads of a decoder that share keys, or whose projections are joined, as Gemma 2 is exported."""
    net = Net()
    x, parts = net.input("x", 1, 6, 32), list[str]()
    for count in (4, heads, heads):
        made = net.add("MatMul", x, net.random(32, 8 * count, scale=0.5))
        apart = net.add("Transpose", net.add("Reshape", made, np.array([1, 6, count, 8])), perm=(0, 2, 1, 3))
        if count < 4:
            wide = net.add("Expand", net.add("Unsqueeze", apart, np.array([2])), np.array([1, count, 2, 6, 8]))
            apart = net.add("Reshape", wide, np.array([1, 4, 6, 8]))
        parts.append(apart)
    scores = net.add("MatMul", parts[0], net.add("Transpose", parts[1], perm=(0, 1, 3, 2)))
    scores = net.add("Div", net.add("Mul", scores, number(0.5)), number(2))
    scores = net.add("Mul", net.add("Tanh", scores), number(2))
    scores = net.add("Add", scores, np.triu(np.full((6, 6), -np.inf, np.float32), 1))
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), parts[2])
    graph = net.finish(net.add("Reshape", net.add("Transpose", mixed, perm=(0, 2, 1, 3)), np.array([1, 6, 32])))
    after = run_passes(graph)
    (found,) = (n for n in after.nodes if n.op.type == "weft::Attention")
    assert (found.op.attributes()["softcap"], found.op.attributes()["packed"]) == (2.0, int(heads == 4))
    assert "Tanh" not in kinds(after)
    assert_same(graph, after)
    assert planned_kernels(graph).count("attention") == 1
    for device in ("opencl", "vulkan"):
        with weft.load(graph, device, fallback="error") as session:
            (want,) = outputs(graph, feeds(graph))
            np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-4, atol=1e-5)


# -- numbers in place of scores ------------------------------------------------------------------------------


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("masks", [0, 1, 2])
@pytest.mark.parametrize("fill", [number(LOWEST), number(-1e30), np.full((1, 1), -np.inf, np.float32)])
def test_the_lowest_number_in_place_of_scores_is_a_mask(fill: Array, masks: int, hides: bool) -> None:
    net = Net()
    graph = net.finish(filled(net, fill, later(blind=np.isfinite(fill).item()) == hides, hides=hides, masks=masks))
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"]
    assert_same(graph, after)
    assert after.nodes[0].op.attributes()["lowest_hides"] == int(np.isfinite(fill).item())
    assert after.constants[after.nodes[0].inputs[3]].shape == (1, 4 if masks else 1, 5, 7)
    with weft.load(graph, "opencl", precision="low") as session:
        (want,) = outputs(graph, feeds(graph))
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-2, atol=1e-2)


def causal(fill: float, kind: str, added: float = 0.0, *, then: bool = False) -> Graph:
    """Return an attention to keys that are not later; `kind` hides others, and some number is added to a score.

    That is added to the score of the first query and key, or of the last key; with `then`, after others are hidden.
    """
    net = Net()
    q, k, v = (net.input(name, 1, 2, 6, 8) for name in "qkv")
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    more = np.zeros((6, 6), np.float32)
    more[0, 0 if np.isfinite(added) else 5] = added
    hidden = np.triu(np.ones((6, 6), bool), 1)
    scores = net.add("Add", scores, more) if added and not then else scores
    if kind == "Where":
        scores = net.add("Where", hidden, number(fill), scores)
    else:
        scores = net.add("Add", scores, np.where(hidden, np.float32(fill), np.float32(0)))
    scores = net.add("Add", scores, more) if added and then else scores
    return net.finish(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))


def with_odd_keys(graph: Graph) -> dict[str, Array]:
    """Return inputs of which the last key has an infinite score, and the one before it a score that is NaN."""
    fed = feeds(graph)
    fed["q"] = np.abs(fed["q"]) + np.float32(0.1)
    fed["k"][:, :, 5, 2], fed["k"][:, :, 4, 3] = np.inf, np.nan
    return fed


@pytest.mark.parametrize("fill", [-1e30, LOWEST, -np.inf])
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl:0", "vulkan"])
def test_a_number_takes_the_place_of_any_score(device: str, precision: str, fill: float) -> None:
    """An infinite score of a key that is hidden makes no row NaN: nothing is added to it."""
    graph = causal(fill, "Where")
    fed = with_odd_keys(graph)
    (want,) = outputs(graph, fed)
    assert np.isfinite(want[:, :, :4]).all() and np.isnan(want[:, :, 4:]).all()
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        assert "weft::Attention" in kinds(session.optimized.graph)
        (got,) = session.run(fed)
    np.testing.assert_allclose(got, want, *((1e-4, 1e-5) if precision == "high" else (1e-2, 1e-2)))


@pytest.mark.parametrize("fill", [-1e30, -np.inf])
@pytest.mark.parametrize("device", ["cpu", "opencl:0", "vulkan"])
def test_a_number_that_is_added_hides_no_infinite_score(device: str, fill: float) -> None:
    graph = causal(fill, "Add")
    fed = with_odd_keys(graph)
    assert fuse_attention(graph).nodes[0].op.attributes()["low_replaces"] == 0
    (want,) = outputs(graph, fed)
    assert np.isnan(want).all()
    with weft.load(graph, device, fallback="error") as session:
        np.testing.assert_array_equal(session.run(fed)[0], want)


@pytest.mark.parametrize("then", [False, True])
@pytest.mark.parametrize(("added", "found"), [(1.5, True), (-1e4, True), (-2e30, False), (-np.inf, True)])
def test_numbers_that_are_added_are_told_from_those_in_place(added: float, found: bool, then: bool) -> None:
    """One mask has no room for both if they are as low, but where both are for the same score."""
    graph = causal(-1e30, "Where", added, then=then)
    after = fuse_attention(graph)
    assert ("weft::Attention" in kinds(after)) == found
    assert_same(graph, after)


def test_layers_share_the_mask_that_is_made_for_them() -> None:
    net = Net()
    hidden, slopes = net.constant(later()), net.constant(net.random(4, 1, 7))
    low, x = net.constant(number(LOWEST)), net.input("x", 1, 4, 5, 8)
    more = net.input("keys", 1, 4, 7, 8)
    for _ in range(2):
        scores = net.add("MatMul", x, net.add("Transpose", more, perm=(0, 1, 3, 2)))
        scores = net.add("Where", hidden, low, net.add("Add", scores, slopes))
        x = net.add("MatMul", net.add("Softmax", scores, axis=-1), more)
    graph = net.finish(x)
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"] * 2 and len({node.inputs[3] for node in after.nodes}) == 1
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["a high number", "several numbers", "a condition of the run"])
def test_other_choices_of_scores_stay(what: str) -> None:
    net = Net()
    fill = np.full((5, 1) if what == "several numbers" else (), -1e4 if what == "a high number" else LOWEST, np.float32)
    hidden = net.input("hidden", 1, 1, 5, 7, dtype=DType.BOOL) if what == "a condition of the run" else later()
    graph = net.finish(filled(net, fill, hidden))
    assert fuse_attention(graph).nodes == graph.nodes
