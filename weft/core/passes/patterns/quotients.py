"""Find values that are divided by a root mean square, as layer norms and RMS norms are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.core.graph.graph import Node
from weft.core.passes.patterns.reading import Reader


@dataclass(frozen=True, slots=True)
class Quotient:
    """A value over the square root of epsilon plus the mean of the squares of `squared`, from an axis on."""

    node: Node
    """The Div, or the Mul by the inverse of the root."""
    dividend: str
    squared: str
    axis: int
    epsilon: float


def quotients(reader: Reader) -> Iterator[Quotient]:
    """Find the quotients of which the divisor has no other reader, nor any value between the squares and it.

    The divisor is Sqrt(mean + epsilon) in a Div, or what Reciprocal, 1 / or a power of -0.5 makes of it in a Mul.
    Exporters leave out an epsilon that float32 does not tell from 0.
    """
    for node in reader.nodes("ReduceMean"):
        value = node.outputs[0]
        mean = reader.mean(value)
        squared = mean and _base(reader, mean[0])
        if mean is None or not squared:
            continue
        epsilon = 0.0
        shifted = reader.only_reader(value, "Add")
        if shifted is not None:
            number = reader.number(reader.other(shifted, value))
            if number is None:
                continue
            value, epsilon = shifted.outputs[0], number
        found = _divided(reader, value)
        if found and reader.dims(found[0].outputs[0]) == reader.dims(squared) == reader.dims(found[1]):
            yield Quotient(*found, squared, mean[1], epsilon)


def _base(reader: Reader, square: str) -> str:
    """Return what a value is the square of; nothing if it is no square."""
    node = reader.maker(square, "Pow", "Mul")
    if node is None:
        return ""
    base, other = node.inputs
    return base if (other == base if node.op.type == "Mul" else reader.number(other) == 2) else ""


def _divided(reader: Reader, square: str) -> tuple[Node, str] | None:
    """Return the node that divides by the square root of a value, and the dividend."""
    power = reader.only_reader(square, "Pow")
    root = reader.only_reader(square, "Sqrt")
    if power and power.inputs[0] == square and reader.number(power.inputs[1]) == -0.5:
        inverse = power.outputs[0]
    elif root:
        divisor = root.outputs[0]
        node = reader.only_reader(divisor, "Div", "Reciprocal")
        if node is None or node.inputs[-1] != divisor:
            return None
        if node.op.type == "Div" and reader.number(node.inputs[0]) != 1:
            return node, node.inputs[0]
        inverse = node.outputs[0]
    else:
        return None
    product = reader.only_reader(inverse, "Mul")
    return (product, reader.other(product, inverse)) if product else None
