"""What a file holds, as it says it: tensors, operators, subgraphs and signatures. Weights stay where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.errors import ModelError
from weft.frontends.tflite.flatbuffer import FlatBuffer, Table
from weft.frontends.tflite.schema import CUSTOM, NOT_NUMBERS, OPS, TYPES, Option, read_options
from weft.frontends.wording import quote

IDENTIFIER = b"TFL3"
VERSION = 3
HIGHEST_RANK = 32
NOT_TFLITE = "is this a TensorFlow Lite file? Was it downloaded completely?"
BLOCKWISE = 2


@dataclass(frozen=True, eq=False)
class Quantization:
    """What the integers of a tensor stand for: (q - zero point) * scale."""

    scale: Array
    zero_point: Array
    axis: int
    """The axis of a scale that is not one number."""
    block_size: int = 0
    """How many elements of the axis share a scale; 0 if scales are not for blocks."""

    @property
    def is_per_tensor(self) -> bool:
        """Tell whether there is one scale."""
        return self.scale.size == 1 and not self.block_size

    def equals(self, other: Quantization | None) -> bool:
        """Tell whether integers mean the same in both."""
        return other is not None and (self.axis == other.axis or self.is_per_tensor) and (
            self.block_size == other.block_size and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """A tensor of a subgraph."""

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    """The shape with -1 for the sizes that are open."""
    code: int
    """TensorFlow Lite's number of the element type."""
    buffer: int
    external: int
    is_variable: bool
    table: Table

    @property
    def where(self) -> str:
        """Return the place, for messages."""
        return f"tensor {quote(self.name)}" if self.name else f"tensor {self.index}"

    @property
    def dtype(self) -> DType:
        """Return the element type; ModelError if Weft has none."""
        dtype = self.dtype_or_none
        if dtype is None:
            held = NOT_NUMBERS.get(self.code, f"elements of the unknown type {self.code}")
            raise ModelError(f"it holds {held}, and Weft computes with numbers", where=self.where)
        return dtype

    @property
    def dtype_or_none(self) -> DType | None:
        """Return the element type; None if Weft has none."""
        return TYPES[self.code] if 0 <= self.code < len(TYPES) else None

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Return the shape with None for the sizes that are open."""
        return tuple(None if d < 0 else d for d in self.signature)

    @property
    def blocks(self) -> tuple[int, int, int] | None:
        """Return the tensors of the scales and zero points of blocks (-1 for none), and their size; or None."""
        table = self.table.table(4)
        details = table.table(5) if table is not None and table.integer(4, "B") == BLOCKWISE else None
        if details is None:
            return None
        return details.integer(0, "i"), details.integer(1, "i"), details.integer(2, "i")

    @cached_property
    def quantization(self) -> Quantization | None:
        """What the integers stand for; None if they are numbers themselves."""
        table = self.table.table(4)
        if table is None:
            return None
        scale, zero = table.array(2, "<f4"), table.array(3, "<i8")
        if scale is None or not scale.size:
            return None
        zero = np.zeros(scale.size, np.int64) if zero is None or not zero.size else zero
        if zero.size == 1:
            zero = np.repeat(zero, scale.size)
        axis = table.integer(6, "i")
        if zero.size != scale.size or (scale.size > 1 and not 0 <= axis < len(self.shape)):
            why = f"there are {scale.size} scales and {zero.size} zero points on axis {axis} of {self.shape}"
            raise ModelError("its scales do not fit it", where=self.where, why=why)
        return Quantization(scale, zero, axis)


@dataclass(frozen=True, eq=False)
class Operator:
    """A node as the file has it."""

    index: int
    op: str
    """The builtin op, or the name of a custom op."""
    is_custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    table: Table

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The options of a builtin op."""
        table = self.table
        held = table.table(4), table.integer(11, "B"), table.table(12)
        return read_options(self.op, table.integer(3, "B"), *held)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph: tensors are named by their index in it."""

    index: int
    name: str
    tensors: Sequence[TensorInfo]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: Sequence[Operator]

    def tensor(self, index: int) -> TensorInfo:
        """Return a tensor; ModelError if there is none of that index."""
        if not 0 <= index < len(self.tensors):
            raise ModelError(f"there is no tensor {index}", why=f"subgraph {self.index} has {len(self.tensors)}")
        return self.tensors[index]


@dataclass(frozen=True)
class Signature:
    """A way to call a subgraph: names for some of its tensors, by their index."""

    name: str
    subgraph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Model:
    """A file whose tables were read."""

    label: str
    data: FlatBuffer
    subgraphs: Sequence[Subgraph]
    buffers: Sequence[Table]
    signatures: Sequence[Signature]
    groups: Sequence[str]
    """The names of files beside the model."""
    externals: Mapping[int, Table]
    """Buffers in these files, by their number."""


def read_model(data: Array, label: str, limits: Limits) -> Model:
    """Return what the bytes of a file hold; ModelError if they are no model, or are damaged."""
    if data.size < 8 or data[4:8].tobytes() != IDENTIFIER:
        raise ModelError(
            "this is not a TensorFlow Lite model", where=label,
            why=f"its {data.size:,} bytes do not have {IDENTIFIER.decode()!r} at the fifth", fix=NOT_TFLITE,
        )
    buffer = FlatBuffer(data, label)
    root = buffer.root()
    version = root.integer(0, "I")
    if version != VERSION:
        raise ModelError(
            f"version {version} of TensorFlow Lite's files is not supported", where=label,
            why=f"Weft reads version {VERSION}", fix=NOT_TFLITE,
        )
    subgraphs = root.tables(2)
    count = sum(table.count(3) for table in subgraphs)
    if count > limits.nodes:
        raise limits.exceeded("nodes", count, "the model", label)
    if not subgraphs:
        buffer.refuse("it has no subgraph")
    codes = [_code(table) for table in root.tables(1)]
    read = [_subgraph(k, table, codes, buffer) for k, table in enumerate(subgraphs)]
    return Model(
        label, buffer, read, root.tables(4), [_signature(table, read, label) for table in root.tables(7)],
        [table.text(0) for table in root.tables(8)], {table.integer(0, "I"): table for table in root.tables(9)},
    )


def _code(table: Table) -> tuple[str, bool, int]:
    """Return an op's name, if it is custom, and its version; old files have the number in the first field alone."""
    number = max(table.integer(0, "b"), table.integer(3, "i"))
    op = OPS[number] if 0 <= number < len(OPS) else f"builtin op {number}"
    return (table.text(1) if op == CUSTOM else op), op == CUSTOM, table.integer(2, "i", 1)


def _subgraph(index: int, table: Table, codes: Sequence[tuple[str, bool, int]], buffer: FlatBuffer) -> Subgraph:
    tensors = [_tensor(k, each, buffer) for k, each in enumerate(table.tables(0))]
    operators = []
    for k, each in enumerate(table.tables(3)):
        code = each.integer(0, "I")
        if code >= len(codes):
            buffer.refuse(f"operator {k} is of kind {code}, and there are {len(codes)}")
        lists = each.integers(1), each.integers(2), each.integers(8)
        operators.append(Operator(k, *codes[code], *lists, each))
    made = Subgraph(index, table.text(4), tensors, table.integers(1), table.integers(2), operators)
    known = range(-1, len(tensors))
    named = [*made.inputs, *made.outputs, *(i for op in operators for i in (*op.inputs, *op.outputs))]
    wrong = next((i for i in named if i not in known), None)
    if wrong is not None:
        buffer.refuse(f"subgraph {index} names a tensor {wrong}, and it has {len(tensors)}")
    return made


def _tensor(index: int, table: Table, buffer: FlatBuffer) -> TensorInfo:
    shape, signature = table.integers(0), table.integers(7)
    if len(shape) > HIGHEST_RANK or min(shape, default=0) < -1:
        buffer.refuse(f"tensor {index} has the shape {shape[:HIGHEST_RANK]}")
    fits = len(signature) == len(shape) and all(s in (-1, d) for s, d in zip(signature, shape, strict=True))
    return TensorInfo(
        index, table.text(3), shape, signature if fits else shape, table.integer(1, "b"), table.integer(2, "I"),
        table.integer(10, "I"), bool(table.integer(5, "b")), table,
    )


def _signature(table: Table, subgraphs: Sequence[Subgraph], label: str) -> Signature:
    name, subgraph = table.text(2), table.integer(4, "I")
    if subgraph >= len(subgraphs):
        raise ModelError(
            f"the signature {quote(name)} is one of a subgraph that is not there", where=label,
            why=f"it names {subgraph}, and there are {len(subgraphs)}", fix="get the file again",
        )
    inputs, outputs = ({each.integer(1, "I"): each.text(0) for each in table.tables(k)} for k in (0, 1))
    return Signature(name, subgraph, inputs, outputs)
