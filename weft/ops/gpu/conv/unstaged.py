"""Convolution on matrix units without work-group memory, for problems too small to fill a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.launch import PIECE, DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.sum_parts import InParts, Sums, Work, better, by_turns, offer_parts

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan

SUBGROUP = 32
SIDE = 16
"""Rows and columns of the tiles that a subgroup multiplies."""
CHUNK = 4 * PIECE
"""Elements along K that a subgroup loads at a time: a piece for each of four items."""
MOST = 12
"""Tiles of 16 x 16 for each compute unit up to which nothing is staged: with more, what groups share pays (H200)."""


@dataclass(frozen=True)
class UnstagedTile:
    """How a work-group divides its work.

    Each of its `lz` subgroups holds `fm` x `fn` tiles of sums of a slice of K; the slices are summed at the end.
    `ahead` chunks of K are fetched together.
    """

    fm: int
    fn: int
    lz: int
    ahead: int

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return SIDE * self.fm

    @property
    def columns(self) -> int:
        """Return the output channels of a group."""
        return SIDE * self.fn

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return SUBGROUP * self.lz

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: the sums of all slices but one."""
        return 4 * (self.lz - 1) * self.rows * self.columns


TILES = (
    UnstagedTile(2, 2, 8, 2),
    UnstagedTile(2, 2, 4, 2),
    UnstagedTile(2, 2, 1, 2),
    UnstagedTile(1, 2, 4, 4),
    UnstagedTile(2, 1, 1, 4),
    UnstagedTile(1, 1, 1, 4),
    UnstagedTile(1, 1, 4, 4),
    UnstagedTile(1, 1, 4, 2),
    UnstagedTile(1, 1, 8, 4),
    UnstagedTile(1, 1, 8, 2),
    UnstagedTile(1, 1, 16, 2),
)
"""From the best reuse to the most parallelism: those that were best for something on an H200, and 2 x 2 tiles whole,
which `choose_tile` takes for short sums of many tiles."""
SLICES = ((16, 8), (8, 4), (0, 1))
"""Chunks of K from which so many slices were best, by and large."""


def _cases() -> Sequence[Case]:
    """Return small convolutions: with and without taps, uneven edges, one chunk of K and many, one tile and two.

    The last one has so little to write for what it reads that groups share its K.
    """
    shapes = (
        ((1, 8, 5, 7), (20, 8, 1, 1)),
        ((2, 40, 6, 5), (36, 40, 3, 3)),
        ((1, 520, 4, 4), (40, 520, 1, 1)),
        ((1, 40, 27, 29), (136, 40, 3, 3)),
        ((1, 72, 40, 39), (136, 72, 1, 1)),
        ((1, 32, 40, 39), (136, 32, 3, 3)),
        ((1, 1160, 3, 4), (24, 1160, 3, 3)),
    )
    return [conv_case(x, w) for x, w in shapes]


SPECIAL = register_special(
    SpecialKernel(
        "conv_unstaged",
        "small convolutions on matrix units",
        present=lambda caps: caps.matrix_units and "conv_unstaged" not in caps.without,
        disable=lambda caps: replace(caps, without=caps.without | {"conv_unstaged"}),
        cases=_cases,
        template="conv_unstaged",
    )
)


def fits(plan: ConvPlan) -> bool:
    """Tell whether the device has matrix units and the pixels lie as rows of whole pieces of channels."""
    k, weight = plan.k, plan.weight
    if not SPECIAL.present(k.caps) or plan.x.dtype is not DType.FLOAT16 or weight.dtype != np.float16:
        return False
    largest = max(t.columns for t in TILES)
    packed = (weight.shape[0] + largest) * chunks_of(weight) * CHUNK * weight.dtype.itemsize
    return weight.shape[1] % PIECE == 0 and plan.lies_in_pieces(plan.x) and packed <= k.caps.max_buffer_range


def chunks_of(weight: Array) -> int:
    """Return the chunks along K: taps times channels."""
    return int(-(-prod(weight.shape[1:]) // CHUNK))


def squares(pixels: int, channels: int) -> int:
    """Return the tiles of 16 x 16 of a product."""
    return -(-pixels // SIDE) * -(-channels // SIDE)


def legal_tiles(caps: DeviceCaps, pixels: int, chunks: int) -> list[UnstagedTile]:
    """Return the tiles that the device takes; those with slices of K only where there are chunks for each."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes() <= caps.local_memory
        and (t.lz == 1 or chunks >= t.lz * t.ahead)
        and -(-pixels // t.rows) <= caps.max_grid[0]
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, chunks: int) -> UnstagedTile | None:
    """Return the largest tile that gives every compute unit a group and a half; None if the product is not small.

    Slices of K are as many as there are chunks for.
    """
    if squares(pixels, channels) > MOST * caps.compute_units:
        return None
    lz = next(lz for least, lz in SLICES if chunks >= least)
    fitting = legal_tiles(caps, pixels, chunks)
    fitting = [t for t in fitting if t.lz == lz and t.fm == t.fn] or fitting
    for tile in fitting:
        if 2 * -(-pixels // tile.rows) * -(-channels // tile.columns) >= 3 * caps.compute_units:
            return tile
    return fitting[-1] if fitting else None


def work_of(pixels: int, channels: int, chunks: int, tile: UnstagedTile) -> Work:
    """Return what a tile leaves to do, for `sum_parts`."""
    groups = -(-pixels // tile.rows) * -(-channels // tile.columns)
    read = 2 * CHUNK * chunks * (tile.rows + tile.columns)
    return Work(groups, -(-chunks // (tile.lz * tile.ahead)), read, pixels * channels)


def offers(
    caps: DeviceCaps, pixels: int, channels: int, chunks: int
) -> tuple[list[UnstagedTile | InParts[UnstagedTile]], UnstagedTile | InParts[UnstagedTile] | None]:
    """Return the tiles for a problem, in parts and whole, and the default if the product is small."""
    work = partial(work_of, pixels, channels, chunks)
    legal, default = legal_tiles(caps, pixels, chunks), choose_tile(caps, pixels, channels, chunks)
    parted = offer_parts(caps, legal, work)
    return by_turns(parted, legal), None if default is None else better(caps, default, parted, work)


def pack_weights(weight: Array, fn: int) -> Array:
    """Return weights (co, ci, *kernel) as items read them: [16 channels][half of them][chunk][item][8 along K].

    Item 4g + t has piece t of column g of a half; columns 2t and 2t + 1 of both halves are channels 4t to 4t + 3.
    Zeros pad K to whole chunks and channels to `fn` times 16. The result is the logical array whose NC4HW4 form
    these pieces are.
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    across, chunks = -(-co // (SIDE * fn)) * fn, chunks_of(weight)
    full = np.zeros((across * SIDE, chunks * CHUNK), weight.dtype)
    full[:co, : taps * ci].reshape(-1, taps, ci)[...] = weight.reshape(co, ci, taps).transpose(0, 2, 1)
    pairs = full.reshape(across, SIDE // 4, 2, 2, chunks, CHUNK)
    return pairs.transpose(0, 2, 4, 1, 3, 5).reshape(1, -1, PACK).transpose(0, 2, 1)


def launch_unstaged(plan: ConvPlan, constants: dict[str, int], tile: UnstagedTile, parts: int = 1) -> None:
    """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
    k, weight, chunks = plan.k, plan.weight, chunks_of(plan.weight)
    sums = Sums(plan, parts, -(-chunks // (tile.lz * tile.ahead)))
    pixels, channels = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0]
    k.launch(
        "conv_unstaged",
        reads={
            "x": plan.x, **sums.bias,
            "w": k.constant(f"unstaged.{tile.fn}", partial(pack_weights, weight, tile.fn), Layout.NC4HW4),
        },
        writes={"y": sums.target},
        ints={
            **constants, "PIECES": weight.shape[1] // PIECE, "CHUNKS": chunks, "PIXELS": pixels,
            "COUNT": plan.blocks, **sums.ints,
        },
        variant={
            "fm": tile.fm, "fn": tile.fn, "ahead": tile.ahead, "sliced": tile.lz > 1,
            "pointwise": plan.window.is_pointwise, **sums.variant,
        },
        kinds={"x": "wide", "w": "wide"},
        grid=(-(-pixels // tile.rows), -(-channels // tile.columns), parts),
        local=(SUBGROUP, 1, tile.lz),
        epilogue=sums.epilogue,
    )  # fmt: skip
    sums.finish()
