"""Fuse element-wise nodes into the node before them; run by a backend on its own part of the network."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.fused import RUNNING, Fused, Step
from weft.core.graph import Graph, Node, depths

CanFuse = Callable[[Graph, Node, Node, int], bool]
"""Whether the step node (third) may be fused into the base node (second) at that operand position."""


def fuse_epilogues(graph: Graph, can_fuse: CanFuse) -> Graph:
    """Return the graph with chains base -> step -> step ... as one `Fused` node each.

    A step joins where it alone reads the running value and `can_fuse` agrees; its other operands become
    inputs of the node, which takes the place of the last step in the order.
    """
    out = graph.copy()
    readers = graph.readers()
    depth = depths(graph)
    makers: dict[str, int] = {}
    nodes: list[Node | None] = []
    for node in graph.nodes:
        fused = _join(graph, node, nodes, makers, readers, depth, can_fuse)
        nodes.append(fused or node)
        for o in node.outputs:
            makers[o] = len(nodes) - 1
    out.nodes = [n for n in nodes if n is not None]
    return out


def _join(
    graph: Graph,
    step: Node,
    nodes: list[Node | None],
    makers: dict[str, int],
    readers: dict[str, int],
    depth: dict[str, int],
    can_fuse: CanFuse,
) -> Node | None:
    """Return the node that fuses `step` into one of its producers, taking that one out; None if none fits.

    Of several producers the deepest is taken: the others can then run beside its predecessors.
    """
    made = [k for k, i in enumerate(step.inputs) if i in makers]
    candidates = sorted(made, key=lambda k: (-depth[step.inputs[k]], -makers[step.inputs[k]]))
    for position in candidates:
        value = step.inputs[position]
        base = nodes[makers[value]]
        if base is None or readers[value] != 1 or len([o for o in base.outputs if o]) != 1:
            continue
        if can_fuse(graph, base, step, position):
            nodes[makers[value]] = None
            return merge(base, step, position)
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
