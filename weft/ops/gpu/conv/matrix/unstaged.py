"""Convolution on matrix units without work-group memory, for problems too small to fill a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array, Layout
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import PIECE
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.source import SUBGROUP
from weft.kernels.special import register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.gemm.ranking import ImplicitGemm
from weft.ops.gpu.conv.gemm.split_k import InParts, Sums, TileWork, tile_and_parts
from weft.ops.gpu.conv.matrix.staged import SIDE
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, vectors_spec

UNSTAGED_PROLOGUE = "conv_unstaged_prologue"
"""The kernel that applies element-wise steps as it loads; `DeviceCaps.without` names it where it is wrong."""
CHUNK = 4 * PIECE
"""Elements along K that a subgroup loads at a time: a piece for each of four items."""


@dataclass(frozen=True)
class UnstagedFigures(AlgorithmFigures, section="conv_unstaged"):
    """When no staging pays."""

    squares: int
    """Up to so many tiles of 16 x 16 for each unit, matrix units are faster without staging."""
    cost: float
    """Its share of the portable kernel's time."""


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
"""From the best reuse to the most parallelism. Each was best for something, except 2 x 2 tiles without slices, which
`choose_tile` takes for short sums of many tiles."""
SLICES = ((16, 8), (8, 4), (0, 1))
"""Least chunks of K for which so many slices were usually best."""


def _cases() -> Sequence[SelfTestCase]:
    """Return small convolutions: with and without taps, uneven edges, one chunk of K and many, one tile and two.

    The last one has long sums and few results, so that groups split its K.
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
    "conv_unstaged",
    "small convolutions on matrix units",
    claimed=lambda caps: caps.multiplies(HALVES),
    cases=_cases,
    template="conv_unstaged",
)


def chunks_of(problem: ConvProblem) -> int:
    """Return the chunks along K: taps times channels."""
    return -(-problem.taps * problem.channels_in // CHUNK)


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
    """Return the largest tile that gives every compute unit one and a half groups; None if the product is not small.

    It has as many slices of K as the chunks allow.
    """
    if squares(pixels, channels) > caps.model.of(UnstagedFigures).squares * caps.compute_units:
        return None
    lz = next(lz for least, lz in SLICES if chunks >= least)
    fitting = legal_tiles(caps, pixels, chunks)
    fitting = [t for t in fitting if t.lz == lz and t.fm == t.fn] or fitting
    for tile in fitting:
        if 2 * -(-pixels // tile.rows) * -(-channels // tile.columns) >= 3 * caps.compute_units:
            return tile
    return fitting[-1] if fitting else None


def pack_weights(weight: Array, fn: int) -> Array:
    """Return weights (co, ci, *kernel) as items read them: [16 channels][half of them][chunk][item][8 along K].

    Item 4g + t has piece t of column g of a half; columns 2t and 2t + 1 of both halves are channels 4t to 4t + 3.
    Zeros pad K to whole chunks and channels to `fn` times 16. The result is the logical array whose NC4HW4 form
    these pieces are.
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    across, chunks = -(-co // (SIDE * fn)) * fn, -(-taps * ci // CHUNK)
    full = np.zeros((across * SIDE, chunks * CHUNK), weight.dtype)
    full[:co, : taps * ci].reshape(-1, taps, ci)[...] = weight.reshape(co, ci, taps).transpose(0, 2, 1)
    pairs = full.reshape(across, SIDE // 4, 2, 2, chunks, CHUNK)
    return pairs.transpose(0, 2, 4, 1, 3, 5).reshape(1, -1, PACK).transpose(0, 2, 1)


class UnstagedConv(ImplicitGemm[UnstagedTile]):
    """Items load what they multiply straight from the device's memory."""

    name, prologue = "conv_unstaged", UNSTAGED_PROLOGUE

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse large products, and pixels that are no rows of whole pieces of channels."""
        if not SPECIAL.present(problem.caps):
            return "its self-test failed on this device"
        if problem.channels_in % PIECE or not problem.read_pieces:
            return f"its pixels do not lie as rows of channels in pieces of {PIECE}"
        largest = max(t.columns for t in TILES)
        packed = (problem.channels_out + largest) * chunks_of(problem) * CHUNK * problem.weights.itemsize
        if packed > problem.caps.max_buffer_range:
            return "its weights exceed what one kernel argument may span"
        most = problem.caps.model.of(UnstagedFigures).squares * problem.caps.compute_units
        if squares(problem.pixels, problem.channels_out) > most:
            return "the product is large enough for groups to share what they load"
        return None

    def tiles(self, problem: ConvProblem) -> tuple[UnstagedTile | None, Sequence[UnstagedTile]]:
        caps, pixels, chunks = problem.caps, problem.pixels, chunks_of(problem)
        return choose_tile(caps, pixels, problem.channels_out, chunks), legal_tiles(caps, pixels, chunks)

    def work(self, problem: ConvProblem, tile: UnstagedTile) -> TileWork:
        groups, chunks = problem.tiles(tile.rows, tile.columns), chunks_of(problem)
        read = 2 * CHUNK * chunks * (tile.rows + tile.columns)
        return TileWork(groups, -(-chunks // (tile.lz * tile.ahead)), read, problem.pixels * problem.channels_out)

    def cost(self, problem: ConvProblem, first: UnstagedTile | InParts[UnstagedTile]) -> float:
        """Return the cost on this kind of device."""
        return problem.caps.model.of(UnstagedFigures).cost

    def effort(self, problem: ConvProblem, tile: UnstagedTile | InParts[UnstagedTile]) -> Effort:
        p, (chosen, parts) = problem, tile_and_parts(tile)
        work = self.work(p, chosen)
        return Effort(
            on_matrix_units=True, groups=work.groups * parts, items=chosen.items,
            registers=8 * chosen.fm * chosen.fn + 60, shared=chosen.shared_bytes(), rows=chosen.rows,
            columns=chosen.columns, rounds=-(-work.rounds // parts), depth=CHUNK * chosen.ahead,
            slices=chosen.lz, read=p.staged(chosen.rows, chosen.columns, p.depth), moved=p.moved, parts=parts,
            results=work.stored, stepped=p.stepped(chosen.rows, parts),
        )

    def multiply(self, plan: ConvPlan, tile: UnstagedTile, sums: Sums) -> None:
        k, p, chunks = plan.k, plan.problem, chunks_of(plan.problem)
        pack = plan.packing(pack_weights, tile.fn)
        across = -(-p.channels_out // (SIDE * tile.fn)) * tile.fn
        spec = vectors_spec(across * SIDE * chunks * CHUNK, p.weights)
        k.launch(
            "conv_unstaged",
            reads={
                "x": plan.x, **sums.bias,
                "w": k.constant(f"unstaged.{tile.fn}", pack, Layout.NC4HW4, spec),
            },
            writes={"y": sums.target},
            ints={
                **p.constants, "PIECES": p.channels_in // PIECE, "CHUNKS": chunks, "PIXELS": p.pixels,
                "COUNT": p.blocks, **sums.ints,
            },
            variant={
                "fm": tile.fm, "fn": tile.fn, "ahead": tile.ahead, "sliced": tile.lz > 1,
                "pointwise": p.pointwise, **sums.variant, **p.many_images,
            },
            kinds={"x": "wide", "w": "wide"},
            grid=(-(-p.pixels // tile.rows), -(-p.channels_out // tile.columns), sums.parts),
            local=(SUBGROUP, 1, tile.lz),
            epilogue=sums.epilogue, prologue=plan.prologue,
        )
