"""Concatenation and its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import MAX_LISTED, given, ints, known_ints, one_axis, one_type, optional, sized, unfit


@standard_op
class Concat(MovingOp):
    """All inputs, one after the other along `axis`."""

    axis: int

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        specs = [given(inputs, index) for index in range(max(len(inputs), 1))]
        first = specs[0].dims
        axis = one_axis(self.axis, len(first))
        for spec in specs:
            if len(spec.dims) != len(first) or _without(spec.dims, axis) != _without(first, axis):
                raise ModelError(
                    f"{spec.dims} and {first} do not join along axis {axis}",
                    why="all other sizes must be equal",
                )
        total = sum(spec.dims[axis] for spec in specs)
        return (sized((*first[:axis], total, *first[axis + 1 :]), one_type(*specs)),)

    def reference(self, *inputs: Array | None) -> Array:
        return np.concatenate([x for x in inputs if x is not None], axis=self.axis)


@standard_op(most_inputs=2)
class Split(MovingOp):
    """Parts of the input along `axis`, of the given or of equal sizes; inputs input, split.

    `outputs` is the number of outputs of the node; it stands in for `num_outputs` before opset 18.
    """

    axis: int = 0
    num_outputs: int = 0
    outputs: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        axis = one_axis(self.axis, len(x.dims))
        wanted = None if optional(inputs, 1) is None else known_ints(constants, 1, "split")
        sizes = self.sizes(x.dims[axis], wanted)
        return tuple(TensorSpec((*x.dims[:axis], size, *x.dims[axis + 1 :]), x.dtype) for size in sizes)

    def sizes(self, total: int, sizes: Shape | None) -> Shape:
        """Return the sizes of the parts; ModelError if they do not add up to the whole."""
        if sizes is None:
            count = self.num_outputs or self.outputs
            if not 1 <= count <= min(total or MAX_LISTED, MAX_LISTED):
                raise unfit(f"{total} elements cannot be split into {count} parts")
            each = -(-total // count)
            sizes = (each,) * (count - 1) + (total - each * (count - 1),)
        if not sizes or min(sizes) < 0 or sum(sizes) != total:
            raise unfit(f"parts of {sizes} do not make up {total} elements")
        if self.outputs and self.outputs != len(sizes):
            raise unfit(f"{len(sizes)} parts do not fit {self.outputs} outputs")
        return sizes

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, split = given(inputs, 0), optional(inputs, 1)
        axis = one_axis(self.axis, x.ndim)
        sizes = self.sizes(x.shape[axis], None if split is None else ints(split))
        parts = np.split(x, list(accumulate(sizes))[:-1], axis=axis)
        return tuple(np.asarray(part, order="C") for part in parts)


def _without(dims: Shape, axis: int) -> Shape:
    return dims[:axis] + dims[axis + 1 :]
