"""Writes TensorFlow Lite files: FlatBuffers of tables that tests fill by the numbers of their fields."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.frontends.tflite.schema import ACTIVATIONS, OPS, OPTIONS, OPTIONS_2

CODES = {
    "float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "complex64": 8, "int8": 9,
    "float64": 10, "uint64": 12, "uint32": 15, "uint16": 16, "int4": 17,
}  # fmt: skip
"""TensorFlow Lite's numbers of element types."""
RESOURCE = 13

Table = dict[int, Any]
"""Fields by number: a pair of a code of `struct` and a number, a text, an array, bytes, a table, or a list of these."""


def flatbuffer(root: Table, identifier: bytes = b"TFL3") -> bytes:
    """Return the bytes of a table and all that it names."""
    out = bytearray(4) + identifier
    waiting: list[tuple[int, Any]] = [(0, root)]
    while waiting:
        at, value = waiting.pop(0)
        start = _placed(out, value, waiting)
        out[at : at + 4] = struct.pack("<I", start - at)
    return bytes(out)


def _aligned(out: bytearray, to: int, behind: int = 0) -> None:
    out += bytes(-(len(out) + behind) % to)


def _placed(out: bytearray, value: Any, waiting: list[tuple[int, Any]]) -> int:
    """Write a value, note what it leads to, and return where it begins."""
    if isinstance(value, dict):
        return _table(out, value, waiting)
    if isinstance(value, str):
        _aligned(out, 4)
        start = len(out)
        data = value.encode()
        out += struct.pack("<I", len(data)) + data + b"\0"
        return start
    if isinstance(value, (bytes, np.ndarray)):
        array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        _aligned(out, 16, 4)
        start = len(out)
        out += struct.pack("<I", array.size) + array.tobytes()
        return start
    _aligned(out, 4)
    start = len(out)
    out += struct.pack("<I", len(value)) + bytes(4 * len(value))
    waiting += [(start + 4 + 4 * k, each) for k, each in enumerate(value)]
    return start


def _table(out: bytearray, fields: Table, waiting: list[tuple[int, Any]]) -> int:
    places: dict[int, int] = {}
    size = 4
    for number, value in fields.items():
        width = struct.calcsize(value[0]) if isinstance(value, tuple) else 4
        size += -size % width
        places[number] = size
        size += width
    count = max(fields, default=-1) + 1
    _aligned(out, 8, 4 + 2 * count)
    vtable = len(out)
    out += struct.pack(f"<{2 + count}H", 4 + 2 * count, size, *(places.get(k, 0) for k in range(count)))
    start = len(out)
    out += struct.pack("<i", start - vtable) + bytes(size - 4)
    for number, value in fields.items():
        at = start + places[number]
        if isinstance(value, tuple):
            struct.pack_into(f"<{value[0]}", out, at, value[1])
        else:
            waiting.append((at, value))
    return start


def quantized(scale: Any, zero: Any = 0, axis: int = 0) -> Table:
    """Return what the integers of a tensor stand for."""
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape)
    return {2: scales, 3: np.array(zeros), 6: ("i", axis)}


def options(op: str, given: dict[str, Any]) -> tuple[int, Table]:
    """Return the number and the table of an op's options."""
    number, text = {**OPTIONS, **OPTIONS_2}.get(op, (0, ""))
    table: Table = {}
    parts = [part.partition(":") for part in text.split()]
    places = {name: (k, code[:1]) for k, (name, _, code) in enumerate(parts)}
    for name, value in given.items():
        place, code = places[name]
        if name == "activation":
            value = ACTIVATIONS.index(value)
        kinds = {"I": np.int32, "Q": np.int64, "F": np.float32}
        table[place] = np.asarray(value, kinds[code]) if code in kinds else value if code == "s" else (code, value)
    return number, table


@dataclass(eq=False)
class Graph:
    """A subgraph in the making."""

    file: File
    tensors: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self, shape: Sequence[int] = (), dtype: str = "float32", *, name: str = "", data: Any = None,
        scale: Table | None = None, variable: bool = False, more: Table | None = None,
    ) -> int:
        """Add a tensor, and return its index; sizes below zero are open. `more` are fields of its table."""
        table: Table = {0: np.array([max(d, 1) for d in shape], np.int32)}
        table[1] = ("b", RESOURCE if dtype == "resource" else CODES[dtype])
        table[3] = name or f"t{len(self.tensors)}"
        if min(shape, default=0) < 0:
            table[7] = np.array(shape, np.int32)
        if data is not None:
            table[2] = ("I", self.file.buffer(data))
        if scale is not None:
            table[4] = scale
        if variable:
            table[5] = ("b", 1)
        self.tensors.append({**table, **(more or {})})
        return len(self.tensors) - 1

    def constant(self, value: Any, scale: Table | None = None, **more: Any) -> int:
        """Add a tensor that the file has the value of."""
        array = np.asarray(value)
        return self.tensor(array.shape, str(array.dtype), data=array, scale=scale, **more)

    def input(self, shape: Sequence[int] = (), dtype: str = "float32", **more: Any) -> int:
        """Add a tensor that is an input."""
        self.inputs.append(self.tensor(shape, dtype, **more))
        return self.inputs[-1]

    def add(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], *, custom: bytes | None = None, version: int = 1,
        **given: Any,
    ) -> None:
        """Add an operator; `given` are its options, and `custom` those of a custom op of that name."""
        table: Table = {
            0: ("I", self.file.code(op, custom is not None, version)), 1: np.array(inputs, np.int32),
            2: np.array(outputs, np.int32),
        }
        number, held = options(op, given)
        if custom:
            table[5] = custom
        elif held:
            first = op in OPTIONS
            table |= {3: ("B", number), 4: held} if first else {11: ("B", number), 12: held}
        self.operators.append(table)

    @property
    def table(self) -> Table:
        """Return the subgraph's table."""
        return {
            0: self.tensors, 1: np.array(self.inputs, np.int32), 2: np.array(self.outputs, np.int32),
            3: self.operators, 4: f"graph{self.file.graphs.index(self)}",
        }


@dataclass(eq=False)
class File:
    """A file in the making, with its first subgraph."""

    graphs: list[Graph] = field(default_factory=list)
    codes: list[tuple[str, bool, int]] = field(default_factory=list)
    buffers: list[Table] = field(default_factory=lambda: [{}])
    signatures: list[Table] = field(default_factory=list)
    more: Table = field(default_factory=dict)
    """Other fields of the root."""

    def graph(self) -> Graph:
        """Add a subgraph."""
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def buffer(self, data: Any) -> int:
        """Add a buffer, and return its number."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self.buffers.append({0: raw} if raw else {})
        return len(self.buffers) - 1

    def code(self, op: str, custom: bool, version: int) -> int:
        """Return the number of an op in the file."""
        if (op, custom, version) not in self.codes:
            self.codes.append((op, custom, version))
        return self.codes.index((op, custom, version))

    def signature(self, name: str, graph: Graph, inputs: dict[str, int], outputs: dict[str, int]) -> None:
        """Add a signature."""
        maps = ([{0: n, 1: ("I", i)} for n, i in pairs.items()] for pairs in (inputs, outputs))
        first, second = maps
        self.signatures.append({0: first, 1: second, 2: name, 4: ("I", self.graphs.index(graph))})

    def bytes(self) -> bytes:
        """Return the file."""
        return flatbuffer(self.root)

    @property
    def root(self) -> Table:
        """Return the file's table."""
        codes: list[Table] = []
        for op, custom, version in self.codes:
            number = OPS.index("CUSTOM" if custom else op)
            known: Table = {0: ("b", min(number, 127)), 3: ("i", number), 2: ("i", version)}
            codes.append(known | ({1: op} if custom else {}))
        root: Table = {0: ("I", 3), 1: codes, 2: [graph.table for graph in self.graphs], 3: "test", 4: self.buffers}
        if self.signatures:
            root[7] = self.signatures
        return {**root, **self.more}


def one_op(
    op: str, inputs: Sequence[Any], outputs: Sequence[tuple[Sequence[int], str]], **options: Any
) -> File:
    """Return a file with one operator.

    Inputs are arrays (constants), pairs of a shape and a type (inputs of the network), or None; with a scale behind
    either, as triples. Outputs are pairs, or triples.
    """
    file = File()
    graph = file.graph()
    read: list[int] = []
    for each in inputs:
        if each is None:
            read.append(-1)
        elif isinstance(each, np.ndarray):
            read.append(graph.constant(each))
        elif isinstance(each[0], np.ndarray):
            read.append(graph.constant(each[0], each[1]))
        else:
            read.append(graph.input(each[0], each[1], scale=each[2] if len(each) > 2 else None))
    made = [graph.tensor(each[0], each[1], scale=each[2] if len(each) > 2 else None) for each in outputs]
    graph.add(op, read, made, **options)
    graph.outputs = made
    return file


def flexbuffer(options: dict[str, int | float | list[int]]) -> bytes:
    """Return a map as custom ops have it in their options: all of its numbers take four bytes."""
    out, keys, lists = bytearray(), {}, {}
    for name in sorted(options):
        keys[name] = len(out)
        out += name.encode() + b"\0"
    _aligned(out, 4)
    for name, value in options.items():
        if isinstance(value, list):
            out += struct.pack(f"<I{len(value)}i", len(value), *value)
            lists[name] = len(out) - 4 * len(value)
    out += struct.pack("<I", len(options))
    names = len(out)
    for name in sorted(options):
        out += struct.pack("<I", len(out) - keys[name])
    out += struct.pack("<III", len(out) - names, 4, len(options))
    values, kinds = len(out), bytearray()
    for name in sorted(options):
        value = options[name]
        code, kind = ("I", 11) if name in lists else ("f", 3) if isinstance(value, float) else ("i", 1)
        out += struct.pack(f"<{code}", len(out) - lists[name] if name in lists else value)
        kinds.append(kind << 2 | 2)
    out += kinds
    _aligned(out, 4)
    return bytes(out + struct.pack("<IBB", len(out) - values, 9 << 2 | 2, 4))
