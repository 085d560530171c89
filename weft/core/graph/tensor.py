"""Tensors: `TensorSpec` describes one in a graph, `Tensor` is memory of some backend in a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, Shape, from_storage, storage_shape, storage_size, to_storage
from weft.core.graph.quantisation import Grid
from weft.core.graph.symbolic import integer


class MemoryOwner(Protocol):
    """What a tensor needs from the backend that owns its memory."""

    host_memory: ClassVar[bool]

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy between a tensor of this owner and another of its own or on the host."""
        ...


Dim = int | str
"""A size, or the name of a symbolic dimension that a session binds. While a network is prepared for open sizes, a
`SymbolicInt` stands for a size that will be a number."""

OPEN_RANK = "..."
"""The only entry of a shape that leaves even its number of dimensions open."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of a value in a graph; a str in the shape is a symbolic dimension, or `OPEN_RANK`."""

    shape: tuple[Dim, ...]
    dtype: DType
    grid: Grid | None = field(default=None, compare=False, repr=False)
    """The numbers that a constant is known to have, which were integers; what nodes make has none (`infer_node`)."""

    @property
    def is_static(self) -> bool:
        """Tell whether every dimension is a number."""
        for d in self.shape:  # noqa: SIM110  (`all` of a generator takes far longer, and this is asked a lot)
            if isinstance(d, str):
                return False
        return True

    @property
    def has_open_rank(self) -> bool:
        """Tell whether a session binds the number of dimensions, too."""
        return self.shape == (OPEN_RANK,)

    @property
    def dims(self) -> Shape:
        """Return the shape as numbers; only for a static spec."""
        for d in self.shape:
            if type(d) is not int:
                assert self.is_static, f"shape {self.shape} still has symbolic dimensions"
                return tuple(integer(d) for d in self.shape)
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Return the number of elements of a static spec."""
        return prod(self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{'x'.join(map(str, self.shape))}]"


class SequenceSpec(TensorSpec):
    """A sequence of tensors of a type, or an optional, as an input of a graph. The session holds it; no backend does.

    Its shape is empty.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"sequence or optional of {self.dtype.value}"


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor of a session: what it holds, and where.

    `shape` is logical (channels second); `layout` is the storage order. `memory` is what the owning `backend` stored
    there in `onAcquireBuffer`; if `backend` is None, the tensor is on the host and `memory` is a numpy array of the
    storage shape. `constant` is the logical value of a constant.
    """

    name: str
    shape: Shape
    dtype: DType
    layout: Layout = Layout.NCHW
    memory: Any = None
    backend: MemoryOwner | None = None
    constant: Array | None = None
    grid: Grid | None = None
    """Of a constant, its `TensorSpec.grid`. Of a tensor of int8: the floats that kernels take its elements for."""

    @classmethod
    def from_numpy(cls, array: Array, layout: Layout = Layout.NCHW, name: str = "") -> Tensor:
        """Return a host tensor with the value of a logical array, stored in `layout`."""
        array = np.asarray(array)
        return cls(name, array.shape, DType.of(array.dtype), layout, to_storage(array, layout))

    @classmethod
    def empty(cls, shape: Shape, dtype: DType, layout: Layout = Layout.NCHW, name: str = "") -> Tensor:
        """Return a host tensor with uninitialized storage."""
        return cls(name, shape, dtype, layout, np.empty(storage_shape(shape, layout), dtype.numpy))

    @property
    def quantised(self) -> Grid | None:
        """Return the grid of a tensor that holds its integers, None for any other; `grid` may be that of floats."""
        return None if self.grid is None or self.dtype.is_float or self.constant is not None else self.grid

    @property
    def storage_shape(self) -> Shape:
        """Return the shape of the stored array."""
        return self.shape if self.layout is Layout.NCHW else storage_shape(self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the stored array, padding lanes included."""
        if self.layout is Layout.NCHW:  # a resize asks many times, mostly about these
            return prod(self.shape) * self.dtype.itemsize
        return storage_size(self.shape, self.layout) * self.dtype.itemsize

    def numpy(self) -> Array:
        """Return the logical array; waits for a tensor on a device and copies it to the host first."""
        if self.backend is None:
            return from_storage(self.memory, self.shape, self.layout)
        host = Tensor.empty(self.shape, self.dtype, self.layout, self.name)
        self.backend.onCopyBuffer(self, host)
        return from_storage(host.memory, self.shape, self.layout)


def same_value(before: Array | None, now: Array | None) -> bool:
    """Tell whether two constants are equal, so that what was built from the first is still valid.

    Passes that compute constants (folded batch norms, fp16 weights) create new arrays at each resize.
    Comparing them costs less than packing and uploading them again.
    """
    if before is None or now is None or before is now:
        return before is now
    return before.dtype == now.dtype and before.shape == now.shape and np.array_equal(before, now)
