"""The bytes of large initialisers, cut out of a model before protobuf would copy them twice.

The format is that of https://protobuf.dev/programming-guides/encoding: each field is a tag (its number, and how it is
stored) and its bytes; messages within messages are preceded by their length. Bytes in a form that encoders do not
write are left to protobuf's own parser, which then says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of fields: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How fields are stored."""
WORTH = 1 << 12
"""The least number of bytes of an initialiser that is cut out."""


@dataclass(frozen=True)
class Cut:
    """A model without the raw data of its large initialisers, and that data by their indices in the graph."""

    model: bytes
    data: Mapping[int, memoryview] = field(default_factory=dict)


def cut(model: memoryview, worth: int = WORTH) -> Cut:
    """Return a model whose initialisers of at least `worth` bytes are cut out, as views of the bytes given."""
    try:
        return _cut(model, worth)
    except (ValueError, IndexError):  # not as encoders write it
        return Cut(bytes(model))


def _cut(model: memoryview, worth: int) -> Cut:
    [graph] = _all_bytes(model, GRAPH)
    pieces: list[bytes | memoryview] = []
    data: dict[int, memoryview] = {}
    end = 0
    for place, each in enumerate(_all_bytes(graph.value, INITIALIZER)):
        raw = _all_bytes(each.value, RAW_DATA) if len(each.value) >= worth else []
        if raw:
            [held] = raw
            rest = bytes(each.value[: held.start]) + bytes(each.value[held.end :])
            pieces += [graph.value[end : each.start], _tag(INITIALIZER), varint(len(rest)), rest]
            end, data[place] = each.end, held.value
    pieces.append(graph.value[end:])
    length = varint(sum(len(piece) for piece in pieces))
    head, tail = model[: graph.start], model[graph.end :]
    return Cut(b"".join((head, _tag(GRAPH), length, *pieces, tail)), data)


class _Field(NamedTuple):
    """A field: from its tag at `start` to `end`, within the message that it is part of."""

    start: int
    end: int
    value: memoryview


def _all_bytes(message: memoryview, number: int) -> list[_Field]:
    """Return all fields of that number, which must hold bytes."""
    found = []
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        each, kind = tag >> 3, tag & 7
        first = at
        if kind == VARINT:
            _, at = _read_varint(message, at)
        elif kind == BYTES:
            length, first = _read_varint(message, at)
            at = first + length
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise ValueError("a group, which no encoder has written for long")
        if at > len(message) or not each:
            raise ValueError("a field that is cut off, or has no number")
        if each == number:
            if kind != BYTES:
                raise ValueError("a field of another kind")
            found.append(_Field(start, at, message[first:at]))
    return found


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, lowest first, and where it ends; no more than 64 bits."""
    byte = message[at]
    if byte < 0x80:  # as most are
        return byte, at + 1
    value = shift = 0
    while shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")


def _tag(number: int) -> bytes:
    return varint(number << 3 | BYTES)


def varint(value: int) -> bytes:
    """Return a number of seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
