"""Element types, named as ONNX and numpy name them; those that numpy lacks are of the package ml_dtypes."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import numpy as np

from weft.errors import ModelError


class DType(Enum):
    """An element type; the value is its numpy name.

    An element of fewer than eight bits takes a byte in memory, whose upper bits mean nothing; ONNX files alone pack
    several into one.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT6E2M3 = "float6_e2m3fn"
    FLOAT6E3M2 = "float6_e3m2fn"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @cached_property
    def numpy(self) -> np.dtype:
        """Return the numpy dtype of the same element."""
        if self in _OF_NUMPY:
            return np.dtype(self.value)
        import ml_dtypes  # onnx imports it too, but `import weft` should not

        known: np.dtype = np.dtype(getattr(ml_dtypes, self.value))
        return known

    @cached_property
    def raw(self) -> np.dtype:
        """Return the numpy dtype in which arrays are stored: for what numpy lacks, the unsigned integer as wide."""
        return self.numpy if self in _OF_NUMPY else np.dtype(f"u{self.itemsize}")

    @cached_property
    def itemsize(self) -> int:
        """Return the bytes of one element in memory."""
        return self.numpy.itemsize if self in _OF_NUMPY else -(-self.bits // 8)

    @cached_property
    def bits(self) -> int:
        """Return the bits of one element that mean something."""
        return _BITS.get(self) or self.itemsize * 8

    @cached_property
    def is_float(self) -> bool:
        """Tell whether this is a floating-point type that ops compute in; see `is_small_float`."""
        return self in (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BFLOAT16)

    @cached_property
    def is_small_float(self) -> bool:
        """Tell whether this is a float of eight bits or fewer: numbers are stored in it, and computed in another."""
        return self in _SMALL_FLOATS

    @cached_property
    def is_integer(self) -> bool:
        """Tell whether this is an integer type, of any width; bools do not count."""
        return self.value.startswith(("int", "uint"))

    @cached_property
    def is_signed(self) -> bool:
        """Tell whether this is an integer type with negative numbers."""
        return self.value.startswith("int")

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Return the least and the largest number of an integer type."""
        assert self.is_integer, self
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.is_signed else (0, (1 << self.bits) - 1)

    @cached_property
    def is_complex(self) -> bool:
        """Tell whether this is a complex type."""
        return self in (DType.COMPLEX64, DType.COMPLEX128)

    __hash__ = object.__hash__  # that of Enum is a function of Python's, and specs are looked up in dicts

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Return the DType of anything that numpy takes as a dtype; ModelError if Weft has none for it."""
        try:
            if isinstance(dtype, str) and dtype in _BY_NAME:
                return _BY_NAME[dtype]
            given = np.dtype(dtype)  # type: ignore[call-overload]
            return _BY_NUMPY.get(given) or cls(given.name)
        except (TypeError, ValueError):
            raise ModelError(
                f"element type {dtype!r} is not supported",
                why="Weft knows " + ", ".join(m.value for m in cls),
                fix="convert it to one of these",
            ) from None


_SMALL_FLOATS = {t: int(t.value[5]) for t in DType if "_" in t.value}
"""Their bits: float8_e4m3fn has 8."""
_BITS = {
    DType.BFLOAT16: 16,
    **_SMALL_FLOATS,
    DType.INT4: 4,
    DType.UINT4: 4,
    DType.INT2: 2,
    DType.UINT2: 2,
}
_OF_NUMPY = frozenset(DType) - frozenset(_BITS)
"""Types that numpy has itself."""
_BY_NAME = {dtype.value: dtype for dtype in DType}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DType if dtype in _OF_NUMPY}
"""By numpy's dtypes of the machine's byte order: their names are put together anew each time."""
