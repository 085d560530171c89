"""Convolution in fp32 on Hopper's warpgroup matrix instructions: activations are split in registers (`split.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.core.graph.layout import PACK, Array
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import PIECE, DeviceCaps
from weft.ops.gpu.conv.halves import ACTIVATION_BITS, LANES, LOW_BITS, SIDE, by_taps, split_weights
from weft.ops.gpu.conv.wgmma import GROUP, RASTER, RESERVED, ROWS, SHARED, STEP

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan

NAME = "conv_split_wgmma"
REGISTERS = 65536


@dataclass(frozen=True)
class SplitWgmmaTile:
    """How a work-group divides its work: `wm` x `wz` warpgroups, each with 64 pixels and `cols` columns.

    `wz` of them take turns in K and are summed at the end. `stages` buffers hold what each round reads of the
    weights: `planes` are 2, hi and lo, or 3 with hi / 2^11 besides, by which a step's products all go into one sum.
    """

    wm: int
    wz: int
    cols: int
    stages: int
    planes: int

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return ROWS * self.wm

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return GROUP * self.wm * self.wz

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory."""
        return 2 * STEP * self.cols * self.planes * self.wz * self.stages

    def at_a_time(self, pointwise: bool) -> int:
        """Return the groups that a multiprocessor holds, by its memory and its registers."""
        registers = min(self.cols + (80 if pointwise else 120), 255) * self.items
        return max(min(SHARED // (self.shared_bytes() + RESERVED), REGISTERS // registers), 1)


TILES = (
    SplitWgmmaTile(2, 1, 128, 3, 2),
    SplitWgmmaTile(1, 1, 128, 3, 2),
    SplitWgmmaTile(2, 1, 128, 3, 3),
    SplitWgmmaTile(1, 2, 128, 3, 2),
    SplitWgmmaTile(2, 1, 96, 3, 2),
    SplitWgmmaTile(2, 1, 64, 4, 2),
    SplitWgmmaTile(2, 1, 64, 4, 3),
    SplitWgmmaTile(1, 1, 64, 4, 2),
    SplitWgmmaTile(1, 1, 64, 3, 3),
    SplitWgmmaTile(1, 2, 64, 3, 2),
    SplitWgmmaTile(1, 1, 32, 4, 2),
    SplitWgmmaTile(1, 2, 32, 4, 2),
)


def tiles(caps: DeviceCaps, channels: int, depth: int) -> list[SplitWgmmaTile]:
    """Return the tiles of a device for so many channels and elements along K."""
    steps, room = -(-depth // STEP), caps.local_memory if NAME in caps.without else SHARED
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes() <= room
        and t.cols < 2 * max(channels, 17)
        and steps >= 2 * t.wz - 1
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, depth: int, pointwise: bool) -> SplitWgmmaTile:
    """Return the tile that takes the least by a model fitted to an H200: rounds over all multiprocessors.

    A step of a warpgroup takes as long as about 98 columns besides its own, and the sums of a tile as two steps.
    """
    steps = -(-depth // STEP)

    def cost(tile: SplitWgmmaTile) -> float:
        groups = -(-pixels // tile.rows) * -(-channels // tile.cols)
        side_by_side = min(tile.at_a_time(pointwise), -(-groups // caps.compute_units))
        rounds = -(-groups // (caps.compute_units * side_by_side))
        warpgroups = tile.wm * tile.wz * side_by_side
        step = (tile.cols + 98) * (1.03 if tile.planes == 3 else 1.0) * (1.2 if warpgroups == 1 else 1.0)
        return rounds * warpgroups * (step * -(-steps // tile.wz) + 2 * tile.wz * (tile.cols + 64))

    return min(tiles(caps, channels, depth), key=cost)


def pack_planes(weight: Array, cols: int, planes: int, turns: int) -> Array:
    """Return split weights as [tile of columns][step][plane][column][64 along K], steps a multiple of `turns`.

    Columns, and each sixteen along K, are in the order in which an item has four channels in a row; the eight
    pieces of a column are swizzled: piece c lies at c xor (column mod 8).
    """
    high, low = split_weights(by_taps(weight), LOW_BITS if planes == 2 else 0)
    co, depth = high.shape
    steps, across = -(-depth // (STEP * turns)) * turns, -(-co // cols)
    full = np.zeros((planes, across * cols, steps * STEP), np.float16)
    full[0, :co, :depth], full[1, :co, :depth] = high, low
    if planes == 3:
        full[2] = np.ldexp(full[0], -LOW_BITS)
    full = full.reshape(planes, -1, SIDE, steps * STEP // SIDE, SIDE)[:, :, LANES][..., LANES]
    pieces = full.reshape(planes, across, cols, steps, STEP // PIECE, PIECE).transpose(1, 3, 0, 2, 4, 5)
    column, piece = np.arange(cols)[:, None], np.arange(STEP // PIECE)[None]
    return np.ascontiguousarray(pieces[:, :, :, column, piece ^ (column % 8)]).reshape(-1)


def launch_split_wgmma(plan: ConvPlan, constants: dict[str, int], tile: SplitWgmmaTile, back: Tensor) -> None:
    """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
    k, weight = plan.k, plan.weight
    pixels, channels, ci4 = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0], -(-weight.shape[1] // PACK)
    pack = partial(pack_planes, weight, tile.cols, tile.planes, tile.wz)
    packed = k.constant(f"split_wgmma.{tile.cols}.{tile.planes}.{tile.wz}", pack)
    tiles_m, tiles_n = -(-pixels // tile.rows), -(-channels // tile.cols)
    k.launch(
        "conv_split_wgmma",
        reads={"x": plan.x, "w": packed, "s": back, **plan.bias_vector()},
        writes={"y": plan.y},
        ints={
            **constants, "C4": ci4, "ROUNDS": -(-prod(weight.shape[2:]) * ci4 * PACK // (STEP * tile.wz)),
            "PIXELS": pixels, "COUNT": -(-channels // PACK), "TILES_M": tiles_m, "TILES_N": tiles_n,
        },
        variant={
            "wm": tile.wm, "wz": tile.wz, "cols": tile.cols, "stages": tile.stages, "planes": tile.planes,
            "raster": RASTER, "pointwise": plan.window.is_pointwise,
            "scale": str(2.0**-ACTIVATION_BITS), "low": str(2.0**-LOW_BITS),
        },
        grid=(min(tiles_m * tiles_n, k.caps.max_grid[0]), 1, 1),
        local=(tile.items, 1, 1),
    )  # fmt: skip
