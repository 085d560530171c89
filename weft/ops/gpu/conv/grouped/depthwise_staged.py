"""Depthwise convolution on GPUs in work-group memory: a group stages the part of the image that its tile sees.

A window of many taps reads each pixel many times. The other kernels load it from a cache each time, and compilers keep
few of these loads under way: with little work they mostly wait. Here all items of a group load at once and wait once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from weft.core.graph.layout import PACK, Layout
from weft.kernels.chooser import NEVER, Algorithm, Candidate, candidates_of
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import LARGE_GROUP, SECTOR, VECTOR_BYTES
from weft.kernels.special import register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.grouped.depthwise import depthwise_reads
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

AT_ONCE = 8
"""Most loads that an item has under way: their results are in registers."""
MOST_LOADS = 8 * AT_ONCE
"""Most loads of an item; the kernel's text writes out each."""
MOST_PRODUCTS = 50
"""Most vector products of an item that the kernel's text writes out; of more, it has a loop over the window's rows."""
CANDIDATES = 3
"""Most tiles that are offered of those whose items compute the same number of pixels."""


@dataclass(frozen=True)
class DepthwiseStagedFigures(AlgorithmFigures, section="conv_depthwise_staged"):
    """When staging pays."""

    taps: int
    """Staging is the default if the window has at least so many taps."""
    cost: float
    """Its share of the portable kernel's time."""


@dataclass(frozen=True, slots=True)
class StagedTile:
    """The pixels, below and beside each other, that a work-group computes of so many blocks of channels."""

    blocks: int
    rows: int
    columns: int
    pixels: int
    """Adjacent pixels of a row that an item computes. They divide the columns."""

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return self.blocks * self.rows * self.columns // self.pixels

    def sees(self, problem: ConvProblem) -> tuple[int, int]:
        """Return the rows and columns of the image that the tile sees."""
        w = problem.constants
        high = (self.rows - 1) * w["SH"] + (w["KH"] - 1) * w["DH"] + 1
        return high, (self.columns - 1) * w["SW"] + (w["KW"] - 1) * w["DW"] + 1

    def loads(self, problem: ConvProblem) -> int:
        """Return the loads of an item: of the image and of the weights."""
        return sum(-(-each * self.blocks // self.items) for each in (prod(self.sees(problem)), problem.taps))

    def shared_bytes(self, problem: ConvProblem) -> int:
        """Return the bytes of work-group memory, as the template lays it out."""
        (high, wide), stride = self.sees(problem), problem.constants["SH"]
        return VECTOR_BYTES * self.blocks * (-(-high // stride) * stride * (wide | 1) + problem.taps)

    def groups(self, problem: ConvProblem) -> int:
        """Return the work-groups."""
        w, parts = problem.constants, -(-problem.blocks // self.blocks)
        return problem.images * parts * -(-w["OH"] // self.rows) * -(-w["OW"] // self.columns)


ROWS, ITEMS_ACROSS, PIXELS, BLOCKS = (1, 4, 7, 14), (1, 2, 4, 7), (7, 4, 2), (1, 2, 4)
TILES = tuple(
    tile
    for pixels, blocks, rows, across in product(PIXELS, BLOCKS, ROWS, ITEMS_ACROSS)
    if (tile := StagedTile(blocks, rows, pixels * across, pixels)).items <= LARGE_GROUP
)
"""Sizes that divide the sizes of common images: few, so that a choice is quick and images share kernels."""


def microseconds(problem: ConvProblem, tile: StagedTile) -> float:
    """Return the estimated time of a tile on the busiest unit: loads, then reads or products, whichever take longer."""
    model, w = problem.caps.model, problem.constants
    on_a_unit = -(-tile.groups(problem) // problem.caps.likely_units)
    places = len({pixel * w["SW"] + tap * w["DW"] for pixel in range(tile.pixels) for tap in range(w["KW"])})
    reads, products = w["KH"] * (places + w["KW"]), problem.taps * tile.pixels * PACK
    read = on_a_unit * tile.items * reads / model.group_vectors
    multiplied = products * max(1 / model.item_products, on_a_unit * tile.items / model.unit_products)
    vector = PACK * problem.read.itemsize
    adjoining = tile.blocks * vector if problem.layout is Layout.NHWC4 else tile.columns * vector
    wasted = max(SECTOR / adjoining, 1.0)
    loaded = on_a_unit * tile.blocks * vector * (prod(tile.sees(problem)) * wasted + problem.taps) / model.read_bytes
    return loaded + model.round_us * -(-tile.loads(problem) // AT_ONCE) + max(read, multiplied)


class DepthwiseStaged(Algorithm[ConvProblem, ConvPlan, StagedTile]):
    """A group stages what its tile sees in work-group memory."""

    name = "conv_depthwise_staged"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse it where its self-test failed."""
        return "its self-test failed on this device" if self.name in problem.caps.without else None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles that are expected to be fastest. Without tuning, large windows on a GPU come first."""
        caps, (*_, height, width) = problem.caps, (1, *problem.window.outputs)
        most_rows = min((rows for rows in ROWS if rows >= height), default=max(ROWS))
        legal = [
            tile
            for tile in TILES
            if min(2, height) <= tile.rows <= most_rows
            and tile.columns - tile.pixels < width
            and tile.blocks < 2 * problem.blocks
            and caps.holds((tile.items, 1, 1))
            and tile.loads(problem) <= MOST_LOADS
            and tile.shared_bytes(problem) <= caps.local_memory
            and tile.groups(problem) <= caps.max_grid[0]
        ]
        times = {tile: microseconds(problem, tile) for tile in legal}
        ranked = sorted(legal, key=times.__getitem__)
        kept = {tile for pixels in PIXELS for tile in [t for t in ranked if t.pixels == pixels][:CANDIDATES]}
        best = [tile for tile in ranked if tile in kept]
        known = caps.model.of(DepthwiseStagedFigures)
        first = not caps.software and problem.taps >= known.taps
        return candidates_of(best, times.__getitem__, known.cost if first else NEVER)

    def launch(self, plan: ConvPlan, tile: StagedTile) -> None:
        """Launch the kernel; a group reads all taps of its blocks, which adjoin in NC4HW4."""
        k, problem = plan.k, plan.problem
        window = problem.constants
        k.launch(
            "conv_depthwise_staged", reads=depthwise_reads(plan, Layout.NC4HW4), writes={"y": plan.y},
            ints={
                **{name: window[name] for name in ("IH", "IW", "OH", "OW", "PH", "PW")},
                "TILES_H": -(-window["OH"] // tile.rows),
                "TILES_W": -(-window["OW"] // tile.columns),
                "BLOCKS": problem.blocks,
                "PARTS": -(-problem.blocks // tile.blocks),
            },
            variant={
                **{name.lower(): window[name] for name in ("KH", "KW", "SH", "SW", "DH", "DW")},
                "blocks": tile.blocks,
                "rows": tile.rows,
                "columns": tile.columns,
                "pixels": tile.pixels,
                "at_once": AT_ONCE,
                "unrolled": problem.taps * tile.pixels <= MOST_PRODUCTS,
            },
            grid=(tile.groups(problem), 1, 1), local=(tile.items, 1, 1), repeatable=True,
        )


register_family(
    "conv_depthwise_staged", "depthwise convolutions in work-group memory",
    cases=lambda: (
        conv_with((2, 13, 9, 11), (13, 1, 5, 5), group=13, strides=(2, 1), pads=(2, 1, 2, 3), prefer="StagedTile("),
        conv_with((1, 6, 17, 16), (6, 1, 15, 14), group=6, pads=(7, 6, 7, 7), prefer="StagedTile("),
    ),
    fallback="depthwise convolutions by tiles",
)
