"""Rows times constant weights on matrices that whole work-groups hold: fp16 products summed in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.chooser import Algorithm, Candidate, candidates_of, waves
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.matrix_shapes import HALVES, MatrixShape
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.special import register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, vectors_spec

STEP = 16
"""The depth of a product, and of each step, is a multiple of this."""


@dataclass(frozen=True)
class WorkgroupGemmFigures(AlgorithmFigures, section="workgroup_gemm"):
    """When matrices of work-groups pay."""

    short_depth: int
    """Up to this depth, the smallest tile of full width is best."""
    long_depth: int
    """From this depth on, small products are faster without staging (`conv_unstaged`)."""
    cost: float
    """Its share of the portable kernel's time."""
    little_cost: float
    """The same where there is little work, so that units wait."""


@dataclass(frozen=True)
class GroupTile:
    """A work-group's tile: rows x columns, computed by so many work-items in steps of `depth` along K."""

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
"""Each was best for something; from the best reuse to the most parallelism."""
GROUPS, MOST_STEP = (128, 256), 64
"""Sizes of work-groups that must multiply matrices, and the largest step in which their sizes may grow."""


def shapes_of_groups(caps: DeviceCaps) -> tuple[MatrixShape, ...]:
    """Return the matrices of halves that whole work-groups multiply; none unless groups of both sizes do."""
    found = tuple(
        shape for shape in caps.matrices
        if (shape.scope, shape.operands, shape.sums) == ("workgroup", HALVES.operands, HALVES.sums)
        and max(shape.rows, shape.columns, shape.depth) <= MOST_STEP
    )
    return found if {shape.items for shape in found}.issuperset(GROUPS) else ()


def _cases() -> Sequence[SelfTestCase]:
    """Return products for each tile on a large device and a few on any, of whole tiles and of parts of tiles."""
    large = ((1100, 144, 1160), (1024, 192, 1024), (520, 80, 1000))
    small = ((260, 272, 1000), (130, 400, 1000), (200, 176, 296))
    return [conv_case((m, k, 1, 1), (n, k, 1, 1)) for m, k, n in large + small]


SPECIAL = register_special(
    "workgroup_gemm",
    "products on matrices of work-groups",
    claimed=lambda caps: bool(shapes_of_groups(caps)) and caps.multiplies(HALVES),
    withdraw=lambda caps: caps.without_matrices(*shapes_of_groups(caps)),
    cases=_cases,
    template="workgroup_gemm",
)


def legal_tiles(caps: DeviceCaps, pixels: int, channels: int) -> list[GroupTile]:
    """Return the tiles that fit the device and are not larger than the product."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.rows <= pixels <= t.rows * caps.max_grid[1]
        and t.columns <= channels
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, depth: int) -> GroupTile | None:
    """Return the tile for which a compute unit loads least; None where not even half the units have work.

    Loads are what takes the time, on all units alike. In short products it is the
    first load and the last store: there a small tile is the default.
    """

    def groups(tile: GroupTile) -> int:
        return -(-pixels // tile.rows) * -(-channels // tile.columns)

    def loaded(tile: GroupTile) -> int:
        return -(-groups(tile) // caps.compute_units) * (tile.rows + tile.columns)

    legal = legal_tiles(caps, pixels, channels)
    if depth <= caps.model.of(WorkgroupGemmFigures).short_depth and SMALL in legal:
        legal = [SMALL]
    best = min(legal, key=loaded, default=None)
    return best if best is not None and 2 * groups(best) >= caps.compute_units else None


def pack_weights(weight: Array) -> Array:
    """Return weights (co, ci, 1...) as a matrix (ci, co): the logical array whose NC4HW4 form its rows are."""
    co, ci = weight.shape[:2]
    return np.ascontiguousarray(weight.reshape(co, ci).T).reshape(1, -1, PACK).transpose(0, 2, 1)


class GroupMatrixConv(Algorithm[ConvProblem, ConvPlan, GroupTile]):
    """Convolutions that are a product of the rows of an image and the weights."""

    name = "workgroup_gemm"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse all but products of rows that consist of whole pieces."""
        if not SPECIAL.present(problem.caps):
            return "the device has no work-group matrices, or they failed their self-test"
        if not problem.pointwise or problem.written is not DType.FLOAT16:
            return "it is no product of rows in fp16"
        if problem.channels_in % STEP:
            return f"its input channels are no multiple of {STEP}"
        if not (problem.read_pieces and problem.written_pieces and problem.rows_added):
            return "what it reads, writes or adds does not lie as rows of channels in whole pieces"
        if problem.stores_second_outputs or problem.has_output_map:
            return "it stores second outputs, or by an output map"
        weights = problem.channels_in * problem.channels_out * problem.weights.itemsize
        if weights > problem.caps.max_buffer_range:
            return "its weights exceed what one kernel argument may span"
        if not legal_tiles(problem.caps, problem.pixels, problem.channels_out):
            return "the product is smaller than the smallest tile"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles; small products of long sums are faster without staging."""
        caps, sizes = problem.caps, (problem.pixels, problem.channels_out)
        known, best = caps.model.of(WorkgroupGemmFigures), choose_tile(caps, *sizes, problem.depth)
        unstaged = UnstagedConv()
        is_long = problem.depth >= known.long_depth
        if is_long and unstaged.why_not(problem) is None and unstaged.candidates(problem):
            best = None
        legal = legal_tiles(caps, *sizes)

        def time(tile: GroupTile) -> float:
            return waves(caps.model, problem.tiles(tile.rows, tile.columns), tile.items, caps.compute_units)

        if best is None:
            return candidates_of(legal, time, known.little_cost)
        return candidates_of([best, *legal], time, known.cost)

    def effort(self, problem: ConvProblem, tile: GroupTile) -> Effort:
        """Return the work of a tile, of which the device keeps two steps of operands in the group's memory."""
        p = problem
        registers = tile.rows * tile.columns // tile.items + 60
        shared = 2 * p.read.itemsize * tile.depth * (tile.rows + tile.columns)
        return Effort(
            on_matrix_units=True, groups=p.tiles(tile.rows, tile.columns), items=tile.items,
            registers=registers, shared=shared, rows=tile.rows, columns=tile.columns,
            rounds=-(-p.channels_in // tile.depth), depth=tile.depth, slices=1,
            read=p.staged(tile.rows, tile.columns, p.depth), moved=p.moved,
        )

    def launch(self, plan: ConvPlan, tile: GroupTile) -> None:
        """Launch the product of the rows of x and the weights."""
        k, p = plan.k, plan.problem
        places = prod(p.window.outputs)
        spec = vectors_spec(p.channels_in * p.channels_out, p.weights)
        k.launch(
            "workgroup_gemm",
            reads={
                "x": plan.x, **plan.bias_vector(),
                "w": k.constant("rows", plan.packing(pack_weights), Layout.NC4HW4, spec),
            },
            writes={"y": plan.y},
            ints={"ROWS": p.pixels, "DEPTH": p.channels_in, "COLUMNS": p.channels_out, "PLACES": places},
            variant={
                "rows": tile.rows, "columns": tile.columns, "depth": tile.depth, "tail": p.channels_in % tile.depth,
            },
            kinds={"x": "wide", "w": "wide"},
            grid=(-(-p.channels_out // tile.columns), -(-p.pixels // tile.rows), 1), local=(tile.items, 1, 1),
        )
