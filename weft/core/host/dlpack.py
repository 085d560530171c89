"""Arrays of other libraries (PyTorch, JAX and others) as numpy arrays in the same memory, by the DLPack protocol.

numpy's own `from_dlpack` knows only numpy's element types, and returns read-only arrays: this knows all of Weft's.
https://dmlc.github.io/dlpack/latest/
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Protocol

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.host.dropped import ArrayBase
from weft.errors import CannotShare

HOST = frozenset((1, 3, 11, 13))
"""The kinds of devices whose memory the host reads: the CPU, pinned memory of CUDA and ROCm, CUDA's managed memory."""
HOST_DEVICE = (1, 0)
"""The kind and index of the CPU."""
_DEVICES = {2: "cuda", 8: "metal", 10: "rocm", 14: "oneapi", 15: "webgpu"}
_READ_ONLY = 1
_NEWEST = 1
_NUMBERS = {0: "int", 1: "uint", 2: "float", 5: "complex"}
"""The kinds of elements that are named by their bits."""
_PENDING = {"is_neg": ("negated", "resolve_neg"), "is_conj": ("conjugated", "resolve_conj")}
"""What PyTorch's tensors say of values that are still to be changed when they are read, and what makes them real."""
_SMALL = {
    (4, 16): DType.BFLOAT16, (6, 8): DType.BOOL, (10, 8): DType.FLOAT8E4M3FN, (11, 8): DType.FLOAT8E4M3FNUZ,
    (12, 8): DType.FLOAT8E5M2, (13, 8): DType.FLOAT8E5M2FNUZ, (14, 8): DType.FLOAT8E8M0,
}


# Functions of our own: those of `ctypes.pythonapi` are the whole program's, and others give them other types.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class SharedArray(Protocol):
    """An array of any library that shares its memory by DLPack: numpy's, PyTorch's, JAX's."""

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        """Return a capsule."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind and index of the device that holds the memory."""
        ...


class OwnArray:
    """A base of Weft's own classes with `__dlpack__`: nothing has to be shared with another library."""


class NotShared(Exception):
    """Raised for an object whose memory is not to be had; the text follows "a Tensor"."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )


def is_foreign(value: Any) -> bool:
    """Tell whether something is an array of another library that shares its memory: a tensor of PyTorch, for one."""
    return not isinstance(value, (np.ndarray, np.generic, OwnArray)) and hasattr(type(value), "__dlpack_device__")


def host_array(value: Any, *, writes: bool = False) -> Any:
    """Return an array in the memory of another library's array, which is to be written or not; else what was given."""
    try:
        return shared(value, writes=writes) if is_foreign(value) else value
    except NotShared:
        return value


def why_not_shared(value: Any, *, writes: bool = False) -> str:
    """Return why `host_array` shares no memory with another library's array; "" for what is none."""
    try:
        if is_foreign(value):
            shared(value, writes=writes)
    except NotShared as e:
        return str(e)
    return ""


def shared(value: Any, *, writes: bool = False) -> Array:
    """Return an array in the memory of an object that has `__dlpack__`; NotShared if that cannot be.

    With `writes` the array may be written: an object that takes part in PyTorch's gradients, or says that it is
    read-only, is refused. So is a tensor whose values differ from what is in its memory: DLPack does not tell that.
    """
    for asked, (change, resolve) in _PENDING.items():
        is_pending = getattr(value, asked, None)
        if callable(is_pending) and is_pending() is True:
            raise NotShared(f"whose memory holds values not yet {change}: give its .{resolve}()")
    if getattr(value, "requires_grad", False) is True:
        if writes:
            raise NotShared("that requires gradients: give its .detach()")
        value = value.detach()
    try:
        kind, index = (int(each) for each in value.__dlpack_device__())
    except Exception as e:  # of the object's own code
        raise NotShared(f"that cannot be shared ({type(e).__name__}: {e})") from None
    if kind not in HOST:
        place = f"{_DEVICES.get(kind, f'device kind {kind}')}:{index}"
        raise NotShared(f"on {place}, and the host's memory is needed: copy it there first, in PyTorch by .cpu()")
    try:
        try:
            capsule = value.__dlpack__(max_version=(_NEWEST, 0))
        except TypeError:  # it knows no versions
            capsule = value.__dlpack__()
    except Exception as e:
        raise NotShared(f"that cannot be shared ({type(e).__name__}: {e})") from None
    tensor, read_only = _content(capsule, value)
    if writes and read_only:
        raise NotShared("that is read-only")
    return _array(tensor, capsule, read_only)


def share(
    array: Array,
    *,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return what `__dlpack__` returns for an array of any of Weft's types: a capsule that keeps its memory alive.

    CannotShare for a type that DLPack lacks, and for another device than the host.
    """
    dtype = DType.of(array.dtype)
    kind = next((key for key, known in _SMALL.items() if known is dtype), None)
    if kind is None and dtype.raw != dtype.numpy:
        raise CannotShare(f"elements of {dtype.value} cannot be shared", why="DLPack has no such type",
                          fix="share a copy in another type")
    if dl_device not in (None, HOST_DEVICE):
        raise CannotShare("the memory cannot be shared on another device", why=f"it is the host's, and {dl_device} was "
                          "asked for", fix="share it on the host, and copy it there")
    raw = (array.copy() if copy else array).view(dtype.raw)
    try:
        capsule = raw.__dlpack__(max_version=max_version)
    except TypeError:  # of a numpy that knows no versions
        capsule = raw.__dlpack__()
    if kind is not None and dtype.raw != dtype.numpy:
        tensor, _ = _content(capsule, array)
        tensor.code, tensor.bits = kind
    return capsule


def _content(capsule: object, owner: object) -> tuple[_Tensor, bool]:
    """Return what a capsule holds, and whether it may only be read.

    The older form does not say so; of those who still use it, only PyTorch's arrays are known to be writable.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        held = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if held.major != _NEWEST:
            raise NotShared(f"of DLPack {held.major}.{held.minor}, which is not known")
        return held.tensor, bool(held.flags & _READ_ONLY)
    if _is_valid(capsule, b"dltensor"):
        torch = sys.modules.get("torch")
        writable = torch is not None and isinstance(owner, torch.Tensor)
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), not writable
    raise NotShared("whose __dlpack__ returns no capsule of DLPack")


def _array(tensor: _Tensor, capsule: object, read_only: bool) -> Array:
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    dtype = _dtype(tensor)
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    steps = None
    if tensor.strides:
        steps = tuple(tensor.strides[k] * dtype.itemsize for k in range(tensor.ndim))
    place = (tensor.data or 0) + tensor.byte_offset
    interface = {"version": 3, "typestr": dtype.raw.str, "shape": shape, "strides": steps, "data": (place, read_only)}
    return np.asarray(ArrayBase(interface, capsule)).view(dtype.numpy)


def _dtype(tensor: _Tensor) -> DType:
    try:
        if tensor.lanes == 1 and tensor.code in _NUMBERS:
            return DType(f"{_NUMBERS[tensor.code]}{tensor.bits}")
        if tensor.lanes == 1:
            return _SMALL[tensor.code, tensor.bits]
    except (KeyError, ValueError):
        pass
    raise NotShared(f"of elements that Weft does not know (DLPack's type {tensor.code} of {tensor.bits} bits)")
