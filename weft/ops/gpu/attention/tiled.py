"""Attention by the portable kernel, whose scores stay in the work-group.

The softmax goes through the keys block by block. Whenever a block has a larger score, the sum of powers is corrected
(M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867), and so is the
weighted sum of values. So scores need no device memory (T. Dao et al., "FlashAttention", 2022, arXiv 2205.14135). Sums
are in float32 whatever is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from weft.core.graph.layout import PACK
from weft.kernels.chooser import Algorithm, Candidate, candidates_of
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures, amount_by, time_by
from weft.kernels.launch import VECTOR_BYTES, nested_rounds
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention.problem import AttentionPlan, AttentionProblem


@dataclass(frozen=True)
class AttentionFigures(AlgorithmFigures, section="attention"):
    """What estimates of the kernel know of a device besides its rates."""

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch that has nothing to do."""
    power_us: float = field(metadata=time_by("products"))
    """Microseconds of a power that an item computes, with its share in the softmax."""
    vectors: float = field(metadata=amount_by("shared_vectors"))
    """Vectors that the items of a unit read from work-group memory in a microsecond; adjacent items share some."""
    exposed: float
    """The share of products that other work does not hide."""


LARGEST_HEAD = 128
"""Most elements of a head: the sums of a work-item stay in registers."""
HELD = 104
"""Most floats of scores and sums in a work-item: its operands take as many registers again."""
OPERANDS = 40
"""Registers of an item for addresses and what it compares."""
MOST_REGISTERS = 255
"""Most registers that an item can have."""
LOADS = 8
"""Most loads that an item has under way together."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a work-group of the portable kernel divides its work.

    `lx` x `ly` work-items compute `ly` x `each` queries of a head, with `keys` keys at a time. An item has `each`
    queries, a multiple of four keys, and every `lx`-th vector of the result.
    """

    each: int
    lx: int
    ly: int
    keys: int

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return self.lx * self.ly

    @property
    def rows(self) -> int:
        """Return the queries of a group."""
        return self.each * self.ly

    def held(self, each: Extents) -> int:
        """Return the floats of scores and sums in a work-item."""
        return self.each * (self.keys // self.lx + PACK * -(-vectors(each.width) // self.lx))

    def shared_bytes(self, each: Extents, joint: bool) -> int:
        """Return the bytes of work-group memory; with `joint`, values overwrite keys."""
        key, value = vectors(each.depth) | 1, -(-vectors(each.width) // self.lx) * self.lx
        block = self.keys * (max(key, value) if joint else key + value)
        part = self.items * -(-self.each // PACK)
        return VECTOR_BYTES * (self.rows * (key + self.keys // PACK + 1) + block + part)

    def is_joint(self, caps: DeviceCaps, each: Extents) -> bool:
        """Tell whether values overwrite keys, because the memory of a work-group does not hold both."""
        return self.shared_bytes(each, joint=False) > caps.local_memory


TILES = (
    Tile(4, 8, 16, 64),
    Tile(4, 8, 16, 32),
    Tile(8, 8, 8, 32),
    Tile(4, 16, 8, 64),
    Tile(4, 8, 8, 64),
    Tile(4, 8, 8, 32),
    Tile(2, 16, 8, 64),
    Tile(2, 8, 8, 64),
    Tile(2, 8, 8, 32),
    Tile(1, 16, 8, 64),
    Tile(1, 16, 4, 64),
    Tile(1, 8, 8, 64),
    Tile(1, 4, 8, 16),
)
"""From the most queries that share keys to the most work-groups; the last needs only 16 KiB of work-group memory."""
SOFTWARE_TILE = Tile(2, 8, 8, 32)


def vectors(size: int) -> int:
    """Return the vectors of four that hold a row of a head."""
    return -(-size // PACK)


def legal_tiles(caps: DeviceCaps, each: Extents) -> list[Tile]:
    """Return the tiles that a device takes."""
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.held(each) <= HELD
        and t.shared_bytes(each, joint=True) <= caps.local_memory
    ]


def microseconds(caps: DeviceCaps, each: Extents, tile: Tile) -> float:
    """Return what a tile is expected to take on a GPU.

    What an item does one after the other (rounds of loads, multiplying, powers) takes its time once in each wave of
    groups that a unit runs at once. What the items of a unit share (vectors from work-group memory, multiplying,
    memory) adds up over its groups. `benchmarks/attention_tiles.py` compares this with measured times.
    """
    model, own = caps.model, caps.model.of(AttentionFigures)
    depth, width = vectors(each.depth), vectors(each.width)
    columns, scores = -(-width // tile.lx), tile.keys // tile.lx
    on_a_unit = -(-prod(each.lead) * -(-each.queries // tile.rows) // caps.likely_units)
    memory = tile.shared_bytes(each, tile.is_joint(caps, each))
    registers = min(2 * tile.held(each) + OPERANDS, MOST_REGISTERS)
    resident = min(model.side_by_side(tile.items, registers, memory), on_a_unit)
    loads = sum(-(-tile.keys * size // (tile.items * LOADS)) for size in (depth, width))
    products = PACK * tile.each * (scores * depth + tile.keys * columns)
    read = depth * (tile.each + scores) + tile.keys // PACK * (tile.each + PACK * columns)
    waiting = model.round_us * loads + products / model.item_products + own.power_us * tile.each * scores
    shared = tile.items * (read / own.vectors + own.exposed * products / model.unit_products)
    blocks, moved = -(-each.keys // tile.keys), VECTOR_BYTES * tile.rows * (depth + width)
    waves = -(-on_a_unit // max(resident, 1))
    return own.start_us + blocks * (waves * waiting + on_a_unit * shared) + on_a_unit * moved / model.read_bytes


def why_not(caps: DeviceCaps, each: Extents) -> str | None:
    """Return why there is nothing to attend to, or heads are too large for registers or work-group memory; or None."""
    if not each.keys:
        return "it has no keys, and kernels divide by the sum over them"
    largest = max(each.depth, each.width)
    if largest > LARGEST_HEAD:
        return f"its heads have {largest} elements; the attention kernel takes up to {LARGEST_HEAD}"
    if not legal_tiles(caps, each):
        return f"heads of {largest} elements do not fit {caps.local_memory} bytes of shared memory"
    return None


def tiled_rounds(caps: DeviceCaps, each: Extents) -> int:
    """Return the rounds of an item of the tile that takes most: it loads each block of keys and multiplies twice."""
    depth, width = vectors(each.depth), vectors(each.width)

    def rounds(tile: Tile) -> int:
        loads = -(-tile.keys * PACK * (depth + width) // tile.items)
        blocks = nested_rounds(-(-each.keys // tile.keys), loads + depth + tile.keys // PACK + tile.lx)
        return blocks + -(-each.keys // tile.items) + tile.items  # to find the last key that a mask shows

    return max(map(rounds, legal_tiles(caps, each)), default=0)


class TiledAttention(Algorithm[AttentionProblem, AttentionPlan, Tile]):
    """One kernel for any device."""

    name = "attention"

    def why_not(self, problem: AttentionProblem) -> str | None:
        """Refuse heads that are too large for registers or work-group memory."""
        return why_not(problem.caps, problem.each)

    def candidates(self, problem: AttentionProblem) -> Sequence[Candidate]:
        """Return the tiles that fit, by their estimates; a CPU gets a small one first, because its compiler is slow."""
        caps, each = problem.caps, problem.each
        us = {tile: microseconds(caps, each, tile) for tile in legal_tiles(caps, each)}
        order = sorted(us, key=us.__getitem__)
        if caps.software and SOFTWARE_TILE in us:
            order.insert(0, SOFTWARE_TILE)
            return candidates_of(order, us.__getitem__)
        return [Candidate(tile, us[tile]) for tile in order]

    def launch(self, plan: AttentionPlan, tile: Tile) -> None:
        """Launch a work-group for each block of queries of each head."""
        k, p = plan.k, plan.problem
        blocks = -(-p.each.queries // tile.rows)
        groups = prod(p.each.lead) * blocks
        k.launch(
            "attention", reads=plan.reads, writes={"y": plan.y},
            ints={**dict(p.places), "BLOCKS": blocks, "GROUPS": groups}, floats=plan.numbers(),
            variant={
                "each": tile.each, "lx": tile.lx, "ly": tile.ly, "keys": tile.keys, "loads": LOADS,
                "depth": vectors(p.each.depth), "width": vectors(p.each.width), "quads": p.lies_in(PACK),
                "joint": tile.is_joint(k.caps, p.each), **plan.unusual,
            },
            grid=(max(1, min(groups, k.caps.max_grid[0])), 1, 1), local=(tile.items, 1, 1),
        )


register_family(
    "attention", "attention in one kernel",
    cases=lambda: (
        one_node(Attention(scale=0.5), (1, 2, 17, 5), (1, 2, 70, 5), (1, 2, 70, 13)),
        one_node(Attention(heads=2, packed=1), (1, 12, 48)),
        one_node(Attention(scale=2.0, softcap=3.0), (1, 2, 9, 8), (1, 2, 40, 8), (1, 2, 40, 8)),
        one_node(
            Attention(zero_hidden=1), (1, 2, 3, 8), (1, 2, 90, 8), (1, 2, 90, 8),
            np.where(np.arange(90) < 19, 0, -np.inf).astype(np.float32),
        ),
    ),
    fallback="products and a softmax", seconds=0.3,
)
