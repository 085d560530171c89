"""Transposes that move nothing, and transposes that vanish once they are moved up to others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Budget
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import (
    Order,
    compose,
    is_identity,
    keeps_elements,
    order_of,
    reshape,
    transpose,
)
from weft.core.passes.properties import Property


def _moves_nothing(graph: Graph, node: Node) -> bool:
    order = order_of(graph, node)
    return order is not None and keeps_elements(graph.specs[node.inputs[0]].dims, order)


NO_FREE_TRANSPOSES = Property(
    "no transpose that only moves axes of size 1",
    lambda graph: [n.name for n in graph.nodes if _moves_nothing(graph, n)],
)


@graph_pass(ensures=(NO_FREE_TRANSPOSES,))
def transposes_as_reshapes(graph: Graph, context: PassContext) -> Graph:
    """Put a Reshape in the place of each Transpose that only moves axes of size 1.

    A Reshape need not copy, and other reshapes swallow it.
    """
    if not NO_FREE_TRANSPOSES.broken_by(graph):
        return graph
    out, names = graph.copy(), Names(graph)
    out.nodes = []
    for node in graph.nodes:
        if _moves_nothing(graph, node):
            node = reshape(out, node, node.inputs[0], names)
        out.nodes.append(node)
    return out


ROUNDS = 16
"""How often transposes are moved up at most; one round moves all but contrived networks' transposes."""


@graph_pass(rounds=ROUNDS)
def move_transposes_up(graph: Graph, context: PassContext) -> Graph:
    """Move transposes up, through element-wise nodes, where others swallow them.

    The rule: a transpose T reads a value that element-wise nodes make, all of one shape and with no readers
    but each other and T, out of transposes alone, scalars and constants aside; and each of these transposes
    either has no other readers or is undone by T. Then T goes, each of them takes it in or goes as well,
    constants are transposed here, and everything between computes the same in another order. So each move
    leaves at least one node less than before and adds none. What it must not do is make a transpose of
    several that were free, as they only moved axes of size 1: then T stays. Constants are transposed within the budget.
    """
    if not any(n.op.type == "Transpose" for n in graph.nodes):
        return graph
    moves = _Moves(graph, context.budget)
    return moves.graph if moves.found() else graph


class _Moves:
    """A graph while transposes of it are moved up, with who makes and who reads each value at that moment."""

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.budget = budget
        self.graph = graph.copy()
        self.names = Names(graph)
        self.makers = graph.producers()
        self.readers = graph.readers()
        self._now: dict[str, Node | None] = {}
        """What stands in the place of a node, by its name; None where nothing does."""

    def found(self) -> bool:
        """Move what can be moved, and tell whether anything was.

        The last transpose comes first: what it is moved up to is met later, and with it all that it can join.
        """
        for original in reversed(self.graph.nodes):
            node = self._now.get(original.name, original)
            if node is None or node.op.type != "Transpose":
                continue
            region = _Region(node, _order(self.graph, node), self.graph.specs[node.inputs[0]].dims)
            if _fill(self, region) and _is_closed(self, region) and self.budget.allows((), region.nbytes):
                began = self.budget.clock()
                region.rewrite(self)
                self.budget.spend(region.nbytes, began)
        nodes = (self._now.get(n.name, n) for n in self.graph.nodes)
        self.graph.nodes = [n for n in nodes if n is not None]
        return bool(self._now)

    def replace(self, old: Node, new: Node | None) -> None:
        """Put a node, or nothing, in the place of another."""
        self._now[old.name] = new
        self.readers.subtract(i for i in old.inputs if i)
        for o in old.outputs:
            if self.makers.get(o) is old:
                del self.makers[o]
        if new is not None:
            self.readers.update(i for i in new.inputs if i)
            self.makers.update((o, new) for o in new.outputs if o)


@dataclass(eq=False)
class _Region:
    """Element-wise nodes between a transpose and those above it; `reads` counts who reads what within it."""

    last: Node
    order: Order
    dims: Shape
    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: dict[str, Node] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    """Of the constants that the nodes read, which must be transposed."""

    def rewrite(self, moves: _Moves) -> None:
        """Take the transpose out of the graph."""
        graph, names = moves.graph, moves.names
        renamed = {self.last.inputs[0]: self.last.outputs[0]}
        replaced: list[tuple[Node, Node | None]] = [(self.last, None)]
        for value, leaf in self.leaves.items():
            order = compose(_order(graph, leaf), self.order)
            if is_identity(order):
                renamed[value] = leaf.inputs[0]
                if moves.readers[value] == self.reads[value]:
                    replaced.append((leaf, None))
            else:
                renamed[value] = self._fresh(graph, value, names)
                replaced.append((leaf, replace(transpose(leaf, leaf.inputs[0], order), outputs=(renamed[value],))))
        for value in self.nodes:
            if value not in renamed:
                renamed[value] = self._fresh(graph, value, names)
        for node in self.nodes.values():
            inputs = tuple(renamed.get(i) or self._constant(graph, i, names) for i in node.inputs)
            replaced.append((node, replace(node, inputs=inputs, outputs=(renamed[node.outputs[0]],))))
        for old, new in replaced:
            moves.replace(old, new)

    def _fresh(self, graph: Graph, value: str, names: Names) -> str:
        """Return a name for a value of which the graph now has the transpose: it is not what it was."""
        name = names.fresh(f"{value}.transposed")
        shape = tuple(self.dims[axis] for axis in self.order)
        graph.specs[name] = TensorSpec(shape, graph.specs[value].dtype)
        return name

    def _constant(self, graph: Graph, value: str, names: Names) -> str:
        """Return the name of an operand that no node of the region makes, transposed unless it is a scalar."""
        if not value or graph.specs[value].size == 1:
            return value
        array = graph.constants[value]
        full = array.reshape(*(1,) * (len(self.order) - array.ndim), *array.shape).transpose(self.order)
        name = names.fresh(f"{value}.transposed")
        graph.constants[name] = np.array(full, order="C")
        graph.specs[name] = TensorSpec(full.shape, graph.specs[value].dtype)
        return name


def _fill(moves: _Moves, region: _Region) -> bool:
    """Collect the nodes and the transposes above the region's transpose; False where something else is above.

    A value is looked behind once all that reads it is in the region, so that no node is in two of them.
    """
    graph, readers = moves.graph, moves.readers
    first = region.last.inputs[0]
    region.reads[first] = 1
    stack, seen = [first], {first}
    while stack:
        value = stack.pop()
        node = moves.makers.get(value)
        if node is not None and node.op.type == "Transpose":
            region.leaves[value] = node
            continue
        if node is None or not node.op.is_elementwise or len(node.outputs) != 1:
            return False
        if region.reads[value] < readers[value] or value in region.nodes:
            continue
        region.nodes[value] = node
        for operand in filter(None, node.inputs):
            if operand in graph.constants:
                region.nbytes += graph.constants[operand].nbytes
                continue
            spec = graph.specs[operand]
            if spec.dims == region.dims:
                region.reads[operand] += 1
                seen.add(operand)
                if operand not in region.leaves:
                    stack.append(operand)
            elif spec.size != 1:
                return False
    return bool(region.nodes and region.leaves) and len(seen) == len(region.nodes) + len(region.leaves)


def _is_closed(moves: _Moves, region: _Region) -> bool:
    """Tell whether nobody else reads what would change, and no more elements are moved than before."""
    before, after = 1 - keeps_elements(region.dims, region.order), 0
    for value, leaf in region.leaves.items():
        dims, first = moves.graph.specs[leaf.inputs[0]].dims, _order(moves.graph, leaf)
        both = compose(first, region.order)
        alone = moves.readers[value] == region.reads[value]
        if not alone and not is_identity(both):
            return False
        before += alone and not keeps_elements(dims, first)
        after += not keeps_elements(dims, both)
    return after <= before


def _order(graph: Graph, node: Node) -> Order:
    order = order_of(graph, node)
    assert order is not None
    return order
