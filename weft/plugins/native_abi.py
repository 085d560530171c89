"""The structures of `weft_backend.h`, and how a node and a message cross over to C and back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from enum import Enum
from numbers import Integral, Real
from typing import Any

import numpy as np

from weft.core.contract.backend_options import Value
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.errors import BackendError

NO_TYPE = 0
DTYPES = {
    DType.FLOAT32: 1, DType.FLOAT16: 2, DType.FLOAT64: 3, DType.INT64: 4, DType.INT32: 5, DType.INT16: 6,
    DType.INT8: 7, DType.UINT64: 8, DType.UINT32: 9, DType.UINT16: 10, DType.UINT8: 11, DType.BOOL: 12,
    DType.BFLOAT16: 13, DType.FLOAT8E4M3FN: 14, DType.FLOAT8E4M3FNUZ: 15, DType.FLOAT8E5M2: 16,
    DType.FLOAT8E5M2FNUZ: 17, DType.FLOAT8E8M0: 18, DType.FLOAT6E2M3: 19, DType.FLOAT6E3M2: 20,
    DType.FLOAT4E2M1: 21, DType.INT4: 22, DType.UINT4: 23, DType.INT2: 24, DType.UINT2: 25, DType.COMPLEX64: 26,
    DType.COMPLEX128: 27,
}
"""The numbers of `enum weft_dtype`."""
INT, FLOAT, STRING, INTS, FLOATS, STRINGS = range(1, 7)
BOOL = 7
"""A kind of options only: C gets their values as INT, 0 or 1."""


class CTensor(Structure):
    """`weft_tensor`."""

    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("nbytes", c_size_t),
        ("data", c_void_p),
        ("offset", c_size_t),
        ("constant", c_void_p),
    )


class CAttribute(Structure):
    """`weft_attribute`."""

    _fields_ = (
        ("name", c_char_p),
        ("kind", c_int32),
        ("count", c_size_t),
        ("ints", POINTER(c_int64)),
        ("floats", POINTER(c_double)),
        ("strings", POINTER(c_char_p)),
    )


class CNode(Structure):
    """`weft_node`."""

    _fields_ = (
        ("name", c_char_p),
        ("op_type", c_char_p),
        ("input_count", c_size_t),
        ("inputs", POINTER(POINTER(CTensor))),
        ("output_count", c_size_t),
        ("outputs", POINTER(POINTER(CTensor))),
        ("attribute_count", c_size_t),
        ("attributes", POINTER(POINTER(CAttribute))),
    )


class CDeviceInfo(Structure):
    """`weft_device_info`."""

    _fields_ = (
        ("name", c_char * 128), ("driver", c_char * 128), ("software", c_int32), ("uuid", c_char * 64),
        ("pci", c_char * 32),
    )


class COptionInfo(Structure):
    """`weft_option_info`."""

    _fields_ = (
        ("name", c_char * 64),
        ("doc", c_char * 256),
        ("kind", c_int32),
        ("default_int", c_int64),
        ("default_float", c_double),
        ("default_string", c_char * 128),
    )


_TENSORS = POINTER(POINTER(CTensor))
_MESSAGE = (c_void_p, c_size_t)


class CBackend(Structure):
    """`weft_backend`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("version", c_char_p),
        ("supports", CFUNCTYPE(c_int32, c_void_p, POINTER(CNode), *_MESSAGE)),
        ("create", CFUNCTYPE(c_int32, c_void_p, POINTER(CNode), POINTER(c_void_p), *_MESSAGE)),
        ("execute", CFUNCTYPE(c_int32, c_void_p, _TENSORS, _TENSORS, *_MESSAGE)),
        ("destroy", CFUNCTYPE(None, c_void_p)),
        ("absent", CFUNCTYPE(c_int32, *_MESSAGE)),
        ("device_count", CFUNCTYPE(c_int32)),
        ("device_info", CFUNCTYPE(None, c_int32, POINTER(CDeviceInfo))),
        ("open", CFUNCTYPE(c_int32, c_int32, POINTER(c_void_p), *_MESSAGE)),
        ("close", CFUNCTYPE(None, c_void_p)),
        ("allocate", CFUNCTYPE(c_void_p, c_void_p, c_size_t)),
        ("free", CFUNCTYPE(None, c_void_p, c_void_p)),
        ("upload", CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, *_MESSAGE)),
        ("download", CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, *_MESSAGE)),
        ("wait", CFUNCTYPE(c_int32, c_void_p, *_MESSAGE)),
        ("option_info", CFUNCTYPE(c_int32, c_int32, POINTER(COptionInfo))),
        (
            "open_with",
            CFUNCTYPE(c_int32, c_int32, c_size_t, POINTER(POINTER(CAttribute)), POINTER(c_void_p), *_MESSAGE),
        ),
    )


REQUIRED = ("supports", "create", "execute", "destroy")
BUFFERS = ("allocate", "free", "upload", "download")
LEAST_SIZE = CBackend.destroy.offset + CBackend.destroy.size
"""The size of a table with the required fields only."""


class Message:
    """A buffer that C writes a reason or an error into; used for one call after another."""

    SIZE = 1024
    _GUARD = b"\xa5weft guard\xa5"

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(bytes(self.SIZE) + self._GUARD, self.SIZE + len(self._GUARD))
        self._address = ctypes.addressof(self._buffer)

    def clear(self) -> tuple[int, int]:
        """Make it empty and return the two arguments for C, the address and the size."""
        self._buffer[0] = self._buffer[self.SIZE - 1] = b"\0"
        return self._address, self.SIZE

    def text(self) -> str:
        """Return the text; BackendError if it overflows the buffer or has no NUL."""
        written: bytes = self._buffer.raw
        if written[self.SIZE :] != self._GUARD:
            ctypes.memmove(self._address + self.SIZE, self._GUARD, len(self._GUARD))
            raise BackendError(
                "a message is longer than its buffer",
                why=f"the buffer has {self.SIZE} bytes",
                fix="use snprintf",
            )
        text, end, _ = written[: self.SIZE].partition(b"\0")
        if not end:
            raise BackendError(
                "a message does not end with a NUL",
                why=f"all {self.SIZE} bytes of its buffer are text",
                fix="use snprintf",
            )
        return text.decode("utf-8", "replace")


class _View:
    """A structure for C. It owns all memory that it points to."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def _attribute(self, name: str, value: Any) -> CAttribute:
        """Return an attribute; TypeError if C has no type for it."""
        value = value.value if isinstance(value, Enum) else value
        values = value if isinstance(value, (tuple, list)) else (value,)
        is_list = values is value
        made = CAttribute(encoded(name), 0, len(values))
        if all(isinstance(v, Integral) for v in values):
            made.kind, made.ints = INTS if is_list else INT, self._array(c_int64, values)
        elif all(isinstance(v, Real) for v in values):
            made.kind, made.floats = FLOATS if is_list else FLOAT, self._array(c_double, values)
        elif all(isinstance(v, str) for v in values):
            made.kind, made.strings = (
                STRINGS if is_list else STRING,
                self._array(c_char_p, [encoded(v) for v in values]),
            )
        else:
            raise TypeError(
                f"its attribute {name!r} is {type(value).__name__}, for which weft_backend.h has no type"
            )
        return made

    def _array(self, kind: Any, values: Sequence[Any]) -> Any:
        # At least one element, so that an empty list is not NULL.
        array = (kind * max(len(values), 1))(*values)
        self._kept.append(array)
        return array

    def _pointers(self, kind: Any, structures: Sequence[Any]) -> Any:
        return self._array(POINTER(kind), [ctypes.pointer(s) for s in structures])


class OptionsView(_View):
    """Options as C sees them, for one call of `open_with`."""

    def __init__(self, options: Mapping[str, Value]) -> None:
        super().__init__()
        made = [self._attribute(name, value) for name, value in options.items()]
        self.count, self.pointers = len(made), self._pointers(CAttribute, made)


class NodeView(_View):
    """A node as C sees it. It owns all that `node` points to; `locate` of the backend tells where the tensors are."""

    def __init__(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> None:
        super().__init__()
        self._shown: list[Array] = []
        self.inputs = [self._tensor(t) for t in inputs]
        self.outputs = [self._tensor(t) for t in outputs]
        attributes = [self._attribute(n, v) for n, v in op.attributes().items() if v is not None]
        self.input_array = self._pointers(CTensor, self.inputs)
        self.output_array = self._pointers(CTensor, self.outputs)
        self.node = CNode(
            encoded(outputs[0].name if outputs else ""),
            encoded(op.type),
            len(self.inputs),
            self.input_array,
            len(self.outputs),
            self.output_array,
            len(attributes),
            self._pointers(CAttribute, attributes),
        )

    def hide_constants(self) -> None:
        """Hide the constants, which only `supports` and `create` see, and free their memory."""
        for seen in self.inputs:
            seen.constant = None
        self._shown.clear()

    def _tensor(self, tensor: Tensor | None) -> CTensor:
        if tensor is None:
            return CTensor(b"", NO_TYPE, 0, self._array(c_int64, ()))
        shape = self._array(c_int64, tensor.shape)
        made = CTensor(encoded(tensor.name), DTYPES[tensor.dtype], len(tensor.shape), shape, tensor.nbytes)
        if tensor.constant is not None:
            value = np.ascontiguousarray(tensor.constant, tensor.dtype.numpy)
            self._shown.append(value)
            made.constant = value.ctypes.data
        return made


def encoded(text: str) -> bytes:
    """Return text for C."""
    return text.encode("utf-8", "replace")


def decoded(text: bytes | None) -> str:
    """Return text from C; none is empty."""
    return (text or b"").decode("utf-8", "replace")
