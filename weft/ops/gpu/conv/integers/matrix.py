"""Convolution of integers on matrix units: tiles of 16 x 8 sums, 32 products of bytes each, by subgroups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.matrix_shapes import BYTES
from weft.kernels.source import SUBGROUP
from weft.kernels.special import register_special
from weft.ops.gpu.conv.cases import quantised_conv
from weft.ops.gpu.conv.gemm.split_k import Sums, TileWork
from weft.ops.gpu.conv.integers.ranking import IntegerGemm
from weft.ops.gpu.conv.integers.tiles import pack_words
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

DEPTH = 16
"""Blocks of four input channels that a group stages at a time: two steps of the instruction."""
PIECE = 16
"""Bytes that an item fetches at once, where channels lie so."""
SIDE, QUAD = 16, 32
"""Rows that an instruction takes, and columns of four of them, of which an item has eight adjacent channels."""
BUFFERS = 2
MOST_PRODUCT, FEW = 255 * 128, 1 << 22
"""The largest product of an integer less its zero point and a weight; and what sums of few of them are below."""


@dataclass(frozen=True)
class ByteTile:
    """How a work-group divides its work.

    A subgroup holds `fm` x `fq` times 16 x 32 sums; `sm` x `sn` subgroups make the group's tile; `lz` such sets take
    turns in K.
    """

    fm: int
    fq: int
    sm: int
    sn: int
    lz: int = 1

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return SIDE * self.fm * self.sm

    @property
    def columns(self) -> int:
        """Return the output channels of a group."""
        return QUAD * self.fq * self.sn

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return SUBGROUP * self.sm * self.sn * self.lz

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: two steps of both operands, and the sums of all slices but one."""
        staged = BUFFERS * (self.rows + self.columns) * PACK * (DEPTH + PACK)
        return self.lz * staged + 4 * (self.lz - 1) * self.rows * self.columns


TILES = (
    ByteTile(2, 2, 4, 2),
    ByteTile(2, 1, 4, 2),
    ByteTile(2, 1, 2, 2),
    ByteTile(1, 1, 2, 2),
    ByteTile(1, 1, 2, 1),
    ByteTile(1, 1, 2, 1, 2),
    ByteTile(1, 1, 1, 1, 4),
)
"""From the best reuse to the most parallelism."""
SPECIAL = register_special(
    "conv_int8_matrix",
    "convolutions of integers on matrix units",
    claimed=lambda caps: caps.int8_storage and has_units(caps),
    withdraw=lambda caps: caps.without_matrices(BYTES),
    cases=lambda: (
        quantised_conv((2, 7, 10, 12), (5, 7, 3, 3), pads=(1, 1, 1, 1)),
        quantised_conv((1, 64, 7, 5), (70, 64, 1, 1)),
        quantised_conv((2, 32, 9, 7), (40, 32, 3, 3), strides=(2, 1), pads=(1, 1, 1, 1)),
        quantised_conv((1, 1040, 3, 4), (24, 1040, 3, 3), pads=(1, 1, 1, 1)),
    ),
    template="conv_int8_matrix", forced=lambda caps: replace(caps, dot8=True),
)


def has_units(caps: DeviceCaps) -> bool:
    """Tell whether a device multiplies matrices of bytes, by instructions that OpenCL's kernels have (sm_80)."""
    return caps.multiplies(BYTES) and caps.asynchronous_copies


def pack_columns(weight: Array, width: int) -> Array:
    """Return int8 weights (co, ci, *taps) as words [step][column][word of the step], `width` columns a tile.

    A work-item gets columns 2t and 2t + 1 of four times eight columns: these become eight adjacent channels.
    """
    words = pack_words(weight, DEPTH, width)
    columns = -(-weight.shape[0] // width) * width
    place = np.arange(QUAD)
    channel = 8 * (place % 8 // 2) + 2 * (place // 8) + place % 2
    steps = words.reshape(-1, DEPTH, columns // QUAD, QUAD)[..., channel]
    return np.ascontiguousarray(steps.reshape(-1, DEPTH, columns).transpose(0, 2, 1)).reshape(-1)


def steps_of(problem: ConvProblem) -> int:
    """Return the steps along K."""
    return -(-problem.taps * problem.blocks_in // DEPTH)


class IntegerMatrixConv(IntegerGemm[ByteTile]):
    """Subgroups multiply tiles of bytes that the work-group stages in its memory."""

    name, on_matrix_units = "conv_int8_matrix", True

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse devices without such units."""
        if has_units(problem.caps):
            return None
        return "the device has no matrix units for bytes, or they failed their self-test"

    def tiles(self, problem: ConvProblem) -> tuple[ByteTile | None, Sequence[ByteTile]]:
        caps, steps = problem.caps, steps_of(problem)
        fitting = [
            t for t in TILES
            if t.items <= caps.max_local_items and t.shared_bytes() <= caps.local_memory
            and (t.lz == 1 or steps >= 2 * t.lz)
        ]
        return (fitting[0] if fitting else None), fitting

    def resident(self, problem: ConvProblem, tile: ByteTile) -> int:
        registers = PACK * PACK * tile.fm * tile.fq + 60
        return max(problem.caps.model.side_by_side(tile.items, registers, tile.shared_bytes()), 1)

    def words_of_round(self, tile: ByteTile) -> int:
        return DEPTH * tile.lz * tile.rows * tile.columns

    def work(self, problem: ConvProblem, tile: ByteTile) -> TileWork:
        steps = steps_of(problem)
        read = PACK * DEPTH * steps * (tile.rows + tile.columns)
        groups = problem.tiles(tile.rows, tile.columns)
        return TileWork(groups, -(-steps // tile.lz), read, problem.pixels * problem.channels_out)

    def multiply(self, plan: ConvPlan, tile: ByteTile, sums: Sums) -> None:
        k, p, integers = plan.k, plan.problem, plan.integers
        assert integers is not None
        tiles, across = -(-p.pixels // tile.rows), -(-p.channels_out // tile.columns)
        rows = k.rows(plan.x)
        wide = rows is not None and all(n % PIECE == 0 for n in (plan.x.shape[1], *rows))
        stored = k.rows(sums.target)
        even = stored is not None and all(n % (2 * PACK) == 0 for n in (p.channels_out, *stored))
        few = p.channels_in * p.taps * MOST_PRODUCT < FEW
        spec = TensorSpec((steps_of(p) * DEPTH * across * tile.columns,), DType.UINT32)
        packed = k.constant(
            f"columns.{tile.columns}", plan.packing(pack_columns, tile.columns), Layout.NCHW, spec
        )
        k.launch(
            "conv_int8_matrix",
            reads={"x": plan.x, "w": packed, "scales": integers.scales(k), "shifts": integers.shifts(k), **sums.bias},
            writes={"y": sums.target},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": steps_of(p), "PIXELS": p.pixels, "COUNT": p.blocks,
                "TILES": tiles, "WIDTH": across * tile.columns, "PADDING": integers.padding, **sums.ints,
            },
            variant={
                "fm": tile.fm, "fq": tile.fq, "sm": tile.sm, "sn": tile.sn, "kb": DEPTH, "pointwise": p.pointwise,
                "sliced": tile.lz > 1, "wide": wide, "last": p.layout is Layout.NHWC4, "even": even,
                "few": few, **sums.variant,
            },
            kinds={"w": "raw16"},
            grid=(min(tiles, k.caps.max_grid[0]), across, sums.parts),
            local=(SUBGROUP, tile.sm * tile.sn, tile.lz),
            epilogue=sums.epilogue,
        )


