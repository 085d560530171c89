"""Let an attention read its heads where they lie: those that were repeated for it, and those that were set apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.core.graph.graph import Node
from weft.core.graph.layout import Shape
from weft.core.passes.manager import PassContext
from weft.core.passes.moves import RESHAPES, order_of, reshape
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader, reader_pass

HEADS_APART = (0, 2, 1, 3)
"""The order that takes (batch, rows, heads, elements) to (batch, heads, rows, elements), and back."""


# -- keys that heads share -------------------------------------------------------------------------------


@reader_pass(ATTENTION)
def share_keys(reader: Reader, context: PassContext) -> None:
    """Let heads of attention share keys and values that were repeated for them.

    It applies where K and V of (batch, heads, rows, elements) are expanded, and reshaped to as many heads as Q has.
    """
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        if op.heads or len(reader.dims(node.outputs[0])) != 4:
            continue
        keys, values = (_before_repeats(reader, i) for i in node.inputs[1:3])
        if keys is not None and values is not None and keys.shape[:2] == values.shape[:2]:
            nodes = (*keys.nodes(reader), *values.nodes(reader))
            inputs = (node.inputs[0], keys.name, values.name, *node.inputs[3:])
            reader.put(node, *nodes, replace(node, inputs=inputs))


@dataclass(slots=True)
class _Repeated:
    """The heads that were repeated, as the value `name` of this shape, or as what must be reshaped to it."""

    name: str
    shape: Shape

    def nodes(self, reader: Reader) -> tuple[Node, ...]:
        """Return the reshape that must be added, after which `name` is its result."""
        if reader.dims(self.name) == self.shape:
            return ()
        source, self.name = self.name, reader.new_value(f"{self.name}.heads", self.shape, self.name)
        return (reshape(reader.graph, reader.names, self.name, source, self.name),)


def _before_repeats(reader: Reader, value: str) -> _Repeated | None:
    """Return the heads of (batch, heads, rows, elements) of which `value` repeats each several times."""
    joined = reader.maker(value, *RESHAPES)
    wide = reader.maker(joined.inputs[0] if joined is not None else value, "Expand")
    batch, heads, rows, each = reader.dims(value)
    if wide is None:
        return None
    narrow, dims = reader.dims(wide.inputs[0]), reader.dims(wide.outputs[0])
    if joined is None:
        one = (batch, 1, rows, each)
        return _Repeated(wide.inputs[0], one) if narrow == one else None
    if len(dims) != 5:
        return None
    shape = (batch, dims[1], rows, each)
    if narrow != (*shape[:2], 1, *shape[2:]) or dims != (*shape[:2], dims[2], *shape[2:]) or dims[1] * dims[2] != heads:
        return None
    apart = reader.maker(wide.inputs[0], *RESHAPES)
    return _Repeated(apart.inputs[0] if apart is not None else wide.inputs[0], shape)


# -- heads where they lie --------------------------------------------------------------------------------


@reader_pass(ATTENTION)
def attend_in_place(reader: Reader, context: PassContext) -> None:
    """Let attention read heads that lie side by side, without transposes.

    It applies where Q, K and V are reshaped from (batch, rows, heads * elements), and the result is reshaped back.
    """
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        sources = [_side_by_side(reader, i) for i in node.inputs[:3]]
        turned = reader.only_reader(node.outputs[0], "Transpose")
        flat = turned and reader.only_reader(turned.outputs[0], *RESHAPES)
        if op.heads or None in sources or turned is None or flat is None:
            continue
        batch, heads, rows, width = reader.dims(node.outputs[0])
        whole = reader.dims(flat.outputs[0]) == (batch, rows, heads * width)
        if whole and order_of(reader.graph, turned) == HEADS_APART:
            inputs = (*(s for s in sources if s is not None), *node.inputs[3:])
            reader.put(flat, replace(node, op=replace(op, heads=heads), inputs=inputs, outputs=flat.outputs))


def _side_by_side(reader: Reader, value: str) -> str | None:
    """Return the (batch, rows, heads * elements) value that was reshaped to `value`, (batch, heads, rows, elements)."""
    turned = reader.maker(value, "Transpose")
    if turned is None or order_of(reader.graph, turned) != HEADS_APART:
        return None
    apart = reader.maker(turned.inputs[0], *RESHAPES)
    if apart is None:
        return None
    batch, rows, heads, each = reader.dims(apart.outputs[0])
    return apart.inputs[0] if reader.dims(apart.inputs[0]) == (batch, rows, heads * each) else None
