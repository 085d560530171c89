"""Convolution by the portable implicit GEMM, in tiles: pixels times output channels, over taps and input channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import VECTOR_BYTES
from weft.kernels.special import register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.direct import DIRECT
from weft.ops.gpu.conv.gemm.item_tile import ItemTile
from weft.ops.gpu.conv.gemm.ranking import ImplicitGemm
from weft.ops.gpu.conv.gemm.split_k import InParts, Sums, TileWork, tile_and_parts
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, pieces, vectors_spec
from weft.ops.gpu.packing import pack_in_run

CONV_PROLOGUE = "conv_prologue"
"""The portable GEMM that applies element-wise steps as it loads; `DeviceCaps.without` names it where it is wrong."""
_FOUR = {2: np.uint64, 4: np.complex128}
"""Types of the size of four elements, by the bytes of one."""
STEP = 4
"""Blocks of four input channels, of which packed weights have a multiple."""


def pack_weights(weight: Array, first: int, count: int) -> Array:
    """Return weights (co, ci, *kernel) as vectors [tap][ci block][co block][4 ci][4 co] of one piece.

    The axes are padded with zeros, and the ci blocks of all taps to a multiple of STEP, so that the kernel needs no
    bounds checks on K. The result is the logical array whose NC4HW4 form is these vectors.
    """
    ci, taps = weight.shape[1], prod(weight.shape[2:])
    ci4 = -(-ci // PACK)
    part = weight[first * PACK : (first + count) * PACK].reshape(-1, ci, taps).transpose(2, 1, 0)
    whole = part.shape == (taps, ci4 * PACK, count * PACK)
    rows = -(-taps * ci4 // STEP) * STEP
    out = np.empty((rows, count, PACK, PACK), weight.dtype)
    out[taps * ci4 :] = 0
    target = out[: taps * ci4].reshape(taps, ci4, count, PACK, PACK)
    if not whole:
        full = np.zeros((taps, ci4 * PACK, count * PACK), weight.dtype)
        full[:, :ci, : part.shape[2]] = part
        part = full
    four = _FOUR.get(weight.dtype.itemsize)
    if four is not None and part.strides[2] == weight.dtype.itemsize:  # four channels out at a time, as in products
        target.view(four)[..., 0] = part.view(four).reshape(taps, ci4, PACK, count).transpose(0, 1, 3, 2)
    else:
        target[...] = part.reshape(taps, ci4, PACK, count, PACK).transpose(0, 1, 3, 2, 4)
    return out.reshape(1, -1, PACK).transpose(0, 2, 1)


@dataclass(frozen=True)
class GemmFigures(AlgorithmFigures, section="conv_gemm"):
    """How tiles are chosen."""

    items: int
    """A tile must give each unit at least so many work-items."""
    sliced_items: int
    """The same for a tile with slices of K."""
    long_steps: int
    """With more steps of K, a tile of few items that each compute more is faster."""


@dataclass(frozen=True)
class GemmTile(ItemTile):
    """How a work-group of the GEMM kernel divides its work.

    It has at most 256 items: with more, a compiler may run out of registers. ly divides depth * pixels, and lx divides
    4 * depth * blocks, so that every item fetches the same amount.
    """

    transposed: ClassVar[bool] = False
    """Whether vectors of four pixels lie in work-group memory, not of four channels of one."""

    @property
    def depth(self) -> int:
        """Return the blocks of four input channels that the group stages at a time."""
        return STEP

    @property
    def variant(self) -> dict[str, int | bool]:
        """Return what templates know of it."""
        return {
            "rp": self.pixels, "rc": self.blocks, "lx": self.lx, "ly": self.ly, "transposed": self.transposed,
            "depth": self.depth,
        }

    @property
    def registers(self) -> int:
        """Return the registers of an item, about: its sums, and 40 for operands and addresses."""
        return PACK * self.pixels * self.blocks + 40

    def shared_bytes(self, buffers: int = 1) -> int:
        """Return the bytes of work-group memory: the staged tiles, and the sums of all slices but one."""
        rows = self.rows + PACK * self.transposed
        tiles = self.lz * buffers * self.depth * (rows + PACK * (self.columns + 2))
        return VECTOR_BYTES * (tiles + max((self.lz - 1) * self.rows * self.columns, 1))

    def buffers(self, caps: DeviceCaps) -> int:
        """Return how many steps of K work-group memory holds; on a CPU one, because a second gains nothing there."""
        return 1 if caps.software or self.shared_bytes(2) > caps.local_memory else 2


def tile_loads(tile: GemmTile) -> int:
    """Return the vectors that an item reads from work-group memory in a round."""
    return tile.depth * (tile.pixels + PACK * tile.blocks)


LONG_TILE = GemmTile(4, 2, 8, 8, 1)
"""For sums of many steps (`GemmFigures.long_steps`): shorter ones are faster where more groups fit on a unit."""
TILES = (
    LONG_TILE,
    GemmTile(4, 1, 8, 8, 1),
    GemmTile(4, 1, 8, 8, 2),
    GemmTile(4, 1, 8, 8, 4),
    GemmTile(2, 1, 8, 8, 4),
    GemmTile(2, 1, 8, 4, 8),
)
"""From the best reuse to the most parallelism."""
SOFTWARE_TILE = GemmTile(4, 1, 8, 8, 1)


def legal_tiles(caps: DeviceCaps, steps: int) -> list[GemmTile]:
    """Return the tiles that fit the device and so many steps of K."""
    return fitting_tiles(caps, steps, TILES)


def fitting_tiles(caps: DeviceCaps, steps: int, tiles: Sequence[GemmTile]) -> list[GemmTile]:
    """Return those of some tiles that fit the device and so many steps of K."""
    return [t for t in tiles if t.fits(caps, steps)]


def choose_tile(caps: DeviceCaps, pixels: int, blocks: int, steps: int) -> GemmTile | None:
    """Return the tile with the most reuse that gives every compute unit enough work-items; None if none fits.

    Tiles with slices of K come last: they cost a sum, and pay only with several steps for each. A CPU gets a small
    tile: it gains nothing from reuse in registers, and its compiler is slow.
    """
    if caps.software:
        return SOFTWARE_TILE if SOFTWARE_TILE.fits(caps, steps) else None
    known, units = caps.model.of(GemmFigures), caps.likely_units
    fitting = [t for t in legal_tiles(caps, steps) if t != LONG_TILE or steps > known.long_steps]
    for tile in fitting:
        groups = -(-pixels // tile.rows) * -(-blocks // tile.columns)
        wanted = known.items if tile.lz == 1 else known.sliced_items
        if groups * tile.lx * tile.ly * tile.lz >= wanted * units:
            return tile
    return fitting[-1] if fitting else None


def steps_of(problem: ConvProblem, depth: int = STEP) -> int:
    """Return the steps of so many blocks of K in the packed weights: taps times blocks of input channels."""
    return -(-problem.taps * problem.blocks_in // STEP) * (STEP // depth)


def bytes_of_block(problem: ConvProblem) -> int:
    """Return the bytes of the packed weights of four output channels."""
    return steps_of(problem) * STEP * PACK * PACK * problem.weights.itemsize


def _packed(plan: ConvPlan, steps: int) -> Tensor:
    """Return the weights of the plan's piece as the kernel reads them."""
    p = plan.problem
    if isinstance(plan.weights, Tensor):
        return pack_in_run(plan.k, plan.weights, (p.channels_out, p.channels_in, p.taps), STEP)
    pack = plan.packing(pack_weights, plan.first, p.count)
    spec = vectors_spec(steps * STEP * PACK * PACK * p.count, p.weights)
    return plan.k.constant(f"gemm.{plan.first}", pack, Layout.NC4HW4, spec)


@dataclass(frozen=True)
class TiledConv(ImplicitGemm[GemmTile]):
    """The portable GEMM, which computes in fp32 whatever is stored."""

    name, prologue = "conv_gemm", CONV_PROLOGUE
    splits_k: bool = True
    """Whether groups may share the K of a tile."""

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse groups, three dimensions, and weights beyond the range of one argument."""
        if not problem.ungrouped:
            return "it has groups or three dimensions"
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if len(pieces(problem, bytes_of_block(problem))) > 1 and problem.whole:
            return "its weights exceed what one kernel argument may span"
        return None

    def tiles(self, problem: ConvProblem) -> tuple[GemmTile | None, Sequence[GemmTile]]:
        caps, steps = problem.caps, steps_of(problem)
        return choose_tile(caps, problem.pixels, problem.count, steps), legal_tiles(caps, steps)

    def work(self, problem: ConvProblem, tile: GemmTile) -> TileWork:
        steps, pixels, count = steps_of(problem, tile.depth), problem.pixels, problem.count
        groups = -(-pixels // tile.rows) * -(-count // tile.columns)
        read = steps * tile.depth * PACK * (tile.rows + PACK * tile.columns) * problem.weights.itemsize
        return TileWork(groups, -(-steps // tile.lz), read, pixels * count * PACK)

    def in_parts(self, problem: ConvProblem, whole: Sequence[GemmTile]) -> Sequence[InParts[GemmTile]]:
        """Return tiles in parts, but none for a piece of the weights."""
        return super().in_parts(problem, whole) if self.splits_k and problem.whole else []

    def needs_no_tuning(self, tile: InParts[GemmTile]) -> bool:
        """Accept slices: without them a group has 64 work-items, and a round takes longer than the model says."""
        return tile.tile.lz > 1

    def effort(self, problem: ConvProblem, tile: GemmTile | InParts[GemmTile]) -> Effort | None:
        p, (chosen, parts) = problem, tile_and_parts(tile)
        work, rows, columns = self.work(p, chosen), chosen.rows, PACK * chosen.columns
        return Effort(
            groups=work.groups * parts, items=chosen.items, registers=chosen.registers,
            shared=chosen.shared_bytes(2), rows=rows, columns=columns, rounds=-(-work.rounds // parts),
            depth=PACK * chosen.depth, slices=chosen.lz,
            read=p.staged(rows, columns, PACK * STEP * steps_of(p)), moved=p.moved, parts=parts,
            results=work.stored, loads=tile_loads(chosen),
        )

    def staging(self, problem: ConvProblem, tile: GemmTile) -> dict[str, int | bool]:
        """Return what templates know of how steps come to work-group memory."""
        return {"buffers": tile.buffers(problem.caps), "copied": False}

    def multiply(self, plan: ConvPlan, tile: GemmTile, sums: Sums) -> None:
        k, p = plan.k, plan.problem
        packed = _packed(plan, steps_of(p))
        tiles = -(-p.pixels // tile.rows)
        reading, channels = p.reading
        k.launch(
            "conv_gemm",
            reads={"x": plan.x, "w": packed, **sums.bias},
            writes={"y": sums.target},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": steps_of(p, tile.depth), "PIXELS": p.pixels,
                "FIRST": plan.first, "COUNT": p.count, "TILES": tiles, **channels, **sums.ints,
            },
            variant={
                **tile.variant, **self.staging(p, tile), "pointwise": p.pointwise, **reading, **sums.variant,
            },
            grid=(min(tiles, k.caps.max_grid[0]), -(-p.count // tile.columns), sums.parts),
            local=(tile.lx, tile.ly, tile.lz),
            epilogue=sums.epilogue, prologue=plan.prologue,
        )


register_family(
    "conv_gemm", "tiled convolutions",
    cases=lambda: (
        conv_with((1, 7, 10, 12), (5, 7, 3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
        conv_with((2, 17, 9, 7), (6, 17, 2, 3), strides=(2, 3), pads=(0, 1, 1, 2)),
        conv_with((2, 64, 7, 5), (70, 64, 1, 1), bias=False),
        conv_with((1, 36, 6, 7), (33, 36, 3, 3), prefer="GemmTile(pixels=2, blocks=1, lx=8, ly=4, lz=8)"),
    ),
    fallback=DIRECT, seconds=0.65,
)
