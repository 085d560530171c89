"""Convolution on matrix units: the implicit GEMM in tiles of 16 x 16, fp16 products summed in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.chooser import Facts
from weft.kernels.cost_model import Effort
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import PIECE
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.source import SUBGROUP
from weft.kernels.special import register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.gemm.ranking import ImplicitGemm
from weft.ops.gpu.conv.gemm.split_k import InParts, Sums, TileWork, tile_and_parts
from weft.ops.gpu.conv.problem import COMPUTED, ConvPlan, ConvProblem, vectors_spec

MATRIX_PROLOGUE = "conv_matrix_prologue"
"""The kernel that applies element-wise steps as it loads; `DeviceCaps.without` names it where it is wrong."""
SIDE = 16
"""Rows and columns of the tiles that a subgroup multiplies, with and without work-group memory."""


@dataclass(frozen=True)
class MatrixFigures(AlgorithmFigures, section="conv_matrix"):
    """What the algorithm costs."""

    cost: float
    """Its share of the portable kernel's time."""


@dataclass(frozen=True)
class MatrixTile:
    """How a work-group divides its work.

    A subgroup holds `fm` x `fn` tiles of sums; `sm` x `sn` subgroups make the group's tile; `lz` such sets take turns
    in K and are summed at the end. A step stages `kb` blocks of four input channels. Every work-item fetches the same
    amount, so 64 * sm * sn divides both `rows` * kb and `columns` * kb.
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


MatrixTileT = TypeVar("MatrixTileT", bound=MatrixTile)
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
"""From the best reuse to the most parallelism; tiles of 128 x 128 were slower wherever they were tried."""


def _cases() -> Sequence[SelfTestCase]:
    """Return uneven convolutions, with and without taps, with few steps of K, many, and enough to split K."""
    shapes = (
        ((2, 13, 9, 7), (20, 13, 1, 1)),
        ((1, 24, 10, 6), (40, 24, 3, 3)),
        ((1, 260, 4, 5), (36, 260, 3, 3)),
        ((1, 1164, 3, 4), (24, 1164, 3, 3)),
    )
    return [conv_case(x, w) for x, w in shapes]


SPECIAL = register_special(
    "conv_matrix",
    "convolutions on matrix units",
    claimed=lambda caps: caps.multiplies(HALVES),
    withdraw=lambda caps: replace(caps.without_matrices(HALVES), channels_last=False),
    cases=_cases,
    template="conv_matrix",
)


def why_not_halves(problem: ConvProblem) -> str | None:
    """Return why matrix units cannot compute a convolution in fp16, or its packed weights do not fit an argument."""
    if problem.computed:
        return COMPUTED
    if not problem.ungrouped:
        return "it has groups or three dimensions"
    if not problem.caps.multiplies(HALVES):
        return "the device has no matrix units, or they failed their self-test"
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
    """Return the facts by which tuning tables find a problem.

    A view of channels may be so aligned that fewer of them can be moved at a time: that is another problem.
    """
    found = dict(problem.facts_by_channels())
    lies = ("x", problem.channels_in, problem.read_pieces), ("y", problem.channels_out, problem.written_pieces)
    for name, channels, in_pieces in lies:
        if in_pieces is not (channels % PIECE == 0):
            found[f"{name}_pieces"] = False
    return found


def fitting(tiles: Sequence[MatrixTileT], problem: ConvProblem) -> list[MatrixTileT]:
    """Return the tiles that fit the device; those with slices of K only if there are two steps for each slice."""
    caps = problem.caps
    return [
        t for t in tiles
        if t.items <= caps.max_local_items and t.shared_bytes() <= caps.local_memory
        and (t.lz == 1 or -(-problem.depth // (PACK * t.kb)) >= 2 * t.lz)
    ]


def with_most_reuse(tiles: Sequence[MatrixTileT], problem: ConvProblem) -> MatrixTileT | None:
    """Return the first tile that gives every compute unit a group, else the last one; None if there are no tiles."""
    filling = (t for t in tiles if problem.tiles(t.rows, t.columns) >= problem.caps.compute_units)
    return next(filling, tiles[-1] if tiles else None)


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
    # A work-item gets columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a tile: these become four adjacent channels.
    order = np.array([8 * (c // 2 % 2) + 2 * (c // 4) + c % 2 for c in range(SIDE)])
    out = np.zeros((-(-rows.shape[0] // step) * step, width // SIDE, SIDE), weight.dtype)
    out[: rows.shape[0], :, order] = rows
    return out.reshape(1, -1, PACK).transpose(0, 2, 1)


def packed_size(problem: ConvProblem, tile: MatrixTile) -> int:
    """Return the elements of the packed weights: taps and channels in whole steps, output channels in whole tiles."""
    depth, step = problem.taps * -(-problem.channels_in // PACK) * PACK, PACK * tile.kb
    return -(-depth // step) * step * -(-problem.channels_out // tile.columns) * tile.columns


def work_of(problem: ConvProblem, tile: MatrixTile) -> TileWork:
    """Return the work in tiles of this size."""
    groups, steps = problem.tiles(tile.rows, tile.columns), -(-problem.depth // (PACK * tile.kb))
    read = 2 * PACK * tile.kb * steps * (tile.rows + tile.columns)
    return TileWork(groups, -(-steps // tile.lz), read, problem.pixels * problem.channels_out)


def effort_of(problem: ConvProblem, tile: MatrixTile, parts: int, sums: int) -> Effort:
    """Return the work of a tile whose items keep so many sums for each result."""
    p, work = problem, work_of(problem, tile)
    registers = 8 * tile.fm * tile.fn * sums + 50
    return Effort(
        on_matrix_units=True, groups=work.groups * parts, items=tile.items, registers=registers,
        shared=tile.shared_bytes(), rows=tile.rows, columns=tile.columns, rounds=-(-work.rounds // parts),
        depth=PACK * tile.kb, slices=tile.lz, read=p.staged(tile.rows, tile.columns, p.depth), moved=p.moved,
        parts=parts, results=work.stored, stepped=p.stepped(tile.rows, parts),
    )


class MatrixConv(ImplicitGemm[MatrixTile]):
    """Subgroups multiply tiles that the work-group stages in its memory."""

    name, prologue = "conv_matrix", MATRIX_PROLOGUE

    def tiles(self, problem: ConvProblem) -> tuple[MatrixTile | None, Sequence[MatrixTile]]:
        legal = fitting(TILES, problem)
        return with_most_reuse(legal, problem), legal

    def work(self, problem: ConvProblem, tile: MatrixTile) -> TileWork:
        return work_of(problem, tile)

    def cost(self, problem: ConvProblem, first: MatrixTile | InParts[MatrixTile]) -> float:
        """Return the cost on this kind of device."""
        return problem.caps.model.of(MatrixFigures).cost

    def effort(self, problem: ConvProblem, tile: MatrixTile | InParts[MatrixTile]) -> Effort:
        chosen, parts = tile_and_parts(tile)
        return effort_of(problem, chosen, parts, 1)

    def multiply(self, plan: ConvPlan, tile: MatrixTile, sums: Sums) -> None:
        k, p = plan.k, plan.problem
        pack = plan.packing(pack_weights, tile)
        spec = vectors_spec(packed_size(p, tile), p.weights)
        packed = k.constant(f"matrix.{tile.columns}.{tile.kb}", pack, Layout.NC4HW4, spec)
        tiles, across = -(-p.pixels // tile.rows), -(-p.channels_out // tile.columns)
        wide, steps = p.read_pieces, -(-p.depth // (PACK * tile.kb))
        k.launch(
            "conv_matrix",
            reads={"x": plan.x, "w": packed, **sums.bias},
            writes={"y": sums.target},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": steps, "PIXELS": p.pixels,
                "COUNT": p.blocks, "TILES": tiles, "WIDTH": across * tile.columns // PACK, **sums.ints,
            },
            variant={
                "fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn, "kb": tile.kb,
                "pointwise": p.pointwise, "sliced": tile.lz > 1, "wide": wide, **sums.variant, **p.many_images,
            },
            kinds={"x": "wide", "w": "wide"} if wide else None,
            grid=(min(tiles, k.caps.max_grid[0]), across, sums.parts),
            local=(SUBGROUP, tile.sm * tile.sn, tile.lz),
            epilogue=sums.epilogue, prologue=plan.prologue,
        )
