"""Transposes that move nothing, and transposes that vanish once they are moved up to others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from weft.core.graph import Graph, Names, Node
from weft.core.layout import Shape
from weft.core.optimize.moves import (
    Order,
    compose,
    is_identity,
    keeps_elements,
    order_of,
    reshape,
    transpose,
)
from weft.core.tensor import TensorSpec


def transposes_as_reshapes(graph: Graph) -> Graph:
    """Return the graph with a Reshape for each Transpose that only moves axes of size 1.

    A Reshape need not copy, and other reshapes swallow it.
    """
    out, names = graph.copy(), Names(graph)
    out.nodes = []
    for node in graph.nodes:
        order = order_of(graph, node)
        if order is not None and keeps_elements(graph.specs[node.inputs[0]].dims, order):
            node = reshape(out, node, node.inputs[0], names)
        out.nodes.append(node)
    return out


def move_transposes_up(graph: Graph) -> Graph:
    """Return the graph with transposes moved up, through element-wise nodes, where others swallow them.

    The rule: a transpose T reads a value that element-wise nodes make, all of one shape and with no readers
    but each other and T, out of transposes alone, scalars and constants aside; and each of these transposes
    either has no other readers or is undone by T. Then T goes, each of them takes it in or goes as well,
    constants are transposed here, and everything between computes the same in another order. So each move
    leaves at least one node less than before and adds none. What it must not do is make a transpose of
    several that were free, as they only moved axes of size 1: then T stays.
    """
    out = graph.copy()
    while (region := _find(out)) is not None:
        region.rewrite(out)
    return out


@dataclass(eq=False)
class _Region:
    """Element-wise nodes between a transpose and those above it; `reads` counts who reads what within it."""

    last: Node
    order: Order
    dims: Shape
    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: dict[str, Node] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)

    def rewrite(self, graph: Graph) -> None:
        """Take the transpose out of the graph."""
        renamed = {self.last.inputs[0]: self.last.outputs[0]}
        readers, names = graph.readers(), Names(graph)
        replaced: dict[str, Node | None] = {self.last.name: None}
        for value, leaf in self.leaves.items():
            order = compose(_order(graph, leaf), self.order)
            if is_identity(order):
                renamed[value] = leaf.inputs[0]
                if readers[value] == self.reads[value]:
                    replaced[leaf.name] = None
            else:
                renamed[value] = self._fresh(graph, value, names)
                replaced[leaf.name] = replace(transpose(leaf, leaf.inputs[0], order), outputs=(renamed[value],))
        for value in self.nodes:
            if value not in renamed:
                renamed[value] = self._fresh(graph, value, names)
        for node in self.nodes.values():
            inputs = tuple(renamed.get(i) or self._constant(graph, i, names) for i in node.inputs)
            replaced[node.name] = replace(node, inputs=inputs, outputs=(renamed[node.outputs[0]],))
        nodes = (replaced.get(n.name, n) for n in graph.nodes)
        graph.nodes = [n for n in nodes if n is not None]

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


def _find(graph: Graph) -> _Region | None:
    """Return the first region whose transpose can be moved up."""
    producers, readers = graph.producers(), graph.readers()
    for node in graph.nodes:
        if node.op.type == "Transpose":
            region = _Region(node, _order(graph, node), graph.specs[node.inputs[0]].dims)
            if _fill(graph, region, producers) and _is_closed(graph, region, readers):
                return region
    return None


def _fill(graph: Graph, region: _Region, producers: dict[str, Node]) -> bool:
    """Collect the nodes and the transposes above the region's transpose; False where something else is above."""
    stack = [region.last.inputs[0]]
    region.reads[stack[0]] = 1
    while stack:
        value = stack.pop()
        if value in region.nodes or value in region.leaves:
            continue
        node = producers.get(value)
        if node is not None and node.op.type == "Transpose":
            region.leaves[value] = node
            continue
        if node is None or not node.op.is_elementwise or len(node.outputs) != 1:
            return False
        region.nodes[value] = node
        for operand in filter(None, node.inputs):
            if operand in graph.constants:
                continue
            spec = graph.specs[operand]
            if spec.dims == region.dims:
                region.reads[operand] += 1
                stack.append(operand)
            elif spec.size != 1:
                return False
    return bool(region.nodes and region.leaves)


def _is_closed(graph: Graph, region: _Region, readers: Counter[str]) -> bool:
    """Tell whether nobody else reads what would change, and no more elements are moved than before."""
    if any(readers[v] != region.reads[v] for v in region.nodes):
        return False
    before, after = 1 - keeps_elements(region.dims, region.order), 0
    for value, leaf in region.leaves.items():
        dims, first = graph.specs[leaf.inputs[0]].dims, _order(graph, leaf)
        both = compose(first, region.order)
        alone = readers[value] == region.reads[value]
        if not alone and not is_identity(both):
            return False
        before += alone and not keeps_elements(dims, first)
        after += not keeps_elements(dims, both)
    return after <= before


def _order(graph: Graph, node: Node) -> Order:
    order = order_of(graph, node)
    assert order is not None
    return order
