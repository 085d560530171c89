"""Tile, DepthToSpace and SpaceToDepth on GPUs: strided copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.tensor import Tensor
from weft.kernels.launch import GpuOp, KernelBuilder, gpu_op
from weft.ops.gpu.move import Strides, launch_move, row_major
from weft.ops.shape import DepthToSpace, SpaceToDepth, Tile


class _Rearrange(GpuOp):
    fuses_into_store = False
    moves_bits = True


@gpu_op(Tile)
class TileOnGpu(_Rearrange):
    """Reads each axis repeatedly, with step 0 between repetitions."""

    def launches(
        self, op: Tile, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch one copy."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        sizes: list[int] = []
        source: list[int] = []
        target: list[int] = []
        for axis, step in enumerate(row_major(x.shape)):
            size = max(x.shape[axis], 1)
            after = prod(y.shape[axis + 1 :])
            sizes += [y.shape[axis] // size, size]
            source += [0, step]
            target += [size * after, after]
        launch_move(k, x, y, tuple(sizes), Strides(tuple(source)), Strides(tuple(target)))


@gpu_op(DepthToSpace)
class DepthToSpaceOnGpu(_Rearrange):
    """Permutes the axes (n, b, b, c, h, w) of the input, or with CRD (n, c, b, b, h, w)."""

    def launches(
        self, op: DepthToSpace, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch one copy."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        b = op.blocksize
        n, c, height, width = x.shape
        d = c // (b * b)
        split, order = (
            ((n, b, b, d), (0, 3, 4, 1, 5, 2)) if op.mode == "DCR" else ((n, d, b, b), (0, 1, 4, 2, 5, 3))
        )
        _launch_permuted(k, x, y, (*split, height, width), order)


@gpu_op(SpaceToDepth)
class SpaceToDepthOnGpu(_Rearrange):
    """Permutes the axes (n, c, h, b, w, b) of the input."""

    def launches(
        self, op: SpaceToDepth, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch one copy."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        b = op.blocksize
        n, c, height, width = x.shape
        _launch_permuted(k, x, y, (n, c, height // b, b, width // b, b), op.order)


def _launch_permuted(
    k: KernelBuilder, x: Tensor, y: Tensor, split: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """Launch a copy of `x`, with its axes split into these sizes and then permuted."""
    steps = row_major(split)
    shape = tuple(split[a] for a in order)
    launch_move(k, x, y, shape, Strides(tuple(steps[a] for a in order)), Strides(row_major(shape)))
