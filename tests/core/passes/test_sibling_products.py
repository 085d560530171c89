"""Products of one value: which become one, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.helpers.decoders import EACH, decoder, heads, turned
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, kinds
from tests.helpers.random_decoders import gates, of_columns
from tests.helpers.random_nets import assert_right
from tests.helpers.rewrites import assert_same
from weft.core.graph.limits import Budget, Limits
from weft.core.passes import PassContext
from weft.core.passes.siblings import join_sibling_products


@pytest.mark.parametrize("biases", ["", "qkv", "qk", "v"])
@pytest.mark.parametrize("normalized", [True, False])
def test_queries_keys_and_values_of_a_decoder_are_one_product(biases: str, normalized: bool) -> None:
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, 5, 16), 2, 3, biases=biases, normalized=normalized))
    after = join_sibling_products(graph)
    assert kinds(after)[: 3 if biases else 2] == ["MatMul", *(["Add"] if biases else []), "Split"]
    assert kinds(after).count("MatMul") == 2
    split = next(n for n in after.nodes if n.op.type == "Split")
    assert [after.specs[o].dims[-1] for o in split.outputs] == [6 * EACH, 2 * EACH, 2 * EACH]
    assert {*split.outputs} <= {o for n in graph.nodes for o in n.outputs}, "the parts keep their names"
    assert_same(graph, after)
    assert str(join_sibling_products(after)) == str(after)


def test_parts_are_read_where_they_lie() -> None:
    """On GPUs neither norms nor rotary embeddings nor attention need a copy of their part."""
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 1, 16, 64), 2, 2, biases="qkv", normalized=True))
    parts = ["normalize_lines", "elementwise", "attention"]
    assert planned_kernels(graph, "high") == ["conv_gemm", *parts, "conv_gemm"]


def test_what_is_dead_keeps_no_products_apart() -> None:
    net = Net()
    y = decoder(net, net.input("x", 2, 5, 16), 2, 1)
    net.add("Relu", next(n.outputs[0] for n in net.graph.nodes if n.op.type == "Reshape"))
    assert kinds(join_sibling_products(net.finish(y))).count("MatMul") == 2


def attended(net: Net, q: str, k: str, v: str) -> str:
    return net.add("weft::Attention", *(turned(net, each) for each in (q, k, v)))


def test_each_layer_of_a_decoder_joins_its_own_keys_and_values() -> None:
    """All layers read what the encoder put out, and keys and values of the last need not wait for the first."""
    net = Net()
    x, encoded = net.input("x", 1, 3, 16), net.input("encoded", 1, 7, 16)
    for _ in range(2):
        mixed = turned(net, attended(net, heads(net, x, 2), heads(net, encoded, 2), heads(net, encoded, 2)))
        x = net.add("Reshape", mixed, np.array([1, 3, 16]))
    graph = net.finish(x)
    after = join_sibling_products(graph)
    splits = [n for n in after.nodes if n.op.type == "Split"]
    assert [len(n.outputs) for n in splits] == [2, 2]
    assert_same(graph, after)


def gates_behind_reshapes(net: Net, x: str) -> Sequence[str]:
    return [net.add("Relu", heads(net, x, 2)), net.add("Relu", heads(net, x, 2))]


def kept_gates(net: Net, x: str) -> Sequence[str]:
    """The kernel of a product can store what it makes beside what a step makes of that."""
    made = [heads(net, x, 2) for _ in range(2)]
    return [y for each in made for y in (net.add("Relu", each), turned(net, each))]


def outputs(net: Net, x: str) -> Sequence[str]:
    return [of_columns(net, x, 8), of_columns(net, x, 8)]


def more_products(net: Net, x: str) -> Sequence[str]:
    return [of_columns(net, of_columns(net, x, 8), 4) for _ in range(2)]


def stacks(net: Net, x: str) -> Sequence[str]:
    return [net.add("Softmax", turned(net, of_columns(net, x, 8, outer=(3, 1)))) for _ in range(2)]


def odd_columns(net: Net, x: str) -> Sequence[str]:
    return [net.add("Transpose", of_columns(net, x, columns), perm=(0, 2, 1)) for columns in (8, 6, 7)]


def other_biases(net: Net, x: str) -> Sequence[str]:
    rows = net.shape(x)[1]
    sums = [net.add("Add", of_columns(net, x, 16), net.random(rows, 1)) for _ in range(2)]
    return [net.add("Transpose", each, perm=(0, 2, 1)) for each in sums]


def joined_rows(net: Net, x: str) -> Sequence[str]:
    """Each product writes its rows where the joined value has them."""
    return [net.add("Concat", net.add("Relu", x), of_columns(net, x, 16), of_columns(net, x, 16), axis=1)]


def different_values(net: Net, x: str) -> Sequence[str]:
    return [turned(net, heads(net, each, 2)) for each in (x, net.add("Relu", x))]


def computed(net: Net, x: str) -> Sequence[str]:
    w = net.input("w", 16, 16)
    parts = [net.add("Reshape", net.add("MatMul", x, w), np.array([2, 5, 2, EACH])) for _ in range(2)]
    return [turned(net, each) for each in parts]


@pytest.mark.parametrize(
    "add",
    [
        *(gates, gates_behind_reshapes, kept_gates, outputs, more_products, stacks, odd_columns, other_biases),
        *(joined_rows, different_values, computed),
    ],
)
def test_what_gains_nothing_stays(add: Callable[[Net, str], Sequence[str]]) -> None:
    net = Net()
    graph = net.finish(*add(net, net.input("x", 2, 5, 16)))
    assert join_sibling_products(graph) is graph


def test_an_output_that_is_transposed_is_a_part() -> None:
    """It is a copy, whatever the product that it is copied from."""
    net = Net()
    x = net.input("x", 2, 5, 16)
    graph = net.finish(turned(net, heads(net, x, 2)), turned(net, heads(net, x, 3)))
    after = join_sibling_products(graph)
    assert kinds(after)[:2] == ["MatMul", "Split"]
    assert_same(graph, after)


def test_products_stay_apart_beyond_the_budget() -> None:
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, 5, 16), 2, 3))
    assert join_sibling_products(graph, PassContext(Budget(Limits(folding_bytes=1000)))) is graph


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
@pytest.mark.parametrize("biases", ["", "qv"])
def test_devices_compute_the_same(device: str, biases: str) -> None:
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, 5, 16), 2, 3, biases=biases, normalized=bool(biases)))
    assert_right(graph, device, "high", 1e-5)
