"""Weights of float16 that passes see as float32, without an array of that type until something reads their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from weft.core.graph.layout import Array


class Widened(NDArrayOperatorsMixin):
    """A constant of float32 with the numbers of a float16 array.

    It stands in `Graph.constants` while passes run at precision LOW. Numpy takes it for an array; most weights are
    never read, and become the `narrow` array again when the network is stored as float16. Where they are only moved, so
    is that.
    """

    def __init__(self, narrow: Array) -> None:
        self.narrow = narrow
        self.shape, self.ndim, self.size = narrow.shape, narrow.ndim, narrow.size
        self.dtype, self.nbytes = np.dtype(np.float32), 2 * narrow.nbytes
        self._wide: Array | None = None

    @property
    def wide(self) -> Array:
        """Return the numbers as float32; made at the first call."""
        if self._wide is None:
            self._wide = self.narrow.astype(np.float32)
            self._wide.setflags(write=False)
        return self._wide

    def reshape(self, *shape: Any) -> Any:
        """Return it in another shape."""
        return Widened(self.narrow.reshape(*shape))

    def transpose(self, *axes: Any) -> Any:
        """Return it with its axes in another order."""
        return Widened(self.narrow.transpose(*axes))

    def __getitem__(self, index: Any) -> Any:
        some = self.narrow[index]
        return Widened(some) if isinstance(some, np.ndarray) else np.float32(some)

    def __len__(self) -> int:
        return len(self.narrow)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wide)

    def __getattr__(self, name: str) -> Any:
        if name in ("_wide", "wide"):  # of a copy that has nothing yet, or it would ask without end
            raise AttributeError(name)
        return getattr(self.wide, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.wide, dtype) if copy else np.asarray(self.wide, dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*(i.wide if isinstance(i, Widened) else i for i in inputs), **kwargs)


def joined(arrays: Sequence[Any], axis: int) -> Any:
    """Return arrays side by side; `Widened` ones stay so."""
    if all(isinstance(each, Widened) for each in arrays):
        return Widened(np.concatenate([each.narrow for each in arrays], axis))
    return np.concatenate(arrays, axis)
