"""Depthwise convolution on GPUs: one filter for each channel; a work-item computes several adjacent pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from weft.core.graph.layout import Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.chooser import Algorithm, Candidate, Facts, candidates_of, waves
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import SMALL_GROUP
from weft.kernels.special import in_place_of, register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.direct import DIRECT
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

MOST_PRODUCTS = 200
"""Most vector products of one work-item: the kernel's text writes out each."""


@dataclass(frozen=True)
class DepthwiseFigures(AlgorithmFigures, section="conv_depthwise_tile"):
    """How tiles are chosen."""

    items: int
    """A tile must give each unit at least so many work-items."""


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
"""Defaults where adjacent work-items have adjacent channels, from the best reuse to the most parallelism. Larger tiles
win a tenth on some shapes and lose a third on others, because registers become scarce."""
CHANNELS_FIRST = (DepthwiseTile(4, 1), DepthwiseTile(2, 1), DepthwiseTile(1, 1))
"""Defaults where adjacent work-items should have adjacent pixels."""


def why_not_depthwise(problem: ConvProblem) -> str | None:
    """Return why a convolution is not one filter a channel, of images of up to two dimensions."""
    one_each = 1 < problem.group == problem.channels_out and problem.channels_in == 1
    return None if one_each and problem.window.rank <= 2 else "it is not one filter a channel, or has three dimensions"


def facts_of_depthwise(problem: ConvProblem) -> Facts:
    """Return the facts by which tuning tables find a problem."""
    return {**problem.constants, "N": problem.images, "C4": problem.blocks, "bias": problem.bias}


def choose_tile(problem: ConvProblem) -> DepthwiseTile:
    """Return the tile with the most reuse that fills the device; on a CPU the one with the fewest loads."""
    if problem.caps.software:
        return min(legal_tiles(problem), key=lambda tile: loads_of(problem, tile))
    offered = CHANNELS_LAST if problem.layout is Layout.NHWC4 else CHANNELS_FIRST
    wanted = problem.caps.model.of(DepthwiseFigures).items * problem.caps.likely_units
    for tile in offered:
        if problem.taps * tile.rows * tile.columns <= MOST_PRODUCTS and items_of(problem, tile) >= wanted:
            return tile
    return offered[-1]


def legal_tiles(problem: ConvProblem) -> list[DepthwiseTile]:
    """Return the tiles whose text is short enough."""
    return [tile for tile in TILES if problem.taps * tile.rows * tile.columns <= MOST_PRODUCTS]


def loads_of(problem: ConvProblem, tile: DepthwiseTile) -> float:
    """Return the vectors that an item loads for a pixel: all that its windows see, and a weight for each tap.

    What a tile computes beyond the last row or column counts only where the image is smaller than the tile: fewer
    loads at the border would not pay for the kernel of another tile at each size.
    """
    w = problem.constants
    *_, height, width = 1, *problem.window.outputs
    rows = (tile.rows - 1) * w["SH"] + (w["KH"] - 1) * w["DH"] + 1
    columns = (tile.columns - 1) * w["SW"] + (w["KW"] - 1) * w["DW"] + 1
    return (rows * columns + problem.taps) / (min(tile.rows, height) * min(tile.columns, width))


def items_of(problem: ConvProblem, tile: DepthwiseTile) -> int:
    """Return the number of work-items that compute the output."""
    *_, height, width = 1, *problem.window.outputs
    return problem.images * problem.blocks * -(-height // tile.rows) * -(-width // tile.columns)


def depthwise_reads(plan: ConvPlan, layout: Layout) -> dict[str, Tensor]:
    """Return what the kernels read: the image, the weights as an image of taps, and the bias if there is one."""
    filters = plan.filters(f"depthwise in {layout.name}", 0, plan.problem.channels_out, layout)
    return {"x": plan.x, "w": filters, **plan.bias_vector()}


class DepthwiseInTiles(Algorithm[ConvProblem, ConvPlan, DepthwiseTile]):
    """An item computes a tile of pixels, each product written out."""

    name = "conv_depthwise_tile"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse windows of too many taps."""
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if problem.taps > MOST_PRODUCTS:
            return f"its kernel would be too long: {problem.taps} products written out, at most {MOST_PRODUCTS}"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles, the most promising first."""

        def time(tile: DepthwiseTile) -> float:
            if problem.caps.software:
                return loads_of(problem, tile)
            groups = -(-items_of(problem, tile) // SMALL_GROUP)
            return waves(problem.caps.model, groups, SMALL_GROUP, problem.caps.likely_units)

        return candidates_of([choose_tile(problem), *legal_tiles(problem)], time)

    def launch(self, plan: ConvPlan, tile: DepthwiseTile) -> None:
        """Launch the kernel; weights lie like pixels, so that adjacent items read adjacent ones."""
        k, window = plan.k, plan.problem.constants
        total = items_of(plan.problem, tile)
        ints = {name: window[name] for name in ("IH", "IW", "OH", "OW", "PH", "PW")}
        ints |= {"TILES_H": -(-window["OH"] // tile.rows), "TILES_W": -(-window["OW"] // tile.columns)}
        k.launch(
            "conv_depthwise_tile", reads=depthwise_reads(plan, plan.problem.layout), writes={"y": plan.y},
            ints={**ints, "BLOCKS": plan.problem.blocks, "TOTAL": total},
            variant={
                **{name.lower(): window[name] for name in ("KH", "KW", "SH", "SW", "DH", "DW")},
                "rows": tile.rows,
                "columns": tile.columns,
            },
            items=total,
        )


class OnePixel(NamedTuple):
    """An item computes one pixel of four channels."""


class DepthwiseInLoops(Algorithm[ConvProblem, ConvPlan, OnePixel]):
    """The kernel with loops over the taps, for windows with too many products to write out."""

    name = "conv_depthwise"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse it where its self-test failed."""
        return "its self-test failed on this device" if self.name in problem.caps.without else None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the only tile; it costs more than a tile whose products are written out."""
        return [Candidate(OnePixel(), 1.25)]

    def launch(self, plan: ConvPlan, tile: OnePixel) -> None:
        """Launch the kernel; weights lie like pixels, so that adjacent items read adjacent ones."""
        k, p = plan.k, plan.problem
        total = p.images * p.blocks * prod(p.window.outputs)
        ints = {**p.constants, "BLOCKS": p.blocks, "TOTAL": total}
        reads = depthwise_reads(plan, p.layout)
        k.launch("conv_depthwise", reads=reads, writes={"y": plan.y}, ints=ints, items=total)
register_family(
    "conv_depthwise_tile", "depthwise convolutions by tiles",
    cases=lambda: (
        conv_with((1, 7, 10, 9), (7, 1, 3, 5), group=7, strides=(1, 3), pads=(3, 1, 2, 2)),
        conv_with(
            (2, 12, 13, 11), (12, 1, 3, 3), group=12, pads=(1, 1, 1, 1), prefer="DepthwiseTile(rows=2, columns=4)"
        ),
    ),
    fallback="depthwise convolutions by loops",
)
register_family(
    "conv_depthwise", "depthwise convolutions by loops",
    cases=lambda: (conv_with((1, 6, 17, 16), (6, 1, 15, 14), group=6, pads=(7, 6, 7, 7), dilations=(1, 1)),),
    fallback=DIRECT, forced=in_place_of("conv_depthwise_staged"),
)
