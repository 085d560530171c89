"""Depthwise convolution on GPUs: one filter a channel, several neighbouring pixels an item."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from weft.core.graph.layout import Layout
from weft.kernels.launch import DeviceCaps

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan

MOST_PRODUCTS = 200
"""Vector products of one item, whose text is written out."""
FULL = 256
"""Items a compute unit should have; below that smaller tiles use more of a device."""


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """The pixels that one item computes, below and beside each other."""

    rows: int
    columns: int


TILES = (
    DepthwiseTile(4, 2),
    DepthwiseTile(2, 4),
    DepthwiseTile(2, 2),
    DepthwiseTile(4, 1),
    DepthwiseTile(1, 4),
    DepthwiseTile(2, 1),
    DepthwiseTile(1, 2),
    DepthwiseTile(1, 1),
)
CHANNELS_LAST = (DepthwiseTile(2, 2), DepthwiseTile(2, 1), DepthwiseTile(1, 1))
"""Defaults where items side by side have channels side by side, from the best reuse to the most parallelism. Larger
tiles win on some shapes by a tenth and lose on others by a third: registers become scarce."""
CHANNELS_FIRST = (DepthwiseTile(4, 1), DepthwiseTile(2, 1), DepthwiseTile(1, 1))
"""Defaults where items side by side should have pixels side by side."""


def choose_depthwise(caps: DeviceCaps, plan: ConvPlan) -> DepthwiseTile:
    """Return the tile with the most reuse that still fills the device."""
    offered = CHANNELS_LAST if plan.y.layout is Layout.NHWC4 else CHANNELS_FIRST
    taps = prod(plan.window.kernel)
    units = caps.likely_units
    for tile in offered:
        if taps * tile.rows * tile.columns <= MOST_PRODUCTS and _items(plan, tile) >= FULL * units:
            return tile
    return offered[-1]


def launch_depthwise(plan: ConvPlan, window: dict[str, int]) -> bool:
    """Launch one filter a channel, and tell whether a kernel could; `window` is the geometry as constants."""
    k, weight = plan.k, plan.weight
    taps = prod(plan.window.kernel)
    legal = [tile for tile in TILES if taps * tile.rows * tile.columns <= MOST_PRODUCTS]
    if "conv_depthwise_tile" in k.caps.without:
        legal = []
    if not legal and "conv_depthwise" in k.caps.without:
        return False
    packed = k.constant("depthwise", lambda: weight.reshape(1, weight.shape[0], -1), Layout.NC4HW4)
    reads = {"x": plan.x, "w": packed, **plan.bias_vector()}
    if not legal:  # too much text, or wrong: the kernel that has loops instead
        total = plan.y.shape[0] * plan.blocks * prod(plan.window.outputs)
        grid, local = k.for_items(total)
        ints = {**window, "BLOCKS": plan.blocks, "TOTAL": total}
        k.launch("conv_depthwise", reads=reads, writes={"y": plan.y}, ints=ints, grid=grid, local=local)
        return True
    problem = {**window, "N": plan.y.shape[0], "C4": plan.blocks, "bias": plan.bias is not None}
    tile = k.pick("conv_depthwise", problem, legal, choose_depthwise(k.caps, plan))
    total = _items(plan, tile)
    grid, local = k.for_items(total)
    ints = {name: window[name] for name in ("IH", "IW", "OH", "OW", "PH", "PW")}
    ints |= {"TILES_H": -(-window["OH"] // tile.rows), "TILES_W": -(-window["OW"] // tile.columns)}
    k.launch(
        "conv_depthwise_tile",
        reads=reads,
        writes={"y": plan.y},
        ints={**ints, "BLOCKS": plan.blocks, "TOTAL": total},
        variant={
            **{name.lower(): window[name] for name in ("KH", "KW", "SH", "SW", "DH", "DW")},
            "rows": tile.rows,
            "columns": tile.columns,
        },
        grid=grid,
        local=local,
    )
    return True


def _items(plan: ConvPlan, tile: DepthwiseTile) -> int:
    """Return the items that compute the whole output."""
    *_, height, width = 1, *plan.window.outputs
    return plan.y.shape[0] * plan.blocks * -(-height // tile.rows) * -(-width // tile.columns)
