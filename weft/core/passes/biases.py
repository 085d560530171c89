"""Add what is broadcast first where a value is only reshaped to add it: biases of scores by rows and by columns."""

from __future__ import annotations

from functools import partial, reduce

from weft.core.graph.composite import Body, with_bodies
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.symbolic import has_open_size
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES

MOST_BIASES = 4
"""Exporters write no sums of more biases; it bounds the search."""


@graph_pass()
def add_biases_first(graph: Graph, context: PassContext) -> Graph:
    """Replace ((reshaped x + a) + b), reshaped back, by x + (a + b), where only the latter sum is reshaped.

    Relative positions are so added to the scores of an attention: a for each row, b for each column of keys. Together a
    and b must have the shape of the reshaped x, and no other node may read a value in between. The sum is then part of
    the kernel that makes x, or the mask of an attention. Like every other order of a sum this rounds differently: what
    x and a brought near zero may overflow in a and b.
    """
    if not any(node.op.type in RESHAPES for node in graph.nodes):
        return graph
    found = _Sums(graph)
    sums = {node.name: each for node in graph.nodes if (each := found.below(node)) is not None}
    if not sums:
        return graph

    def summed(x: str, biases: list[str], make: Body) -> str:
        total = reduce(lambda a, b: make.add("Add", a, b), biases)
        return make.add("Add", x, make.reshape(total, *make.dims(x)))

    return without_dead_nodes(with_bodies(graph, {name: partial(summed, *each) for name, each in sums.items()}))


class _Sums:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers, self.readers = graph, graph.producers(), graph.readers()

    def below(self, back: Node) -> tuple[str, list[str]] | None:
        """Return x and the biases, if a node reshapes back the sum of a reshaped x and several biases."""
        graph, total = self.graph, back.inputs[0] if back.inputs else ""
        if back.op.type not in RESHAPES or total in graph.constants:
            return None
        dims = graph.specs[total].dims
        x, biases = self._summed(total, dims) or ("", [])
        if len(biases) < 2 or graph.specs[x].dims != graph.specs[back.outputs[0]].dims:
            return None
        if has_open_size(dims) or 0 in dims or not graph.specs[x].dtype.is_float:
            return None
        return (x, biases) if self._span(biases, dims) else None

    def _summed(self, value: str, dims: Shape, most: int = MOST_BIASES) -> tuple[str, list[str]] | None:
        """Return what is reshaped to these sizes, and what is added before it is `value`; None if it is no such sum."""
        node = self.makers.get(value) if self.readers[value] == 1 else None
        if node is None or self.graph.specs[value].dims != dims:
            return None
        if node.op.type in RESHAPES:
            return node.inputs[0], []
        if node.op.type == "Add" and most:
            for rest, bias in (node.inputs, node.inputs[::-1]):
                if (found := self._summed(rest, dims, most - 1)) is not None:
                    return found[0], [*found[1], bias]
        return None

    def _span(self, biases: list[str], dims: Shape) -> bool:
        """Tell whether the sum of biases has these sizes, and needs a run to be known."""
        shapes = [(*(1,) * (len(dims) - len(own)), *own) for own in (self.graph.specs[each].dims for each in biases)]
        known = all(each in self.graph.constants for each in biases)
        return not known and all(any(own[axis] == size for own in shapes) for axis, size in enumerate(dims))
