"""Convolution on GPUs: an implicit GEMM for ungrouped ones, a direct kernel for the rest, on packed images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import PIECE, DeviceCaps, GpuOp, KernelBuilder, Placement, gpu_op
from weft.ops.conv import Conv
from weft.ops.gpu.conv import matrix, split, winograd
from weft.ops.gpu.conv.depthwise import launch_depthwise
from weft.ops.gpu.conv.sum_parts import InParts, Sums, Work, better, by_turns, offer_parts, tile_and_parts
from weft.ops.gpu.conv.winograd import WinogradTile
from weft.ops.window import Window

VECTOR_BYTES = 16
STEP = 4
"""Blocks of four input channels that one pass of the GEMM kernel stages."""
SAVED = 1 << 26
"""Products up to which an image that need not be packed is worth more than matrix units: split products save at most
2 us of so many on an H200 (60 TFLOP/s instead of 30), those of fp16 hardly more where there are so few; the launch that
packs takes 5 to 6."""


@gpu_op(Conv)
class ConvOnGpu(GpuOp):
    """Choose the kernel by groups and rank; split weights that exceed a kernel argument's range."""

    placement = Placement.CHANNELS
    splits_constants = True

    def why_not(
        self, op: Conv, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse weights that are computed at run time."""
        if any(t is not None and t.constant is None for t in inputs[1:]):
            return "the convolution's weights or bias are computed at run time; GPU kernels pack them beforehand"
        return None

    def rounds(self, op: Conv, inputs: Sequence[Tensor | None]) -> int:
        """Return the taps of an output; the tiled kernel takes sixteen and more at a time."""
        w = inputs[1]
        assert w is not None
        taps = prod(w.shape[1:])
        return taps // 8 if op.group == 1 and len(w.shape) <= 4 else 2 * taps

    def reads_planar(
        self, op: Conv, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Accept an image of up to four channels where the portable GEMM runs, or would hardly be slower.

        Kernels on matrix units, which run fp16 and split fp32, load whole blocks of channels: for little work they are
        not worth it. Winograd's method is only for more channels.
        """
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if op.group != 1 or len(x.dims) > 4 or x.dims[1] > PACK or caps.without & {"conv_planar", "conv_gemm"}:
            return False
        on_units = split_products or (caps.matrix_units and x.dtype is DType.FLOAT16)
        return not on_units or prod(output.dims) * prod(w.dims[2:]) * PACK <= SAVED

    def launches(self, op: Conv, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Launch one kernel for each piece of the weights."""
        x, w, y = inputs[0], inputs[1], outputs[0]
        bias = inputs[2] if len(inputs) > 2 else None
        assert x is not None and w is not None and w.constant is not None
        plan = ConvPlan(k, op, x, y, w.constant, None if bias is None else bias.constant)
        if op.group == 1 and plan.window.rank <= 2:
            launch_ungrouped(plan)
            return
        depthwise = op.group == x.shape[1] == y.shape[1] and plan.window.rank <= 2
        if not (depthwise and launch_depthwise(plan, window_constants(plan.window))):
            launch_direct(plan)


def window_constants(window: Window) -> dict[str, int]:
    """Return a window as the constants ID, IH, IW (inputs), O. (outputs), K., S., D. (dilations), P. (pads).

    Where there are fewer than three dimensions the leading ones have size 1.
    """
    lead = 3 - window.rank
    fields = {
        "I": (window.inputs, 1), "O": (window.outputs, 1), "K": (window.kernel, 1),
        "S": (window.strides, 1), "D": (window.dilations, 1), "P": (window.begin, 0),
    }  # fmt: skip
    ints: dict[str, int] = {}
    for letter, (values, default) in fields.items():
        for axis, value in zip("DHW", (default,) * lead + values, strict=True):
            ints[f"{letter}{axis}"] = value
    return ints


@dataclass(frozen=True)
class ConvPlan:
    """The facts that all convolution kernels share."""

    k: KernelBuilder
    op: Conv
    x: Tensor
    y: Tensor
    weight: Array
    bias: Array | None

    @property
    def window(self) -> Window:
        """Return the geometry."""
        return self.op.window(self.x.shape, self.weight.shape)

    @property
    def planar(self) -> bool:
        """Tell whether the image lies as NCHW (`ConvOnGpu.reads_planar`)."""
        return not self.x.layout.packed

    @property
    def reading(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how the GEMM loads four channels, if not as one vector: what changes its text, and constants."""
        return ({"planar": 1}, {"CI": self.weight.shape[1]}) if self.planar else ({}, {})

    @property
    def blocks(self) -> int:
        """Return the output's channel blocks."""
        return -(-self.y.shape[1] // PACK)

    def bias_vector(self) -> dict[str, Tensor]:
        """Return the bias as a c4 constant, under its argument's name; nothing if there is none."""
        if self.bias is None:
            return {}
        value = self.bias
        return {"b": self.k.constant("bias", lambda: value.reshape(1, -1, 1), Layout.NC4HW4)}

    def lies_in_pieces(self, tensor: Tensor) -> bool:
        """Tell whether pixels lie as rows of channels in whole pieces, so that 16 bytes can be moved at a time."""
        rows = self.k.rows(tensor)
        return rows is not None and all(n % PIECE == 0 for n in (tensor.shape[1], *rows))

    def pieces(self, nbytes_per_block: int) -> list[tuple[int, int]]:
        """Return (first, count) of output blocks such that each piece's weights fit one kernel argument."""
        most = max(self.k.caps.max_buffer_range // max(nbytes_per_block, 1), 1)
        return [(b, min(most, self.blocks - b)) for b in range(0, self.blocks, most)]


def pack_gemm(weight: Array, first: int, count: int) -> Array:
    """Return weights (co, ci, *kernel) as vectors [tap][ci block][co block][4 ci][4 co] of one piece.

    The axes are padded with zeros, the ci blocks over all taps to a multiple of STEP, so that the kernel
    needs no bounds on K. The result is the logical array whose NC4HW4 form these vectors are.
    """
    ci, taps = weight.shape[1], prod(weight.shape[2:])
    ci4 = -(-ci // PACK)
    part = weight[first * PACK : (first + count) * PACK].reshape(-1, ci, taps)
    full = np.zeros((count * PACK, ci4 * PACK, taps), weight.dtype)
    full[: part.shape[0], :ci] = part
    packed = full.reshape(count, PACK, ci4, PACK, taps).transpose(4, 2, 0, 3, 1).reshape(taps * ci4, -1)
    rows = -(-packed.shape[0] // STEP) * STEP
    out = np.zeros((rows, packed.shape[1]), weight.dtype)
    out[: packed.shape[0]] = packed
    return out.reshape(1, -1, PACK).transpose(0, 2, 1)


@dataclass(frozen=True)
class GemmTile:
    """How a work-group of the GEMM kernel divides its work.

    Each item computes `pixels` x `blocks` vectors; the group has lx x ly items and lz slices of K. No more
    than 256 items in all: beyond that a compiler may run out of registers. ly divides 4 * pixels, and lx
    divides 16 * blocks, so that all items fetch alike.
    """

    pixels: int
    blocks: int
    lx: int
    ly: int
    lz: int

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return self.pixels * self.lx

    @property
    def columns(self) -> int:
        """Return the output blocks of a group."""
        return self.blocks * self.ly

    def shared_bytes(self, buffers: int = 1) -> int:
        """Return the bytes of work-group memory: the staged tiles, and the sums of all slices but one."""
        tiles = self.lz * buffers * STEP * (self.rows + PACK * (self.columns + 2))
        return VECTOR_BYTES * (tiles + max((self.lz - 1) * self.rows * self.columns, 1))

    def buffers(self, caps: DeviceCaps) -> int:
        """Return how many steps of K lie in work-group memory at a time: a CPU gains nothing from a second one."""
        return 1 if caps.software or self.shared_bytes(2) > caps.local_memory else 2


WIDE_TILES = (
    GemmTile(8, 2, 8, 8, 1),
    GemmTile(8, 2, 16, 16, 1),
    GemmTile(8, 2, 8, 16, 1),
    GemmTile(8, 2, 16, 8, 1),
)
"""For tuning alone: items that compute more, or share more of what is staged, which pays or not by the shape."""
LONG_TILE = GemmTile(4, 2, 8, 8, 1)
"""For sums of more than LONG steps: shorter ones are faster where more groups fit on a unit (H200, batch 16 and 32)."""
LONG = 32
TILES = (
    LONG_TILE,
    GemmTile(4, 1, 8, 8, 1),
    GemmTile(4, 1, 8, 8, 2),
    GemmTile(4, 1, 8, 8, 4),
    GemmTile(2, 1, 8, 8, 4),
    GemmTile(2, 1, 8, 4, 8),
    *WIDE_TILES,
)
"""From the best reuse to the most parallelism, and those that only tuning takes."""
ENOUGH, ENOUGH_SLICED = 300, 190
"""Items for each compute unit that a tile makes at least, and one with slices of K (both by tuning on an H200)."""
SOFTWARE_TILE = GemmTile(4, 1, 8, 8, 1)


def legal_tiles(caps: DeviceCaps, steps: int) -> list[GemmTile]:
    """Return the tiles that a device takes, for so many steps of K."""
    return [
        t
        for t in TILES
        if t.lx * t.ly * t.lz <= caps.max_local_items
        and t.lz <= caps.max_local_size[2]
        and t.shared_bytes() <= caps.local_memory
        and (t.lz == 1 or steps >= 2 * t.lz)
    ]


def choose_tile(caps: DeviceCaps, pixels: int, blocks: int, steps: int) -> GemmTile:
    """Return the tile with the most reuse that still gives every compute unit enough items.

    Slices of K come last: they cost a sum, and only pay where there are several steps for each. A CPU
    gets a small tile: it gains nothing from reuse in registers, and its compiler is slow.
    """
    if caps.software:
        return SOFTWARE_TILE
    fitting = [t for t in legal_tiles(caps, steps) if t not in WIDE_TILES and (t != LONG_TILE or steps > LONG)]
    units = caps.likely_units
    for tile in fitting:
        groups = -(-pixels // tile.rows) * -(-blocks // tile.columns)
        if groups * tile.lx * tile.ly * tile.lz >= (ENOUGH if tile.lz == 1 else ENOUGH_SLICED) * units:
            return tile
    return fitting[-1]


def launch_ungrouped(plan: ConvPlan) -> None:
    """Launch the implicit GEMM that fits the device, the types and the precision."""
    constants = window_constants(plan.window)
    if plan.planar:
        launch_gemm(plan)
        return
    if matrix.fits(plan):
        matrix.launch_matrix(plan, constants)
        return
    if not split.fits(plan):
        launch_gemm(plan)
        return
    pixels, steps = plan.y.shape[0] * prod(plan.window.outputs), gemm_steps(plan.weight)
    default = choose_tile(plan.k.caps, pixels, plan.blocks, steps)
    strict = legal_tiles(plan.k.caps, steps)
    by_winograd = winograd.choose_tile(plan, winograd.tiles(plan, strict))
    tile = split.pick_tile(plan, constants, strict, default, by_winograd)
    if isinstance(tile, (GemmTile, WinogradTile)):
        launch_gemm(plan, tile)
    else:
        split.launch_split(plan, constants, tile)


def gemm_steps(weight: Array) -> int:
    """Return the steps of K of the GEMM kernel: taps times blocks of input channels."""
    blocks: int = prod(weight.shape[2:]) * -(-weight.shape[1] // PACK)
    return -(-blocks // STEP)


def _offers(
    plan: ConvPlan, pixels: int, count: int, steps: int
) -> tuple[list[GemmTile | InParts[GemmTile]], GemmTile | InParts[GemmTile]]:
    """Return the tiles for so many output blocks, and the default; weights that go in pieces have no parts of K."""
    caps = plan.k.caps
    legal, default = legal_tiles(caps, steps), choose_tile(caps, pixels, count, steps)
    if count < plan.blocks:
        return [*legal], default

    def work_of(tile: GemmTile) -> Work:
        groups = -(-pixels // tile.rows) * -(-count // tile.columns)
        read = steps * STEP * PACK * (tile.rows + PACK * tile.columns) * plan.weight.dtype.itemsize
        return Work(groups, -(-steps // tile.lz), read, pixels * count * PACK)

    parted = offer_parts(caps, legal, work_of)
    # In a group of 64 items a round takes longer than the model says.
    sliced = [each for each in parted if each.tile.lz > 1]
    return by_turns(parted, legal), better(caps, default, sliced, work_of)


def pick_gemm(plan: ConvPlan, problem: dict[str, int], pixels: int) -> GemmTile | InParts[GemmTile] | WinogradTile:
    """Return how a piece of the weights is multiplied in fp32.

    That is by Winograd's method only where it is all of them, and pixels are packed vectors.
    """
    k, count, steps = plan.k, problem["COUNT"], gemm_steps(plan.weight)
    tiles, default = _offers(plan, pixels, count, steps)
    whole = count == plan.blocks and not plan.reading[0]
    by_winograd = winograd.tiles(plan, legal_tiles(k.caps, steps)) if whole else []
    best = winograd.choose_tile(plan, by_winograd)
    # Tuning tries what comes first before the rest.
    candidates: list[GemmTile | InParts[GemmTile] | WinogradTile]
    candidates = [*by_winograd, *tiles] if best else [*tiles, *by_winograd]
    return k.pick("conv_gemm", problem, candidates, best or default)


def launch_gemm(plan: ConvPlan, chosen: GemmTile | WinogradTile | None = None) -> None:
    """Launch the implicit GEMM in fp32, or what is taken instead: pixels times output channels, over taps and input."""
    k, weight = plan.k, plan.weight
    if "conv_gemm" in k.caps.without and not isinstance(chosen, WinogradTile):
        launch_direct(plan)
        return
    ci4, steps = -(-weight.shape[1] // PACK), gemm_steps(weight)
    pixels = plan.y.shape[0] * prod(plan.window.outputs)
    itemsize = weight.dtype.itemsize
    for first, count in plan.pieces(steps * STEP * PACK * PACK * itemsize):
        window, n = window_constants(plan.window), plan.y.shape[0]
        reading, channels = plan.reading
        problem = {**window, "N": n, "C4": ci4, "COUNT": count, "bias": plan.bias is not None, **reading, **channels}
        picked = chosen or pick_gemm(plan, problem, pixels)
        if isinstance(picked, WinogradTile):
            winograd.launch_winograd(plan, picked)
            continue
        tile, parts = tile_and_parts(picked)
        sums = Sums(plan, parts, -(-steps // tile.lz))
        pack = partial(pack_gemm, weight, first, count)
        packed = k.constant(f"gemm.{first}", pack, Layout.NC4HW4)
        tiles = -(-pixels // tile.rows)
        pointwise = plan.window.is_pointwise
        k.launch(
            "conv_gemm",
            reads={"x": plan.x, "w": packed, **sums.bias},
            writes={"y": sums.target},
            ints={
                **window, "C4": ci4, "STEPS": steps, "PIXELS": pixels, "FIRST": first, "COUNT": count,
                "TILES": tiles, **channels, **sums.ints,
            },
            variant={
                "rp": tile.pixels, "rc": tile.blocks, "lx": tile.lx, "ly": tile.ly,
                "buffers": tile.buffers(k.caps), "pointwise": pointwise, **reading, **sums.variant,
            },
            grid=(min(tiles, k.caps.max_grid[0]), -(-count // tile.columns), parts),
            local=(tile.lx, tile.ly, tile.lz),
            epilogue=sums.epilogue,
        )  # fmt: skip
        sums.finish()


def launch_direct(plan: ConvPlan) -> None:
    """Launch the general kernel (any groups, up to three dimensions): an item computes four channels of a pixel."""
    k, weight = plan.k, plan.weight
    co, per_group = weight.shape[:2]
    for first, count in plan.pieces(per_group * prod(weight.shape[2:]) * PACK * weight.dtype.itemsize):
        part = weight[first * PACK : (first + count) * PACK]
        packed = k.constant(f"direct.{first}", partial(part.reshape, 1, len(part), -1), Layout.NC4HW4)
        total = plan.y.shape[0] * count * prod(plan.window.outputs)
        grid, local = k.for_items(total)
        k.launch(
            "conv_direct",
            reads={"x": plan.x, "w": packed, **plan.bias_vector()},
            writes={"y": plan.y},
            ints={
                **window_constants(plan.window), "FIRST": first, "COUNT": count, "TOTAL": total,
                "CO": co, "OUT_GROUP": co // plan.op.group, "IN_GROUP": per_group,
            },
            grid=grid,
            local=local,
        )  # fmt: skip
