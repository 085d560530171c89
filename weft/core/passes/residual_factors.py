"""Multiply once where a value is added to itself times factors, as gates and response norms are written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from weft.core.graph.composite import Body
from weft.core.graph.graph import Graph, Names, Node
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass

MOST = 4
"""Exporters write no residuals of more terms or factors; it bounds the search."""


@graph_pass()
def join_residual_factors(graph: Graph, context: PassContext) -> Graph:
    """Replace x + x * s * c + b by x * (s * c + 1) + b, where s is computed and smaller than x.

    The constants c, if there are any, vary along the axes of s at most; b is any other term. So one product of the size
    of x is left, and what makes s takes in the rest. No other node may read s, nor a value in between. Like every other
    order of a sum this rounds differently: in float16 what s * c lacks of 1 is lost below 2**-11, as it is of a result.
    """
    residuals = _Residuals(graph)
    sums = (node for node in graph.nodes if node.op.type == "Add")
    found = {node.name: each for node in sums if (each := residuals.at(node)) is not None}
    if not found:
        return graph
    out, names = graph.copy(), Names(graph)
    out.nodes = [new for node in graph.nodes for new in _joined(out, names, node, found.get(node.name))]
    return without_dead_nodes(out)


@dataclass(frozen=True)
class _Residual:
    """A sum of x some times, its product with factors, of which the first is computed, and other terms."""

    x: str
    times: int
    factors: list[str]
    others: list[str]


def _joined(graph: Graph, names: Names, node: Node, residual: _Residual | None) -> list[Node]:
    if residual is None:
        return [node]
    make = Body(graph, node.name, names)
    factor = reduce(lambda a, b: make.add("Mul", a, b), residual.factors)
    product = make.add("Mul", residual.x, make.add("Add", factor, make.number(residual.times, residual.x)))
    return make.finish([reduce(lambda a, b: make.add("Add", a, b), residual.others, product)], node.outputs)


class _Residuals:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers, self.readers = graph, graph.producers(), graph.readers()

    def at(self, node: Node) -> _Residual | None:
        """Return the residual that a sum makes; None if it makes none."""
        total = node.outputs[0]
        if not self.graph.specs[total].dtype.is_float:
            return None
        terms = [each for name in node.inputs for each in self._operands(name, "Add", total)]
        for product in terms if len(terms) <= MOST else ():
            factors = self._operands(product, "Mul", total)
            for x in terms:
                if x != product and factors.count(x) == 1 and self._dims(x) == self._dims(total):
                    ordered = self._smaller([each for each in factors if each != x], x)
                    if ordered:
                        others = [each for each in terms if each not in (x, product)]
                        return _Residual(x, terms.count(x), ordered, others)
        return None

    def _operands(self, value: str, kind: str, like: str, deepest: int = MOST) -> list[str]:
        """Return the operands of nested nodes of a type that make a value of a shape; it alone if none does."""
        node = self.makers.get(value)
        inside = node is not None and node.op.type == kind and self.readers[value] == 1 and deepest
        if node is None or not inside or self._dims(value) != self._dims(like):
            return [value]
        return [each for name in node.inputs for each in self._operands(name, kind, like, deepest - 1)]

    def _smaller(self, factors: list[str], x: str) -> list[str]:
        """Return factors of x with the computed one first; nothing if they cannot be one smaller value."""
        computed = [each for each in factors if each not in self.graph.constants]
        if len(computed) != 1 or len(factors) > MOST:
            return []
        (own,) = computed
        maker, dims = self.makers.get(own), self._dims(own)
        # What only moves elements takes in no product.
        computes = maker is not None and (maker.op.is_elementwise or maker.op.op_class != "exact")
        if not computes or self.readers[own] != 1 or len(dims) != len(self._dims(x)) or dims == self._dims(x):
            return []
        known = [each for each in factors if each != own]
        return [own, *known] if all(self._fits(self._dims(each), dims) for each in known) else []

    def _fits(self, dims: tuple[int, ...], within: tuple[int, ...]) -> bool:
        """Tell whether a value of some sizes is broadcast to a shape."""
        full = (1,) * (len(within) - len(dims)) + dims
        return len(full) == len(within) and all(size in (1, most) for size, most in zip(full, within, strict=True))

    def _dims(self, value: str) -> tuple[int, ...]:
        return self.graph.specs[value].dims
