"""Convolution on Hopper's warpgroup matrix instructions: fp16 products summed in fp32, steps of 64 along K."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import DType
from weft.core.layout import PACK, Array
from weft.kernels.launch import PIECE, DeviceCaps

if TYPE_CHECKING:
    from weft.ops.gpu.conv import ConvPlan

GROUP = 128
"""Items of a warpgroup."""
ROWS = 64
"""Rows of sums of a warpgroup."""
STEP = 64
"""Elements along K of a step: 128 bytes, the widest that is swizzled."""
SIDE = 16
"""Columns of which an item gets four channels."""
RASTER = 8
"""Tiles of rows that go through the columns together, so that what they read stays in the cache."""
SHARED = 227 << 10
"""Bytes of work-group memory of a multiprocessor."""


@dataclass(frozen=True)
class WgmmaTile:
    """How a work-group divides its work: `wm` x `wn` warpgroups, `cols` columns, `stages` steps under way."""

    wm: int
    wn: int
    cols: int
    stages: int

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return ROWS * self.wm

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return GROUP * self.wm * self.wn

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory."""
        return 2 * STEP * self.stages * (self.rows + self.cols)

    def at_a_time(self) -> int:
        """Return the groups that a multiprocessor holds; it keeps a KiB for each."""
        return max(SHARED // (self.shared_bytes() + 1024), 1)


TILES = (
    WgmmaTile(2, 1, 256, 4),
    WgmmaTile(2, 1, 192, 4),
    WgmmaTile(2, 1, 128, 4),
    WgmmaTile(2, 1, 128, 3),
    WgmmaTile(1, 1, 256, 4),
    WgmmaTile(2, 1, 64, 4),
    WgmmaTile(1, 1, 128, 8),
    WgmmaTile(1, 1, 128, 4),
    WgmmaTile(1, 1, 64, 6),
    WgmmaTile(1, 1, 64, 4),
    WgmmaTile(1, 1, 32, 6),
    WgmmaTile(1, 1, 16, 6),
)
"""From the best reuse to the most parallelism."""
SHARE = {256: 1.0, 192: 0.95, 128: 0.85, 64: 0.6, 32: 0.35, 16: 0.2}
"""About how much of the full rate a tile of so many columns reaches: what it loads for each product decides."""


def fits(plan: ConvPlan) -> bool:
    """Tell whether the device has the instructions and the pixels lie as rows of whole pieces."""
    weight = plan.weight
    if not plan.k.caps.warpgroup_units or plan.x.dtype is not DType.FLOAT16 or weight.dtype != np.float16:
        return False
    return plan.lies_in_pieces()


def steps_of(weight: Array) -> int:
    """Return the steps along K: taps times channels."""
    return -(-prod(weight.shape[1:]) // STEP)


def choose_tile(caps: DeviceCaps, pixels: int, channels: int) -> WgmmaTile:
    """Return the tile whose rounds over all multiprocessors take the least, by its share of the full rate."""

    def cost(tile: WgmmaTile) -> float:
        groups = -(-pixels // tile.rows) * -(-channels // tile.cols)
        side_by_side = min(tile.at_a_time(), -(-groups // caps.compute_units))
        rounds = -(-groups // (caps.compute_units * side_by_side))
        rate = SHARE[tile.cols] * (1.0 if tile.wm > 1 else 0.8)
        return rounds * side_by_side * tile.rows * tile.cols / rate

    return min(TILES, key=cost)


def pack_weights(weight: Array, tile: WgmmaTile) -> Array:
    """Return weights (co, ci, *kernel) as [tile of columns][step][column][64 along K], padded with zeros.

    Columns are in the order in which an item gets four channels in a row; the eight pieces of a column are
    swizzled: piece c lies at c xor (column mod 8).
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    steps, tiles = steps_of(weight), -(-co // tile.cols)
    full = np.zeros((tiles * tile.cols, steps * STEP), weight.dtype)
    full[:co, : taps * ci] = weight.reshape(co, ci, taps).transpose(0, 2, 1).reshape(co, -1)
    # An item has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of sixteen.
    order = np.array([4 * (c % 8 // 2) + c // 8 * 2 + c % 2 for c in range(SIDE)])
    full = full.reshape(-1, SIDE, steps * STEP)[:, order]
    pieces = full.reshape(tiles, tile.cols, steps, STEP // PIECE, PIECE).transpose(0, 2, 1, 3, 4)
    column, piece = np.arange(tile.cols)[:, None], np.arange(STEP // PIECE)[None]
    return np.ascontiguousarray(pieces[:, :, column, piece ^ (column % 8)]).reshape(-1)


def launch_wgmma(plan: ConvPlan, constants: dict[str, int], tile: WgmmaTile) -> None:
    """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
    k, weight = plan.k, plan.weight
    pixels, channels = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0]
    packed = k.constant(f"wgmma.{tile.cols}", partial(pack_weights, weight, tile))
    tiles_m, tiles_n = -(-pixels // tile.rows), -(-channels // tile.cols)
    k.launch(
        "conv_wgmma",
        reads={"x": plan.x, "w": packed, **plan.bias_vector()},
        writes={"y": plan.y},
        ints={
            **constants, "C8": weight.shape[1] // PIECE, "STEPS": steps_of(weight), "PIXELS": pixels,
            "COUNT": -(-channels // PACK), "TILES_M": tiles_m, "TILES_N": tiles_n,
        },
        variant={
            "wm": tile.wm, "wn": tile.wn, "cols": tile.cols, "stages": tile.stages, "raster": RASTER,
            "pointwise": plan.window.is_pointwise,
        },
        grid=(min(tiles_m * tiles_n, k.caps.max_grid[0]), 1, 1),
        local=(tile.items, 1, 1),
    )  # fmt: skip
