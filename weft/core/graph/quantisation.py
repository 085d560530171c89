"""What a quantised value is: integers, with a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a quantised value may have: (q - zero point) * scale, for each integer q of a type.

    There is one scale and one zero point, or one of each for every index of an axis.
    """

    dtype: DType
    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 0

    @classmethod
    def of(cls, dtype: DType, scale: Array, zero: Array | None, axis: int) -> Grid:
        """Return the grid of integers of a type with these scales and zero points; None stands for zeros."""
        zeros = np.zeros(scale.size, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
        scales = scale.reshape(-1).astype(np.float64)
        return cls(dtype, tuple(scales.tolist()), tuple(zeros.tolist()), axis if scales.size > 1 else 0)

    @property
    def is_single(self) -> bool:
        """Tell whether there is one scale and one zero point for all."""
        return len(self.scale) == 1

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and the largest of the integers minus the zero point; of a grid of one scale."""
        least, most = self.dtype.limits
        return least - self.zero[0], most - self.zero[0]

    @property
    def signed(self) -> Grid:
        """Return the same numbers as integers of eight bits with a sign, if they are integers without one."""
        if self.dtype is not DType.UINT8:
            return self
        return replace(self, dtype=DType.INT8, zero=tuple(zero - 128 for zero in self.zero))

    def moved(self, axis: int) -> Grid:
        """Return the grid of a value whose axis of scales became another."""
        return self if self.is_single else replace(self, axis=axis)

    def scales_over(self, shape: Shape) -> Array:
        """Return the scales as float32, so that they broadcast to a shape."""
        return self._over(np.asarray(self.scale, np.float32), shape)

    def integers(self, values: Array) -> Array:
        """Return the integers minus their zero points that values of this grid stand for, as int32."""
        steps = values.astype(np.float32) / self.scales_over(values.shape)
        return np.rint(steps).astype(np.int32)

    def _over(self, numbers: Array, shape: Shape) -> Array:
        if self.is_single:
            return numbers.reshape(())
        axis = self.axis % len(shape)
        return numbers.reshape(-1, *(1,) * (len(shape) - 1 - axis))
