"""Find values that are divided by a root mean square, as layer norms and RMS norms are, and write them as norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from weft.core.graph.graph import Node
from weft.core.graph.layout import Shape, to_image, to_rows
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import is_symbolic
from weft.core.passes.moves import transpose
from weft.core.passes.reader import Reader


@dataclass(frozen=True, slots=True)
class Quotient:
    """A value over the square root of epsilon plus the mean of the squares of `squared` over these axes."""

    node: Node
    """The Div, or the Mul by the inverse of the root."""
    dividend: str
    squared: str
    axes: Shape
    epsilon: float


Over = Callable[[Shape, int], bool]
"""Tells, of the axes of a mean and the rank of a value, whether to look for norms over these axes."""


def over_last_axes(axes: Shape, rank: int) -> bool:
    """Accept the last axes, over which the ops normalize."""
    return axes == tuple(range(rank - len(axes), rank))


def over_channels(axes: Shape, rank: int) -> bool:
    """Accept the channels of images: axis 1, if there are axes behind it."""
    return axes == (1,) and rank > 2


def quotients(reader: Reader, over: Over) -> Iterator[Quotient]:
    """Find the quotients of which the divisor has no other reader, nor any value between the squares and it.

    The divisor is Sqrt(mean + epsilon) in a Div, or what Reciprocal, 1 / or a power of -0.5 makes of it in a Mul.
    Exporters leave out an epsilon that float32 does not tell from 0.
    """
    for node in reader.nodes("ReduceMean"):
        value = node.outputs[0]
        mean = reader.mean(value)
        squared = mean and reader.square_of(mean[0])
        if mean is None or not squared or not over(mean[1], len(reader.dims(squared))):
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


def full_dims(reader: Reader, value: str, rank: int) -> Shape:
    """Return the shape of a value with an axis for each of `rank`, as it is broadcast."""
    dims = reader.dims(value)
    return (*(1,) * (rank - len(dims)), *dims)


def is_known(reader: Reader, value: str) -> bool:
    """Tell whether a value is a constant that does not follow from open sizes."""
    return value in reader.graph.constants and not is_symbolic(reader.graph.constants[value])


def put_norm(
    reader: Reader,
    root: Node,
    kind: str,
    x: str,
    axes: Shape,
    attributes: Mapping[str, float],
    parameters: tuple[str, ...] = (),
) -> None:
    """Replace `root` by a norm of x over these axes, with constants that vary along them at most.

    Norms are over the last axes: for a norm over channels, these are moved there and back.
    """
    rank = len(reader.dims(x))
    op = new_op(kind, axis=-len(axes), **attributes)
    if axes[-1] == rank - 1:
        reader.put(root, Node(root.name, op, (x, *parameters), root.outputs))
        return
    parameters = tuple(p if not reader.dims(p) else _flat(reader, p) for p in parameters)
    turned = tuple(reader.dims(x)[axis] for axis in to_rows(rank))
    rows, normed = (reader.new_value(f"{root.name}.{tag}", turned, x) for tag in ("rows", "normed"))
    name = reader.names.fresh
    reader.put(
        root,
        transpose(name(f"{root.name}.to_rows"), x, to_rows(rank), rows),
        Node(name(f"{root.name}.rows"), op, (rows, *parameters), (normed,)),
        transpose(root.name, normed, to_image(rank), root.outputs[0]),
    )


def _flat(reader: Reader, value: str) -> str:
    return reader.add(value, reader.graph.constants[value].reshape(-1))
