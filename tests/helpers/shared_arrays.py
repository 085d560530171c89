"""Arrays of no library, which share their memory by DLPack as those of PyTorch and others do."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.core.graph.layout import Array

CPU, CUDA = 1, 2
BFLOAT16 = (4, 16)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )


class SharedArray:
    """An array that only DLPack reaches; `kind` is the type of its elements as DLPack has it (code, bits).

    With `requires_grad` it has a method `detach`, as PyTorch's tensors have. `pending` is "neg" or "conj" if its values
    are not yet negated or conjugated.
    """

    def __init__(
        self,
        array: Array,
        kind: tuple[int, int] = (2, 32),
        *,
        device: int = CPU,
        read_only: bool = False,
        version: int | None = 1,
        requires_grad: bool = False,
        pending: str = "",
    ) -> None:
        self.array, self.kind, self.device, self.read_only, self.version = array, kind, device, read_only, version
        self.requires_grad = requires_grad
        self.pending = pending
        self._held: list[Any] = []

    def is_neg(self) -> bool:
        """Tell whether the values are still to be negated."""
        return self.pending == "neg"

    def is_conj(self) -> bool:
        """Tell whether the values are still to be conjugated."""
        return self.pending == "conj"

    def detach(self) -> SharedArray:
        """Return the same memory without gradients."""
        return SharedArray(self.array, self.kind, device=self.device, version=self.version, pending=self.pending)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **named: Any) -> Any:
        if self.version is None and named:
            raise TypeError("unexpected keyword argument 'max_version'")
        if self.requires_grad:
            raise BufferError("it requires gradients")
        array, (code, bits) = self.array, self.kind
        numbers = ctypes.c_int64 * max(array.ndim, 1)
        shape, steps = numbers(*array.shape), numbers(*(s // array.itemsize for s in array.strides))
        places = (ctypes.addressof(shape), ctypes.addressof(steps))
        tensor = _Tensor(
            array.ctypes.data, (ctypes.c_int32 * 2)(self.device, 0), array.ndim, code, bits, 1, *places, 0
        )
        made: Any = tensor if self.version is None else _Versioned(self.version, 0, 0, 0, int(self.read_only), tensor)
        self._held += [shape, steps, made]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return new(ctypes.addressof(made), name, None)


def bits_of(values: Array) -> Array:
    """Return fp32 numbers as the bits of bfloat16, cut off."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32).__rshift__(16).astype(np.uint16)
