"""Element types, named as ONNX and numpy name them."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import numpy as np

from weft.errors import ModelError


class DType(Enum):
    """An element type; the value is its numpy name."""

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

    @cached_property
    def numpy(self) -> np.dtype:
        """Return the numpy dtype of the same element."""
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Tell whether this is a floating-point type."""
        return self in (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64)

    __hash__ = object.__hash__  # that of Enum is a function of Python's, and specs are looked up in dicts

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Return the DType of anything that numpy takes as a dtype; ModelError if Weft has none for it."""
        try:
            given = np.dtype(dtype)  # type: ignore[call-overload]
            return _BY_NUMPY.get(given) or cls(given.name)
        except (TypeError, ValueError):
            raise ModelError(
                f"element type {dtype!r} is not supported",
                why="Weft knows " + ", ".join(m.value for m in cls),
            ) from None


_BY_NUMPY = {dtype.numpy: dtype for dtype in DType}
"""By numpy's dtypes of the machine's byte order: their names are put together anew each time."""
