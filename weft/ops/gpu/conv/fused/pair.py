"""Two 1 x 1 convolutions of single pixels as one launch: the small layers of squeeze-and-excite.

A launch takes longer than either of them. Each work-group computes all of the first and a part of the second, so the
first must be small: its work is repeated by each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from weft.core.graph.fused_op import Fused, Step, pick_operands
from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, Prologue, power_of_two
from weft.kernels.self_test_cases import noise, several_nodes
from weft.kernels.special import register_family
from weft.ops.conv import Conv
from weft.ops.gpu.conv.cases import RELU
from weft.ops.gpu.packing import as_image, weights_of

CONV_PAIR = "conv_pair"
"""The kernel of two convolutions of single pixels; `DeviceCaps.without` names it where it is wrong."""
LEAST_LANES, MOST_SHARES, MOST_PARTS = 4, 32, 16
"""Least results of the first convolution side by side in a group; most items that share a result of either one."""
WIDE, SOFTWARE_WIDE = 32, 64
"""Blocks of output channels of a group, if the device has a unit for each group."""
LEAST_ITEMS, MOST_ITEMS = 64, 512
"""Work-items of a group; in software it has the least."""
FIRST_LOADS, SECOND_LOADS = 16, 8
"""Most weights of each convolution that an item has under way on a GPU: together they take 96 registers."""
HIDDEN = "hidden"
"""What the template calls the results of the first convolution."""


@op_dataclass
class ConvPair(Op):
    """A convolution, element-wise steps, and the convolution of their result as one op; only backends make it.

    The first `arity` inputs belong to `first`, the next `more` the weights and perhaps the bias of `second`. The
    steps read their own results and scalars behind these.
    """

    type: ClassVar[str] = "ConvPair"
    op_class: ClassVar[OpClass] = "reduction"
    first: Conv
    arity: int
    steps: tuple[Step, ...]
    second: Conv
    more: int

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output: the steps change neither the shape nor the type."""
        a, b = self.arity, self.arity + self.more
        (between,) = self.first.inferred(inputs[:a], [None, *constants[1:a]])
        return self.second.inferred([between, *inputs[a:b]], [None, *constants[a:b]])

    def reference(self, *inputs: Array | None) -> Array:
        a, b = self.arity, self.arity + self.more
        made = [self.first.reference(*inputs[:a])]
        for number, step in enumerate(self.steps):
            made.append(cast(Array, step.op.reference(*pick_operands(step, number, inputs, made))))
        return self.second.reference(made[-1], *inputs[a:b])

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations of both, and one for each element between them and step."""
        x, w = inputs[0] or (), inputs[1] or ()
        between = (x[0], w[0], *x[2:])
        a, b = self.arity, self.arity + self.more
        both = self.first.flops(inputs[:a], [between]) + self.second.flops([between, *inputs[a:b]], outputs)
        return both + len(self.steps) * prod(between)


@dataclass(frozen=True)
class PairFigures(AlgorithmFigures, section="conv_pair"):
    """When two convolutions should be one launch."""

    products: int
    """Up to so many products, each work-group computes the first convolution itself."""


def pairing_pays(first: Conv, second: Conv, x: Shape, weight: Shape, after: Shape, caps: DeviceCaps) -> bool:
    """Tell whether two convolutions of single pixels are better one launch."""
    if CONV_PAIR in caps.without or prod(x[2:]) != 1 or len(x) not in (3, 4):
        return False
    if first.group != 1 or second.group != 1:
        return False
    hidden, channels = weight[:2]
    if not first.window(x, weight).is_pointwise or not second.window((x[0], hidden, *x[2:]), after).is_pointwise:
        return False
    # Weights are one argument each, whole blocks of four in at most four bytes an element.
    largest = 4 * hidden * PACK * max(-(-channels // PACK), -(-after[0] // PACK))
    shared = 4 * (power_of_two(-(-channels // PACK)) * PACK + power_of_two(hidden) + (PACK + 1) * _most_items(caps))
    fits = shared <= caps.local_memory and largest <= caps.max_buffer_range
    return fits and hidden * channels <= caps.model.of(PairFigures).products


def _most_items(caps: DeviceCaps) -> int:
    """Return the most work-items of a group, a power of two. A CPU takes them in turns, so few are best there."""
    most = min(caps.max_local_items, caps.max_local_size[0], LEAST_ITEMS if caps.software else MOST_ITEMS)
    return power_of_two(most + 1) // 2


@dataclass(frozen=True)
class _Group:
    """How a work-group divides a pair."""

    items: int
    lanes: int
    """Results of the first convolution that it computes side by side."""
    wide: int
    """Blocks of the second that it computes."""
    first_loads: int
    second_loads: int


def _group(caps: DeviceCaps, images: int, blocks: int, hidden: int, out: int) -> _Group:
    """Return the group for images of so many blocks, `hidden` results of the first convolution, `out` blocks."""
    most = _most_items(caps)
    lanes = min(max(power_of_two(hidden), LEAST_LANES), most)
    widest = min(power_of_two(out), most)
    wide = min(SOFTWARE_WIDE if caps.software else WIDE, widest)
    # Each group computes the whole first convolution: where units have one each, no more groups.
    while wide < widest and images * -(-out // wide) > caps.likely_units:
        wide *= 2
    shares, parts = min(power_of_two(blocks), MOST_SHARES), min(power_of_two(hidden), MOST_PARTS)
    items = min(max(lanes * shares, wide * parts, LEAST_ITEMS), most)
    if caps.software:
        return _Group(items, lanes, wide, 1, 1)
    first, second = -(-blocks * lanes // items), -(-hidden * wide // items)
    # As many rounds as the most loads at once take, all with about as many.
    return _Group(items, lanes, wide, _even(first, FIRST_LOADS), _even(second, SECOND_LOADS))


def _even(count: int, most: int) -> int:
    return -(-count // -(-count // most))


@gpu_op(ConvPair)
class ConvPairOnGpu(GpuOp):
    """One kernel."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True

    def launches(self, op: ConvPair, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch it on a group for each image and so many output channels as it has items."""
        x, w, b = (*inputs[: op.arity], None)[:3]
        v, d = (*inputs[op.arity : op.arity + op.more], None)[:2]
        assert x is not None and w is not None and v is not None and w.constant is not None and v.constant is not None
        hidden, out = w.shape[0], v.shape[0]
        first = w.constant.reshape(hidden, -1).T.reshape(1, -1, hidden)
        second = v.constant.reshape(out, hidden).T.reshape(hidden, out, 1)
        blocks, out_blocks = -(-w.shape[1] // PACK), -(-out // PACK)
        group = _group(k.caps, x.shape[0], blocks, hidden, out_blocks)
        tiles = -(-out_blocks // group.wide)
        biases = {
            name: as_image(k, f"pair.{name}", weights_of(t), (1, t.shape[0], 1), Layout.NC4HW4)
            for name, t in (("b", b), ("d", d))
            if t is not None
        }
        k.launch(
            "conv_pair",
            reads={
                "x": x, **biases,
                "w": k.constant("pair.first", lambda: first, Layout.NC4HW4),
                "v": k.constant("pair.second", lambda: second, Layout.NC4HW4),
            },
            writes={"y": outputs[0]},
            ints={
                "C4": blocks, "CO4": out_blocks, "HIDDEN": hidden, "TILES": tiles, "LANES": group.lanes,
                "WIDE": group.wide, "GROUPS": x.shape[0] * tiles,
            },
            variant={
                # Memory of work-groups has sizes that the text gives. Rounded up, they leave few texts.
                "blocks": power_of_two(blocks), "hidden": power_of_two(hidden), "first_loads": group.first_loads,
                "second_loads": group.second_loads, "ahead": not k.caps.software,
            },
            grid=(min(x.shape[0] * tiles, k.caps.max_grid[0]), 1, 1),
            local=(group.items, 1, 1),
            prologue=Prologue(HIDDEN, op.steps, inputs),
        )


register_family(
    CONV_PAIR, "pairs of convolutions of single pixels",
    cases=lambda: (
        several_nodes(
            "Conv of (3, 37, 1, 1) with (9, 37, 1, 1) and (270, 9, 1, 1)",
            [
                (Fused(Conv(kernel_shape=(1, 1)), 3, (RELU,)), ("x", "w", "b"), "r"),
                (Conv(kernel_shape=(1, 1)), ("r", "v"), "y"),
            ],
            {"x": noise(3, 37, 1, 1)},
            {"w": noise(9, 37, 1, 1), "b": noise(9), "v": noise(270, 9, 1, 1)},
        ),
        several_nodes(
            "Conv of (1, 357, 1, 1) with (150, 357, 1, 1) and (270, 150, 1, 1)",
            [
                (Fused(Conv(kernel_shape=(1, 1)), 2, (RELU,)), ("x", "w"), "r"),
                (Conv(kernel_shape=(1, 1)), ("r", "v", "d"), "y"),
            ],
            {"x": noise(1, 357, 1, 1)},
            {"w": noise(150, 357, 1, 1), "v": noise(270, 150, 1, 1), "d": noise(270)},
        ),
    ),
    templates=("conv_pair",), fallback="two convolutions", seconds=0.45,
)
