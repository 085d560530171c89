"""Following a graph from a value to its producers and readers: what patterns and the passes like them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from math import isclose
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import Pass, PassContext, graph_pass

DEEPEST = 6
"""Exporters write no pattern with products nested deeper than this, or with more scalings in a row."""


@dataclass(frozen=True, slots=True)
class Product:
    """A number times values; a value is listed once for each time that it is a factor."""

    number: float
    factors: tuple[str, ...]

    def is_about(self, number: float, *factors: str) -> bool:
        """Tell whether it is that number, up to float32 rounding, times exactly these values."""
        return is_about(self.number, number) and sorted(self.factors) == sorted(factors)


def is_about(number: float, wanted: float) -> bool:
    """Tell whether two numbers are equal up to one or two float32 roundings."""
    return isclose(number, wanted, rel_tol=3e-7)


LEAST = 2.0**-126
"""Kernels have no reciprocal of less in fp32."""


class Reader:
    """A graph with the producers and readers of its values, and the nodes that will replace others.

    It has no dead nodes: one that reads a value inside a pattern would keep its parts, and go with the first pattern
    that is found.
    """

    def __init__(self, graph: Graph) -> None:
        self.given, self.graph = graph, without_dead_nodes(graph)
        self.replaced: dict[str, list[Node]] = {}
        self.names = Names(graph)
        self.computed: dict[tuple[object, ...], str] = {}
        """Constants that were made of others, by what they were made of."""
        self._makers = self.graph.producers()
        self._counts = self.graph.readers()
        self._readers: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(node)

    @staticmethod
    def has(graph: Graph, *kinds: str) -> bool:
        """Tell whether a graph has nodes of one of these types, without which it cannot have a pattern of them."""
        return any(n.op.type in kinds for n in graph.nodes)

    def nodes(self, kind: str) -> Iterator[Node]:
        """Return the nodes of a type, in order."""
        return (n for n in self.graph.nodes if n.op.type == kind)

    def maker(self, value: str, *kinds: str) -> Node | None:
        """Return the node that makes a value, if it is of one of these types."""
        node = self._makers.get(value)
        return node if node is not None and node.op.type in kinds else None

    def readers(self, value: str, *kinds: str) -> list[Node]:
        """Return the nodes of these types, or of any if none is given, that read a value."""
        return [n for n in self._readers.get(value, ()) if not kinds or n.op.type in kinds]

    def only_reader(self, value: str, *kinds: str) -> Node | None:
        """Return the node of one of these types that is the only reader of a value, and reads it once."""
        found = self.readers(value, *kinds) if self._counts[value] == 1 else []
        return found[0] if len(found) == 1 else None

    def count(self, value: str) -> int:
        """Return how many readers a value has; an output of the graph counts as one."""
        return self._counts[value]

    def is_read_once(self, value: str) -> bool:
        """Tell whether a value has one reader; an output of the graph counts as one."""
        return self._counts[value] == 1

    def dims(self, value: str) -> Shape:
        """Return the shape of a value."""
        return self.graph.specs[value].dims

    def number(self, value: str) -> float | None:
        """Return the value of a float constant of one element."""
        array = self.graph.constants.get(value)
        single = array is not None and array.size == 1 and self.graph.specs[value].dtype.is_float
        return float(array.item()) if single and array is not None else None

    def other(self, node: Node, value: str) -> str:
        """Return the operand of a binary node that is not `value`."""
        return node.inputs[1] if node.inputs[0] == value else node.inputs[0]

    def with_number(self, node: Node | None) -> tuple[float, str] | None:
        """Return the number and the other operand of a binary node; None if neither operand is a number."""
        if node is None:
            return None
        for value, other in (node.inputs, node.inputs[::-1]):
            number = self.number(value)
            if number is not None:
                return number, other
        return None

    def mean(self, value: str) -> tuple[str, Shape] | None:
        """Return x and the axes, if a value is the mean of x over axes that are kept with size 1."""
        node = self.maker(value, "ReduceMean")
        axes = self.reduced(node, node.inputs[0]) if node else ()
        return (node.inputs[0], axes) if node and axes else None

    def reduced(self, node: Node | None, x: str) -> Shape:
        """Return the axes of x that a reduction keeps with size 1; none if it is none of x, or x is not of floats."""
        if node is None or node.inputs[0] != x or not self.graph.specs[x].dtype.is_float:
            return ()
        op: Any = node.op
        return self.axes(node) if op.keepdims else ()

    def axes(self, node: Node) -> Shape:
        """Return the axes over which a reduction goes, whether it keeps them or not."""
        op: Any = node.op
        given = self.graph.input_constants(node)[1:]
        return tuple(op.resolve(given[0] if given else None, len(self.dims(node.inputs[0]))))

    def quotients(self) -> Iterator[tuple[Node, str, str]]:
        """Yield each Div in the shape of x that alone reads its divisor; x; and the divisor before an Expand."""
        for node in self.nodes("Div"):
            x, divisor = node.inputs
            if self.is_read_once(divisor) and self.dims(node.outputs[0]) == self.dims(x):
                spread = self.maker(divisor, "Expand")
                if spread is not None and self.is_read_once(spread.inputs[0]):
                    divisor = spread.inputs[0]
                yield node, x, divisor

    def square_of(self, value: str) -> str:
        """Return what a value is the square of; nothing if it is no square."""
        node = self.maker(value, "Pow", "Mul")
        if node is None:
            return ""
        base, other = node.inputs
        return base if (other == base if node.op.type == "Mul" else self.number(other) == 2) else ""

    def product(self, value: str, *stop: str, depth: int = 0) -> Product:
        """Return the value as a product; values in `stop` are not taken apart."""
        node = None if value in stop or depth > DEEPEST else self.maker(value, "Mul", "Div", "Pow")
        number = self.number(value)
        if number is not None:
            return Product(number, ())
        if node is None:
            return Product(1.0, (value,))
        a, b = node.inputs
        known = self.number(b)
        if node.op.type == "Mul":
            left, right = (self.product(each, *stop, depth=depth + 1) for each in (a, b))
            return Product(left.number * right.number, (*left.factors, *right.factors))
        base = self.product(a, *stop, depth=depth + 1)
        if node.op.type == "Div" and known:
            return Product(base.number / known, base.factors)
        if node.op.type == "Pow" and known in (2.0, 3.0):
            return Product(base.number ** int(known), base.factors * int(known))
        return Product(1.0, (value,))

    def scalings(self, value: str) -> Iterator[tuple[float, str]]:
        """Yield pairs of a number and a value whose product is `value`, further and further up the graph."""
        number = 1.0
        yield number, value
        for _ in range(DEEPEST):
            node = self.maker(value, "Mul", "Div")
            if node is None:
                break
            found = self.with_number(node)
            if found is None or (node.op.type == "Div" and found[1] != node.inputs[0]):
                break
            if self.dims(found[1]) != self.dims(value) or not found[0]:
                break
            number *= found[0] if node.op.type == "Mul" else 1 / found[0]
            value = found[1]
            yield number, value

    def scaled(self, value: str) -> tuple[float, str]:
        """Return the last of the `scalings`."""
        return list(self.scalings(value))[-1]

    def add(self, name: str, value: Array) -> str:
        """Add a constant, and return the name that it got."""
        name = self.names.fresh(name)
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def new_value(self, name: str, dims: Shape, like: str) -> str:
        """Add a value of this shape and of the type of another, and return the name that it got."""
        name = self.names.fresh(name)
        self.graph.specs[name] = TensorSpec(dims, self.graph.specs[like].dtype)
        return name

    def one(self, like: str) -> str:
        """Add a scalar 1 in the type of a value: the scale of a norm without any."""
        return self.add("one", np.ones((), self.graph.specs[like].dtype.numpy))

    def put(self, root: Node, *nodes: Node) -> None:
        """Replace a node by other nodes, of which the last makes its output.

        What was before the node may be gone: patterns behind it must not look there.
        """
        self.replaced[root.name] = list(nodes)
        self._makers |= {o: node for node in nodes for o in node.outputs if o}

    def finish(self) -> Graph:
        """Return the graph with the replacements, and without the nodes that are dead now."""
        if not self.replaced:
            return self.given
        out = self.graph.copy()
        out.nodes = [new for n in self.graph.nodes for new in self.replaced.get(n.name, [n])]
        return without_dead_nodes(out)


def reader_pass(*kinds: str, rounds: int = 1) -> Callable[[Callable[[Reader, PassContext], None]], Pass]:
    """Return a decorator that makes a pass of what a function puts in place of nodes; see `graph_pass`.

    Without nodes of these types there is nothing to find, so the function is not called.
    """

    def decorated(function: Callable[[Reader, PassContext], None]) -> Pass:
        @wraps(function)
        def rewrite(graph: Graph, context: PassContext) -> Graph:
            if not Reader.has(graph, *kinds):
                return graph
            reader = Reader(graph)
            function(reader, context)
            return reader.finish()

        return graph_pass(rounds=rounds)(rewrite)

    return decorated
