"""Tile, DepthToSpace and SpaceToDepth on GPUs: strided copies."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.layout import row_major
from weft.kernels.gpu_op import Inputs, Outputs, gpu_op
from weft.ops.gpu.move import MoveOnGpu, Source, Strides
from weft.ops.shape import DepthToSpace, SpaceToDepth, Tile, given


@gpu_op(Tile)
class TileOnGpu(MoveOnGpu):
    """Reads each axis repeatedly, with step 0 between repetitions."""

    def sources(self, op: Tile, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        x, y = given(inputs, 0), outputs[0]
        sizes: list[int] = []
        steps: list[int] = []
        for axis, step in enumerate(row_major(x.shape)):
            size = max(x.shape[axis], 1)
            sizes += [y.shape[axis] // size, size]
            steps += [0, step]
        return [(tuple(sizes), Strides(tuple(steps)))]


@gpu_op(DepthToSpace)
class DepthToSpaceOnGpu(MoveOnGpu):
    """Permutes the axes (n, b, b, c, h, w) of the input, or with CRD (n, c, b, b, h, w)."""

    def sources(self, op: DepthToSpace, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        x = given(inputs, 0)
        b = op.blocksize
        n, c, height, width = x.shape
        d = c // (b * b)
        split, order = (
            ((n, b, b, d), (0, 3, 4, 1, 5, 2)) if op.mode == "DCR" else ((n, d, b, b), (0, 1, 4, 2, 5, 3))
        )
        return [_permuted((*split, height, width), order)]


@gpu_op(SpaceToDepth)
class SpaceToDepthOnGpu(MoveOnGpu):
    """Permutes the axes (n, c, h, b, w, b) of the input."""

    def sources(self, op: SpaceToDepth, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        x = given(inputs, 0)
        b = op.blocksize
        n, c, height, width = x.shape
        return [_permuted((n, c, height // b, b, width // b, b), op.order)]


def _permuted(split: tuple[int, ...], order: tuple[int, ...]) -> Source:
    """Return the axes of a value, split into these sizes and then permuted."""
    steps = row_major(split)
    return tuple(split[a] for a in order), Strides(tuple(steps[a] for a in order))
