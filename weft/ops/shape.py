"""Ops that only change how a tensor is indexed, and the checks that shape rules share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypeVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, Op, standard_op
from weft.core.graph.symbolic import integer
from weft.core.graph.tensor import TensorSpec
from weft.core.host.parallel_copy import SMALLEST, copy_into
from weft.errors import ModelError, ValueNeeded

MAX_ELEMENTS = 2**32
MAX_RANK = 16
MAX_LISTED = 2**16
T = TypeVar("T")


def unfit(why: str) -> ModelError:
    """Return the error for inputs or attributes that do not fit."""
    return ModelError("the inputs do not fit", why=why)


def optional(values: Sequence[T | None], index: int) -> T | None:
    """Return the input at that position, None if it is missing."""
    return values[index] if index < len(values) else None


def given(values: Sequence[T | None], index: int) -> T:
    """Return the input at that position; ModelError if it is missing."""
    value = optional(values, index)
    if value is None:
        raise unfit(f"input {index} is missing")
    return value


def known(constants: Constants, index: int, name: str) -> Array:
    """Return the value of an input that decides a shape; ValueNeeded if it is computed at run time."""
    value = optional(constants, index)
    if value is None:
        raise ValueNeeded(
            "the shape of the result depends on a value computed at run time",
            why=f"input {index} ({name}) is not a constant",
            index=index,
        )
    return value


def known_ints(constants: Constants, index: int, name: str) -> Shape:
    """Return the integers of an input that decides a shape; exporters write them as a scalar or as one row, too."""
    value = known(constants, index, name)
    if value.size != (value.shape[-1] if value.ndim else 1) or value.size > MAX_LISTED or value.dtype.kind not in "iuO":
        raise ModelError(
            f"input {index} ({name}) is not a short list of integers",
            why=f"it is {value.dtype} of shape {value.shape}",
        )
    return ints(value)


def ints(values: Array) -> Shape:
    """Return the elements of an array as a tuple of Python's ints."""
    if values.dtype.kind in "iu":
        return tuple(values.reshape(-1).tolist())
    return tuple(integer(v) for v in values.reshape(-1))


def one_axis(axis: int, rank: int) -> int:
    """Return the axis counted from the front; ModelError if there is no such axis."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} does not exist", why=f"the tensor has rank {rank}")
    return axis % rank


def many_axes(axes: Sequence[int], rank: int) -> Shape:
    """Return the axes counted from the front; ModelError if one does not exist or is given twice."""
    out = tuple(one_axis(axis, rank) for axis in axes)
    if len(set(out)) < len(out):
        raise unfit(f"an axis is given twice in {tuple(axes)}")
    return out


def sized(shape: Sequence[int], dtype: DType) -> TensorSpec:
    """Return the spec of a result; ModelError if no machine could hold it."""
    if len(shape) > MAX_RANK or any(d < 0 for d in shape) or prod(max(d, 1) for d in shape) > MAX_ELEMENTS:
        why = f"{tuple(shape)} (at most {MAX_RANK} dimensions and {MAX_ELEMENTS} elements)"
        fix = "give the inputs smaller shapes, or mend what the model says of its sizes"
        raise ModelError("the result has an impossible shape", why=why, fix=fix)
    return TensorSpec(tuple(shape), dtype)


def one_type(*specs: TensorSpec | None) -> DType:
    """Return the element type that all the given specs share; ModelError if they differ."""
    types = {spec.dtype: None for spec in specs if spec is not None}
    if len(types) != 1:
        raise ModelError("the inputs must have one element type", why=", ".join(t.value for t in types))
    return next(iter(types))


@standard_op(most_inputs=2, flags=("allowzero",))
class Reshape(MovingOp):
    """The same elements in the same order under another shape; inputs data, shape."""

    allowzero: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        return (TensorSpec(self.target(x.dims, known_ints(constants, 1, "shape")), x.dtype),)

    def target(self, dims: Shape, wanted: Shape) -> Shape:
        """Return the new shape: zeros copied from `dims`, one -1 filled in."""
        shape = list(wanted)
        for axis, size in enumerate(shape):
            if size == 0 and not self.allowzero:
                if axis >= len(dims):
                    raise unfit(f"shape {wanted} copies dimension {axis} of {dims}, which does not exist")
                shape[axis] = dims[axis]
        if any(size < -1 for size in shape) or shape.count(-1) > 1:
            raise ModelError(f"shape {wanted} is invalid", why="sizes are natural, and at most one is -1")
        if -1 in shape:
            rest = prod(size for size in shape if size != -1)
            shape[shape.index(-1)] = prod(dims) // rest if rest else 0
        if prod(shape) != prod(dims):
            raise ModelError(f"{dims} does not reshape to {wanted}", why=f"{prod(dims)} elements")
        return sized(shape, DType.BOOL).dims

    def reference(self, *inputs: Array | None) -> Array:
        return given(inputs, 0).reshape(self.target(given(inputs, 0).shape, ints(given(inputs, 1))))


@standard_op(most_inputs=1)
class Flatten(MovingOp):
    """The matrix whose rows are indexed by the axes before `axis`."""

    axis: int = 1

    def _split(self, dims: Shape) -> Shape:
        at = len(dims) if self.axis == len(dims) else one_axis(self.axis, len(dims))
        return (prod(dims[:at]), prod(dims[at:]))

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        return (TensorSpec(self._split(x.dims), x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return x.reshape(self._split(x.shape))


@standard_op(most_inputs=2)
class Squeeze(MovingOp):
    """The tensor without some axes of size one (default: without all of them); inputs data, axes."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        axes = None if optional(inputs, 1) is None else known_ints(constants, 1, "axes")
        return (TensorSpec(self._shape(x.dims, axes), x.dtype),)

    def _shape(self, dims: Shape, axes: Shape | None) -> Shape:
        if axes is None:
            return tuple(d for d in dims if d != 1)
        gone = {one_axis(axis, len(dims)) for axis in axes}
        if any(dims[axis] != 1 for axis in gone):
            raise unfit(f"axes {axes} of shape {dims} are not all of size one")
        return tuple(d for axis, d in enumerate(dims) if axis not in gone)

    def reference(self, *inputs: Array | None) -> Array:
        x, axes = given(inputs, 0), optional(inputs, 1)
        return x.reshape(self._shape(x.shape, None if axes is None else ints(axes)))


@standard_op(most_inputs=2)
class Unsqueeze(MovingOp):
    """The tensor with axes of size one inserted; inputs data, axes (positions in the result)."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        return (sized(self._shape(x.dims, known_ints(constants, 1, "axes")), x.dtype),)

    def _shape(self, dims: Shape, axes: Shape) -> Shape:
        rank = len(dims) + len(axes)
        new, rest = many_axes(axes, rank), iter(dims)
        return tuple(1 if axis in new else next(rest) for axis in range(rank))

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return x.reshape(self._shape(x.shape, ints(given(inputs, 1))))


@standard_op(most_inputs=1)
class Transpose(MovingOp):
    """The tensor with its axes in the order `perm` (default: reversed)."""

    perm: tuple[int, ...] = ()

    def order(self, rank: int) -> Shape:
        """Return the input's axes in the output's order; ModelError if `perm` is not an order of `rank` axes."""
        if not self.perm:
            return tuple(reversed(range(rank)))
        if sorted(self.perm) != list(range(rank)):
            raise unfit(f"perm {self.perm} is not an order of {rank} axes")
        return self.perm

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        return (TensorSpec(tuple(x.dims[axis] for axis in self.order(len(x.dims))), x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        moved = x.transpose(self.order(x.ndim))
        if moved.nbytes < SMALLEST or moved.flags.c_contiguous:
            return np.asarray(moved, order="C")
        made = np.empty(moved.shape, moved.dtype)
        copy_into(made, moved)
        return made


@standard_op(most_inputs=2)
class Expand(MovingOp):
    """The tensor broadcast together with a shape; inputs data, shape."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, wanted = given(inputs, 0), known_ints(constants, 1, "shape")
        rank = max(len(x.dims), len(wanted))
        pairs = zip((1,) * (rank - len(x.dims)) + x.dims, (1,) * (rank - len(wanted)) + wanted, strict=True)
        shape = [a if b == 1 else b for a, b in pairs if a == b or 1 in (a, b)]
        if len(shape) < rank:
            raise unfit(f"{x.dims} and {wanted} do not broadcast together")
        return (sized(shape, x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, wanted = given(inputs, 0), ints(given(inputs, 1))
        return np.asarray(np.broadcast_to(x, np.broadcast_shapes(x.shape, wanted)), order="C")


@standard_op(most_inputs=2)
class Tile(MovingOp):
    """The tensor repeated along each axis; inputs data, repeats."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, repeats = given(inputs, 0), known_ints(constants, 1, "repeats")
        if len(repeats) != len(x.dims) or any(r < 0 for r in repeats):
            raise unfit(f"repeats {repeats} must be one natural number for each axis of {x.dims}")
        return (sized([d * r for d, r in zip(x.dims, repeats, strict=True)], x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        return np.tile(given(inputs, 0), ints(given(inputs, 1)))


@standard_op(most_inputs=1)
class Identity(MovingOp):
    """Its input, unchanged."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (given(inputs, 0),)

    def reference(self, *inputs: Array | None) -> Array:
        return given(inputs, 0)


@standard_op(most_inputs=3)
class Dropout(MovingOp):
    """Its input unchanged, as in inference, and a mask of ones; inputs data, ratio, training_mode.

    `outputs` is the number of outputs of the node.
    """

    seed: int | None = None
    outputs: int = 1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if optional(inputs, 2) is not None and known(constants, 2, "training_mode").any():
            raise ModelError(
                "training mode is not supported",
                why="Weft runs inference alone",
                fix="export the model in evaluation mode (model.eval() in PyTorch), or make training_mode false",
            )
        return (x, TensorSpec(x.shape, DType.BOOL))[: max(self.outputs, 1)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = given(inputs, 0)
        return (x, np.ones(x.shape, np.bool_)) if self.outputs > 1 else (x,)


@standard_op(type="Shape", reads_shape=True, most_inputs=1)
class ShapeOf(Op):
    """The sizes of the axes from `start` to before `end`, as int64."""

    start: int = 0
    end: int | None = None

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        dims = given(inputs, 0).dims
        return (TensorSpec((len(dims[self._part(len(dims))]),), DType.INT64),)

    def _part(self, rank: int) -> slice:
        def clamp(at: int) -> int:
            return min(max(at + rank if at < 0 else at, 0), rank)

        return slice(clamp(self.start), rank if self.end is None else clamp(self.end))

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return np.array(x.shape[self._part(x.ndim)], np.int64)


@standard_op(reads_shape=True, most_inputs=1)
class Size(Op):
    """The number of elements, as an int64 scalar."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        given(inputs, 0)
        return (TensorSpec((), DType.INT64),)

    def reference(self, *inputs: Array | None) -> Array:
        return np.array(given(inputs, 0).size, np.int64)


@standard_op(by_image=True, most_inputs=1)
class DepthToSpace(MovingOp):
    """Blocks of channels laid out as square blocks of pixels."""

    blocksize: int
    mode: Literal["DCR", "CRD"] = "DCR"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        n, c, h, w = image(given(inputs, 0))
        b = self.blocksize
        if b < 1 or c % (b * b) or self.mode not in ("DCR", "CRD"):
            raise unfit(f"{c} channels are not blocks of {b}x{b} in mode {self.mode!r}")
        return (TensorSpec((n, c // (b * b), h * b, w * b), given(inputs, 0).dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, b = given(inputs, 0), self.blocksize
        n, c, h, w = x.shape
        d = c // (b * b)
        if self.mode == "DCR":
            return x.reshape(n, b, b, d, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, d, h * b, w * b)
        return x.reshape(n, d, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, d, h * b, w * b)


@standard_op(by_image=True, most_inputs=1)
class SpaceToDepth(MovingOp):
    """Square blocks of pixels laid out as blocks of channels."""

    blocksize: int
    mode: Literal["DCR", "CRD"] = "DCR"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        n, c, h, w = image(given(inputs, 0))
        b = self.blocksize
        if b < 1 or h % b or w % b or self.mode not in ("DCR", "CRD"):
            raise unfit(f"{h}x{w} pixels are not blocks of {b}x{b} in mode {self.mode!r}")
        return (TensorSpec((n, c * b * b, h // b, w // b), given(inputs, 0).dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, b = given(inputs, 0), self.blocksize
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // b, b, w // b, b)
        return blocks.transpose(self.order).reshape(n, c * b * b, h // b, w // b)

    @property
    def order(self) -> tuple[int, ...]:
        """Return the axes (n, c, h, row of a block, w, column of a block) in the order of the output."""
        return (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)


def image(spec: TensorSpec) -> Shape:
    """Return the four sizes of a batch of images; ModelError for another rank."""
    if len(spec.dims) != 4:
        raise unfit(f"shape {spec.dims} is not (batch, channels, height, width)")
    return spec.dims
