"""Two 1 x 1 convolutions of single pixels as one launch: the small layers of squeeze-and-excite.

A launch takes longer than either of them. Each work-group computes all of the first and a part of the second, so the
first must be small: its work is repeated by each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from weft.core.graph.fused_op import Step, pick_operands
from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import (
    CONV_PAIR,
    DeviceCaps,
    GpuOp,
    KernelBuilder,
    Prologue,
    WantedLayout,
    gpu_op,
    power_of_two,
)
from weft.ops.conv import Conv
from weft.ops.gpu.packing import as_image, weights_of

SPAN = 32
"""Work-items that compute one result of the first convolution."""
WIDE = 64
"""Blocks of output channels of a group."""
MOST_ITEMS, SOFTWARE_ITEMS = 512, 64
HIDDEN = "hidden"
"""What the template calls the results of the first convolution."""


@dataclass(frozen=True)
class ConvPair(Op):
    """A convolution, element-wise steps, and the convolution of their result as one op; only backends make it.

    The first `arity` inputs are those of `first`, the next `more` the weights and perhaps the bias of `second`. The
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
        """Return the output."""
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


def pairing_pays(first: Conv, second: Conv, x: Shape, weight: Shape, after: Shape, caps: DeviceCaps) -> bool:
    """Tell whether two convolutions of single pixels are better one launch."""
    if CONV_PAIR in caps.without or _items(caps) < SPAN or prod(x[2:]) != 1 or len(x) not in (3, 4):
        return False
    if first.group != 1 or second.group != 1:
        return False
    hidden, channels = weight[:2]
    if not first.window(x, weight).is_pointwise or not second.window((x[0], hidden, *x[2:]), after).is_pointwise:
        return False
    # Weights are one argument each, whole blocks of four in at most four bytes an element.
    largest = 4 * hidden * PACK * max(-(-channels // PACK), -(-after[0] // PACK))
    shared = 4 * (power_of_two(-(-channels // PACK)) * PACK + power_of_two(hidden) + PACK * _items(caps))
    fits = shared <= caps.local_memory and largest <= caps.max_buffer_range
    return fits and hidden * channels <= caps.model.pair_products


def _items(caps: DeviceCaps) -> int:
    """Return the work-items of a group, a power of two: they share sums of few results. A CPU takes turns anyway."""
    most = min(caps.max_local_items, caps.max_local_size[0], SOFTWARE_ITEMS if caps.software else MOST_ITEMS)
    return power_of_two(most + 1) // 2


@gpu_op(ConvPair)
class ConvPairOnGpu(GpuOp):
    """One kernel."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True

    def launches(
        self, op: ConvPair, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch it on a group for each image and so many output channels as it has items."""
        x, w, b = (*inputs[: op.arity], None)[:3]
        v, d = (*inputs[op.arity : op.arity + op.more], None)[:2]
        assert x is not None and w is not None and v is not None and w.constant is not None and v.constant is not None
        hidden, out = w.shape[0], v.shape[0]
        first, second = w.constant.reshape(hidden, -1, 1), v.constant.reshape(out, hidden).T.reshape(hidden, out, 1)
        items, blocks = _items(k.caps), -(-out // PACK)
        wide = min(WIDE, items)
        tiles = -(-blocks // wide)
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
                "C4": -(-w.shape[1] // PACK), "CO4": blocks, "HIDDEN": hidden, "TILES": tiles, "SPAN": SPAN,
                "WIDE": wide, "GROUPS": x.shape[0] * tiles,
            },
            # Memory of work-groups has sizes that the text gives. Rounded up, they leave few texts.
            variant={"blocks": power_of_two(-(-w.shape[1] // PACK)), "hidden": power_of_two(hidden)},
            grid=(min(x.shape[0] * tiles, k.caps.max_grid[0]), 1, 1),
            local=(items, 1, 1),
            prologue=Prologue(HIDDEN, op.steps, inputs),
        )  # fmt: skip
