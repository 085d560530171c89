"""Convolution on matrix units: the implicit GEMM in tiles of 16 x 16, fp16 products summed in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.launch import PIECE, DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv import unstaged, wgmma, workgroup_gemm
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.sum_parts import InParts, Sums, Work, better, by_turns, offer_parts, tile_and_parts
from weft.ops.gpu.conv.unstaged import UnstagedTile
from weft.ops.gpu.conv.wgmma import WgmmaTile
from weft.ops.gpu.conv.workgroup_gemm import GroupTile

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan

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


Tile: TypeAlias = MatrixTile | UnstagedTile | WgmmaTile | GroupTile
"""Of one of the kernels on matrix units."""
Choice: TypeAlias = Tile | InParts[Tile]
"""What tuning chooses from: tiles whole, and those that several groups share."""


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


def fits(plan: ConvPlan) -> bool:
    """Tell whether the device has matrix units for a convolution in fp16 whose packed weights fit an argument."""
    caps, weight = plan.k.caps, plan.weight
    if not caps.matrix_units or plan.x.dtype is not DType.FLOAT16 or weight.dtype != np.float16:
        return False
    depth = prod(weight.shape[2:]) * (weight.shape[1] + PACK) + PACK * max(t.kb for t in TILES)
    width = weight.shape[0] + max(t.columns for t in TILES)
    return bool(depth * width * weight.dtype.itemsize <= caps.max_buffer_range)


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


def launch_matrix(plan: ConvPlan, constants: dict[str, int]) -> None:
    """Launch the implicit GEMM, or the product of rows where that is all there is to it; tuning may choose."""
    k, weight = plan.k, plan.weight
    depth = prod(weight.shape[2:]) * -(-weight.shape[1] // PACK) * PACK
    pixels, channels = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0]
    problem = {**constants, "N": plan.y.shape[0], "CI": weight.shape[1], "CO": channels, "bias": plan.bias is not None}
    for name, tensor in (("x", plan.x), ("y", plan.y)):
        # A view of channels may lie so that fewer can be moved at a time: that is another problem.
        if plan.lies_in_pieces(tensor) is not (tensor.shape[1] % PIECE == 0):
            problem[f"{name}_pieces"] = False
    candidates, default = _tiles(plan, pixels, channels, depth)
    chosen: Choice = k.pick("conv_matrix", problem, candidates, default)
    launched: tuple[Tile, int] = tile_and_parts(chosen)
    tile, parts = launched
    if isinstance(tile, WgmmaTile):
        wgmma.launch_wgmma(plan, constants, tile, parts)
    elif isinstance(tile, GroupTile):
        workgroup_gemm.launch_rows(plan, tile)
    elif isinstance(tile, UnstagedTile):
        unstaged.launch_unstaged(plan, constants, tile, parts)
    else:
        _launch_tile(plan, constants, tile, parts)


def work_of(pixels: int, channels: int, depth: int, tile: MatrixTile) -> Work:
    """Return what a tile leaves to do, for `sum_parts`."""
    groups, steps = -(-pixels // tile.rows) * -(-channels // tile.columns), -(-depth // (PACK * tile.kb))
    read = 2 * PACK * tile.kb * steps * (tile.rows + tile.columns)
    return Work(groups, -(-steps // tile.lz), read, pixels * channels)


def _tiles(plan: ConvPlan, pixels: int, channels: int, depth: int) -> tuple[list[Choice], Choice]:
    """Return the tiles of all kernels that take a convolution, the most promising first, and the default."""
    caps = plan.k.caps
    work = partial(work_of, pixels, channels, depth)
    legal, best = legal_tiles(caps, depth), choose_tile(caps, pixels, channels, depth)
    parted = offer_parts(caps, legal, work)
    candidates: list[Choice] = [*by_turns(parted, legal)]
    default: Choice = better(caps, best, parted, work)
    if unstaged.fits(plan) and unstaged.squares(pixels, channels) <= unstaged.MOST * caps.compute_units:
        chunks = unstaged.chunks_of(plan.weight)
        small, few = unstaged.offers(caps, pixels, channels, chunks)
        candidates, default = [*small, *candidates], few or default
    if wgmma.fits(plan):
        wide, filling = wgmma.offers(caps, pixels, channels, wgmma.steps_of(plan.weight))
        candidates, default = [*wide, *candidates], filling or default
    if workgroup_gemm.fits(plan):
        candidates = [*workgroup_gemm.legal_tiles(caps, pixels, channels), *candidates]
        if not isinstance(tile_and_parts(default)[0], UnstagedTile) or depth < workgroup_gemm.LONG:
            default = workgroup_gemm.choose_tile(caps, pixels, channels, depth) or default
    return candidates, default


def _launch_tile(plan: ConvPlan, constants: dict[str, int], tile: MatrixTile, parts: int) -> None:
    """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
    k, weight = plan.k, plan.weight
    ci4 = -(-weight.shape[1] // PACK)
    depth = prod(weight.shape[2:]) * ci4 * PACK
    pixels, channels = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0]
    packed = k.constant(f"matrix.{tile.columns}.{tile.kb}", partial(pack_weights, weight, tile), Layout.NC4HW4)
    tiles, across = -(-pixels // tile.rows), -(-channels // tile.columns)
    wide, steps = plan.lies_in_pieces(plan.x), -(-depth // (PACK * tile.kb))
    sums = Sums(plan, parts, -(-steps // tile.lz))
    k.launch(
        "conv_matrix",
        reads={"x": plan.x, "w": packed, **sums.bias},
        writes={"y": sums.target},
        ints={
            **constants, "C4": ci4, "STEPS": steps, "PIXELS": pixels,
            "COUNT": plan.blocks, "TILES": tiles, "WIDTH": across * tile.columns // PACK, **sums.ints,
        },
        variant={
            "fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn, "kb": tile.kb,
            "pointwise": plan.window.is_pointwise, "sliced": tile.lz > 1, "wide": wide, **sums.variant,
        },
        kinds={"x": "wide", "w": "wide"} if wide else None,
        grid=(min(tiles, k.caps.max_grid[0]), across, parts),
        local=(SUBGROUP, tile.sm * tile.sn, tile.lz),
        epilogue=sums.epilogue,
    )  # fmt: skip
    sums.finish()
