"""A pointwise convolution that applies element-wise steps to its image as it loads it: a prologue.

What comes before a convolution and is read by it alone need be no launch: a batch norm and a ReLU on values that others
read without them, or the scale of each channel in squeeze-and-excite. Each group of the GEMM that loads a vector
applies the steps again, so they must be cheap, and the output channels few. Kernels on matrix units that pass what they
load through registers apply them there, in fp32, and round the result once, as a launch of its own would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, cast

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step, earlier, pick_operands
from weft.core.graph.layout import Array, Layout, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ExecutionError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, Prologue
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase, noise, one_node, several_nodes
from weft.kernels.special import register_family, register_special
from weft.ops.binary import Add, Div, Mul
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.cases import RELU
from weft.ops.gpu.conv.gemm.tiles import CONV_PROLOGUE, TiledConv
from weft.ops.gpu.conv.matrix.staged import MATRIX_PROLOGUE, MatrixConv
from weft.ops.gpu.conv.matrix.unstaged import UNSTAGED_PROLOGUE, UnstagedConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, on_matrix_units
from weft.ops.unary import Relu


@op_dataclass
class PrologueConv(Op):
    """Element-wise steps on an image and the convolution of their result as one op; only backends make it.

    The convolution takes the first `arity` inputs. The steps read what lies behind these, the image, and each other's
    results, as those of a `Fused` node do.
    """

    type: ClassVar[str] = "PrologueConv"
    op_class: ClassVar[OpClass] = "reduction"
    conv: Conv
    arity: int
    steps: tuple[Step, ...]

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output: the steps change neither the shape nor the type."""
        return self.conv.inferred(inputs[: self.arity], [None, *constants[1 : self.arity]])

    def reference(self, *inputs: Array | None) -> Array:
        made = list(inputs[:1])
        for number, step in enumerate(self.steps):
            made.append(cast(Array, step.op.reference(*pick_operands(step, number, inputs, made))))
        return self.conv.reference(made[-1], *inputs[1 : self.arity])

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the convolution's operations, and one for each element and step."""
        return self.conv.flops(inputs[: self.arity], outputs) + len(self.steps) * prod(inputs[0] or ())


@dataclass(frozen=True)
class PrologueFigures(AlgorithmFigures, section="conv_prologue"):
    """When the portable GEMM should apply steps as it loads."""

    channels: int
    """The most output channels of the convolution: each group applies the steps again."""


def why_no_prologue(
    conv: Conv, x: TensorSpec, weight: Shape, steps: int, caps: DeviceCaps, split_products: bool
) -> str | None:
    """Return why a convolution does not apply so many steps as it loads; None if it does, since that is faster."""
    if conv.group != 1 or len(x.dims) > 4 or not conv.window(x.dims, weight).is_pointwise:
        return "it is no plain 1 x 1 convolution"
    if on_matrix_units(caps, x.dtype, split_products):
        if x.dtype is not DType.FLOAT16:
            return "its kernels on matrix units divide each number into halves as they load it"
        return _why_not_on_matrix_units(conv, x, weight, steps, caps)
    if {CONV_PROLOGUE, TiledConv.name} & caps.without:
        return "its kernels failed their self-test"
    if weight[0] > caps.model.of(PrologueFigures).channels:
        return f"its groups would apply the steps again for each few of its {weight[0]} output channels"
    return None


def _why_not_on_matrix_units(conv: Conv, x: TensorSpec, weight: Shape, steps: int, caps: DeviceCaps) -> str | None:
    """Return why the kernel that would be chosen with the steps is not faster than a launch for them and the best one.

    Layouts are not known yet: pixels are taken to lie as rows of channels where the device has them so. There must be a
    kernel for others, too.
    """
    window = conv.window(x.dims, weight)
    plain = ConvProblem.foreseen(x.dims, weight, window, DType.FLOAT16, Layout.NHWC4, caps, rows=caps.channels_last)
    with_steps = replace(plain, prologue_steps=steps)
    try:
        joined, apart = CONVOLUTIONS.decide(with_steps), CONVOLUTIONS.decide(plain)
        CONVOLUTIONS.decide(replace(with_steps, rows=False, read_pieces=False))
    except ExecutionError:
        return "its kernels failed their self-test"
    if joined.name != apart.name:
        return "none of its kernels on matrix units applies steps to such an image as it loads"
    if not joined.in_microseconds or not apart.in_microseconds:
        return None
    moved = 2 * x.size * x.dtype.itemsize / (caps.likely_units * caps.model.read_bytes)
    saved = caps.model.between_launches_us + moved
    lost = joined.candidates[joined.default].cost - apart.candidates[apart.default].cost
    if lost > saved:
        return f"that would take {lost:.1f} us longer on matrix units, more than the launch takes, {saved:.1f} us"
    return None


@gpu_op(PrologueConv)
class PrologueConvOnGpu(GpuOp):
    """One of the kernels that apply steps as they load (`Algorithm.prologue`)."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True

    def launches(self, op: PrologueConv, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the one that is chosen."""
        x, w, b = (*inputs[: op.arity], None)[:3]
        assert x is not None and w is not None and w.constant is not None
        bias, window = None if b is None else b.constant, op.conv.window(x.shape, w.shape)
        prologue = Prologue("x", op.steps, inputs)
        CONVOLUTIONS.launch(ConvPlan.of(k, window, x, outputs[0], w.constant, bias, prologue=prologue))


def _case(x: Shape, channels: int, steps: Sequence[Step], *, prefer: str) -> SelfTestCase:
    """Return a case whose input 3 is computed, so it may have a value for each image; 4 and 5 are constants."""
    op = PrologueConv(Conv(kernel_shape=(1, 1)), 3, tuple(steps))
    read = max(i for step in steps for i in step.operands) - 3
    operands = ((*x[:2], 1, 1), *[(x[1], 1, 1)] * read)
    given = (x, (channels, x[1], 1, 1), (channels,), *operands)
    return one_node(op, *given, constants=(1, 2, *range(4, len(given))), prefer=prefer, precision=Precision.LOW)


SCALED = [Step(Mul(), (RUNNING, 3))]
AGAIN = [Step(Add(), (RUNNING, 3)), Step(Relu(), (RUNNING,)), Step(Mul(), (RUNNING, earlier(0)))]
NORMED = [Step(Mul(), (RUNNING, 4)), Step(Add(), (RUNNING, 5)), Step(Relu(), (RUNNING,)), Step(Add(), (RUNNING, 3))]
"""The scale of squeeze-and-excite, steps that read the results of others, and a batch norm with a ReLU."""


def _unstaged_cases() -> Sequence[SelfTestCase]:
    """Return cases for tiles of one square and of four, with slices of K and without, and a part of K.

    Images meet in a tile, and channels end within a chunk.
    """
    one, four = "UnstagedTile(fm=1, fn=1, lz=1", "UnstagedTile(fm=2, fn=2, lz=4"
    return [
        _case((1, 40, 5, 7), 20, SCALED, prefer=one),
        _case((1, 520, 7, 5), 40, NORMED, prefer=four),
        _case((1, 72, 40, 39), 136, AGAIN, prefer="UnstagedTile(fm=2, fn=2, lz=1"),
        _case((3, 264, 5, 6), 24, NORMED, prefer=four),
        _case((2, 4096, 2, 3), 24, SCALED, prefer="InParts(tile=UnstagedTile("),
    ]


def _matrix_cases() -> Sequence[SelfTestCase]:
    """Return cases for pieces of eight channels and blocks of four, whole and not, several images, slices and parts.

    Of the zeros behind the last of 13 channels, 0 / 0 is made.
    """
    return [
        _case((2, 13, 9, 7), 20, [Step(Div(), (RUNNING, 3)), *NORMED[2:]], prefer="MatrixTile(fm=2, fn=1"),
        _case((1, 72, 10, 6), 40, SCALED, prefer="MatrixTile(fm=2, fn=2, sm=2, sn=2"),
        _case((3, 264, 5, 6), 36, AGAIN, prefer="MatrixTile(fm=1, fn=1, sm=2, sn=2, lz=2"),
        _case((2, 4100, 2, 3), 24, NORMED, prefer="InParts(tile=MatrixTile("),
    ]


register_special(
    UNSTAGED_PROLOGUE,
    "small convolutions on matrix units that apply steps as they load",
    claimed=lambda caps: caps.multiplies(HALVES) and UnstagedConv.name not in caps.without,
    cases=_unstaged_cases,
    template=UnstagedConv.name,
)
register_special(
    MATRIX_PROLOGUE,
    "convolutions on matrix units that apply steps as they load",
    claimed=lambda caps: caps.multiplies(HALVES),
    cases=_matrix_cases,
    template=MatrixConv.name,
)


register_family(
    CONV_PROLOGUE, "convolutions that apply steps as they load",
    cases=lambda: (
        several_nodes(
            "Conv of (2, 9, 5, 6) with (7, 9, 1, 1)",
            [
                # Of the zeros behind the last channel, 0 / 0 is made.
                (Fused(Div(), 2, (RELU,)), ("x", "gate"), "r"),
                (Conv(kernel_shape=(1, 1)), ("r", "w"), "y"),
            ],
            {"x": noise(2, 9, 5, 6), "gate": noise(2, 9, 1, 1)},
            {"w": noise(7, 9, 1, 1)},
        ),
    ),
    templates=("conv_gemm",), whole=False, fallback="element-wise kernels before them", seconds=0.45,
)
