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

from weft.core.layout import Shape
from weft.core.tensor import Tensor
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, gpu_op
from weft.ops.attention import Attention, Extents
from weft.ops.gpu import attention_matrix
from weft.ops.gpu.move import row_major

COLUMNS = 8
"""The items of one query."""
ROWS = (16, 8)
"""The queries of a group: as many as still make FULL groups a compute unit."""
KEYS = (32, 16, 8)
"""The keys of a block: as many as shared memory holds."""
FULL = 2
LARGEST_HEAD = 128
"""Elements of a head for which the sums of an item stay in registers."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The queries of a group and the keys of a block."""

    rows: int
    keys: int

    def floats(self, each: Extents) -> int:
        """Return the floats of shared memory that a group takes."""
        depth, width = (_columns(size) * COLUMNS for size in (each.depth, each.width))
        return self.rows * (depth + self.keys) + self.keys * (max(depth, width) + 1)


def _columns(size: int) -> int:
    """Return the elements of a row that fall to each item of a query."""
    return -(-size // COLUMNS)


def choose_tile(each: Extents, caps: DeviceCaps) -> Tile | None:
    """Return the tile for a device; None if no group of it holds the smallest."""
    heads = 1
    for size in each.lead:
        heads *= size
    rows = next((r for r in ROWS if heads * -(-each.queries // r) >= FULL * caps.compute_units), ROWS[-1])
    for tile in [Tile(r, keys) for keys in KEYS for r in dict.fromkeys((rows, ROWS[-1]))]:
        if tile.floats(each) * 4 <= caps.local_memory and COLUMNS * tile.rows <= caps.max_local_items:
            return tile
    return None


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
        if choose_tile(each, caps) is None:
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
    """Launch one group for each block of queries of each head."""
    k, each = plan.k, plan.each
    tile = choose_tile(each, k.caps)
    assert tile is not None
    blocks = -(-each.queries // tile.rows)
    groups = prod(each.lead) * blocks
    k.launch(
        "attention",
        reads=plan.reads,
        writes={"y": plan.y},
        ints={**plan.ints, "BLOCKS": blocks, "GROUPS": groups},
        floats={"SCALE": plan.op.scale},
        variant={
            "rows": tile.rows, "keys": tile.keys, "depth": _columns(each.depth), "width": _columns(each.width),
        },
        grid=(max(1, min(groups, k.caps.max_grid[0])), 1, 1),
        local=(COLUMNS, tile.rows, 1),
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
