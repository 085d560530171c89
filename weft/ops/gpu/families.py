"""The families of portable kernels, with cases that test each: small shapes with remainders, strides, groups.

A family fails and is replaced as a whole. For families with a fallback, the modules that launch them check
`DeviceCaps.without`; launches of the others are refused (`weft.backends.gpu.lowering.support`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import FOR_SHAPES, INDEX_MAPS, SUM_PARTS
from weft.kernels.special import KernelFamily, SelfTestCase, one_node, register_family
from weft.ops.attention import Attention
from weft.ops.binary import Add, Div, Equal, Mul, Pow, Where
from weft.ops.boxes import NonMaxSuppression, RoiAlign
from weft.ops.concat import Concat, Split
from weft.ops.conv import Conv, ConvTranspose, PlanarConv, PlanarConvTranspose
from weft.ops.create import OneHot
from weft.ops.deform import Col2Im, DeformConv
from weft.ops.det import Det
from weft.ops.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from weft.ops.gpu.conv.gemm import CONV_PROLOGUE
from weft.ops.gpu.conv.pair import CONV_PAIR
from weft.ops.linear_attention import LinearAttention
from weft.ops.matmul import Gemm, MatMul
from weft.ops.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
)
from weft.ops.pad import Pad
from weft.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalMaxPool,
    MaxPool,
    PlanarAveragePool,
    PlanarLpPool,
    PlanarMaxPool,
)
from weft.ops.quantize import ConvInteger, DequantizeLinear, MatMulInteger, QuantizeLinear
from weft.ops.recurrent import GRU, LSTM
from weft.ops.reduce import ArgMax, CumSum, ReduceLogSumExp, ReduceMax, ReduceSum
from weft.ops.resize import Resize
from weft.ops.sample import GridSample
from weft.ops.select import Compress, NonZero, TopK, Unique
from weft.ops.shape import Expand, Transpose
from weft.ops.softmax import LogSoftmax, Softmax
from weft.ops.triangle import ReverseSequence, Trilu
from weft.ops.unary import Cast, Erf, Relu, Sin
from weft.ops.unpool import MaxRoiPool

BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [0.4, 2, 1.4, 3], [5, 5, 6, 6]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.1, 0.2, 0.3, 0.2, 0.1]]], np.float32)
HIGH, LOW = Precision.HIGH, Precision.LOW
Given = Shape | Array | None


def one(
    op: Op, *inputs: Given, constants: Sequence[int] = (), precision: Precision = HIGH, prefer: str = ""
) -> SelfTestCase:
    """Return the case for one node, in fp32 by default."""
    return one_node(op, *inputs, constants=constants, precision=precision, prefer=prefer)


def conv(
    x: Shape, w: Shape, *, bias: bool = True, prefer: str = "", precision: Precision = HIGH, **attrs: object
) -> SelfTestCase:
    """Return the case for a convolution."""
    op = Conv(kernel_shape=w[2:], **attrs)  # type: ignore[arg-type]
    given = (x, w, w[:1]) if bias else (x, w)
    return one(op, *given, constants=(1, 2)[: len(given) - 1], prefer=prefer, precision=precision)


def many(
    text: str,
    nodes: Sequence[tuple[Op, tuple[str, ...], str | tuple[str, ...]]],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    before: Mapping[str, Array] | None = None,
) -> SelfTestCase:
    """Return the case for several nodes, which runs like a network, including layout conversions."""
    outputs = [(out,) if isinstance(out, str) else out for _, _, out in nodes]
    made = tuple(Node(outs[0], op, names, outs) for (op, names, _), outs in zip(nodes, outputs, strict=True))
    return SelfTestCase(text, made, inputs, constants or {}, HIGH, before=before)


RELU = Step(Relu(), (RUNNING,))


def noise(*shape: int) -> Array:
    """Return fp32 numbers."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def wide(*shape: int) -> Array:
    """Return numbers in float64, most of which float32 would round."""
    return np.random.default_rng(4).standard_normal(shape)


def indices(shape: Shape, below: int) -> Array:
    """Return indices."""
    return np.random.default_rng(2).integers(0, below, shape)


def truths(*shape: int) -> Array:
    """Return truth values."""
    return np.random.default_rng(3).integers(0, 2, shape).astype(bool)


def filling(caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities as those of a GPU with many compute units to fill."""
    return replace(caps, software=False, compute_units=max(caps.compute_units, caps.model.many_units))


def few_units(caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities as those of a GPU that small problems fill, where more launches cost little."""
    return replace(caps, compute_units=2)


def in_place_of(*names: str) -> Callable[[DeviceCaps], DeviceCaps]:
    """Return a function that disables these families in the capabilities, so that their fallbacks run."""
    return lambda caps: replace(caps, without=caps.without | set(names))


def family(
    name: str,
    title: str,
    cases: Callable[[], Sequence[SelfTestCase]],
    *,
    templates: Sequence[str] = (),
    fallback: str = "",
    whole: bool = True,
    forced: Callable[[DeviceCaps], DeviceCaps] = lambda caps: caps,
    claimed: Callable[[DeviceCaps], bool] = lambda caps: True,
    withdraw: Callable[[DeviceCaps], DeviceCaps] | None = None,
    seconds: float = KernelFamily.seconds,
) -> KernelFamily:
    """Register a family; its template has the same name unless others are given."""
    return register_family(
        KernelFamily(
            name,
            title,
            claimed=claimed,
            withdraw=withdraw,
            cases=cases,
            templates=tuple(templates) or (name,),
            fallback=fallback,
            whole=whole,
            forced=forced,
            seconds=seconds,
        )
    )


# -- convolutions and products -----------------------------------------------------------------------------------

DIRECT = "convolutions by the direct kernel"
GROUPED = "GroupedTile(rows={}, columns={}, blocks={}, slices={})"
family(
    "conv_gemm", "tiled convolutions",
    lambda: (
        conv((1, 7, 10, 12), (5, 7, 3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
        conv((2, 17, 9, 7), (6, 17, 2, 3), strides=(2, 3), pads=(0, 1, 1, 2)),
        conv((2, 64, 7, 5), (70, 64, 1, 1), bias=False),
        conv((1, 36, 6, 7), (33, 36, 3, 3), prefer="GemmTile(pixels=2, blocks=1, lx=8, ly=4, lz=8)"),
    ),
    fallback=DIRECT, seconds=0.65,
)  # fmt: skip
family(
    "conv_planar", "convolutions of images of few channels in place",
    lambda: (
        many(
            "Conv of (1, 3, 23, 21) with (8, 3, 5, 5)",
            [(Conv(kernel_shape=(5, 5), strides=(2, 2), pads=(2, 2, 2, 2)), ("x", "w"), "y"), (Relu(), ("y",), "z")],
            {"x": noise(1, 3, 23, 21)},
            {"w": noise(8, 3, 5, 5)},
        ),
    ),
    templates=("conv_gemm",), whole=False, fallback="conversions of layouts before them", seconds=0.45,
)  # fmt: skip
family(
    CONV_PROLOGUE, "convolutions that apply steps as they load",
    lambda: (
        many(
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
)  # fmt: skip
family(
    CONV_PAIR, "pairs of convolutions of single pixels",
    lambda: (
        many(
            "Conv of (3, 37, 1, 1) with (9, 37, 1, 1) and (270, 9, 1, 1)",
            [
                (Fused(Conv(kernel_shape=(1, 1)), 3, (RELU,)), ("x", "w", "b"), "r"),
                (Conv(kernel_shape=(1, 1)), ("r", "v"), "y"),
            ],
            {"x": noise(3, 37, 1, 1)},
            {"w": noise(9, 37, 1, 1), "b": noise(9), "v": noise(270, 9, 1, 1)},
        ),
        many(
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
)  # fmt: skip
family(
    "conv_winograd", "convolutions by Winograd's method",
    lambda: (conv((1, 65, 15, 17), (67, 65, 3, 3), pads=(1, 1, 1, 1), prefer="WinogradTile("),),
    templates=("conv_winograd_input", "conv_winograd_gemm", "conv_winograd_output"),
    fallback="tiled convolutions", forced=few_units, seconds=0.45,
)  # fmt: skip
family(
    SUM_PARTS, "sums of products in parts",
    lambda: (conv((1, 260, 5, 7), (13, 260, 3, 3), pads=(1, 1, 1, 1), prefer="InParts("),),
    templates=("sum_parts",), fallback="sums by one work-group each", forced=filling, seconds=0.45,
)  # fmt: skip
family(
    "conv_direct", "convolutions by the direct kernel",
    lambda: (
        conv((3, 9, 6, 5), (6, 3, 3, 3), group=3, strides=(2, 1)),
        conv((2, 5, 5, 6, 7), (5, 5, 1, 2, 3), strides=(2, 1, 2), pads=(0, 1, 0, 0, 0, 1)),
        conv((1, 6, 15), (6, 3, 4), group=2, dilations=(3,), pads=(3, 0), bias=False),
    ),
    seconds=0.4,
)  # fmt: skip
family(
    "planar_conv", "convolutions of float64",
    lambda: (
        one_node(
            PlanarConv(group=2, strides=(2, 1), pads=(1, 0, 2, 1)), wide(2, 4, 7, 6), wide(6, 2, 3, 2), wide(6),
            precision=HIGH, tolerance=1e-14,
        ),
        one_node(
            PlanarConvTranspose(group=2, strides=(2, 1)), wide(2, 4, 3, 5), wide(4, 3, 3, 2), wide(6),
            precision=HIGH, tolerance=1e-14,
        ),
    ),
    templates=("planar_conv", "planar_conv_transpose"), claimed=lambda caps: caps.doubles,
)  # fmt: skip
family(
    "conv_grouped", "convolutions in groups of whole blocks",
    lambda: (
        conv(
            (2, 24, 9, 10), (48, 8, 3, 3), group=3, strides=(2, 1), pads=(1, 0, 1, 2),
            prefer=GROUPED.format(2, 2, 2, 2),
        ),
        conv(
            (1, 64, 7, 5), (32, 32, 5, 5), group=2, dilations=(1, 2), pads=(2, 4, 2, 4),
            prefer=GROUPED.format(1, 2, 1, 8),
        ),
        conv((1, 136, 21), (48, 68, 1), group=2, bias=False, prefer=GROUPED.format(1, 1, 1, 1)),
    ),
    fallback=DIRECT, forced=filling, seconds=0.45,
)  # fmt: skip
family(
    "conv_depthwise_tile", "depthwise convolutions by tiles",
    lambda: (
        conv((1, 7, 10, 9), (7, 1, 3, 5), group=7, strides=(1, 3), pads=(3, 1, 2, 2)),
        conv((2, 12, 13, 11), (12, 1, 3, 3), group=12, pads=(1, 1, 1, 1), prefer="DepthwiseTile(rows=2, columns=4)"),
    ),
    fallback="depthwise convolutions by loops",
)  # fmt: skip
family(
    "conv_depthwise_staged", "depthwise convolutions in work-group memory",
    lambda: (
        conv((2, 13, 9, 11), (13, 1, 5, 5), group=13, strides=(2, 1), pads=(2, 1, 2, 3), prefer="StagedTile("),
        conv((1, 6, 17, 16), (6, 1, 15, 14), group=6, pads=(7, 6, 7, 7), prefer="StagedTile("),
    ),
    fallback="depthwise convolutions by tiles",
)  # fmt: skip
family(
    "conv_depthwise", "depthwise convolutions by loops",
    lambda: (conv((1, 6, 17, 16), (6, 1, 15, 14), group=6, pads=(7, 6, 7, 7), dilations=(1, 1)),),
    fallback=DIRECT, forced=in_place_of("conv_depthwise_staged"),
)  # fmt: skip
family(
    "conv_transpose", "transposed convolutions",
    lambda: (
        one(ConvTranspose(strides=(2, 2), pads=(1, 0, 2, 1)), (1, 5, 5, 6), (5, 7, 4, 3), (7,), constants=(1, 2)),
        one(ConvTranspose(strides=(1, 3), group=2), (2, 4, 5, 4), (4, 3, 2, 2), constants=(1,)),
    ),
)  # fmt: skip
family(
    "pack_weights", "packing of weights that are computed at run time",
    lambda: (one(Conv(kernel_shape=(3, 2)), (1, 5, 7, 6), (6, 5, 3, 2)),),
)  # fmt: skip
family(
    "matmul", "products by tiles",
    lambda: (
        one(MatMul(), (65, 33), (33, 67)),
        one(MatMul(), (2, 1, 5, 7), (3, 7, 4)),
        one(Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (7, 5), (3, 7), (1, 3)),
    ),
)  # fmt: skip
family(
    "matmul_whole", "products of integers",
    lambda: (
        one(MatMul(), indices((2, 3, 40), 1 << 40).astype(np.int64), indices((40, 5), 1 << 40).astype(np.int64)),
        one(Gemm(transB=1), *(np.asarray(indices(s, 1 << 20), np.int32) for s in ((3, 9), (5, 9), (5,)))),
    ),
)  # fmt: skip
family(
    "matmul_rows", "products of few rows",
    lambda: (
        one(MatMul(), (1, 131), (131, 37), constants=(1,)),
        one(Gemm(transB=1), (3, 260), (17, 260), (17,), constants=(1, 2)),
    ),
    fallback="products by tiles",
)  # fmt: skip
family(
    "matmul_thin", "products of few rows in software",
    lambda: (
        one(MatMul(), (2, 1, 3, 7), (3, 7, 70)),
        one(Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (7, 2), (3, 7), (1, 3)),
    ),
    fallback="products by tiles", claimed=lambda caps: caps.software,
)  # fmt: skip
family(
    "attention", "attention in one kernel",
    lambda: (
        one(Attention(scale=0.5), (1, 2, 17, 5), (1, 2, 70, 5), (1, 2, 70, 13)),
        one(Attention(heads=2, packed=1), (1, 12, 48)),
    ),
    fallback="products and a softmax", seconds=0.3,
)  # fmt: skip

# -- lines, images and windows -----------------------------------------------------------------------------------

PLAIN_LINES = in_place_of("rows_in_teams")
family(
    "rows_in_teams", "lines that several work-items share",
    lambda: (
        one(Softmax(), (37, 20)),
        one(LogSoftmax(), (3, 1003)),
        one(LayerNormalization(), (3, 5, 197), (197,), (197,), constants=(1, 2)),
        one(LayerNormalization(), (9, 384), (384,), constants=(1,)),
    ),
    templates=("softmax_rows", "normalize_rows"), fallback="a work-group or an item for each line",
)  # fmt: skip
family(
    "softmax", "softmax",
    lambda: (one(Softmax(axis=1), (2, 21, 9)), one(LogSoftmax(), (5, 300)), one(Softmax(axis=0), (70, 3))),
    forced=PLAIN_LINES,
)  # fmt: skip
family(
    "normalize_lines", "normalizations of lines",
    lambda: (
        one(LayerNormalization(axis=1), (3, 4, 5), (4, 5), (4, 5), constants=(1, 2)),
        one(LayerNormalization(), (5, 197), (197,), constants=(1,)),
        one(LpNormalization(axis=1, p=1), (3, 50, 7)),
    ),
    forced=PLAIN_LINES,
)  # fmt: skip
family(
    "normalize_images", "normalizations of images",
    lambda: (
        one(InstanceNormalization(), (3, 5, 7, 3), (5,), (5,), constants=(1, 2)),
        one(GroupNormalization(num_groups=2), (2, 8, 5, 5), (8,), (8,), constants=(1, 2)),
    ),
    fallback="normalizations of lines",
)  # fmt: skip
family("lrn", "normalizations over channels", lambda: (one(LRN(size=3, alpha=0.5), (2, 7, 3, 5)),))
family(
    "pool", "pools",
    lambda: (
        one(MaxPool(kernel_shape=(3, 2), strides=(2, 1), pads=(0, 1, 2, 0)), (2, 5, 7, 9)),
        one(AveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (1, 6, 8, 9)),
    ),
)  # fmt: skip
family(
    "max_pool_planar", "max pools with indices",
    lambda: (one(PlanarMaxPool(kernel_shape=(3, 2), pads=(0, 1, 2, 0), outputs=2), (2, 3, 7, 5)),),
)  # fmt: skip
family(
    "pool_planar", "pools of float64",
    lambda: (
        one_node(
            PlanarAveragePool(kernel_shape=(3, 2), pads=(0, 1, 2, 0)), wide(2, 3, 7, 5), precision=HIGH, tolerance=1e-15
        ),
        one_node(PlanarLpPool(kernel_shape=(3, 2), p=3), wide(2, 3, 7, 5), precision=HIGH, tolerance=1e-14),
    ),
    claimed=lambda caps: caps.doubles,
)  # fmt: skip
family(
    "pool_global", "pools of whole images",
    lambda: (
        one(GlobalAveragePool(), (3, 17, 5, 4)), one(GlobalAveragePool(), (1, 9, 41, 29)),
        one(GlobalMaxPool(), (2, 70, 19, 7)),
    ),
)  # fmt: skip
family(
    "resize", "resizes",
    lambda: tuple(
        one(Resize(mode=mode), (1, 6, 7, 5), None, None, np.array([1, 6, 9, 4]), constants=(3,))
        for mode in ("nearest", "linear", "cubic")
    ),
)  # fmt: skip
family(
    "reduce", "reductions",
    lambda: (
        one(ReduceSum(), (5, 300), np.array([1]), constants=(1,)),
        one(ReduceMax(), (7, 3, 9, 5), np.array([0, 2]), constants=(1,)),
        one(ReduceLogSumExp(), (70, 11), np.array([0]), constants=(1,)),
    ),
)  # fmt: skip
family(
    "integer_reductions", "reductions of integers",
    lambda: (
        one(ReduceSum(), indices((5, 300), 99), np.array([1]), constants=(1,)),
        one(ReduceMax(), indices((7, 3, 9), 99).astype(np.int32), np.array([1]), constants=(1,)),
    ),
    templates=("reduce_integers",),
)  # fmt: skip
family("arg_extreme", "places of extremes", lambda: (one(ArgMax(), (1003,)), one(ArgMax(axis=1), (3, 5, 7))))
family(
    "recurrent", "recurrent layers",
    lambda: (
        one(
            LSTM(hidden_size=9, direction="bidirectional", outputs=3),
            (3, 2, 5), (2, 36, 5), (2, 36, 9), constants=(1, 2),
        ),
        one(GRU(hidden_size=6, outputs=2), (3, 2, 5), (1, 18, 5), (1, 18, 6), constants=(1, 2)),
    ),
)  # fmt: skip
family(
    "linear_attention", "linear attention",
    lambda: (
        one(
            LinearAttention(q_num_heads=4, kv_num_heads=2),
            (2, 3, 16), (2, 3, 8), (2, 3, 12), (2, 2, 4, 6), (2, 3, 8), (2, 3, 2),
        ),
    ),
)  # fmt: skip
family("scan", "running sums", lambda: (one(CumSum(reverse=1), (3, 5, 7), np.array(1), constants=(1,)),))

# -- element by element ------------------------------------------------------------------------------------------

family(
    "elementwise", "element-wise kernels",
    lambda: (
        one(Add(), (7, 13), (7, 13)),
        one(Mul(), (2, 3, 1, 5), (7, 1)),
        one(Erf(), (5, 11)),
        one(Relu(), (37,)),
    ),
    forced=in_place_of("elementwise_wide"),
)  # fmt: skip
family(
    "elementwise_wide", "element-wise kernels in vectors",
    lambda: (one(Add(), (8, 12), (8, 12)), one(Mul(), (3, 4, 16), (4, 1)), one(Erf(), (5, 12))),
    templates=("elementwise",), whole=False, forced=filling, fallback="element-wise kernels of one element",
)  # fmt: skip
family(
    "elementwise_c4", "element-wise kernels of images",
    lambda: (
        one(Add(), (2, 5, 7, 3), (2, 5, 7, 3)),
        one(Mul(), (2, 6, 3, 5), (1, 6, 1, 1)),
        one(BatchNormalization(), (2, 7, 5), (7,), (7,), (7,), np.full(7, 2, np.float32), constants=(1, 2, 3, 4)),
    ),
    fallback="element-wise kernels",
)  # fmt: skip
family(
    "integers", "integer arithmetic",
    lambda: (
        one(Add(), indices((7, 13), 99).astype(np.int64), indices((1, 13), 99).astype(np.int64)),
        one(Mul(), indices((5, 3), 9).astype(np.int32), indices((5, 3), 9).astype(np.int32)),
    ),
)  # fmt: skip
family(
    "conversions", "conversions of numbers and integers",
    lambda: (
        one(Cast(to=DType.INT32), 50 * noise(7, 13)),
        one(Cast(to=DType.FLOAT32), indices((7, 13), 99).astype(np.int64)),
    ),
    templates=("float_to_integers", "integers_to_float"),
)  # fmt: skip
family(
    "doubles", "kernels that compute in float64",
    lambda: (
        one_node(Mul(), wide(7, 13), wide(7, 1), precision=HIGH, tolerance=1e-15),
        one_node(Pow(), np.abs(wide(5, 11)), wide(5, 11), precision=HIGH, tolerance=1e-14),
        one_node(Sin(), 1e9 * wide(37), precision=HIGH, tolerance=1e-15),
        one_node(Cast(to=DType.FLOAT64), indices((7, 13), 1 << 62), precision=HIGH, tolerance=1e-16),
    ),
    claimed=lambda caps: caps.doubles, withdraw=lambda caps: replace(caps, doubles=False),
    templates=("elementwise", "integers_to_float"), whole=False,
)  # fmt: skip
family(
    "exponents", "conversions to powers of two",
    lambda: (one(Cast(to=DType.FLOAT8E8M0), 50 * noise(7, 13)),),
    templates=("float_to_exponent",),
)  # fmt: skip
family(
    "quantize", "conversions to and from quantised numbers",
    lambda: (
        one(QuantizeLinear(axis=0), 9 * noise(3, 13), np.abs(noise(3)) + 0.1, np.array([0, 3, 9], np.uint8)),
        one(
            DequantizeLinear(axis=0), indices((7, 13), 200).astype(np.uint8), np.abs(noise(7)), np.full(7, 3, np.uint8)
        ),
    ),
    templates=("quantize", "dequantize"),
)  # fmt: skip
family(
    "integer_sums", "products and convolutions of integers",
    lambda: (
        one(MatMulInteger(), *(np.asarray(indices(s, 255), np.uint8) for s in ((2, 3, 40), (40, 5), (), (5,)))),
        one(ConvInteger(pads=(1,) * 4), *(np.asarray(indices(s, 255), np.uint8) for s in ((1, 3, 5, 7), (4, 3, 3, 3)))),
    ),
    templates=("matmul_integer", "conv_integer"),
)  # fmt: skip

# -- moving elements ---------------------------------------------------------------------------------------------

family(
    "move", "moves of elements",
    lambda: (
        one(Transpose(perm=(0, 3, 1, 2)), (2, 7, 5, 3)),
        one(Expand(), (3, 1), np.array([2, 3, 5]), constants=(1,)),
        one(Concat(axis=1), (3, 5), (3, 2)),
    ),
    forced=in_place_of("move_wide"),
)  # fmt: skip
family(
    "move_wide", "moves of several elements at once",
    lambda: (one(Transpose(perm=(1, 0, 2)), (3, 5, 8)), one(Concat(axis=1), (3, 6), (3, 2))),
    templates=("move",), whole=False, fallback="moves of one element",
)  # fmt: skip
family(
    INDEX_MAPS, "elements that are reached through index maps",
    lambda: (
        many(
            "Softmax of a transposed Relu of (2, 5, 3, 7), transposed back",
            [
                (Relu(), ("x",), "r"), (Transpose(perm=(0, 2, 3, 1)), ("r",), "t"), (Softmax(axis=-1), ("t",), "s"),
                (Transpose(perm=(0, 3, 1, 2)), ("s",), "u"), (Add(), ("u", "x"), "y"),
            ],
            {"x": noise(2, 5, 3, 7)},
        ),
        many(
            "Concat of two ends that change places, of (6, 8)",
            [
                (Relu(), ("x",), "r"), (Split(axis=0), ("r", "sizes"), ("a", "b")), (Concat(axis=0), ("b", "a"), "c"),
                (Transpose(perm=(1, 0)), ("c",), "t"), (Softmax(axis=-1), ("t",), "y"),
            ],
            {"x": noise(6, 8)},
            {"sizes": np.array([2, 4])},
        ),
    ),
    templates=("elementwise", "softmax"), whole=False, fallback="moves of elements",
)  # fmt: skip
family(
    "block_copy", "copies of blocks of channels",
    lambda: (one(Concat(axis=1), (2, 4, 3, 5), (2, 6, 3, 5)),), fallback="moves of elements",
)  # fmt: skip
family(
    "relayout", "conversions of layouts",
    lambda: (
        many(
            "MaxPool and AveragePool of (2, 7, 9, 5)",
            [(MaxPool(kernel_shape=(2, 2)), ("x",), "y"), (AveragePool(kernel_shape=(2, 3)), ("y",), "z")],
            {"x": noise(2, 7, 9, 5)},
        ),
    ),
)  # fmt: skip
family(
    "pad", "pads",
    lambda: (
        one(Pad(mode="reflect"), (2, 5, 6), np.array([0, 1, 2, 0, 3, 1]), constants=(1,)),
        one(Pad(), (1, 6, 5, 3), np.array([0, 0, 1, 2, 0, 0, 2, 1]), constants=(1,)),
    ),
)  # fmt: skip
family(
    "gather", "gathers",
    lambda: (
        one(Gather(axis=1), (3, 7, 5), indices((2, 2), 7)),
        one(GatherElements(axis=1), (3, 4), indices((3, 2), 4)),
        one(GatherND(batch_dims=1), (2, 3, 4), indices((2, 1), 3)),
    ),
    templates=("gather", "gather_elements", "gather_nd"),
)  # fmt: skip
family(
    "select", "the largest elements, and those that are not zero",
    lambda: (
        one(TopK(axis=1), (2, 9, 3), np.array([4]), constants=(1,)),
        one(NonZero(bounded=True), np.array([[0, 3, 0, -1, 2], [5, 0, 0, 0, 1]], np.float32)),
        one(Unique(bounded=True), np.array([3, 1, 3, 2, 1], np.float32)),
        one(Compress(axis=1, bounded=True), (3, 5), np.array([True, False, True, True, False])),
        one(Compress(axis=1, bounded=True), (0, 5), np.array([True, False, True, True, False])),
    ),
    templates=(
        "top_k", "compact", "nonzero", "compress", "unique_first", "unique_rank", "unique_places", "room_sizes",
    ),
)  # fmt: skip
family(
    "boxes", "suppression of boxes, and what lies within them",
    lambda: (
        one(NonMaxSuppression(bounded=True, most=3), BOXES, SCORES, np.array([3]), np.array([0.3], np.float32)),
        one(
            RoiAlign(output_height=2, output_width=3, sampling_ratio=2),
            (1, 3, 7, 9), 4 * BOXES[0], np.zeros(5, np.int64),
        ),
    ),
    templates=("nms_order", "nms_select", "nms_rows", "roi_align"),
)  # fmt: skip
family(
    "scatter", "scatters",
    lambda: (
        one(ScatterElements(axis=1), (3, 7), indices((3, 1), 7), (3, 1)),
        one(ScatterElements(reduction="add"), (5, 3), indices((2, 3), 5), (2, 3)),
        one(ScatterND(), (5, 3), indices((1, 1), 5), (1, 3)),
        one(ScatterND(reduction="max"), (5, 3), indices((4, 1), 5), (4, 3)),
    ),
    templates=("scatter", "scatter_reduce"),
)  # fmt: skip
family(
    "by_position", "triangles, one-hot vectors and reversed sequences",
    lambda: (
        one(Trilu(), (3, 5, 7)),
        one(OneHot(axis=0), indices((3, 5), 7), np.array(7), np.array([0, 1], np.float32), constants=(1,)),
        one(ReverseSequence(), (5, 3, 2), indices((3,), 5)),
    ),
    templates=("trilu", "one_hot", "reverse_sequence"),
)  # fmt: skip
family(
    "grid_sample", "images sampled at places",
    lambda: (
        one(GridSample(), (2, 3, 5, 7), (2, 4, 3, 2)),
        one(GridSample(mode="cubic", padding_mode="reflection"), (1, 2, 5, 4), (1, 4, 3, 2)),
    ),
)  # fmt: skip
family(
    "deform_conv", "convolutions with offsets",
    lambda: (
        one(
            DeformConv(offset_group=2, pads=(1, 0, 0, 1)), (1, 4, 5, 4), (3, 4, 2, 2), (1, 16, 5, 4), (3,),
            (1, 8, 5, 4), constants=(1, 3),
        ),
    ),
)  # fmt: skip
family(
    "col2im", "sums of windows",
    lambda: (one(Col2Im(strides=(2, 1)), (2, 12, 6), np.array([5, 4]), np.array([2, 2]), constants=(1, 2)),),
)  # fmt: skip
family(
    "max_roi_pool", "pools of regions",
    lambda: (
        one(MaxRoiPool((2, 3)), (1, 3, 6, 7), np.array([[0, 1, 0, 5, 4], [0, 2, 3, 9, 9]], np.float32)),
    ),
)  # fmt: skip
family("det", "determinants", lambda: (one(Det(), (3, 5, 5)),))
family(
    "choose", "choices between elements",
    lambda: (one(Where(), truths(7, 13), noise(7, 13), noise(1, 13)),),
    claimed=lambda caps: caps.int8_storage,
)  # fmt: skip

# -- shapes that change ------------------------------------------------------------------------------------------

family(
    FOR_SHAPES, "kernels that read sizes when they run",
    lambda: (
        many(
            "Conv and Add of (2, 7, 11, 9) after (1, 7, 6, 5)",
            [
                (Conv(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)), ("x", "w"), "y"),
                (GlobalAveragePool(), ("y",), "mean"),
                (Add(), ("mean", "z"), "sum"),
            ],
            {"x": noise(2, 7, 11, 9), "z": noise(2, 1, 1, 13)},
            {"w": noise(6, 7, 3, 2)},
            before={"x": noise(1, 7, 6, 5), "z": noise(1, 1, 1, 8)},
        ),
        many(
            "MatMul and Softmax of (3, 5, 19) after (2, 4, 12)",
            [(MatMul(), ("x", "z"), "y"), (Softmax(), ("y",), "p")],
            {"x": noise(3, 5, 19), "z": noise(3, 19, 23)},
            before={"x": noise(2, 4, 12), "z": noise(2, 12, 17)},
        ),
    ),
    templates=("conv_gemm", "pool_global"), whole=False, fallback="kernels built for each shape", seconds=2.0,
)  # fmt: skip

# -- what is stored ----------------------------------------------------------------------------------------------

family(
    "fp16_storage", "kernels that store halves",
    lambda: (
        conv((1, 7, 10, 12), (5, 7, 3, 3), pads=(1, 1, 1, 1), precision=LOW),
        one(Add(), (7, 13), (7, 13), precision=LOW),
        one(Add(), (2, 6, 5, 3), (2, 6, 5, 3), precision=LOW),
        one(Transpose(perm=(1, 0)), (5, 7), precision=LOW),
        one(Softmax(), (5, 33), precision=LOW),
    ),
    templates=("elementwise_c4", "elementwise", "move"), whole=False,
    claimed=lambda caps: caps.fp16_storage, withdraw=lambda caps: replace(caps, fp16_storage=False),
    forced=lambda caps: replace(caps, matrix_units=False), seconds=0.3,
)  # fmt: skip
family(
    "int8_storage", "kernels that load and store bytes",
    lambda: (
        one(Equal(), indices((7, 13), 3).astype(np.uint8), indices((1, 13), 3).astype(np.uint8)),
        one(Transpose(), indices((7, 5), 99).astype(np.int8)),
    ),
    templates=("move",), whole=False,
    claimed=lambda caps: caps.int8_storage, withdraw=lambda caps: replace(caps, int8_storage=False),
)  # fmt: skip
