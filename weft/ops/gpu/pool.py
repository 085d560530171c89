"""Pools on GPUs, over packed images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import (
    SECTOR,
    KernelBuilder,
    nested_rounds,
    power_of_two,
    rounds_in_parts,
    tree_items,
)
from weft.kernels.self_test_cases import noise64, one_node
from weft.kernels.special import register_family
from weft.ops.gpu.conv.problem import window_constants
from weft.ops.gpu.integers import INTEGERS
from weft.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
    PlanarAveragePool,
    PlanarLpPool,
    PlanarMaxPool,
    Pool,
)
from weft.ops.shape import given
from weft.ops.window import Window

BLOCKS_AT_ONCE = 16
"""Most channel blocks that a work-group of a global pool reads of each pixel: 128 bytes of halves."""
PIXELS_AT_ONCE = 16
"""Pixels that it reads at once in software."""
LOADS = 8
"""Loads of an item of a global pool that a GPU has under way together."""
MOST_ITEMS, LEAST_ITEMS = 1024, 32
"""Work-items of such a group on a GPU."""
MOST_ROUNDS = 4
"""Rounds of LOADS from which narrower groups, which read in vain, are faster: more units share the work."""
MOST_ROWS = 16
"""Partial results that one item joins one after the other."""


@gpu_op(MaxPool, AveragePool, LpPool)
class PoolOnGpu(GpuOp):
    """Computes one pixel of four channels in each work-item."""

    wanted_layout = WantedLayout.CHANNELS
    loads_by_element = True

    def why_not(self, op: Pool, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse the second output of a max pool, its indices: they would be integers in blocks of channels."""
        return "the Indices output of MaxPool has no packed kernel" if len(outputs) > 1 else None

    def rounds(self, op: Pool, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the places of a window."""
        return nested_rounds(*op.kernel_shape)

    def launches(self, op: Pool, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        images, channels, *places = outputs[0].shape
        blocks = -(-channels // PACK)
        total = images * blocks * prod(places)
        _launch("pool", op, k, inputs[0], outputs[0], {"BLOCKS": blocks, "TOTAL": total})


def _launch(template: str, op: Pool, k: KernelBuilder, x: Tensor | None, y: Tensor, sizes: dict[str, int]) -> None:
    """Launch the window over the output, one of TOTAL elements or vectors in each work-item."""
    assert x is not None
    window = op.window(x.shape)
    mode, own_ints, floats = _kind(op, window)
    k.launch(
        template, reads={"x": x}, writes={"y": y}, ints=window_constants(window) | sizes | own_ints,
        floats=floats, variant={"mode": mode}, items=sizes["TOTAL"],
    )


def _kind(op: Pool, window: Window) -> tuple[str, dict[str, int], dict[str, float]]:
    """Return what the templates call the kind of pool, and its own integers and floats."""
    if isinstance(op, AveragePool):
        return "average", _counted(op, window), {}
    return ("norm", {}, {"EXPONENT": float(op.p)}) if isinstance(op, LpPool) else ("max", {}, {})


def _counted(op: AveragePool, window: Window) -> dict[str, int]:
    """Return how far beyond the input, LOW before it and HIGH behind it, an average counts places along each axis."""
    lead, counts = (0,) * (3 - window.rank), bool(op.count_include_pad)
    ints: dict[str, int] = {}
    for axis, before, after in zip("DHW", lead + window.begin, lead + window.end, strict=True):
        ints |= {f"LOW{axis}": before if counts else 0, f"HIGH{axis}": after if counts else 0}
    return ints


@gpu_op(PlanarAveragePool, PlanarLpPool)
class PlanarPoolOnGpu(GpuOp):
    """Computes one element in each work-item, in NCHW."""

    computes_double = True

    def rounds(self, op: Pool, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the places of a window."""
        return nested_rounds(*op.kernel_shape)

    def launches(self, op: Pool, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        _launch("pool_planar", op, k, inputs[0], outputs[0], {"TOTAL": prod(outputs[0].shape)})


@gpu_op(PlanarMaxPool)
class PlanarMaxPoolOnGpu(GpuOp):
    """Computes one element and its index in each work-item, in NCHW; integers exactly."""

    fuses_into_store = False
    integers = INTEGERS
    computes_double = True

    def rounds(self, op: PlanarMaxPool, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the places of a window."""
        return prod(op.kernel_shape)

    def launches(self, op: PlanarMaxPool, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, y = given(inputs, 0), outputs[0]
        total = prod(y.shape)
        k.launch(
            "max_pool_planar", reads={"x": x}, writes=dict(zip(("y", "places"), outputs, strict=False)),
            ints={**window_constants(op.window(x.shape)), "TOTAL": total},
            variant={
                "floats": x.dtype.is_float, "wide": x.dtype is DType.UINT64, "by_columns": bool(op.storage_order),
            },
            items=total, epilogue=False,
        )


@gpu_op(GlobalAveragePool, GlobalMaxPool)
class GlobalPoolOnGpu(GpuOp):
    """Reduces one channel block, or several adjacent ones, in each work-group."""

    wanted_layout = WantedLayout.CHANNELS
    loads_by_element = True

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept: the store converts to fp32."""
        return True

    def rounds(self, op: object, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return an item's share of the pixels."""
        return rounds_in_parts(-(-prod(given(inputs, 0).shape[2:]) // tree_items(caps)))

    def launches(self, op: object, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        launch_global(k, given(inputs, 0), outputs[0], "max" if isinstance(op, GlobalMaxPool) else "average")


def launch_global(k: KernelBuilder, x: Tensor, y: Tensor, mode: str) -> None:
    """Launch the maximum or average of each channel's whole image; a work-group reduces adjacent blocks."""
    blocks, places = -(-x.shape[1] // PACK), prod(x.shape[2:])
    wide, items, at_once = _group(k.caps, x, blocks, places)
    groups, rows = x.shape[0] * -(-blocks // wide), items // wide
    left = rows if rows <= MOST_ROWS else rows >> rows.bit_length() // 2  # about as many in each of two steps
    k.launch(
        "pool_global", reads={"x": x}, writes={"y": y},
        ints={"BLOCKS": blocks, "PLACES": places, "GROUPS": groups, "WIDE": wide, "ROWS": left},
        variant={"mode": mode, "at_once": at_once, "twice": left < rows},
        grid=(min(groups, k.caps.max_grid[0]), 1, 1), local=(items, 1, 1),
    )


def _group(caps: DeviceCaps, x: Tensor, blocks: int, places: int) -> tuple[int, int, int]:
    """Return the blocks and the items of a work-group, and the loads that an item has under way."""
    last = x.layout is Layout.NHWC4
    if caps.software:
        # A CPU takes the items of a group in turns, and waits for no load.
        wide = min(BLOCKS_AT_ONCE, power_of_two(blocks)) if last else 1
        most = tree_items(caps, wide * PIXELS_AT_ONCE) if last else tree_items(caps)
        return wide, min(most, wide * power_of_two(places)) if last else most, 1
    wide = min(SECTOR // (PACK * x.dtype.itemsize), power_of_two(blocks)) if last else 1
    most = tree_items(caps, MOST_ITEMS)
    while wide > 1 and places * wide > MOST_ROUNDS * LOADS * most:
        wide //= 2
    # Where units have enough groups, whole lines of memory are better.
    while last and 2 * wide <= min(BLOCKS_AT_ONCE, blocks) and x.shape[0] * blocks >= 4 * wide * caps.likely_units:
        wide *= 2
    items = min(max(wide * power_of_two(-(-places // LOADS)), LEAST_ITEMS), most)
    return wide, items, min(LOADS, power_of_two(-(-places * wide // items)))
register_family(
    "pool", "pools",
    cases=lambda: (
        one_node(MaxPool(kernel_shape=(3, 2), strides=(2, 1), pads=(0, 1, 2, 0)), (2, 5, 7, 9)),
        one_node(AveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (1, 6, 8, 9)),
    ),
)
register_family(
    "max_pool_planar", "max pools with indices",
    cases=lambda: (one_node(PlanarMaxPool(kernel_shape=(3, 2), pads=(0, 1, 2, 0), outputs=2), (2, 3, 7, 5)),),
)
register_family(
    "pool_planar", "pools of float64",
    cases=lambda: (
        one_node(PlanarAveragePool(kernel_shape=(3, 2), pads=(0, 1, 2, 0)), noise64(2, 3, 7, 5), tolerance=1e-15),
        one_node(PlanarLpPool(kernel_shape=(3, 2), p=3), noise64(2, 3, 7, 5), tolerance=1e-14),
    ),
    claimed=lambda caps: caps.doubles,
)
register_family(
    "pool_global", "pools of whole images",
    cases=lambda: (
        one_node(GlobalAveragePool(), (3, 17, 5, 4)), one_node(GlobalAveragePool(), (1, 9, 41, 29)),
        one_node(GlobalMaxPool(), (2, 70, 19, 7)),
    ),
)
