"""Fusing element-wise steps into the node before them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.helpers.nets import Net, chain, kinds
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.rewrites import assert_same, fusable
from tests.helpers.run_length import examples
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node
from weft.core.passes.fuse import MOST_STEPS, fuse_epilogues, fuse_groups


def steps(node: Node) -> list[str]:
    assert isinstance(node.op, Fused)
    return [node.op.base.type, *(s.op.type for s in node.op.steps)]


def test_a_chain_becomes_one_node_in_the_place_of_its_last() -> None:
    net = Net()
    x = net.input("x", 1, 4, 3, 3)
    conv = net.conv(x, 4, name="conv")
    other = net.add("Softmax", x, name="other")
    graph = net.finish(net.add("Relu", net.add("Add", other, conv, name="sum"), name="y"))
    after = fuse_epilogues(graph, lambda g, base, step, k: base.op.type != "Softmax" and fusable(g, base, step, k))
    assert len(after.nodes) == 2 and after.nodes[0].outputs == ("other",)
    assert steps(after.nodes[1]) == ["Conv", "Add", "Relu"]
    assert (after.nodes[1].name, after.nodes[1].outputs) == ("n_conv", ("y",))
    assert after.nodes[1].inputs[-1] == "other"
    assert_same(graph, after)


@pytest.mark.parametrize("kind", ["Sub", "Div", "Add"])
@pytest.mark.parametrize("position", [0, 1])
def test_the_running_value_keeps_its_side(kind: str, position: int) -> None:
    net = Net()
    x = net.input("x", 1, 4, 3, 3)
    operands = [net.conv(x, 4), net.constant(np.array([3], np.float32))]
    graph = net.finish(net.add(kind, *(operands if position == 0 else operands[::-1]), name="y"))
    after = fuse_epilogues(graph, fusable)
    assert len(after.nodes) == 1
    assert_same(graph, after)


DIAMONDS = {
    "x * x": lambda net, x: net.add("Mul", x, x),
    "SiLU": lambda net, x: net.add("Mul", x, net.add("Sigmoid", x)),
    "Mish": lambda net, x: net.add("Mul", net.add("Tanh", net.add("Softplus", x)), x),
    "two branches": lambda net, x: net.add("Sub", net.add("Exp", x), net.add("Mul", x, net.add("Sigmoid", x))),
    "a branch of another value": lambda net, x: net.add("Mul", x, net.add("Exp", net.input("z", 1, 4, 3, 3))),
    "x read three times": lambda net, x: net.add("Mul", x, net.add("Add", net.add("Mul", x, x), x)),
}


@pytest.mark.parametrize("form", DIAMONDS)
def test_branches_that_meet_again_join_the_node_before_them(form: str) -> None:
    net = Net()
    conv = net.conv(net.input("x", 1, 4, 3, 3), 4, name="conv")
    graph = net.finish(net.add("Relu", DIAMONDS[form](net, conv), name="y"))
    after = fuse_epilogues(graph, fusable)
    assert [steps(node)[0] for node in after.nodes] == ["Conv"]
    assert sorted(steps(after.nodes[0])) == sorted(kinds(graph))
    assert_same(graph, after)


def test_a_value_that_others_read_is_not_fused_away() -> None:
    net = Net()
    conv = net.conv(net.input("x", 1, 4, 3, 3), 4, name="conv")
    gate = net.add("Sigmoid", conv)
    net.add("Mul", conv, gate, name="y")
    pooled = net.add("GlobalAveragePool", conv, name="pooled")
    read = net.finish("y", pooled)
    after = fuse_epilogues(read, fusable)
    assert kinds(after) == ["Conv", "Fused", "GlobalAveragePool"] and steps(after.nodes[1]) == ["Sigmoid", "Mul"]
    net = Net()
    conv = net.conv(net.input("x", 1, 4, 3, 3), 4, name="conv")
    shown = net.finish(net.add("Relu", conv, name="y"), "conv")
    assert kinds(fuse_epilogues(shown, fusable)) == ["Conv", "Relu"]


def test_the_backend_decides_what_is_fused() -> None:
    asked: list[tuple[str, str, list[int]]] = []

    def refuse(graph: Graph, base: Node, step: Node, inside: frozenset[int]) -> bool:
        asked.append((base.op.type, step.op.type, list(inside)))
        return False

    net = Net()
    x = net.input("x", 1, 4, 3, 3)
    graph = net.finish(net.add("Add", net.conv(x, 4), net.conv(x, 4), name="y"))
    assert kinds(fuse_epilogues(graph, refuse)) == ["Conv", "Conv", "Add"]
    assert asked == [("Conv", "Add", [1]), ("Conv", "Add", [0])], "the later one is asked first"


def test_of_two_convolutions_the_later_takes_the_sum() -> None:
    net = Net()
    x = net.input("x", 1, 4, 3, 3)
    graph = net.finish(net.add("Add", net.conv(x, 4, name="a"), net.conv(x, 4, name="b"), name="y"))
    after = fuse_epilogues(graph, fusable)
    assert [n.name for n in after.nodes] == ["n_a", "n_b"] and steps(after.nodes[1]) == ["Conv", "Add"]
    assert_same(graph, after)


def test_groups_tell_what_was_fused_into_what() -> None:
    net = Net()
    x = net.input("x", 1, 4, 3, 3)
    other = net.add("Softmax", x, name="other")
    first = net.add("Relu", net.add("Add", net.conv(x, 4, name="a"), other, name="sum"), name="r")
    graph = net.finish(net.add("Sigmoid", net.conv(first, 4, name="b"), name="y"))
    groups = fuse_groups(graph, lambda g, base, step, k: base.op.type != "Softmax" and fusable(g, base, step, k))
    assert [[n.name for n in nodes] for nodes, _ in groups] == [["n_a", "n_sum", "n_r"], ["n_b", "n_y"]]
    assert [(n.name, *steps(n)) for _, n in groups] == [
        ("n_a", "Conv", "Add", "Relu"),
        ("n_b", "Conv", "Sigmoid"),
    ]
    assert [n.outputs for _, n in groups] == [("r",), ("y",)]
    assert fuse_groups(graph, lambda *_: False) == []


@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
@given(networks())
def test_groups_share_no_node_and_keep_the_order(graph: Graph) -> None:
    groups = fuse_groups(graph, fusable)
    order = {n.name: k for k, n in enumerate(graph.nodes)}
    places = [[order[n.name] for n in nodes] for nodes, _ in groups]
    assert all(p == sorted(p) and len(p) > 1 for p in places)
    assert len({k for p in places for k in p}) == sum(map(len, places))
    assert [p[-1] for p in places] == sorted(p[-1] for p in places)
    for nodes, fused in groups:
        assert fused.outputs == nodes[-1].outputs and fused.name in [n.name for n in nodes]


def test_a_chain_goes_on_in_another_kernel_where_one_would_become_too_long() -> None:
    graph = chain(*["Sigmoid", "Tanh"] * 50)
    fused = fuse_epilogues(graph, lambda graph, base, step, inside: True)
    steps = [len(node.op.steps) for node in fused.nodes if isinstance(node.op, Fused)]
    assert max(steps) == MOST_STEPS and sum(steps) + len(fused.nodes) == 100
