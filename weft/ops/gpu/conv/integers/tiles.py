"""Convolution as an implicit GEMM of integers: products of four bytes at a time, summed in 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.special import register_family
from weft.ops.gpu.conv.cases import quantised_conv
from weft.ops.gpu.conv.gemm.item_tile import ItemTile
from weft.ops.gpu.conv.gemm.split_k import Sums, TileWork
from weft.ops.gpu.conv.integers.ranking import IntegerGemm
from weft.ops.gpu.conv.integers.weights import INTEGERS
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

DEPTH = 8
"""Blocks of four input channels that a group stages at a time, of which packed weights have a multiple."""


@dataclass(frozen=True)
class IntegerTile(ItemTile):
    """How a work-group of integers divides its work."""

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: two steps of both operands, and the sums of all slices but one."""
        staged = 2 * DEPTH * (self.rows + PACK + PACK * self.columns)
        return 4 * (self.lz * staged + max((self.lz - 1) * self.rows * self.columns * PACK, 1))


TILES = (
    IntegerTile(8, 2, 16, 8),
    IntegerTile(8, 2, 8, 8),
    IntegerTile(4, 2, 8, 8),
    IntegerTile(4, 1, 8, 8),
    IntegerTile(4, 1, 8, 8, 4),
    IntegerTile(2, 1, 8, 8, 4),
    IntegerTile(2, 1, 8, 4, 8),
)
"""From the best reuse to the most parallelism."""
SOFTWARE_TILE = IntegerTile(4, 1, 8, 8)


def why_not_of_integers(problem: ConvProblem) -> str | None:
    """Return why a convolution is none of integers."""
    if not problem.read is problem.weights is DType.INT8:
        return "its image and its weights are not both stored as integers of eight bits"
    return None


def steps_of(problem: ConvProblem) -> int:
    """Return the steps along K: taps times blocks of input channels."""
    return -(-problem.taps * problem.blocks_in // DEPTH)


def pack_words(weight: Array, step: int, columns: int) -> Array:
    """Return int8 weights (co, ci, *taps) as words of four input channels: [tap][block of ci][co].

    Zeros fill the blocks, rows up to a multiple of `step`, and channels up to a multiple of `columns`.
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    blocks, width = -(-ci // PACK), -(-co // columns) * columns
    full = np.zeros((-(-taps * blocks // step) * step, width, PACK), np.int8)
    padded = np.zeros((co, blocks * PACK, taps), np.int8)
    padded[:, :ci] = weight.reshape(co, ci, taps)
    words = padded.reshape(co, blocks, PACK, taps).transpose(3, 1, 0, 2)
    full[: taps * blocks, :co] = words.reshape(taps * blocks, co, PACK)
    return full.reshape(-1).view(np.uint32)


def words_of(plan: ConvPlan, step: int, columns: int, key: str) -> Tensor:
    """Return the packed weights as they lie in device memory."""
    p = plan.problem
    rows = -(-p.taps * p.blocks_in // step) * step
    spec = TensorSpec((rows * -(-p.channels_out // columns) * columns,), DType.UINT32)
    return plan.k.constant(key, plan.packing(pack_words, step, columns), Layout.NCHW, spec)


class IntegerConv(IntegerGemm[IntegerTile]):
    """Items multiply and sum four bytes at a time, by one instruction."""

    name = INTEGERS

    def why_not(self, problem: ConvProblem) -> str | None:
        """Return None: `why_not_of_integers` has asked everything."""
        return None

    def tiles(self, problem: ConvProblem) -> tuple[IntegerTile | None, Sequence[IntegerTile]]:
        caps, steps = problem.caps, steps_of(problem)
        if caps.software:
            return SOFTWARE_TILE, [SOFTWARE_TILE]
        fitting = [t for t in TILES if t.fits(caps, steps)]
        return (fitting[0] if fitting else None), fitting

    def resident(self, problem: ConvProblem, tile: IntegerTile) -> int:
        model, registers = problem.caps.model, PACK * tile.pixels * tile.blocks + 50
        return max(model.side_by_side(tile.items, registers, tile.shared_bytes()), 1)

    def words_of_round(self, tile: IntegerTile) -> int:
        return DEPTH * tile.lz * tile.rows * tile.columns * PACK

    def work(self, problem: ConvProblem, tile: IntegerTile) -> TileWork:
        steps, pixels, blocks = steps_of(problem), problem.pixels, problem.blocks
        groups = -(-pixels // tile.rows) * -(-blocks // tile.columns)
        read = 4 * DEPTH * steps * (tile.rows + PACK * tile.columns)
        return TileWork(groups, -(-steps // tile.lz), read, pixels * problem.channels_out)

    def multiply(self, plan: ConvPlan, tile: IntegerTile, sums: Sums) -> None:
        k, p, integers = plan.k, plan.problem, plan.integers
        assert integers is not None
        tiles = -(-p.pixels // tile.rows)
        k.launch(
            INTEGERS,
            reads={
                "x": plan.x, "w": words_of(plan, DEPTH, PACK, "words"), "scales": integers.scales(k),
                "shifts": integers.shifts(k), **sums.bias,
            },
            writes={"y": sums.target},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": steps_of(p), "PIXELS": p.pixels, "COUNT": p.blocks,
                "TILES": tiles, "PADDING": integers.padding, **sums.ints,
            },
            variant={
                "rp": tile.pixels, "rc": tile.blocks, "lx": tile.lx, "ly": tile.ly, "depth": DEPTH,
                "pointwise": p.pointwise, "last": p.layout is Layout.NHWC4, **sums.variant,
            },
            kinds={"w": "raw16"},
            grid=(min(tiles, k.caps.max_grid[0]), -(-p.blocks // tile.columns), sums.parts),
            local=(tile.lx, tile.ly, tile.lz),
            epilogue=sums.epilogue,
        )


register_family(
    INTEGERS, "convolutions of integers of eight bits",
    cases=lambda: (
        quantised_conv((2, 7, 10, 12), (5, 7, 3, 3), pads=(1, 1, 1, 1)),
        quantised_conv((2, 17, 9, 7), (6, 17, 2, 3), strides=(2, 3), pads=(0, 1, 1, 2), dilations=(2, 1)),
        quantised_conv((1, 64, 7, 5), (70, 64, 1, 1)),
    ),
    forced=lambda caps: replace(caps, dot8=True), claimed=lambda caps: caps.int8_storage,
    fallback="convolutions of floats",
)
