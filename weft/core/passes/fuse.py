"""Fuse element-wise nodes into the node before them; run by a backend on its own part of the network."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.graph.fused_op import RUNNING, Fused, Step
from weft.core.graph.graph import Graph, Node, depths

CanFuse = Callable[[Graph, Node, Node, int], bool]
"""Whether the step node (third) may be fused into the base node (second) at that operand position."""

MOST_STEPS = 32
"""Steps of one node: what fuses more is a chain that no network has, and its kernel would take minutes to compile."""

Group = tuple[list[Node], Node]
"""Nodes of a graph, in its order, and the one `Fused` node that takes the place of the last of them."""


def fuse_groups(graph: Graph, can_fuse: CanFuse) -> list[Group]:
    """Return the chains base -> step -> step ... of the graph, each with the `Fused` node that does its work.

    A step joins where it alone reads the running value and `can_fuse` agrees; its other operands become
    inputs of the fused node. Chains share no node; they are in the order of their last nodes.
    """
    readers = graph.readers()
    depth = depths(graph)
    makers: dict[str, int] = {}
    nodes: list[Node | None] = []
    members: list[list[Node]] = []
    for node in graph.nodes:
        joined = _join(graph, node, nodes, makers, readers, depth, can_fuse)
        if joined is None:
            nodes.append(node)
            members.append([node])
        else:
            base, fused = joined
            nodes[base] = None
            nodes.append(fused)
            members.append([*members[base], node])
        for o in node.outputs:
            makers[o] = len(nodes) - 1
    return [(group, n) for group, n in zip(members, nodes, strict=True) if n is not None and len(group) > 1]


def fuse_epilogues(graph: Graph, can_fuse: CanFuse) -> Graph:
    """Return the graph with each of its `fuse_groups` as one node, in the place of the last of the group."""
    out = graph.copy()
    groups = fuse_groups(graph, can_fuse)
    last = {group[-1].name: fused for group, fused in groups}
    gone = {n.name for group, _ in groups for n in group[:-1]}
    out.nodes = [last.get(n.name, n) for n in graph.nodes if n.name not in gone]
    return out


def _join(
    graph: Graph,
    step: Node,
    nodes: list[Node | None],
    makers: dict[str, int],
    readers: dict[str, int],
    depth: dict[str, int],
    can_fuse: CanFuse,
) -> tuple[int, Node] | None:
    """Return which of `nodes` takes `step`, and the node that does the work of both; None if none fits.

    Of several producers the deepest is taken: the others can then run beside its predecessors.
    """
    made = [k for k, i in enumerate(step.inputs) if i in makers]
    candidates = sorted(made, key=lambda k: (-depth[step.inputs[k]], -makers[step.inputs[k]]))
    for position in candidates:
        value = step.inputs[position]
        base = nodes[makers[value]]
        if base is None or readers[value] != 1 or len([o for o in base.outputs if o]) != 1:
            continue
        if isinstance(base.op, Fused) and len(base.op.steps) >= MOST_STEPS:
            continue
        if can_fuse(graph, base, step, position):
            return makers[value], merge(base, step, position)
    return None


def merge(base: Node, step: Node, position: int) -> Node:
    """Return one node that computes `base`, then `step` with the result as operand `position`."""
    op = base.op if isinstance(base.op, Fused) else Fused(base.op, len(base.inputs), ())
    inputs = list(base.inputs)
    operands = []
    for k, name in enumerate(step.inputs):
        if k == position:
            operands.append(RUNNING)
        else:
            operands.append(len(inputs))
            inputs.append(name)
    steps = (*op.steps, Step(step.op, tuple(operands)))
    return Node(base.name, Fused(op.base, op.arity, steps), tuple(inputs), step.outputs)
