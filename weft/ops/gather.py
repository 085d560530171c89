"""Ops that read or write at indices that another tensor gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, WritingOp, standard_op
from weft.core.graph.symbolic import integer
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, one_axis, one_type, optional, sized, unfit

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@standard_op(reads_part=True, most_inputs=2)
class Gather(MovingOp):
    """The slices along `axis` at the given indices; inputs data, indices."""

    axis: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places = given(inputs, 0), _indices(given(inputs, 1))
        axis = one_axis(self.axis, len(x.dims))
        check_range(optional(constants, 1), x.dims[axis])
        return (sized((*x.dims[:axis], *places.dims, *x.dims[axis + 1 :]), x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        return np.asarray(np.take(given(inputs, 0), given(inputs, 1).astype(np.int64, copy=False), axis=self.axis))


@standard_op(reads_part=True, most_inputs=2)
class GatherElements(MovingOp):
    """For each element of `indices` the element that it selects along `axis`; inputs data, indices."""

    axis: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places = given(inputs, 0), _indices(given(inputs, 1))
        axis = _along(self.axis, x.dims, places.dims)
        check_range(optional(constants, 1), x.dims[axis])
        return (TensorSpec(places.shape, x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, places = given(inputs, 0), given(inputs, 1)
        return x[_grid(places, x.shape, one_axis(self.axis, x.ndim))]


@standard_op(reads_part=True, most_inputs=2)
class GatherND(MovingOp):
    """The slices at the indices that the last axis of `indices` holds; inputs data, indices."""

    batch_dims: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places = given(inputs, 0).dims, _indices(given(inputs, 1)).dims
        b = self.batch_dims
        if not 0 <= b < min(len(x), len(places)) or x[:b] != places[:b] or not 0 <= places[-1] <= len(x) - b:
            raise unfit(f"indices of shape {places} with batch_dims {b} do not fit data of shape {x}")
        _check_ranges(optional(constants, 1), x[b:])
        return (sized(places[:-1] + x[b + places[-1] :], given(inputs, 0).dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, places = given(inputs, 0), given(inputs, 1)
        b, depth = self.batch_dims, places.shape[-1]
        if not depth:  # each index names all of its batch
            times = places.shape[b:-1]
            whole = x.reshape(x.shape[:b] + (1,) * len(times) + x.shape[b:])
            return np.tile(whole, (*(1,) * b, *times, *(1,) * (x.ndim - b)))
        index: list[Array] = []
        for axis in range(b):
            index.append(np.arange(x.shape[axis]).reshape(-1, *(1,) * (places.ndim - 2 - axis)))
        index += list(np.moveaxis(places, -1, 0))
        return np.asarray(x[tuple(index)])


@standard_op(most_inputs=3)
class ScatterElements(WritingOp):
    """Data with each update written at its index along `axis`; inputs data, indices, updates."""

    axis: int = 0
    reduction: str = "none"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places, updates = given(inputs, 0), _indices(given(inputs, 1)), given(inputs, 2)
        one_type(x, updates)
        _check_reduction(self.reduction)
        axis = _along(self.axis, x.dims, places.dims)
        check_range(optional(constants, 1), x.dims[axis])
        if places.dims != updates.dims:
            raise unfit(f"{places.dims} indices do not fit updates of shape {updates.dims}")
        return (x,)

    @property
    def in_place(self) -> bool:
        """Tell whether nothing is reduced."""
        return self.reduction == "none"

    def write(self, memory: Array, *inputs: Array | None) -> None:
        """Write the updates, or join them with what is there."""
        places, updates = given(inputs, 0), given(inputs, 1)
        _write(memory, _grid(places, memory.shape, one_axis(self.axis, memory.ndim)), updates, self.reduction)


@standard_op(most_inputs=3)
class ScatterND(WritingOp):
    """Data with each slice of updates written where `indices` says; inputs data, indices, updates."""

    reduction: str = "none"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places, updates = given(inputs, 0), _indices(given(inputs, 1)), given(inputs, 2)
        one_type(x, updates)
        _check_reduction(self.reduction)
        if not x.dims or not places.dims or places.dims[-1] > len(x.dims):
            raise unfit(f"indices of shape {places.dims} do not fit data of shape {x.dims}")
        if updates.dims != places.dims[:-1] + x.dims[places.dims[-1] :]:
            raise unfit(f"indices of shape {places.dims} do not fit updates of shape {updates.dims}")
        _check_ranges(optional(constants, 1), x.dims)
        return (x,)

    @property
    def in_place(self) -> bool:
        """Tell whether nothing is reduced."""
        return self.reduction == "none"

    def write(self, memory: Array, *inputs: Array | None) -> None:
        """Write the updates, or join them with what is there."""
        places, updates = given(inputs, 0), given(inputs, 1)
        if not places.shape[-1]:  # each index names all of the data
            _write(memory[None], (np.zeros(places.shape[:-1], np.int64),), updates, self.reduction)
        else:
            _write(memory, tuple(np.moveaxis(places, -1, 0)), updates, self.reduction)


def _indices(spec: TensorSpec) -> TensorSpec:
    if spec.dtype not in (DType.INT64, DType.INT32):
        raise ModelError(f"the indices are {spec.dtype.value}", why="int64 or int32 is needed")
    return spec


def check_range(places: Array | None, size: int) -> None:
    """Raise ModelError if a known index leaves its axis."""
    if places is not None and places.size and not -size <= integer(places.min()) <= integer(places.max()) < size:
        raise ModelError(f"the indices leave an axis of {size} elements", why=f"{places.min()} to {places.max()}")


def _check_ranges(places: Array | None, dims: Shape) -> None:
    if places is not None:
        for axis, size in zip(range(places.shape[-1]), dims, strict=False):
            check_range(places[..., axis], size)


def _check_reduction(name: str) -> None:
    if name != "none" and name not in REDUCTIONS:
        raise ModelError(f"reduction {name!r} is unknown", why=f"ONNX has none, {', '.join(REDUCTIONS)}")


def _along(axis: int, x: Shape, places: Shape) -> int:
    axis = one_axis(axis, len(x))
    pairs = zip(places, x, strict=False)
    if len(x) != len(places) or any(p > d for k, (p, d) in enumerate(pairs) if k != axis):
        raise unfit(f"indices of shape {places} do not fit data of shape {x}")
    return axis


def _grid(places: Array, dims: Shape, axis: int) -> tuple[Array, ...]:
    """Return an index that reads each element at its own position, except along `axis`."""
    index = list(np.ogrid[tuple(slice(size) for size in places.shape)])
    index[axis] = places
    return tuple(index)


def _write(memory: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> None:
    if reduction == "none":
        memory[index] = updates
        return
    wide = np.float32 if memory.dtype == np.float16 else memory.dtype
    joined = memory.astype(wide)
    REDUCTIONS[reduction].at(joined, index, updates.astype(wide, copy=False))  # type: ignore[attr-defined]
    memory[...] = joined
