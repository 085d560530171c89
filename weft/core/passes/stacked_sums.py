"""Add values rather than stack them and sum the stack, as selective kernels and branches with weights are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from weft.core.graph.composite import Body, with_bodies
from weft.core.graph.graph import Graph, Node
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass

MOST_PARTS, MOST_PRODUCTS = 4, 2
"""More values than this, or than so many products, are stacked and reduced: one kernel does not bind so many."""


@graph_pass()
def add_stacked_parts(graph: Graph, context: PassContext) -> Graph:
    """Replace the sum over an axis along which values of size 1 are joined by additions of these values.

    What is joined may be multiplied before, by a value that has a factor for each part or one for all, if there are two
    parts: each product of more would be a launch. Every reader of the Concat must be such a sum, or a product that only
    such a sum reads: then nothing is joined.
    """
    stacks = {node.outputs[0]: node for node in graph.nodes if _is_stack(graph, node)}
    if not stacks:
        return graph
    reads: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            reads.setdefault(name, []).append(node)
    sums: dict[str, Callable[[Body], str]] = {}
    for value, stack in stacks.items():
        found = [_sum_of(graph, reads, stacks, value, node) for node in reads.get(value, ())]
        if value not in graph.outputs and None not in found:
            sums |= {each[0].name: partial(_added, stack, *each) for each in found if each is not None}
    return without_dead_nodes(with_bodies(graph, sums)) if sums else graph


def _axis(graph: Graph, stack: Node) -> int:
    op: Any = stack.op
    return int(op.axis) % len(graph.specs[stack.outputs[0]].dims)


def _is_stack(graph: Graph, node: Node) -> bool:
    """Tell whether a node joins a few values of floats along an axis that has size 1 in each."""
    if node.op.type != "Concat" or not 1 < len(node.inputs) <= MOST_PARTS:
        return False
    axis = _axis(graph, node)
    return graph.specs[node.outputs[0]].dtype.is_float and all(graph.specs[i].dims[axis] == 1 for i in node.inputs)


def _sum_of(
    graph: Graph, reads: dict[str, list[Node]], stacks: dict[str, Node], value: str, reader: Node
) -> tuple[Node, str] | None:
    """Return the node that sums a stack, and by what it is multiplied before, if anything; None if it is not summed."""
    factor, stack = "", stacks[value]
    if reader.op.type == "Mul":
        product, after = reader.outputs[0], reads.get(reader.outputs[0], [])
        factor = reader.inputs[1] if reader.inputs[0] == value else reader.inputs[0]
        same = graph.specs[product].dims == graph.specs[value].dims
        if factor in stacks or not same or product in graph.outputs or len(after) != 1:
            return None
        if len(stack.inputs) > MOST_PRODUCTS:
            return None
        value, reader = product, after[0]
    op: Any = reader.op
    if op.type != "ReduceSum" or reader.inputs[0] != value:
        return None
    given = graph.input_constants(reader)[1:]
    axes = op.resolve(given[0] if given else None, len(graph.specs[value].dims))
    return (reader, factor) if axes == (_axis(graph, stack),) else None


def _added(stack: Node, node: Node, factor: str, make: Body) -> str:
    """Return the sum of what a node sums as a stack, which may be multiplied by `factor`."""
    op: Any = node.op
    axis = _axis(make.graph, stack)
    rank = len(make.dims(stack.outputs[0]))

    def part_of(value: str, place: int) -> str:
        """Return what a value has at a place of the axis, if it has that axis; without it if the sum has none."""
        own = axis - rank + len(make.dims(value))
        if own < 0:
            return value
        if make.dims(value)[own] != 1:
            value = make.part(value, own, place, place + 1)
        return value if op.keepdims else make.add("Squeeze", value, make.ints(own))

    terms = [part_of(each, 0) for each in stack.inputs]
    if factor:
        terms = [make.add("Mul", each, part_of(factor, place)) for place, each in enumerate(terms)]
    return reduce(lambda a, b: make.add("Add", a, b), terms)
