"""Find GELU among its parts, in the exact form and in the tanh approximation."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

from weft.core.graph.graph import Node
from weft.core.graph.op import new_op
from weft.core.passes.manager import PassContext
from weft.core.passes.reader import DEEPEST, Reader, is_about, reader_pass


@reader_pass("Erf", "Tanh")
def fuse_gelu(reader: Reader, context: PassContext) -> None:
    """Replace x * 0.5 * (1 + erf(x / sqrt 2)), or its tanh approximation, by a Gelu.

    The approximation is x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))). Factors may come in any order.
    """
    for kind, inside, form in (("Erf", _of_erf, "none"), ("Tanh", _of_tanh, "tanh")):
        for node in reader.nodes(kind):
            for x in inside(reader, node.inputs[0]):
                root = _root(reader, node.outputs[0], x)
                if root is not None:
                    reader.put(root, Node(root.name, new_op("Gelu", approximate=form), (x,), root.outputs))


def _of_erf(reader: Reader, value: str) -> Iterator[str]:
    """Yield the x for which a value is x / sqrt 2."""
    for number, x in reader.scalings(value):
        if is_about(number, sqrt(0.5)):
            yield x


def _of_tanh(reader: Reader, value: str) -> Iterator[str]:
    """Yield the x for which a value is sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    for number, total in reader.scalings(value):
        node = reader.maker(total, "Add")
        if node is None or not is_about(number, sqrt(2 / pi)):
            continue
        for x, cubic in (node.inputs, node.inputs[::-1]):
            if reader.product(cubic, x).is_about(0.044715, x, x, x):
                yield x


def _root(reader: Reader, value: str, x: str) -> Node | None:
    """Return the node that makes 0.5 * x * (1 + value)."""
    spec = reader.graph.specs[x]
    for total in reader.readers(value, "Add"):
        found = reader.with_number(total)
        if found is None or not is_about(found[0], 1.0):
            continue
        bounds, steps = (total.outputs[0], x), [(total, 0)]
        while steps:
            step, depth = steps.pop()
            for node in reader.readers(step.outputs[0], "Mul", "Div"):
                product = reader.product(node.outputs[0], *bounds)
                if product.is_about(0.5, *bounds) and reader.graph.specs[node.outputs[0]] == spec:
                    return node
                if len(product.factors) <= 2 and depth < DEEPEST:
                    steps.append((node, depth + 1))
    return None
