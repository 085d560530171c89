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

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Return the DType of anything that numpy takes as a dtype; ModelError if Weft has none for it."""
        try:
            return cls(np.dtype(dtype).name)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise ModelError(
                f"element type {dtype!r} is not supported",
                why="Weft knows " + ", ".join(m.value for m in cls),
            ) from None
