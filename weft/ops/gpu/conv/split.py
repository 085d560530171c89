"""Convolution in fp32 on matrix units: the implicit GEMM on numbers split into two halves each (`split.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.launch import DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv import split_wgmma, winograd
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.halves import ACTIVATION_BITS, LANES, LOW_BITS, SIDE, by_taps, split_weights, undoing
from weft.ops.gpu.conv.matrix import SUBGROUP, MatrixTile
from weft.ops.gpu.conv.split_wgmma import SplitWgmmaTile
from weft.ops.gpu.conv.wgmma import STEP, within_limit

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan, GemmTile
    from weft.ops.gpu.conv.winograd import WinogradTile

WORTH = 1 << 23
"""Products from which on matrix units are the default."""
WINOGRAD = 0.55
"""The share of the strict kernel's time, by its model, up to which Winograd's method is the default: split products
take half of it (H200, Vulkan, ResNet-50 at batch 32: 60 TFLOP/s instead of 31)."""


@dataclass(frozen=True)
class SplitTile(MatrixTile):
    """A tile of `MatrixTile` with hi and lo of everything; 32 * sm * sn divides `rows` * kb and `columns` * kb."""

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: staged tiles, and the sums of all slices but one."""
        staged = 8 * self.rows * (self.kb + 2) + 16 * PACK * self.kb * (self.columns // 8 + 1)
        return 2 * self.lz * staged + 4 * (self.lz - 1) * self.rows * self.columns


TILES = (
    SplitTile(2, 4, 4, 2, 1, 4),
    SplitTile(2, 4, 2, 2, 1, 4),
    SplitTile(2, 2, 4, 2),
    SplitTile(2, 2, 2, 2),
    SplitTile(2, 1, 2, 2),
    SplitTile(2, 1, 2, 2, 2),
    SplitTile(1, 1, 2, 2, 2),
    SplitTile(1, 1, 2, 2, 4, 4),
    SplitTile(1, 1, 1, 2, 8, 4),
    SplitTile(1, 1, 1, 1, 8, 4),
)
"""From the best reuse to the most parallelism."""


LARGE = 3
"""The first of the cases that has enough work for warpgroups."""


def _cases() -> Sequence[Case]:
    """Return uneven convolutions of enough work for matrix units."""
    shapes = (
        ((1, 13, 40, 41), (20, 13, 5, 5)),
        ((1, 24, 33, 32), (64, 24, 3, 3)),
        ((1, 516, 9, 9), (72, 516, 3, 3)),
        ((5, 36, 65, 64), (128, 36, 1, 1)),
        ((1, 16, 65, 65), (72, 16, 3, 3)),
        ((3, 68, 40, 40), (132, 68, 1, 1)),
    )
    return [conv_case(x, w, precision=Precision.NORMAL) for x, w in shapes]


SPECIAL = register_special(
    SpecialKernel(
        "conv_split",
        "convolutions of split fp32 on matrix units",
        present=lambda caps: caps.matrix_units and caps.splits_products,
        disable=lambda caps: replace(caps, splits_products=False),
        cases=_cases,
        template="conv_split",
    )
)


def _has_warpgroups(caps: DeviceCaps) -> bool:
    return SPECIAL.present(caps) and caps.warpgroup_units


SPECIAL_WGMMA = register_special(
    SpecialKernel(
        split_wgmma.NAME,
        "convolutions of split fp32 by warpgroups",
        present=lambda caps: _has_warpgroups(caps) and split_wgmma.NAME not in caps.without,
        disable=lambda caps: replace(caps, without=caps.without | {split_wgmma.NAME}),
        cases=lambda: _cases()[LARGE:],
        template="conv_split_wgmma",
    )
)
SMALL_WGMMA = register_special(within_limit(SPECIAL_WGMMA, _has_warpgroups))


def fits(plan: ConvPlan) -> bool:
    """Tell whether fp32 products may be split here, and the packed weights fit an argument."""
    caps, weight = plan.k.caps, plan.weight
    if not plan.k.split_products or {plan.x.dtype, plan.y.dtype} != {DType.FLOAT32} or weight.dtype != np.float32:
        return False
    depth = prod(weight.shape[2:]) * (weight.shape[1] + PACK) + 4 * STEP
    return bool(depth * (weight.shape[0] + 128) * 6 <= caps.max_buffer_range)


def legal_tiles(caps: DeviceCaps, k: int) -> list[SplitTile]:
    """Return the tiles that the device takes; those with slices of K only where there are steps for each."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes() <= caps.local_memory
        and (t.lz == 1 or -(-k // (PACK * t.kb)) >= 2 * t.lz)
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, k: int) -> SplitTile | None:
    """Return the tile with the most reuse that gives every compute unit a group; slices of K come last."""
    fitting = legal_tiles(caps, k)
    for tile in fitting:
        if -(-pixels // tile.rows) * -(-channels // tile.columns) >= caps.compute_units:
            return tile
    return fitting[-1] if fitting else None


def pick_tile(
    plan: ConvPlan,
    constants: dict[str, int],
    strict: Sequence[GemmTile],
    default: GemmTile,
    by_winograd: WinogradTile | None = None,
) -> SplitTile | SplitWgmmaTile | GemmTile | WinogradTile:
    """Return the tile to use, which may be one of the `strict` fp32 kernels: where there is little work they win.

    So does Winograd's method, if there is a tile for it, unless warpgroups multiply: it has a quarter of the products.
    """
    k, weight = plan.k, plan.weight
    pixels, channels = plan.y.shape[0] * prod(plan.window.outputs), weight.shape[0]
    depth = prod(weight.shape[2:]) * -(-weight.shape[1] // PACK) * PACK
    problem = {**constants, "N": plan.y.shape[0], "CI": weight.shape[1], "CO": channels, "bias": plan.bias is not None}
    candidates: list[SplitTile | SplitWgmmaTile | GemmTile | WinogradTile] = [*legal_tiles(k.caps, depth), *strict]
    best: SplitTile | SplitWgmmaTile | GemmTile | WinogradTile | None = choose_tile(k.caps, pixels, channels, depth)
    if by_winograd is not None:
        candidates.append(by_winograd)
        best = by_winograd if winograd.share(plan) <= WINOGRAD else best
    if SPECIAL_WGMMA.present(k.caps) or SMALL_WGMMA.present(k.caps):
        candidates += split_wgmma.tiles(k.caps, channels, depth)
        wide = split_wgmma.choose_tile(k.caps, pixels, channels, depth, plan.window.is_pointwise)
        if -(-pixels // wide.rows) * -(-channels // wide.cols) >= k.caps.compute_units // 2:
            best = wide
    if best is None or pixels * channels * depth < WORTH or depth < SIDE:
        best = default
    return k.pick("conv_split", problem, candidates, best)


def pack_weights(half: Array, tile: SplitTile) -> Array:
    """Return one half of split weights, rows along K, as [tile of columns][step][4 * kb along K][column], padded."""
    co, depth = half.shape
    step, tiles = PACK * tile.kb, -(-co // tile.columns)
    steps = -(-depth // step)
    full = np.zeros((tiles * tile.columns, steps * step), half.dtype)
    full[:co, :depth] = half
    full = full.reshape(-1, SIDE, steps * step)[:, LANES]
    return full.reshape(tiles, tile.columns, steps, step).transpose(0, 2, 3, 1)


def packed_weights(weight: Array, tile: SplitTile) -> Array:
    """Return weights with hi and lo of a step side by side, as the logical array whose NC4HW4 form that is."""
    both = np.stack([pack_weights(half, tile) for half in split_weights(by_taps(weight))], axis=2)
    return both.reshape(1, -1, PACK).transpose(0, 2, 1)


def launch_split(plan: ConvPlan, constants: dict[str, int], tile: SplitTile | SplitWgmmaTile) -> None:
    """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
    k, weight = plan.k, plan.weight
    back = k.constant("split.scale", lambda: undoing(weight).reshape(1, -1, 1), Layout.NC4HW4)
    if isinstance(tile, SplitWgmmaTile):
        split_wgmma.launch_split_wgmma(plan, constants, tile, back)
        return
    ci4 = -(-weight.shape[1] // PACK)
    depth = prod(weight.shape[2:]) * ci4 * PACK
    pixels = plan.y.shape[0] * prod(plan.window.outputs)
    packed = k.constant(f"split.{tile.columns}.{tile.kb}", partial(packed_weights, weight, tile), Layout.NC4HW4)
    tiles, across = -(-pixels // tile.rows), -(-weight.shape[0] // tile.columns)
    k.launch(
        "conv_split",
        reads={"x": plan.x, "w": packed, "s": back, **plan.bias_vector()},
        writes={"y": plan.y},
        ints={
            **constants, "C4": ci4, "STEPS": -(-depth // (PACK * tile.kb)), "PIXELS": pixels, "COUNT": plan.blocks,
            "TILES": tiles,
        },
        variant={
            "fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn, "kb": tile.kb, "sliced": tile.lz > 1,
            "pointwise": plan.window.is_pointwise, "last": k.rows(plan.x) is not None,
            "scale": str(2.0**-ACTIVATION_BITS), "low": str(2.0**-LOW_BITS),
        },
        kinds={"w": "wide"},
        grid=(min(tiles, k.caps.max_grid[0]), across, 1),
        local=(SUBGROUP, tile.sm * tile.sn, tile.lz),
    )  # fmt: skip
