"""Reading images at places that a grid gives, and the grids of affine transforms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, ints, known_ints, sized, unfit

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""How many places along an axis each mode reads."""
CUBIC = -0.75
"""The parameter of Keys' cubic convolution that ONNX fixes for GridSample."""
FAR = 1e7
"""A coordinate beyond this, or one that is no number, is taken for one there."""


@standard_op(op_class="reduction", most_inputs=2, wide_inputs=(1,), flags=("align_corners",))
class GridSample(Op):
    """Images read at the places in a grid; inputs X (N, C, sizes), grid (N, places, rank).

    A place is in units of half an image, from -1 to 1, the last axis first. Pixels outside are zero, the nearest
    inside, or mirrored at the border.
    """

    # Interpolation weights come from rounded coordinates, so the error grows with the coordinate.
    align_corners: int = 0
    mode: str = "linear"
    padding_mode: str = "zeros"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, grid = given(inputs, 0), given(inputs, 1)
        if self.mode not in TAPS or self.padding_mode not in ("zeros", "border", "reflection"):
            raise unfit(f"mode {self.mode!r} with padding_mode {self.padding_mode!r} is unknown")
        rank = len(x.dims) - 2
        if rank not in (1, 2, 3) or len(grid.dims) != rank + 2 or grid.dims[-1] != rank or grid.dims[0] != x.dims[0]:
            raise unfit(f"a grid of shape {grid.dims} does not fit images of shape {x.dims}")
        if not grid.dtype.is_float or not (x.dtype.is_float or self.mode == "nearest"):
            raise ModelError(
                f"{self.mode} sampling of {x.dtype.value} at places of {grid.dtype.value} is not supported",
                why="places are floats, and only floats are interpolated",
            )
        if min(x.dims[2:]) < 1:
            raise unfit(f"images of shape {x.dims} have no pixels")
        return (sized((*x.dims[:2], *grid.dims[1:-1]), x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each pixel that is read."""
        return 2 * prod(outputs[0]) * int(TAPS[self.mode] ** (len(outputs[0]) - 2))

    def coordinate(self, at: Array, length: int) -> Array:
        """Return places as positions of pixels along an axis."""
        if self.align_corners:
            return np.asarray((at + 1) * at.dtype.type((length - 1) / 2))
        return np.asarray(((at + 1) * at.dtype.type(length) - 1) / 2)

    def taps(self, at: Array) -> list[tuple[Array, Array]]:
        """Return the pixels that are read along an axis, each with its weight, for positions of pixels."""
        at = np.nan_to_num(np.clip(at, -FAR, FAR), nan=-FAR)
        if self.mode == "nearest":
            return [(np.rint(at), np.ones_like(at))]
        first = np.floor(at)
        part = at - first
        if self.mode == "linear":
            return [(first, 1 - part), (first + 1, part)]
        far, near = _far(part + 1), _near(part)
        return [(first - 1, far), (first, near), (first + 1, _near(1 - part)), (first + 2, _far(2 - part))]

    def inside(self, at: Array, length: int) -> tuple[Array, Array]:
        """Return the pixels that stand for whole positions, and which positions count at all."""
        if self.padding_mode == "zeros":
            return at.clip(0, length - 1).astype(np.int64), (at >= 0) & (at < length)
        if self.padding_mode == "reflection":
            # Mirrors lie on the outermost pixels, or half a pixel beyond them: whole positions stay whole.
            low, span = (0, length - 1) if self.align_corners else (-0.5, length)
            if span == 0:
                at = np.zeros_like(at)
            else:
                distance = np.mod(at - low, 2 * span)
                at = np.minimum(distance, 2 * span - distance) + low
        return at.clip(0, length - 1).astype(np.int64), np.ones(at.shape, np.bool_)

    def reference(self, *inputs: Array | None) -> Array:
        x, grid = given(inputs, 0), given(inputs, 1)
        wide = grid.astype(np.float32) if grid.dtype == np.float16 else grid
        lengths = x.shape[2:]
        axes = []
        for axis, length in enumerate(lengths):
            at = self.coordinate(wide[..., len(lengths) - 1 - axis], length)
            axes.append([(*self.inside(place, length), weight) for place, weight in self.taps(at)])
        batch = np.arange(x.shape[0]).reshape(-1, *(1,) * len(lengths))
        if self.mode == "nearest":
            found = _read(x, batch, *((axis[0][0], axis[0][1]) for axis in axes))
            return np.ascontiguousarray(np.moveaxis(found, -1, 1))
        out = np.zeros((*grid.shape[:-1], x.shape[1]), np.promote_types(x.dtype, np.float32))
        for combination in product(*axes):
            weight = np.prod([w for _, _, w in combination], axis=0)
            found = _read(x, batch, *((place, valid) for place, valid, _ in combination))
            with np.errstate(invalid="ignore"):  # an infinite pixel may have no weight
                out += found * weight[..., None].astype(out.dtype)
        return np.ascontiguousarray(np.moveaxis(out, -1, 1)).astype(x.dtype)


def _read(x: Array, batch: Array, *axes: tuple[Array, Array]) -> Array:
    """Return the elements of all channels at places along the axes behind them, 0 where one does not count.

    An axis is its places and whether each counts; the channels come last.
    """
    index: tuple[Any, ...] = (batch, slice(None), *(place for place, _ in axes))
    counts = np.logical_and.reduce([valid for _, valid in axes])
    return np.where(counts[..., None], x[index], np.zeros((), x.dtype))


def _near(d: Array) -> Array:
    """Return the weight of a sample at a distance of at most 1."""
    return np.asarray(((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1, d.dtype)


def _far(d: Array) -> Array:
    """Return the weight of a sample at a distance of 1 to 2."""
    return np.asarray(((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC, d.dtype)


@standard_op(op_class="reduction", most_inputs=2, flags=("align_corners",))
class AffineGrid(Op):
    """The grid that maps the pixels of an output to places in the input; inputs theta (N, rank, rank + 1), size."""

    align_corners: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        theta, size = given(inputs, 0), known_ints(constants, 1, "size")
        rank = len(size) - 2
        if rank not in (2, 3) or theta.dims != (size[0], rank, rank + 1) or not theta.dtype.is_float:
            raise unfit(f"transforms {theta} do not fit a size of {size}")
        return (sized((size[0], *size[2:], rank), theta.dtype),)

    def places(self, sizes: Shape, dtype: np.dtype) -> Array:
        """Return (pixels, rank + 1): the place of each pixel of the output, the last axis first, and a one."""
        axes = []
        for length in sizes:
            at = np.arange(length, dtype=dtype)
            if self.align_corners:
                axes.append(np.linspace(-1, 1, length, dtype=dtype))
            else:
                axes.append((2 * at + 1) / dtype.type(length) - 1)
        grids = np.meshgrid(*axes, indexing="ij")
        columns = [*(g.reshape(-1) for g in reversed(grids)), np.ones(prod(sizes), dtype)]
        return np.stack(columns, axis=1).astype(dtype)

    def reference(self, *inputs: Array | None) -> Array:
        theta, size = given(inputs, 0), ints(given(inputs, 1))
        wide = theta.astype(np.promote_types(theta.dtype, np.float32))
        grid = self.places(size[2:], wide.dtype) @ wide.transpose(0, 2, 1)
        return np.asarray(grid.reshape(size[0], *size[2:], len(size) - 2), theta.dtype)


@decomposition("AffineGrid")
def _affine_grid(op: AffineGrid, make: Body, node: Node) -> Sequence[str]:
    theta, _ = node.inputs
    lengths = make.dims(node.outputs[0])[1:-1]
    dtype = make.dtype(theta).numpy
    places = make.constant(op.places(lengths, np.promote_types(dtype, np.float32)).astype(dtype))
    grid = make.add("MatMul", places, make.add("Transpose", theta, perm=(0, 2, 1)))
    return [make.reshape(grid, *make.dims(node.outputs[0]))]
