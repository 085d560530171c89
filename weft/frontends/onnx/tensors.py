"""ONNX tensors to numpy arrays, and declared values to specs.

Nothing is allocated for what a file *declares* before the bytes that it *holds* are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import prod

import numpy as np
from onnx import SparseTensorProto, TensorProto, ValueInfoProto

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Declared
from weft.core.graph.layout import Array
from weft.core.graph.tensor import OPEN_RANK, Dim, SequenceSpec, TensorSpec
from weft.errors import ModelError
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.raw_data import file_bytes, from_bytes, is_absurd
from weft.frontends.wording import quote

TEXT = "Weft computes with numbers: turn text into numbers before the network, and export the part behind that"
HIGHEST_RANK = 32

NO_NAME = ("", "None", "?", "-1", OPEN_RANK)
"""What exporters write as the name of a dimension that has none; two of them need not be equal."""

_NAMES = {"FLOAT": DType.FLOAT32, "DOUBLE": DType.FLOAT64}
DTYPES: dict[int, DType] = {
    int(code): _NAMES.get(name) or DType[name]
    for name, code in TensorProto.DataType.items()
    if name in _NAMES or name in DType.__members__
}
"""Weft's types by the numbers of TensorProto.DataType: an older onnx package lacks the newest ones."""

FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

FIELD_OF = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT64: "uint64_data",
    DType.UINT32: "uint64_data",
    DType.COMPLEX64: "float_data",
    DType.COMPLEX128: "double_data",
}
"""The typed field that holds a type's elements; the others lie in int32_data."""


def element_type(code: int, where: str) -> DType:
    """Return the element type of a TensorProto.DataType number; ModelError if Weft has none."""
    if code in DTYPES:
        return DTYPES[code]
    named = {int(v): k for k, v in TensorProto.DataType.items()}
    raise ModelError(
        f"the element type {named.get(code, code)} is not supported",
        where=where,
        why="Weft knows " + ", ".join(named[k] for k in sorted(DTYPES)),
        fix=TEXT if code == TensorProto.STRING else "export the model with one of these",
    )


def to_array(tensor: TensorProto, files: ExternalFiles, data: Array | None = None) -> Array:
    """Return the value of a tensor, read-only and without a copy where its bytes allow that.

    `data` are the bytes of its raw data if they are not in the tensor itself.
    """
    where = f"tensor {quote(tensor.name)}"
    dtype = element_type(tensor.data_type, where)
    shape = _shape(tensor.dims, where)
    if tensor.HasField("segment"):
        raise ModelError("a tensor in segments is not supported", where=where, fix="export the model again")
    raw = np.frombuffer(tensor.raw_data, np.uint8) if data is None else data
    held = [f for f in FIELDS if len(getattr(tensor, f))] + ["raw_data"] * bool(raw.size)
    if tensor.data_location == TensorProto.EXTERNAL:
        array = from_bytes(files.view(tensor, file_bytes(shape, dtype)), dtype, prod(shape))
    elif len(held) > 1:
        raise ModelError(
            "a tensor has its value twice",
            where=where,
            why=f"in {' and in '.join(held)}",
            fix="export the model again",
        )
    elif held == ["raw_data"]:
        need = file_bytes(shape, dtype)
        if raw.size != need:
            raise _wrong_size(where, shape, dtype, f"{need} bytes", f"{raw.size}")
        array = from_bytes(raw, dtype, prod(shape))
    else:
        array = _from_field(tensor, held[0] if held else "", prod(shape), dtype, where)
    array = array.reshape(shape)
    array.setflags(write=False)
    return array


def dense_bytes(sparse: SparseTensorProto) -> int:
    """Return the bytes that a sparse tensor takes once all its zeros are there; ModelError for a shape of no sense."""
    where = f"sparse tensor {quote(sparse.values.name)}"
    return prod(_shape(sparse.dims, where)) * element_type(sparse.values.data_type, where).itemsize


def to_dense(sparse: SparseTensorProto, files: ExternalFiles) -> Array:
    """Return the value of a sparse tensor with all its zeros.

    The places of the others are counted through the whole tensor, or have a row of an index for each axis.
    """
    where = f"sparse tensor {quote(sparse.values.name)}"
    shape, values, places = _shape(sparse.dims, where), to_array(sparse.values, files), to_array(sparse.indices, files)
    if values.ndim != 1 or places.dtype != np.int64 or places.shape not in (values.shape, (values.size, len(shape))):
        raise ModelError(
            "a sparse tensor does not say where its values are",
            where=where,
            why=f"it has values of shape {values.shape} and places of shape {places.shape} in {shape}",
            fix="export the model again, with dense tensors",
        )
    rows = places[:, None] if places.ndim == 1 else places
    sizes = (prod(shape),) if places.ndim == 1 else shape
    if not np.all((rows >= 0) & (rows < np.array(sizes, np.int64))):
        raise ModelError(
            "a sparse tensor has values outside of its shape", where=where, why=f"its shape is {shape}",
            fix="export the model again, with dense tensors",
        )
    dense = np.zeros(shape, values.dtype)
    dense.reshape(sizes)[tuple(rows.T)] = values
    dense.setflags(write=False)
    return dense


def _shape(dims: Sequence[int], where: str) -> tuple[int, ...]:
    if len(dims) > HIGHEST_RANK:
        raise ModelError(
            "a tensor has too many dimensions",
            where=where,
            why=f"{len(dims)}; at most {HIGHEST_RANK}",
            fix="export the model with tensors of fewer dimensions",
        )
    shape = tuple(dims)
    if is_absurd(shape):
        raise ModelError(
            "a tensor's shape makes no sense",
            where=where,
            why=f"it is {shape}",
            fix="export the model again",
        )
    return shape


def _wrong_size(where: str, shape: tuple[int, ...], dtype: DType, need: str, has: str) -> ModelError:
    return ModelError(
        "a tensor's data does not fit its shape",
        where=where,
        why=f"{dtype.value} of shape {shape} needs {need}, the file has {has}",
        fix="the file is damaged or cut off: get it again",
    )


def _from_field(tensor: TensorProto, held: str, size: int, dtype: DType, where: str) -> Array:
    field = FIELD_OF.get(dtype, "int32_data")
    if held and held != field:
        raise ModelError(
            "a tensor's data is of another type",
            where=where,
            why=f"{dtype.value} is not in {held}",
            fix="export the model again",
        )
    data = getattr(tensor, field)
    packed = dtype.bits in (2, 4)  # six bits have a number each, unlike in raw data
    need = file_bytes((size,), dtype) if packed else 2 * size if dtype.is_complex else size
    if len(data) != need:
        raise _wrong_size(where, tuple(tensor.dims), dtype, f"{need} elements", f"{len(data)} in {field}")
    if dtype.is_complex:
        return np.fromiter(data, np.dtype(f"f{dtype.itemsize // 2}"), need).view(dtype.numpy)
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return np.fromiter(data, dtype.numpy, size)
    wide = np.fromiter(data, np.uint64 if field == "uint64_data" else np.int64, need)
    if dtype is DType.BOOL:
        return np.not_equal(wide, 0)
    # Floats lie there as their bits, and elements of few bits several in a number, which is a byte.
    narrow = np.dtype(np.uint8) if packed else np.dtype(np.uint16) if dtype is DType.FLOAT16 else dtype.raw
    exact = wide.astype(narrow)
    if not np.array_equal(exact, wide):
        raise ModelError(
            "a tensor has elements outside of its type",
            where=where,
            why=f"{dtype.value} in {field}",
            fix="export the model again",
        )
    return from_bytes(exact, dtype, size) if packed else exact.view(dtype.numpy)


def input_spec(value: ValueInfoProto, taken: set[str]) -> TensorSpec:
    """Return the declared shape and type of an input; `taken` are the names of dimensions in use."""
    where = f"input {quote(value.name)}"
    kind, held = value.type.WhichOneof("value"), value.type
    if kind in ("sequence_type", "optional_type"):
        while held.WhichOneof("value") in ("sequence_type", "optional_type"):
            held = held.sequence_type.elem_type if held.HasField("sequence_type") else held.optional_type.elem_type
        return SequenceSpec((), element_type(held.tensor_type.elem_type, where))
    if kind != "tensor_type":
        raise ModelError(
            "an input is neither a tensor nor a sequence or an optional",
            where=where,
            why=f"it is declared as {kind.removesuffix('_type')}" if kind else "its type is not declared",
            fix="export the model with tensors as inputs",
        )
    declared = value.type.tensor_type
    dtype = element_type(declared.elem_type, where)
    if not declared.HasField("shape"):
        return TensorSpec((OPEN_RANK,), dtype)
    if len(declared.shape.dim) > HIGHEST_RANK:
        raise ModelError(
            "an input has too many dimensions",
            where=where,
            why=f"at most {HIGHEST_RANK} are possible",
            fix="export the model with inputs of fewer dimensions",
        )
    shape: list[Dim] = []
    for axis, dim in enumerate(declared.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:  # some exporters write -1 for a size that they do not know
            shape.append(dim.dim_value)
        elif dim.dim_param not in NO_NAME:
            shape.append(dim.dim_param)
        else:
            shape.append(_fresh_symbol(f"{value.name}.{axis}", taken))
    sizes = [d for d in shape if isinstance(d, int)]
    if is_absurd(sizes):
        raise ModelError(
            "an input's shape makes no sense",
            where=where,
            why=f"it is declared as {tuple(shape)}",
            fix="export the model again",
        )
    return TensorSpec(tuple(shape), dtype)


def declared_output(value: ValueInfoProto) -> Declared:
    """Return what is declared of an output, which may be nothing; ModelError for what no output of Weft's can be."""
    kind = value.type.WhichOneof("value")
    if kind in (None, "sequence_type", "optional_type"):
        return Declared(None, None)
    where = f"output {quote(value.name)}"
    if kind != "tensor_type":
        why = f"it is declared as {kind.removesuffix('_type')}"
        raise ModelError(
            "an output is not a tensor",
            where=where,
            why=why,
            fix="export the model with tensors as outputs",
        )
    declared = value.type.tensor_type
    dtype = element_type(declared.elem_type, where) if declared.elem_type else None
    if not declared.HasField("shape"):
        return Declared(dtype, None)
    sizes = (d.dim_value if d.HasField("dim_value") else -1 for d in declared.shape.dim)
    return Declared(dtype, tuple(n if n >= 0 else None for n in sizes))


def _fresh_symbol(base: str, taken: set[str]) -> str:
    symbol = base
    for k in count(1):
        if symbol not in taken:
            break
        symbol = f"{base}.{k}"
    taken.add(symbol)
    return symbol
