"""The same steps of adjacent parts of a value: which become one, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.helpers.decoders import EACH, Rotary, decoder, rotated, split, turned, with_attention
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, kinds
from tests.helpers.python_calls import python_calls
from tests.helpers.random_decoders import ROTARIES, ROWS, but_the_first, by_halves, in_pairs, together
from tests.helpers.random_nets import assert_right
from tests.helpers.rewrites import assert_identical
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget, Limits
from weft.core.passes import PassContext, run_passes
from weft.core.passes.siblings import join_sibling_products
from weft.core.passes.siblings.steps import MOST_PARTS, MOST_READERS, join_sibling_steps


def joined(graph: Graph) -> Graph:
    """Return a graph whose sibling products and steps are joined."""
    return join_sibling_steps(join_sibling_products(graph))


def assert_joined(graph: Graph, *types: str) -> Graph:
    """Fail unless all nodes of some types are one each; return the graph after the pass."""
    before = join_sibling_products(graph)
    after = join_sibling_steps(before)
    assert {kind: kinds(after).count(kind) for kind in types} == dict.fromkeys(types, 1)
    assert len(after.nodes) < len(before.nodes)
    assert_identical(before, after)
    assert str(join_sibling_steps(after)) == str(after)
    return after


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize(("groups", "shared"), [(2, 1), (2, 3), (1, 4)])
def test_queries_and_keys_are_rotated_together(rotary: Rotary, groups: int, shared: int) -> None:
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, ROWS, 16), groups, shared, rotary=rotary))
    after = assert_joined(graph, "Neg")
    assert kinds(after).count("Mul") == 2
    attention = next(n for n in after.nodes if n.op.type == "weft::Attention")
    split = after.producers()[attention.inputs[0]]
    assert split.outputs == attention.inputs[:2], "they keep their names"
    assert [after.specs[o].dims[1] for o in split.outputs] == [groups * shared, groups]


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rotary", [rotated, by_halves])
def test_parts_of_what_is_rotated_are_read_where_they_lie(rotary: Rotary, batch: int, rows: int) -> None:
    net = Net()
    x = net.input("x", batch, rows, 64)
    graph = net.finish(decoder(net, x, 2, 2, normalized=True, rotary=rotary))
    assert planned_kernels(graph, "high")[1:-1] == ["normalize_lines", "elementwise", "attention"]


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rotary", [rotated, in_pairs])
def test_parts_of_one_product_are_read_where_they_lie(rotary: Rotary, batch: int, slices: bool) -> None:
    """Even where the batch is the axis along which Q and K lie side by side."""
    net = Net()
    graph = net.finish(together(net, net.input("x", batch, ROWS, 64), rotary, slices=slices))
    assert planned_kernels(graph, "high")[1:-1] == ["elementwise", "attention"]


@pytest.mark.parametrize(("slices", "normalized"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("batch", [1, 2])
def test_parts_of_one_product_are_rotated_together(slices: bool, batch: int, normalized: bool) -> None:
    net = Net()
    x = net.input("x", batch, ROWS, 16)
    graph = net.finish(together(net, x, but_the_first, slices=slices, normalized=normalized))
    assert_joined(graph, "Neg", *(["LayerNormalization"] if normalized else []))


def three(net: Net) -> tuple[str, list[str]]:
    """Add an input, and three parts of one product of it, with two heads in front of the rows of each."""
    x = net.input("x", 2, ROWS, 16)
    made = net.add("Reshape", net.add("MatMul", x, net.random(16, 6 * EACH)), np.array([2, ROWS, 6, EACH]))
    return x, split(net, turned(net, made), 3, 1)


def test_scales_that_differ_are_stacked() -> None:
    """Each head has the scale of its part, within the budget."""
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, ROWS, 16), 2, 3, normalized=True))
    after = assert_joined(graph, "RMSNormalization", "Neg")
    norm = next(n for n in after.nodes if n.op.type == "RMSNormalization")
    before = [graph.constants[n.inputs[1]] for n in graph.nodes if n.op.type == "RMSNormalization"]
    scales = after.constants[norm.inputs[1]]
    np.testing.assert_array_equal(scales, [*[before[0]] * 6, *[before[1]] * 2])


def test_scales_are_stacked_within_the_budget() -> None:
    net = Net()
    graph = join_sibling_products(net.finish(decoder(net, net.input("x", 2, ROWS, 16), 40, 1, normalized=True)))
    nbytes = 80 * EACH * 4
    allowed, refused = (PassContext(Budget(Limits(folding_bytes=nbytes - less))) for less in (0, 1))
    assert join_sibling_steps(graph, allowed) is not graph
    assert (allowed.budget.nbytes, allowed.left) == (nbytes, {})
    assert join_sibling_steps(graph, refused) is graph
    (name,) = refused.left
    assert next(n for n in graph.nodes if n.name == name).op.type == "RMSNormalization"
    assert refused.left[name] == "stacked scales would go beyond the limit 'folding_bytes'"


def test_scales_that_the_budget_refuses_are_not_stacked_to_see_how_large_they_are() -> None:
    net, heads = Net(), 1 << 14
    x = net.add("Tanh", net.input("x", 1, 3 * heads, 1, EACH))
    q, k, v = split(net, x, 3, 1)
    q, k = (net.add("RMSNormalization", each, net.random(EACH)) for each in (q, k))
    graph = net.finish(net.add("weft::Attention", q, k, v))
    tracemalloc.start()
    try:
        assert join_sibling_steps(graph, PassContext(Budget(Limits(folding_bytes=0)))) is graph
        assert tracemalloc.get_traced_memory()[1] < 2 * heads * EACH * 4 // 4
    finally:
        tracemalloc.stop()


def test_steps_of_all_three() -> None:
    """Q, K and V are normalized alike, and attention alone reads them."""
    net = Net()
    x, parts = three(net)
    scale, factor = net.random(EACH), net.random(1)
    q, k, v = (net.add("Mul", net.add("RMSNormalization", each, scale), factor) for each in parts)
    after = assert_joined(net.finish(with_attention(net, x, q, k, v)), "RMSNormalization", "Split")
    assert len(next(n for n in after.nodes if n.op.type == "Split").outputs) == 3


def test_norms_without_scales() -> None:
    """Queries and keys of cosine attention."""
    net = Net()
    x, (q, k, v) = three(net)
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    q, k = (rotated(net, net.add("weft::L2Normalization", each, least=1e-12), cos, sin) for each in (q, k))
    assert_joined(net.finish(with_attention(net, x, q, k, v)), "weft::L2Normalization")


def in_parts(count: int, readers: int = 1) -> Graph:
    """Return a network of attentions that read parts of one value, each through nodes that all parts have."""
    net = Net()
    x = net.add("Tanh", net.input("x", 1, count, 2, EACH))
    factors, results = [net.random(1) for _ in range(readers)], list[str]()
    for part in split(net, x, count, 1):
        factors.reverse()  # so that what reads a part first is not what reads the next one first
        made = [net.add("Sin", net.add("Mul", part, factor)) for factor in factors]
        results += [net.add("weft::Attention", each, each, each) for each in made]
    return net.finish(*results)


def test_few_parts_and_readers_are_joined() -> None:
    """So the search stays short; real networks have fewer."""
    for count, readers in ((MOST_PARTS, 1), (MOST_PARTS + 1, 1), (2, MOST_READERS), (2, MOST_READERS + 1)):
        before = in_parts(count, readers)
        after = join_sibling_steps(before)
        assert (after is before) == (count > MOST_PARTS or readers > MOST_READERS)
        if after is not before:
            assert kinds(after).count("Sin") == readers
            assert_identical(before, after)


def test_any_number_of_moves_is_followed_to_the_attention() -> None:
    """However many more than Python calls may be nested."""
    net = Net()
    x, (q, k, v) = three(net)
    q, k = (net.add("Cos", net.add("Sin", each)) for each in (q, k))
    for _ in range(sys.getrecursionlimit() // 2 * 2):
        q, k = (net.add("Transpose", each, perm=(0, 1, 3, 2)) for each in (q, k))
    after = join_sibling_steps(net.finish(with_attention(net, x, q, k, v)))
    assert kinds(after).count("Sin") == kinds(after).count("Cos") == 1


@pytest.mark.parametrize("make", [in_parts, partial(in_parts, 2), partial(in_parts, readers=4)])
def test_the_search_takes_as_long_for_each_node_of_a_large_network(make: Callable[[int], Graph]) -> None:
    few, many = make(50), make(200)
    assert python_calls(lambda: join_sibling_steps(many)) < 5 * python_calls(lambda: join_sibling_steps(few))


def each_by_its_own(net: Net, q: str, k: str) -> tuple[str, str]:
    """Tables that differ."""
    tables = [(net.random(ROWS, EACH), net.random(ROWS, EACH)) for _ in range(2)]
    return rotated(net, q, *tables[0]), rotated(net, k, *tables[1])


def normalized_by_rows(net: Net, q: str, k: str) -> tuple[str, str]:
    """Scales of which a kernel would read one for each element, because the rows are between heads and elements."""
    q, k = (net.add("RMSNormalization", each, net.random(EACH)) for each in (q, k))
    return q, k


def scales_of_norms(net: Net, q: str, k: str) -> tuple[str, str]:
    """Parts that are what another value is scaled by."""
    other = net.input("other", 2, 2, ROWS, EACH)
    q, k = (net.add("RMSNormalization", other, net.add("Tanh", each)) for each in (q, k))
    return q, k


def by_head(net: Net, q: str, k: str) -> tuple[str, str]:
    """Tables that differ between heads."""
    cos, sin = net.random(2, ROWS, EACH), net.random(2, ROWS, EACH)
    return rotated(net, q, cos, sin), rotated(net, k, cos, sin)


def in_another_order(net: Net, q: str, k: str) -> tuple[str, str]:
    """Steps that are not the same."""
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    return rotated(net, q, cos, sin), in_pairs(net, k, cos, sin)


def by_what_q_is(net: Net, q: str, k: str) -> tuple[str, str]:
    """A factor that is made of one of the parts."""
    gate = net.add("Sigmoid", q)
    return net.add("Mul", q, gate), net.add("Mul", k, gate)


def capped(net: Net, q: str, k: str) -> tuple[str, str]:
    """A single step: the product's parts would be split once more."""
    return net.add("Tanh", q), net.add("Tanh", k)


def one_scaled(net: Net, q: str, k: str) -> tuple[str, str]:
    """A step of one part behind those of both, which the kernel computes with them."""
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    return net.add("Tanh", rotated(net, q, cos, sin)), rotated(net, k, cos, sin)


def softened(net: Net, q: str, k: str) -> tuple[str, str]:
    """What else reads a result might compute the step."""
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    return net.add("Softmax", rotated(net, q, cos, sin)), net.add("Softmax", rotated(net, k, cos, sin))


def along_the_heads(net: Net, q: str, k: str) -> tuple[str, str]:
    """Heads in reverse: the axis along which the parts lie side by side."""
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    q, k = (net.add("Slice", each, *(np.array([n]) for n in (-1, -3, 1, -1))) for each in (q, k))
    return rotated(net, q, cos, sin), rotated(net, k, cos, sin)


def over_the_heads(net: Net, q: str, k: str) -> tuple[str, str]:
    """Norms over the heads, too."""
    scale = net.random(1)
    q, k = (net.add("RMSNormalization", net.add("Sigmoid", each), scale, axis=1) for each in (q, k))
    return q, k


@pytest.mark.parametrize(
    "steps",
    [each_by_its_own, normalized_by_rows, scales_of_norms, by_head, in_another_order, by_what_q_is, capped, one_scaled,
     softened, along_the_heads, over_the_heads],
)
def test_what_differs_or_gains_nothing_stays(steps: Callable[[Net, str, str], tuple[str, str]]) -> None:
    net = Net()
    x, (q, k, v) = three(net)
    graph = net.finish(with_attention(net, x, *steps(net, q, k), v))
    assert join_sibling_steps(graph) is graph


def test_keys_that_are_kept_for_later_stay_apart() -> None:
    """They are written where they must lie: as an output of the network, or behind earlier ones."""
    for cached in (True, False):
        net = Net()
        x = net.input("x", 2, ROWS, 16)
        y = decoder(net, x, 2, 1)
        keys = next(n for n in net.graph.nodes if n.op.type == "weft::Attention").inputs[1]
        kept = net.add("Concat", net.input("past", 2, 2, 7, EACH), keys, axis=2) if cached else keys
        before = join_sibling_products(net.finish(y, kept))
        assert join_sibling_steps(before) is before


def test_parts_that_others_read_as_well() -> None:
    """What is rotated may be read from before that, and V where it was."""
    net = Net()
    y = decoder(net, net.input("x", 2, ROWS, 16), 2, 1)
    unrotated = [n.outputs[0] for n in net.graph.nodes if n.op.type == "Transpose"][:3]
    assert_joined(net.finish(y, *unrotated), "Neg")


def test_parts_that_are_not_side_by_side_stay() -> None:
    net = Net()
    x, (q, v, k) = three(net)
    cos, sin = net.random(ROWS, EACH), net.random(ROWS, EACH)
    q, k = (rotated(net, each, cos, sin) for each in (q, k))
    graph = net.finish(with_attention(net, x, q, k, v))
    assert join_sibling_steps(graph) is graph


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
@pytest.mark.parametrize("precision", ["high", "low"])
def test_devices_compute_the_same(device: str, precision: str) -> None:
    net = Net()
    x = decoder(net, net.input("x", 2, ROWS, 16), 2, 3, normalized=True)
    graph = net.finish(together(net, x, but_the_first, slices=False))
    assert "Neg" not in kinds(run_passes(graph)), "it is in the table of sines"
    assert_right(graph, device, precision, 1e-5 if precision == "high" else 5e-3)
