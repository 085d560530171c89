"""What exporters write as many nodes: each pattern before and after, what is no such pattern, and the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.norms import layer_norm
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from tests.helpers.transformers import attention, encoder, gelu, joint, number, repeated, tanh_gelu
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.passes import PASSES, find_pass, run_passes
from weft.core.passes.patterns import (
    attend_in_place,
    fuse_attention,
    fuse_gelu,
    fuse_layer_norm,
    share_keys,
)
from weft.core.passes.siblings import join_projections

few = settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)


def test_each_pattern_is_a_pass_that_says_what_it_does() -> None:
    names = "fuse_gelu fuse_group_norm fuse_group_deviation fuse_layer_norm fuse_rms_norm fuse_l2_norm".split()
    names += ["fuse_sum_norm"]
    names += ["fuse_attention", "share_keys", "attend_in_place", "join_projections"]
    assert [p.name for p in PASSES if p.name in names] == names
    assert all(find_pass(n).description.endswith((".", ":")) for n in names)


# -- GELU --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("form", range(4))
def test_gelu_is_found_in_every_order(form: int, order: int) -> None:
    net = Net()
    graph = net.finish(gelu(net, net.input("x", 3, 7), form, order))
    after = fuse_gelu(graph)
    assert [str(n.op) for n in after.nodes] == ["Gelu(approximate=none)"]
    assert_same(graph, after)


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_gelu_is_found_in_the_form_through_tanh(power: bool, swapped: bool) -> None:
    net = Net()
    graph = net.finish(tanh_gelu(net, net.input("x", 3, 7), power=power, swapped=swapped))
    after = fuse_gelu(graph)
    assert [str(n.op) for n in after.nodes] == ["Gelu(approximate=tanh)"]
    assert_same(graph, after)


def test_gelu_of_a_product_and_times_a_gate_is_gelu_alone() -> None:
    net = Net()
    x, gate = net.input("x", 3, 7), net.input("gate", 3, 7)
    graph = net.finish(net.add("Mul", gelu(net, net.add("Mul", x, gate), 0), gate))
    after = fuse_gelu(graph)
    assert kinds(after) == ["Mul", "Gelu", "Mul"]
    assert_same(graph, after)


def test_what_is_read_elsewhere_stays() -> None:
    net = Net()
    y = gelu(net, net.input("x", 3, 7), 0)
    graph = net.finish(y, "erf1")
    after = fuse_gelu(graph)
    assert sorted(kinds(after)) == ["Div", "Erf", "Gelu"]
    assert_same(graph, after)


def test_what_is_nearly_a_gelu_stays() -> None:
    net = Net()
    wide = net.input("x", 3, 7)
    graphs = [net.finish(gelu(net, wide, 0, factor=1.4))]
    net = Net()
    x, other = net.input("x", 3, 7), net.input("other", 3, 7)
    share = net.add("Add", net.add("Erf", net.add("Div", x, number(sqrt(2)))), number(1))
    graphs.append(net.finish(net.add("Mul", net.add("Mul", other, share), number(0.5))))
    net = Net()
    x = net.input("x", 7)
    grown = net.add("Add", net.add("Erf", net.add("Div", x, number(sqrt(2)))), number(1, 3, 1))
    graphs.append(net.finish(net.add("Mul", net.add("Mul", x, grown), number(0.5))))
    for graph in graphs:
        assert fuse_gelu(graph).nodes == graph.nodes


# -- layer norm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(-1,), (-2, -1)])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("shift", [True, False])
def test_a_layer_norm_is_found(axes: tuple[int, ...], twice: bool, square: bool, shift: bool) -> None:
    net = Net()
    graph = net.finish(layer_norm(net, net.input("x", 2, 3, 8), axes, twice=twice, square=square, shift=shift))
    after = fuse_layer_norm(graph)
    (node,) = after.nodes
    assert str(node.op).startswith(f"LayerNormalization(axis={-len(axes)}, epsilon=9.99")
    assert len(node.inputs) == 2 + shift
    assert_same(graph, after)


@pytest.mark.parametrize("divisor", ["div", "reciprocal", "one over", "power"])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("shift", [True, False])
def test_a_layer_norm_is_found_in_each_form_of_the_division(divisor: str, scale: bool, shift: bool) -> None:
    net = Net()
    graph = net.finish(layer_norm(net, net.input("x", 2, 3, 8), scale=scale, shift=shift, divisor=divisor))
    for after in (fuse_layer_norm(graph), run_passes(graph)):
        assert kinds(after) == ["LayerNormalization"], "not an RMS norm of what the mean was taken from"
        shapes = [after.constants[name].shape for name in after.nodes[0].inputs[1:]]
        assert shapes == [(8,) if scale else (), *([(8,)] if shift else [])]
        assert_same(graph, after)
    assert len(planned_kernels(graph)) == 1
    with weft.load(graph, "opencl", precision="high", fallback="error") as session:
        (want,) = outputs(graph, feeds(graph))
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=1e-5, atol=1e-5)


def test_a_layer_norm_whose_scale_varies_along_other_axes_takes_none() -> None:
    net = Net()
    y = layer_norm(net, net.input("x", 2, 3, 8), scale=False, shift=False)
    graph = net.finish(net.add("Mul", y, net.random(3, 8)))
    after = fuse_layer_norm(graph)
    assert kinds(after) == ["LayerNormalization", "Mul"]
    assert_same(graph, after)


@pytest.mark.parametrize("read", ["add", "sqrt"])
def test_a_variance_that_is_read_elsewhere_keeps_a_layer_norm_in_parts(read: str) -> None:
    net = Net()
    y = layer_norm(net, net.input("x", 2, 3, 8), shift=False)
    (value,) = (o for n in net.graph.nodes for o in n.outputs if o.rstrip("0123456789") == read)
    graph = net.finish(y, value)
    assert fuse_layer_norm(graph) is graph
    net.add("Relu", value)
    assert kinds(fuse_layer_norm(net.finish(y))) == ["LayerNormalization"], "what is dead keeps nothing"


def test_a_norm_over_other_axes_stays() -> None:
    net = Net()
    graph = net.finish(layer_norm(net, net.input("x", 2, 3, 3), (-2,), shift=False))
    assert fuse_layer_norm(graph).nodes == graph.nodes


# -- attention ---------------------------------------------------------------------------------------------


SIZES = {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "v": (2, 3, 7, 6)}


@pytest.mark.parametrize("where", ["behind", "both", "nowhere"])
@pytest.mark.parametrize("turned", ["once", "in rank 3"])
@pytest.mark.parametrize("mask", [(), (2, 1, 1, 7), (5, 7)])
def test_attention_is_found(where: str, turned: str, mask: tuple[int, ...]) -> None:
    net = Net()
    inputs = [net.input(n, *s) for n, s in SIZES.items()]
    added = net.input("mask", *mask) if mask else ""
    graph = net.finish(attention(net, *inputs, where=where, mask=added, turned=turned))
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"]
    assert after.nodes[0].op.attributes()["scale"] == {"behind": 0.125, "both": 0.125, "nowhere": 1.0}[where]
    assert_same(graph, after)


def test_attention_of_one_axis_of_heads_is_found() -> None:
    net = Net()
    graph = net.finish(attention(net, *(net.input(n, *s[1:]) for n, s in SIZES.items())))
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"]
    assert_same(graph, after)


@st.composite
def masks(draw: st.DrawFn) -> Array:
    """Draw a mask of (2, 1, 5, 7) that hides what it likes, whole rows among it, and may have other odd scores."""
    values = st.sampled_from([0.0, -1.5, -np.inf, -np.inf, -np.inf, float(np.finfo(np.float32).min)])
    array = np.array(draw(st.lists(values, min_size=70, max_size=70)), np.float32).reshape(2, 1, 5, 7)
    array[draw(st.integers(0, 1)), 0, draw(st.integers(0, 4))] = -np.inf
    if draw(st.booleans()):
        array[0, 0, draw(st.integers(0, 4)), 3] = draw(st.sampled_from([np.nan, np.inf]))
    return array


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("where", ["behind", "both"])
@pytest.mark.parametrize("turned", ["once", "in rank 3"])
@given(mask=masks())
@few
def test_rows_without_keys_are_what_they_were(guarded: bool, where: str, turned: str, mask: Array) -> None:
    """A guarded softmax gives zeros where it is NaN; any other gives NaN there."""
    net = Net()
    inputs = [net.input(n, *s) for n, s in SIZES.items()]
    graph = net.finish(attention(net, *inputs, mask=net.constant(mask), turned=turned, where=where, guarded=guarded))
    after = fuse_attention(graph)
    assert kinds(after) == ["weft::Attention"]
    assert after.nodes[0].op.attributes()["zero_nan"] == guarded
    fed = feeds(graph)
    rows = mask[:, 0]
    odd = np.asarray(~np.isfinite(rows).any(-1) | (np.isnan(rows) | np.isposinf(rows)).any(-1))
    (found,) = outputs(after, fed)
    np.testing.assert_allclose(found, outputs(graph, fed)[0], atol=1e-5)
    assert np.array_equal(np.isnan(found).any((1, 3)), odd & (not guarded))
    assert not guarded or not found[np.broadcast_to(odd[:, None], found.shape[:3])].any()


@pytest.mark.parametrize(
    ("fill", "hides"), [(float(np.finfo(np.float32).min), 1), (-3e38, 1), (-np.inf, 0), (-1e4, 0), (-2.0, 0)]
)
@pytest.mark.parametrize("computed", [True, False])
def test_a_mask_of_the_lowest_float_is_known(fill: float, hides: int, computed: bool) -> None:
    """One that is less low keeps what scores differ in."""
    net = Net()
    inputs = [net.input(n, *s) for n, s in SIZES.items()]
    if computed:
        chosen = net.add("Where", net.input("kept", 2, 7, dtype=DType.BOOL), number(0), number(fill))
        mask = net.add("Unsqueeze", chosen, np.array([1, 2]))
    else:
        mask = net.constant(np.where(np.arange(7) < 4, 0, fill).astype(np.float32))
    after = fuse_attention(net.finish(attention(net, *inputs, mask=mask)))
    assert after.nodes[-1].op.attributes()["lowest_hides"] == hides


@pytest.mark.parametrize("device", ["cpu", "opencl:0"])
def test_a_row_without_keys_is_the_mean_in_fp16_too(device: str) -> None:
    """The lowest float hides what scores differ in; the lowest fp16 stands for it."""
    net = Net()
    inputs = [net.input(n, *s) for n, s in SIZES.items()]
    mask = np.zeros((5, 7), np.float32)
    mask[1] = mask[2, 3:] = np.finfo(np.float32).min
    graph = net.finish(attention(net, *inputs, mask=net.constant(mask), where="nowhere"))
    fed = {name: 4 * value for name, value in feeds(graph).items()}
    with weft.load(graph, device, precision="low", fallback="error") as session:
        (found,) = session.run(fed)
    np.testing.assert_allclose(found, outputs(graph, fed)[0], atol=0.02)
    np.testing.assert_allclose(found[:, :, 1], fed["v"].mean(2), atol=0.02)


def guards() -> Iterator[tuple[str, Graph]]:
    """Yield attentions whose softmax is replaced in some other way, and what is odd about each."""

    def net_of(change: Callable[[Net, str], str], *more: str) -> Graph:
        net = Net()
        q, k, v = (net.input(n, *s) for n, s in SIZES.items())
        shares = net.add("Softmax", net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2))), name="shares")
        return net.finish(net.add("MatMul", change(net, shares), v), *more)

    def guard(net: Net, shares: str) -> str:
        return net.add("Where", net.add("IsNaN", shares, name="check"), number(0), shares)

    yield "one in place of NaN", net_of(lambda net, s: net.add("Where", net.add("IsNaN", s), number(1), s))
    yield "zeros where it is no NaN", net_of(lambda net, s: net.add("Where", net.add("IsNaN", s), s, number(0)))
    yield "zeros of another rank", net_of(
        lambda net, s: net.add("Squeeze", net.add("Where", net.add("IsNaN", s), number(0, *[1] * 5), s), np.array([0]))
    )
    yield "the check of something else", net_of(
        lambda net, s: net.add("Where", net.add("IsNaN", net.input("other", 5, 7)), number(0), s)
    )
    yield "the check is read elsewhere", net_of(guard, "check")
    yield "the softmax is read elsewhere", net_of(guard, "shares")


@pytest.mark.parametrize("graph", [pytest.param(graph, id=name.replace(" ", "-")) for name, graph in guards()])
def test_what_replaces_more_or_less_than_nan_stays(graph: Graph) -> None:
    assert fuse_attention(graph).nodes == graph.nodes


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("turned", ["once", "in rank 3", "in rank 3 at once"])
def test_heads_that_share_keys_are_found(turned: str, guarded: bool) -> None:
    """Keys and values are repeated for heads that share them; those of keys may be swapped in rank 3 at once."""
    net = Net()
    q, k, v = net.input("q", 2, 6, 5, 4), net.input("k", 2, 3, 7, 4), net.input("v", 2, 3, 7, 8)
    (wide, whole), (_, values) = repeated(net, k, 2), repeated(net, v, 2)
    if turned == "in rank 3 at once":
        flat = net.add("Transpose", net.add("Reshape", wide, np.array([12, 7, 4])), perm=(0, 2, 1))
        t = net.add("Reshape", flat, np.array([2, 6, 4, 7]))
        scores = net.add("MatMul", net.add("Mul", q, number(0.5)), net.add("Mul", t, number(0.5)))
        shares = net.add("Softmax", net.add("Add", scores, net.input("mask", 2, 1, 5, 7)))
        graph = net.finish(net.add("MatMul", shares, values))
    else:
        mask = net.input("mask", 2, 1, 5, 7)
        graph = net.finish(attention(net, q, whole, values, turned=turned, mask=mask, guarded=guarded))
    fused = fuse_attention(graph)
    assert "MatMul" not in kinds(fused) and len(fused.nodes) < len(graph.nodes)
    assert_same(graph, fused)
    after = share_keys(fused)
    assert [str(n.op.type) for n in after.nodes] == ["weft::Attention"]
    assert after.nodes[0].inputs[:3] == (q, k, v)
    assert_same(graph, after)


@pytest.mark.parametrize("joined", [True, False])
def test_one_head_of_keys_is_shared_by_all(joined: bool) -> None:
    net = Net()
    q, k, v = net.input("q", 2, 6, 5, 4), net.input("k", 2, 1, 7, 4), net.input("v", 2, 1, 7, 8)
    if joined:
        wide = [repeated(net, each, 6)[1] for each in (k, v)]
    else:
        wide = [net.add("Expand", each, np.array([1, 6, 1, 1])) for each in (k, v)]
    graph = net.finish(attention(net, q, *wide))
    after = share_keys(fuse_attention(graph))
    assert kinds(after) == ["weft::Attention"]
    assert_same(graph, after)


def test_heads_side_by_side_share_keys() -> None:
    """Of 4 heads of queries in a row, two each share the keys of one of 2."""
    net = Net()
    x = net.input("x", 2, 5, 8)
    parts = []
    for heads in (4, 2, 2):
        made = net.add("Reshape", net.add("MatMul", x, net.random(8, heads * 4)), np.array([2, 5, heads, 4]))
        apart = net.add("Transpose", made, perm=(0, 2, 1, 3))
        parts.append(apart if heads == 4 else repeated(net, apart, 2)[1])
    mixed = net.add("Transpose", attention(net, *parts, guarded=True), perm=(0, 2, 1, 3))
    graph = net.finish(net.add("Reshape", mixed, np.array([2, 5, 16])))
    after = run_passes(graph)
    assert kinds(after) == ["MatMul", "Split", "weft::Attention"]
    assert after.nodes[-1].op.attributes()["heads"] == 4
    assert_same(graph, after)


@pytest.mark.parametrize("device", ["opencl:0", "vulkan"])
def test_shared_keys_of_any_length_take_one_launch(device: str) -> None:
    net = Net()
    q, k, v = net.input("q", "n", 4, "s", 8), net.input("k", "n", 2, "t", 8), net.input("v", "n", 2, "t", 8)
    sizes = net.add("Shape", k)
    batch, rows = (net.add("Gather", sizes, np.array([at])) for at in (0, 2))
    wide, whole = (
        net.add("Concat", batch, *(np.array([n]) for n in counts), rows, np.array([8]), axis=0)
        for counts in ((2, 2), (4,))
    )
    parts = [
        net.add("Reshape", net.add("Expand", net.add("Unsqueeze", each, np.array([2])), wide), whole) for each in (k, v)
    ]
    scores = net.add("MatMul", q, net.add("Transpose", parts[0], perm=(0, 1, 3, 2)))
    shares = net.add("Softmax", net.add("Add", scores, net.input("mask", "n", 1, "s", "t")), axis=-1)
    shares = net.add("Where", net.add("IsNaN", shares), number(0), shares)
    graph = net.finish(net.add("MatMul", shares, parts[1]))
    with weft.load(graph, device, fallback="error") as session:
        for n, s, t in ((1, 5, 7), (2, 1, 12), (3, 9, 9)):
            random = np.random.default_rng(n)
            shapes = {"q": (n, 4, s, 8), "k": (n, 2, t, 8), "v": (n, 2, t, 8), "mask": (n, 1, s, t)}
            fed = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            fed["mask"][0, 0, 0] = -np.inf
            (found,) = session.run(fed)
            np.testing.assert_allclose(found, outputs(bind(graph, shapes), fed)[0], rtol=1e-4, atol=1e-5)
            (pipeline,) = session.pipelines
            assert len(pipeline.backend.recording.run.rest) == 1  # type: ignore[attr-defined]


def test_repeats_that_are_not_of_heads_stay() -> None:
    net = Net()
    q, k, v = net.input("q", 2, 6, 5, 4), net.input("k", 2, 3, 7, 4), net.input("v", 2, 6, 7, 8)
    graphs = [net.finish(attention(net, q, repeated(net, k, 2)[1], v))]
    for heads_last in (True, False):
        net = Net()
        q, k, v = net.input("q", 2, 6, 5, 4), net.input("k", 2, 3, 7, 4), net.input("v", 2, 3, 7, 8)
        parts = []
        for each in (k, v):
            if heads_last:  # all heads, and once more all heads
                wide = net.add("Expand", net.add("Unsqueeze", each, np.array([1])), np.array([1, 2, 1, 1, 1]))
            else:  # rows are repeated
                wide = net.add("Expand", net.add("Unsqueeze", each, np.array([3])), np.array([1, 1, 1, 2, 1]))
            shape = [2, 6, 7, -1] if heads_last else [2, 3, 14, -1]
            parts.append(net.add("Reshape", wide, np.array(shape)))
        q = q if heads_last else net.input("p", 2, 3, 5, 4)
        graphs.append(net.finish(attention(net, q, parts[0], parts[1])))
    for graph in graphs:
        fused = fuse_attention(graph)
        assert "weft::Attention" in kinds(fused)
        assert share_keys(fused).nodes == fused.nodes
        assert_same(graph, fused)


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("scale", ["before", "behind"])
def test_a_mask_may_be_added_in_rank_4(guarded: bool, scale: str) -> None:
    net = Net()
    x, mask = net.input("x", 2, 5, 8), net.input("mask", 2, 1, 5, 5)
    graph = net.finish(*joint(net, x, mask, guarded=guarded, scale=scale))
    fused = fuse_attention(graph)
    assert "Softmax" not in kinds(fused) and len(fused.nodes) < len(graph.nodes)
    assert_same(graph, fused)
    after = run_passes(graph)
    assert kinds(after)[-1] == "weft::Attention" and "Reshape" not in kinds(after)
    assert_same(graph, after)
    assert str(run_passes(after)) == str(after)


@pytest.mark.parametrize("read", ["apart", "joined"])
def test_scores_in_rank_4_that_are_read_elsewhere_stay(read: str) -> None:
    net = Net()
    x, mask = net.input("x", 2, 5, 8), net.input("mask", 2, 1, 5, 5)
    graph = net.finish(*joint(net, x, mask, guarded=False, scale="behind", read=read))
    assert fuse_attention(graph).nodes == graph.nodes


@pytest.mark.parametrize("read", ["matmul5", "div6", "softmax7"])
def test_scores_that_are_read_elsewhere_keep_their_nodes(read: str) -> None:
    net = Net()
    y = attention(net, *(net.input(n, *s) for n, s in SIZES.items()), turned="in rank 3")
    names = {o.rstrip("0123456789"): o for n in net.graph.nodes for o in n.outputs}
    first = next(o for n in net.graph.nodes for o in n.outputs if o.startswith("matmul"))
    wanted = {"matmul5": first, "div6": names["div"], "softmax7": names["softmax"]}[read]
    graph = net.finish(y, wanted)
    assert fuse_attention(graph).nodes == graph.nodes


def test_a_mask_that_makes_more_scores_and_heads_that_are_repeated_stay() -> None:
    net = Net()
    inputs = [net.input(n, *s[1:]) for n, s in SIZES.items()]
    graphs = [net.finish(attention(net, *inputs, mask=net.input("mask", 2, 3, 5, 7)))]
    net = Net()
    inputs = [net.input("q", 2, 3, 5, 4), net.input("k", 1, 3, 7, 4), net.input("v", 2, 3, 7, 6)]
    graphs.append(net.finish(attention(net, *inputs)))
    for graph in graphs:
        assert fuse_attention(graph).nodes == graph.nodes


def test_constant_masks_of_windows_are_added_up() -> None:
    net = Net()
    q, k, v = (net.input(n, *s) for n, s in {"q": (4, 3, 5, 4), "k": (4, 3, 7, 4), "v": (4, 3, 7, 6)}.items())
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.add("Add", scores, net.random(1, 3, 5, 7))
    windows = net.add("Reshape", scores, np.array([2, 2, 3, 5, 7]))
    scores = net.add("Reshape", net.add("Add", windows, net.random(1, 2, 1, 5, 7)), np.array([4, 3, 5, 7]))
    graph = net.finish(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))
    after = run_passes(graph)
    assert kinds(after) == ["weft::Attention"]
    assert_same(graph, after)


def test_heads_are_read_where_they_lie() -> None:
    net = Net()
    graph = net.finish(encoder(net, net.input("x", 2, 5, 8), 2, 4, mask=net.input("mask", 2, 1, 1, 5)))
    after = attend_in_place(fuse_attention(graph))
    assert kinds(after) == ["MatMul", "Add"] * 3 + ["weft::Attention"]
    assert after.nodes[-1].op.attributes()["heads"] == 2
    assert_same(graph, after)


@pytest.mark.parametrize("bias", ["qkv", "qv", "k", ""])
def test_three_products_of_one_value_become_one(bias: str) -> None:
    net = Net()
    graph = net.finish(encoder(net, net.input("x", 2, 5, 8), 2, 4, bias=bias))
    after = join_projections(attend_in_place(fuse_attention(graph)))
    assert kinds(after) == ["MatMul", "Add", "weft::Attention"] if bias else ["MatMul", "weft::Attention"]
    assert after.nodes[-1].op.attributes()["packed"] == 1
    assert len(after.constants) == 1 + bool(bias)
    assert_same(graph, after)


@pytest.mark.parametrize("turned", ["once", "in rank 3"])
@pytest.mark.parametrize("early", ["apart", "flat"])
def test_scales_before_heads_are_apart_are_taken_in(turned: str, early: str) -> None:
    net = Net()
    graph = net.finish(encoder(net, net.input("x", 2, 5, 8), 2, 4, turned=turned, early=early))
    after = run_passes(graph)
    assert kinds(after) == ["MatMul", "Add", "weft::Attention"]
    assert after.nodes[-1].op.attributes()["scale"] == pytest.approx(0.49 / 8)
    assert_same(graph, after)


def test_a_scaled_value_that_is_read_elsewhere_stays() -> None:
    net = Net()
    q, k, v = (net.input(n, 2, 5, 3, 4) for n in "qkv")
    apart = [net.add("Transpose", net.add("Mul", each, number(0.5)), perm=(0, 2, 1, 3)) for each in (q, k)]
    y = attention(net, apart[0], apart[1], net.add("Transpose", v, perm=(0, 2, 1, 3)))
    graph = net.finish(y, *apart)
    after = fuse_attention(graph)
    assert kinds(after) == ["Mul", "Transpose"] * 2 + ["Transpose", "weft::Attention"]
    assert_same(graph, after)


def test_keys_of_another_value_keep_their_products() -> None:
    net = Net()
    graph = net.finish(encoder(net, net.input("x", 2, 5, 8), 2, 4, key=net.input("other", 2, 7, 8)))
    after = join_projections(attend_in_place(fuse_attention(graph)))
    assert kinds(after) == ["MatMul", "Add"] * 3 + ["weft::Attention"]
    assert_same(graph, after)


def test_a_bias_that_widens_a_product_is_added_apart() -> None:
    net = Net()
    x = net.input("x", 2, 5, 8)
    parts = [net.add("Add", net.add("MatMul", x, net.random(8, 1)), net.random(8)) for _ in range(3)]
    graph = net.finish(net.add("weft::Attention", *parts, heads=2))
    after = join_projections(graph)
    assert kinds(after) == ["MatMul", "Add"] * 3 + ["weft::Attention"]
    assert_same(graph, after)
