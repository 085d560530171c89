"""Rows times constant weights on matrices that whole work-groups hold: fp16 products summed in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.launch import DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv.cases import conv_case

if TYPE_CHECKING:
    from weft.ops.gpu.conv.gemm import ConvPlan

STEP = 16
"""What the depth of a product, and of each step, is a multiple of."""
SHORT, LONG = 128, 512
"""The depth up to which tiles of 64 x 64 are best, or nearly, and that from which small products are faster without
staging (`conv_unstaged`); both by tuning on an H200."""


@dataclass(frozen=True)
class GroupTile:
    """What a work-group of so many items computes: rows x columns, the product's K in steps of `depth`."""

    rows: int
    columns: int
    depth: int
    items: int


SMALL = GroupTile(64, 64, 64, 64)
TILES = (
    GroupTile(128, 128, 64, 128),
    GroupTile(128, 64, 64, 128),
    GroupTile(64, 128, 64, 128),
    SMALL,
    GroupTile(64, 64, 128, 128),
    GroupTile(32, 64, 128, 128),
    GroupTile(32, 32, 128, 128),
)
"""Those that were best for something on an H200, from the best reuse to the most parallelism."""


def _cases() -> Sequence[Case]:
    """Return products for each tile on a large device and a few on any, of whole tiles and of parts of tiles."""
    large = ((1100, 144, 1160), (1024, 192, 1024), (520, 80, 1000))
    small = ((260, 272, 1000), (130, 400, 1000), (200, 176, 296))
    return [conv_case((m, k, 1, 1), (n, k, 1, 1)) for m, k, n in large + small]


SPECIAL = register_special(
    SpecialKernel(
        "workgroup_gemm",
        "products on matrices of work-groups",
        present=lambda caps: caps.workgroup_matrices and caps.matrix_units,
        disable=lambda caps: replace(caps, workgroup_matrices=False),
        cases=_cases,
        template="workgroup_gemm",
    )
)


def fits(plan: ConvPlan) -> bool:
    """Tell whether a convolution is a product of rows that lie in whole pieces, and the device has the matrices."""
    k = plan.k
    if not (k.caps.workgroup_matrices and k.caps.matrix_units and plan.window.is_pointwise):
        return False
    halves = plan.x.dtype is plan.y.dtype is DType.FLOAT16 and plan.weight.dtype == np.float16
    whole = plan.weight.shape[1] % STEP == 0 and plan.weight.nbytes <= k.caps.max_buffer_range
    return halves and whole and all(map(plan.lies_in_pieces, (plan.x, plan.y))) and k.reads_rows(plan.y)


def legal_tiles(caps: DeviceCaps, pixels: int, channels: int) -> list[GroupTile]:
    """Return the tiles that the device takes and the product is not smaller than."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.rows <= pixels <= t.rows * caps.max_grid[1]
        and t.columns <= channels
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, depth: int) -> GroupTile | None:
    """Return the tile for which a compute unit loads least; None where not even half the units have work.

    Loads are what takes the time, on all units alike: 40 KB a microsecond each on an H200. In short products it is the
    first load and the last store: there a small tile is the default.
    """

    def groups(tile: GroupTile) -> int:
        return -(-pixels // tile.rows) * -(-channels // tile.columns)

    def loaded(tile: GroupTile) -> int:
        return -(-groups(tile) // caps.compute_units) * (tile.rows + tile.columns)

    legal = legal_tiles(caps, pixels, channels)
    if depth <= SHORT and SMALL in legal:
        legal = [SMALL]
    best = min(legal, key=loaded, default=None)
    return best if best is not None and 2 * groups(best) >= caps.compute_units else None


def pack_weights(weight: Array) -> Array:
    """Return weights (co, ci, 1...) as a matrix (ci, co): the logical array whose NC4HW4 form its rows are."""
    co, ci = weight.shape[:2]
    return np.ascontiguousarray(weight.reshape(co, ci).T).reshape(1, -1, PACK).transpose(0, 2, 1)


def launch_rows(plan: ConvPlan, tile: GroupTile) -> None:
    """Launch the product of the rows of x and the weights."""
    k, (channels, depth) = plan.k, plan.weight.shape[:2]
    places = prod(plan.window.outputs)
    rows = plan.x.shape[0] * places
    k.launch(
        "workgroup_gemm",
        reads={
            "x": plan.x, **plan.bias_vector(),
            "w": k.constant("rows", partial(pack_weights, plan.weight), Layout.NC4HW4),
        },
        writes={"y": plan.y},
        ints={"ROWS": rows, "DEPTH": depth, "COLUMNS": channels, "PLACES": places},
        variant={"rows": tile.rows, "columns": tile.columns, "depth": tile.depth, "tail": depth % tile.depth},
        kinds={"x": "wide", "w": "wide"},
        grid=(-(-channels // tile.columns), -(-rows // tile.rows), 1),
        local=(tile.items, 1, 1),
    )  # fmt: skip
