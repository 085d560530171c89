"""Attention on GPUs: one kernel, and one more for matrix units, with scores that stay within a group.

The softmax is computed block by block of keys: the largest score and the sum of powers are corrected whenever a
block brings a larger one (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018,
arXiv 1805.02867), and so is the weighted sum of values, which is why scores need no memory of the device (T. Dao
et al., "FlashAttention", 2022, arXiv 2205.14135). Sums are in float32 whatever is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.core.graph.layout import PACK, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, gpu_op
from weft.ops.attention import Attention, Extents
from weft.ops.gpu import attention_matrix
from weft.ops.gpu.move import row_major

VECTOR_BYTES = 16
LARGEST_HEAD = 128
"""Elements of a head for which the sums of an item stay in registers."""
HELD = 104
"""Floats of scores and sums that an item holds at most: as many more go to what it multiplies."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a work-group of the portable kernel divides its work.

    `lx` x `ly` items have `ly` x `each` queries of a head and `keys` keys at a time: an item `each` queries, a
    multiple of four of the keys, and the vectors of the result that lie `lx` apart.
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
        """Return the floats that an item holds of scores and sums."""
        return self.each * (self.keys // self.lx + PACK * -(-vectors(each.width) // self.lx))

    def shared_bytes(self, each: Extents, joint: bool) -> int:
        """Return the bytes of work-group memory; `joint`: values take the place of keys."""
        key, value = vectors(each.depth) | 1, -(-vectors(each.width) // self.lx) * self.lx
        block = self.keys * (max(key, value) if joint else key + value)
        part = self.items * -(-self.each // PACK)
        return VECTOR_BYTES * (self.rows * (key + self.keys // PACK + 1) + block + part)


TILES = (
    Tile(4, 8, 16, 64),
    Tile(4, 8, 16, 32),
    Tile(8, 8, 8, 64),
    Tile(8, 8, 8, 32),
    Tile(4, 8, 8, 64),
    Tile(4, 8, 8, 32),
    Tile(2, 8, 8, 64),
    Tile(2, 8, 8, 32),
    Tile(1, 8, 8, 64),
    Tile(1, 8, 8, 32),
    Tile(1, 4, 8, 16),
)
"""From the most queries that share keys to the most groups; the last is for 16 KiB of work-group memory."""
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


def choose_tile(caps: DeviceCaps, each: Extents) -> Tile | None:
    """Return the tile of the most reuse that gives every compute unit a group, or the first of the fewest queries.

    A CPU gets a small tile: its compiler is slow. None if no group of the device holds any tile.
    """
    fitting = legal_tiles(caps, each)
    if caps.software and SOFTWARE_TILE in fitting:
        return SOFTWARE_TILE
    for tile in fitting:
        if prod(each.lead) * -(-each.queries // tile.rows) >= caps.compute_units:
            return tile
    return min(fitting, key=lambda t: t.rows, default=None)


@gpu_op(Attention)
class AttentionOnGpu(GpuOp):
    """Heads apart, side by side or packed: the kernel is told where they lie."""

    def why_not(
        self, op: Attention, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse heads too large for registers or shared memory."""
        each = op.extents([t.shape for t in inputs[: op.count()] if t is not None])
        largest = max(each.depth, each.width)
        if largest > LARGEST_HEAD:
            return f"its heads have {largest} elements; the attention kernel takes up to {LARGEST_HEAD}"
        if choose_tile(caps, each) is None:
            return f"heads of {largest} elements do not fit {caps.local_memory} bytes of shared memory"
        return None

    def launches(
        self, op: Attention, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the kernel for matrix units where there are such and it takes the operands, else the portable one."""
        plan = _plan(op, k, inputs, outputs[0])
        tile = attention_matrix.choose_tile(k.caps, plan.each) if attention_matrix.fits(plan) else None
        if tile is not None:
            attention_matrix.launch_matrix(plan, tile)
        else:
            launch_portable(plan)


@dataclass(frozen=True)
class AttentionPlan:
    """The facts that both kernels share: arguments by their names, and sizes and steps as constants."""

    k: KernelBuilder
    op: Attention
    each: Extents
    y: Tensor
    reads: dict[str, Tensor]
    ints: dict[str, int]

    def lies_in(self, piece: int) -> bool:
        """Tell whether the rows of all heads are so many elements, or a multiple, and start at multiples of them."""
        starts = [value for name, value in self.ints.items() if name[0] in "QKVY" and name[1:] in ("0", "B", "H", "S")]
        return all(value % piece == 0 for value in (*starts, self.each.depth, self.each.width))


def _plan(op: Attention, k: KernelBuilder, inputs: Sequence[Tensor | None], y: Tensor) -> AttentionPlan:
    """Return where Q, K, V, the mask and the result lie, whatever their form."""
    given = [t for t in inputs[: op.count()] if t is not None]
    each = op.extents([t.shape for t in given])
    heads = each.lead[1] if len(each.lead) == 2 else 1
    ints = {"HEADS": heads, "QUERIES": each.queries, "COUNT": each.keys, "D": each.depth, "E": each.width}
    tensors = given * 3 if op.packed else given
    for number, (letter, t) in enumerate(zip("QKVY", (*tensors, y), strict=True)):
        if letter != "Y":
            ints[f"{letter}0"] = number * (t.shape[-1] // 3) if op.packed else 0
        each_row = each.width if letter in "VY" else each.depth
        ints |= _steps(letter, t.shape, each_row if op.heads else 0)
    reads = dict(zip(("q_in", "k_in", "v_in"), tensors, strict=True))
    mask = inputs[op.count()] if len(inputs) > op.count() else None
    if mask is not None:
        reads["mask"] = mask
        ints |= _mask_steps(mask.shape, each)
    return AttentionPlan(k, op, each, y, reads, ints)


def launch_portable(plan: AttentionPlan) -> None:
    """Launch one group for each block of queries of each head, with the better of the tiles."""
    k, each = plan.k, plan.each
    default = choose_tile(k.caps, each)
    assert default is not None
    problem = {**plan.ints, "batch": each.lead[0], "mask": "mask" in plan.reads}
    tile = k.pick("attention", problem, legal_tiles(k.caps, each), default)
    blocks = -(-each.queries // tile.rows)
    groups = prod(each.lead) * blocks
    k.launch(
        "attention",
        reads=plan.reads,
        writes={"y": plan.y},
        ints={**plan.ints, "BLOCKS": blocks, "GROUPS": groups},
        floats={"SCALE": plan.op.scale},
        variant={
            "each": tile.each, "lx": tile.lx, "ly": tile.ly, "keys": tile.keys,
            "depth": vectors(each.depth), "width": vectors(each.width), "quads": plan.lies_in(PACK),
            "joint": tile.shared_bytes(each, joint=False) > k.caps.local_memory,
        },
        grid=(max(1, min(groups, k.caps.max_grid[0])), 1, 1),
        local=(tile.items, 1, 1),
    )  # fmt: skip


def _steps(letter: str, shape: Shape, side_by_side: int) -> dict[str, int]:
    """Return the steps from batch to batch, head to head and row to row of Q, K, V or the result.

    `side_by_side` is the number of elements of a head where heads lie in a row, else 0.
    """
    steps = row_major(shape)
    if side_by_side:
        batch, head, row = steps[0], side_by_side, steps[1]
    else:
        batch, head, row = steps[0], steps[1] if len(shape) == 4 else 0, steps[-2]
    return {f"{letter}B": batch, f"{letter}H": head, f"{letter}S": row}


def _mask_steps(shape: Shape, each: Extents) -> dict[str, int]:
    """Return the steps of a mask: 0 along axes in which it is repeated."""
    full = (1,) * (len(each.scores) - len(shape)) + tuple(shape)
    steps = [0 if size == 1 else step for size, step in zip(full, row_major(full), strict=True)]
    batch, head = (steps[0], steps[1]) if len(each.lead) == 2 else (steps[0], 0)
    return {"MB": batch, "MH": head, "MS": steps[-2], "MK": steps[-1]}
