"""Convolution on matrix units: the implicit GEMM in tiles of 16 x 16, fp16 products summed in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.algorithms import Algorithm, Candidate, Facts, candidates_of
from weft.kernels.launch import PIECE, DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.conv.sum_parts import (
    InParts,
    Sums,
    Work,
    better,
    by_turns,
    offer_parts,
    tile_and_parts,
    time_of,
)

SUBGROUP = 32
SIDE = 16
"""Rows and columns of the tiles that a subgroup multiplies."""


@dataclass(frozen=True)
class MatrixTile:
    """How a work-group divides its work.

    A subgroup holds `fm` x `fn` tiles of sums; `sm` x `sn` subgroups make the group's tile; `lz` such sets
    take turns in K and are summed at the end. A step stages `kb` blocks of four input channels. All items
    fetch alike: 64 * sm * sn divides both `rows` * kb and `columns` * kb.
    """

    fm: int
    fn: int
    sm: int
    sn: int
    lz: int = 1
    kb: int = 8

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return SIDE * self.fm * self.sm

    @property
    def columns(self) -> int:
        """Return the output channels of a group."""
        return SIDE * self.fn * self.sn

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return SUBGROUP * self.sm * self.sn * self.lz

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: staged tiles, and the sums of all slices but one."""
        staged = self.rows * (self.kb + 2) + PACK * self.kb * (self.columns // PACK + 2)
        return 8 * self.lz * staged + 4 * (self.lz - 1) * self.rows * self.columns


TILES = (
    MatrixTile(2, 2, 4, 2),
    MatrixTile(2, 2, 2, 4, 1, 16),
    MatrixTile(2, 2, 2, 2),
    MatrixTile(2, 1, 2, 2),
    MatrixTile(2, 1, 2, 2, 2),
    MatrixTile(1, 1, 2, 2, 4),
    MatrixTile(1, 1, 2, 2, 2),
    MatrixTile(1, 1, 1, 2, 8),
    MatrixTile(1, 1, 1, 2, 4),
    MatrixTile(1, 1, 1, 1, 8),
)
"""From the best reuse to the most parallelism; tiles of 128 x 128 were slower on an H200."""


COST = 0.5
"""The usual share of the portable kernel's time."""


def _cases() -> Sequence[Case]:
    """Return uneven convolutions, with and without taps, with few steps of K, many, and enough for groups to share."""
    shapes = (
        ((2, 13, 9, 7), (20, 13, 1, 1)),
        ((1, 24, 10, 6), (40, 24, 3, 3)),
        ((1, 260, 4, 5), (36, 260, 3, 3)),
        ((1, 1164, 3, 4), (24, 1164, 3, 3)),
    )
    return [conv_case(x, w) for x, w in shapes]


SPECIAL = register_special(
    SpecialKernel(
        "conv_matrix",
        "convolutions on matrix units",
        present=lambda caps: caps.matrix_units,
        disable=lambda caps: replace(caps, matrix_units=False, channels_last=False),
        cases=_cases,
        template="conv_matrix",
    )
)


def why_not_halves(problem: ConvProblem) -> str | None:
    """Return why matrix units do not take a convolution in fp16, or its packed weights do not fit an argument."""
    if not problem.ungrouped:
        return "it has groups or three dimensions"
    if not problem.caps.matrix_units:
        return "the device has no matrix units, or they are wrong"
    if not problem.read is problem.weights is DType.FLOAT16:
        return "it is not in fp16"
    if not problem.loads_vectors:
        return "its image is not packed, or is pooled as it is loaded"
    depth = problem.taps * (problem.channels_in + PACK) + PACK * max(t.kb for t in TILES)
    width = problem.channels_out + max(t.columns for t in TILES)
    if not problem.whole or depth * width * problem.weights.itemsize > problem.caps.max_buffer_range:
        return "its weights exceed what one kernel argument may span"
    return None


def facts_of_halves(problem: ConvProblem) -> Facts:
    """Return what tuning tables find a problem by.

    A view of channels may lie so that fewer can be moved at a time: that is another problem.
    """
    found = dict(problem.facts_by_channels())
    lies = ("x", problem.channels_in, problem.read_pieces), ("y", problem.channels_out, problem.written_pieces)
    for name, channels, in_pieces in lies:
        if in_pieces is not (channels % PIECE == 0):
            found[f"{name}_pieces"] = False
    return found


def legal_tiles(caps: DeviceCaps, k: int) -> list[MatrixTile]:
    """Return the tiles that the device takes; those with slices of K only where there are steps for each."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes() <= caps.local_memory
        and (t.lz == 1 or -(-k // (PACK * t.kb)) >= 2 * t.lz)
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, k: int) -> MatrixTile:
    """Return the tile with the most reuse that gives every compute unit a group; slices of K come last."""
    fitting = legal_tiles(caps, k)
    for tile in fitting:
        if -(-pixels // tile.rows) * -(-channels // tile.columns) >= caps.compute_units:
            return tile
    return fitting[-1]


def pack_weights(weight: Array, tile: MatrixTile) -> Array:
    """Return weights (co, ci, *kernel) as rows of output channels: [tap][ci][co].

    Rows are padded with zeros to whole steps and columns to whole tiles, so that the kernel needs no bounds.
    The result is the logical array whose NC4HW4 form these rows are.
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    ci4 = -(-ci // PACK)
    step, width = PACK * tile.kb, -(-co // tile.columns) * tile.columns
    full = np.zeros((taps, ci4 * PACK, width), weight.dtype)
    full[:, :ci, :co] = weight.reshape(co, ci, taps).transpose(2, 1, 0)
    rows = full.reshape(-1, width // SIDE, SIDE)
    # An item of a subgroup gets columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a tile: those are four channels in a row.
    order = np.array([8 * (c // 2 % 2) + 2 * (c // 4) + c % 2 for c in range(SIDE)])
    out = np.zeros((-(-rows.shape[0] // step) * step, width // SIDE, SIDE), weight.dtype)
    out[: rows.shape[0], :, order] = rows
    return out.reshape(1, -1, PACK).transpose(0, 2, 1)


def work_of(pixels: int, channels: int, depth: int, tile: MatrixTile) -> Work:
    """Return what a tile leaves to do, for `sum_parts`."""
    groups, steps = -(-pixels // tile.rows) * -(-channels // tile.columns), -(-depth // (PACK * tile.kb))
    read = 2 * PACK * tile.kb * steps * (tile.rows + tile.columns)
    return Work(groups, -(-steps // tile.lz), read, pixels * channels)


class MatrixConv(Algorithm[ConvProblem, ConvPlan, "MatrixTile | InParts[MatrixTile]"]):
    """Subgroups multiply tiles that the work-group stages."""

    name = "conv_matrix"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Take all that its rivals are asked about."""
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tile of the most reuse that gives every unit a group, or one in parts that beats it; the rest."""
        caps, sizes = problem.caps, (problem.pixels, problem.channels_out, problem.depth)
        work = partial(work_of, *sizes)
        legal = legal_tiles(caps, problem.depth)
        if not legal:
            return []
        parted = offer_parts(caps, legal, work)
        best = better(caps, choose_tile(caps, *sizes), parted, work)
        return candidates_of([best, *by_turns(parted, legal)], partial(time_of, caps, work), COST)

    def launch(self, plan: ConvPlan, tile: MatrixTile | InParts[MatrixTile]) -> None:
        """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
        k, p, (chosen, parts) = plan.k, plan.problem, tile_and_parts(tile)
        pack = partial(pack_weights, plan.weight, chosen)
        packed = k.constant(f"matrix.{chosen.columns}.{chosen.kb}", pack, Layout.NC4HW4)
        tiles, across = -(-p.pixels // chosen.rows), -(-p.channels_out // chosen.columns)
        wide, steps = p.read_pieces, -(-p.depth // (PACK * chosen.kb))
        sums = Sums(plan, parts, -(-steps // chosen.lz))
        k.launch(
            "conv_matrix",
            reads={"x": plan.x, "w": packed, **sums.bias},
            writes={"y": sums.target},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": steps, "PIXELS": p.pixels,
                "COUNT": p.blocks, "TILES": tiles, "WIDTH": across * chosen.columns // PACK, **sums.ints,
            },
            variant={
                "fm": chosen.fm, "fn": chosen.fn, "sm": chosen.sm, "sn": chosen.sn, "kb": chosen.kb,
                "pointwise": p.pointwise, "sliced": chosen.lz > 1, "wide": wide, **sums.variant,
            },
            kinds={"x": "wide", "w": "wide"} if wide else None,
            grid=(min(tiles, k.caps.max_grid[0]), across, parts),
            local=(SUBGROUP, chosen.sm * chosen.sn, chosen.lz),
            epilogue=sums.epilogue,
        )  # fmt: skip
        sums.finish()
