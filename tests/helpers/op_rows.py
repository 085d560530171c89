"""The rows of the op table with what GPUs must take of them, networks of a few ops, and how both run and are compared.

`RUNS_ON_GPUS` and `REFUSED` say which rows a GPU must run.
"""

from __future__ import annotations

import re

import numpy as np

import weft
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import Elementwise
from weft_conformance.cases.table import Case, all_cases, comparable, tolerance

GPUS = ("opencl", "vulkan")
FLOATS = frozenset({"float32", "float16", "bfloat16"})
REALS = FLOATS | {"float64"}
ANY = frozenset(t.value for t in DType)
INTEGERS = frozenset(t.value for t in DType if t.is_integer and t.bits >= 8)
BYTES = frozenset({"uint8", "int8"})
LONG_INTEGERS = frozenset(t.value for t in DType if t.is_integer and t.bits >= 32)


def _each(names: str, types: frozenset[str]) -> dict[str, frozenset[str]]:
    return dict.fromkeys(names.split(), types)


def _contrib(names: str, types: frozenset[str]) -> dict[str, frozenset[str]]:
    return {f"com.microsoft::{name}": types for name in names.split()}


RUNS_ON_GPUS: dict[str, frozenset[str]] = {
    **_each(
        "Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid", REALS
    ),
    **_each("HardSwish LeakyRelu Log Mish Reciprocal Round Selu Sigmoid Sin Sinh", REALS),
    **_each("Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu", REALS),
    **_each("IsNaN IsInf", ANY),
    **_each("Mean SwiGLU weft::CompareSelect", REALS),
    **_each("weft::Narrow", frozenset({"float32"})),
    **_each("PRelu", REALS | LONG_INTEGERS),
    **_each("Shrink", REALS | INTEGERS),
    **_each("Abs Neg Add Sub Mul Div Mod Pow Max Min Sum Clip Relu Sign", REALS | INTEGERS),
    **_each("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift", INTEGERS),
    **_each("Less LessOrEqual Greater GreaterOrEqual", REALS | INTEGERS),
    **_each("Equal", REALS | INTEGERS | {"bool"}),
    **_each("Cast CastLike", ANY - {"complex64", "complex128"}),
    **_each("And Or Xor Not", FLOATS | {"bool"}),
    **_each("MatMul Gemm", REALS | LONG_INTEGERS),
    **_each("Softmax LogSoftmax", REALS),
    **_each("Conv ConvTranspose weft::PlanarConv weft::PlanarConvTranspose", REALS),
    **_each("weft::Attention", FLOATS),
    **_each("AveragePool LpPool weft::PlanarAveragePool weft::PlanarLpPool", REALS),
    **_each("GlobalAveragePool GlobalMaxPool GlobalLpPool Bernoulli", REALS),
    **_each("MaxPool weft::PlanarMaxPool", REALS | INTEGERS),
    **_each("ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 ReduceSumSquare", REALS | INTEGERS),
    **_each("ReduceMax ReduceMin", REALS | INTEGERS | {"bool"}),
    **_each("ReduceLogSum ReduceLogSumExp", REALS),
    **_each("ArgMax ArgMin CumSum CumProd", REALS | INTEGERS),
    **_each("weft::LinearRecurrence", REALS),
    **_each("BatchNormalization InstanceNormalization LayerNormalization", REALS),
    **_each("GroupNormalization GroupScaledNormalization", REALS),
    **_each("TrainingBatchNormalization RMSNormalization LpNormalization MeanVarianceNormalization", REALS),
    **_each("weft::L2Normalization weft::SumNormalization weft::GroupDeviation", REALS),
    **_each("LRN", REALS),
    **_each(
        "Reshape Flatten Squeeze Unsqueeze Identity Dropout Transpose Expand Tile Slice Split Concat BitCast", ANY
    ),
    **_each("LSTM GRU RNN", REALS | {"int32"}),
    **_each("SimplifiedLayerNormalization", FLOATS),
    **_contrib("SkipLayerNormalization SkipSimplifiedLayerNormalization BiasGelu Gelu FastGelu QuickGelu", FLOATS),
    **_contrib("MultiHeadAttention Attention GroupQueryAttention", FLOATS | {"int32"}),
    **_contrib("BiasSplitGelu BiasAdd FusedMatMul TransposeMatMul GemmFastGelu RelativePositionBias", FLOATS),
    **_contrib("QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearConcat", BYTES),
    **_contrib("QLinearAveragePool QLinearGlobalAveragePool MatMulIntegerToFloat NhwcMaxPool QLinearConv", BYTES),
    **_contrib("ScaledSiLU GatedAdd GatedRMSNorm BranchwiseRMSNorm LinearAttentionGate", FLOATS),
    **_contrib("CDist", REALS),
    **_contrib("ExpandDims Pad", ANY),
    **_contrib("MatMulInteger16", frozenset({"int16"})),
    **_contrib("ConvTransposeWithDynamicPads", FLOATS),
    **_contrib("QLinearWhere", BYTES | {"bool"}),
    **_contrib("QAttention", BYTES | {"int32", "float32"}),
    **_contrib("GroupNorm SkipGroupNorm NhwcConv MatMulBnb4", FLOATS),
    **_contrib("DynamicQuantizeLSTM", FLOATS | {"int32"}),
    **_contrib("QGemm", BYTES | {"int32"}),
    **_contrib("DynamicQuantizeMatMul FusedConv FusedGemm", FLOATS),
    **_contrib("EmbedLayerNormalization QEmbedLayerNormalization", FLOATS | {"int32", "int64"}),
    **_each("CausalConvWithState", FLOATS),
    **_each("LinearAttention", FLOATS),
    **_each("Attention", FLOATS | {"int64", "bool"}),
    **_each("TfIdfVectorizer", frozenset({"int32", "int64"})),
    **_each("RotaryEmbedding com.microsoft::RotaryEmbedding", FLOATS | {"int64"}),
    **_each("QuantizeLinear DequantizeLinear com.microsoft::QuantizeLinear com.microsoft::DequantizeLinear", ANY),
    **_each("weft::Quotient weft::FakeQuantize", FLOATS),
    **_each("MatMulInteger ConvInteger", BYTES),
    **_each("QLinearMatMul QLinearConv", frozenset({"float32", "uint8", "int8", "float8_e4m3fn"})),
    **_each("DynamicQuantizeLinear com.microsoft::MatMulNBits", FLOATS),
    **_each("com.microsoft::GatherBlockQuantized", frozenset({"int64", "int32"})),
    **_each("DepthToSpace SpaceToDepth Pad Gather GatherElements GatherND Where Resize", ANY),
    **_each("ScatterElements ScatterND TensorScatter Trilu ReverseSequence OneHot", ANY),
    **_each("STFT Multinomial", FLOATS),
    **_each("AffineGrid Det DFT Hardmax", REALS),
    **_each("GridSample", REALS | INTEGERS | {"bool"}),
    **_each("Einsum", REALS | INTEGERS),
    **_each("DeformConv MaxRoiPool", REALS),
    **_each("Col2Im", REALS | INTEGERS),
    **_each("MaxUnpool", ANY),
    **_each("TopK NonZero", REALS | INTEGERS | {"bool"}),
    **_each("Unique", REALS | INTEGERS | {"bool"}),
    **_each("Compress", ANY),
    **_each("NonMaxSuppression", FLOATS | {"int64"}),
    **_each("RoiAlign", REALS | {"int64"}),
}
"""The ops with a GPU form, and the element types of computed inputs that it must take."""

REFUSED = {
    r"QuantizeLinear-.*-precision=": "divide in float32",
}
"""Rows of types that fit which GPUs must refuse all the same, by a pattern, with a piece of the reason."""

ROWS = all_cases()


def refusal(row: Case) -> str | None:
    """Return a piece of the reason for which GPUs must refuse the row, None if they must run it."""
    listed = [why for pattern, why in REFUSED.items() if re.match(pattern, row.id)]
    if listed:
        return listed[0]
    types = {i.dtype for i in row.inputs if i is not None and not i.constant}
    if not types or row.make_op().reads_shape:
        return None  # Known when the network is loaded: nothing is left to run.
    return None if types <= RUNS_ON_GPUS.get(row.op, frozenset()) else "GPU"


def run(graph: Graph, feeds: dict[str, Array], device: str, precision: str = "high") -> list[Array]:
    """Return what the device computes, and see that nothing was computed elsewhere."""
    # What overflows float16 does so in the reference, too.
    with weft.load(graph, device, precision=precision, fallback="error", overflow_check=False) as session:
        outputs = session.run(feeds)
        assert set(session.report.placement.values()) <= {device}
    return outputs


def reference(op: Op, arrays: list[Array | None]) -> list[Array]:
    """Return the outputs of an op by its own reference."""
    return list(evaluate(op, arrays))


def assert_agree(actual: list[Array], expected: list[Array], op: Op) -> None:
    """Fail unless the arrays have equal shapes, and values within the tolerance for the type of `expected`."""
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == theirs.shape
        rtol, atol = tolerance(DType.of(theirs.dtype), op.op_class)
        theirs = theirs.astype(mine.dtype, copy=False)
        np.testing.assert_allclose(comparable(mine), comparable(theirs), rtol, atol, equal_nan=True)
        if isinstance(op, Elementwise) and DType.of(theirs.dtype).is_float:
            zeros = (comparable(mine) == 0) & (comparable(theirs) == 0)
            minus, minus_there = (np.signbit(comparable(each)[zeros]) for each in (mine, theirs))
            np.testing.assert_array_equal(minus, minus_there, "signs of zeros")


SAMPLE = frozenset("Add Mul Sub PRelu Clip Sigmoid Erf Max Mod Pow Round Where Equal".split())
"""Element-wise ops that stand for all, which share a kernel: compiling every one again takes minutes on a CPU."""

HALVED = [
    row
    for row in ROWS
    if refusal(row) is None
    and not row.make_op().keeps_types
    and any(i and i.dtype == "float32" for i in row.inputs)
    and (row.op in SAMPLE or not isinstance(row.make_op(), Elementwise))
]

Shape = tuple[int, ...]


class Net:
    """A graph under construction, with what its values have drawn so far."""

    def __init__(self) -> None:
        self.graph = Graph("random", [], [])
        self.feeds: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}
        self._rng = np.random.default_rng(0)

    def feed(self, shape: Shape, value: Array | None = None) -> str:
        """Add an input, by default of float32, and return its name."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self._rng.uniform(-2, 2, shape).astype(np.float32) if value is None else value
        self.graph.inputs.append(name)
        self.graph.specs[name] = TensorSpec(shape, DType.of(self.feeds[name].dtype))
        self.shapes[name] = shape
        return name

    def constant(self, value: Array) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.graph.constants)}"
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def numbers(self, shape: Shape) -> str:
        """Add a constant of random numbers and return its name."""
        return self.constant(self._rng.uniform(-2, 2, shape).astype(np.float32))

    def add(self, op: Op, *inputs: str) -> str:
        """Add a node and return the name of its output."""
        name = f"v{len(self.graph.nodes)}"
        (spec,) = op.infer(
            [self.graph.specs[i] for i in inputs], [self.graph.constants.get(i) for i in inputs]
        )
        self.graph.specs[name] = spec
        self.graph.nodes.append(Node(name, op, inputs, (name,)))
        self.shapes[name] = spec.dims
        return name

    def check(self, device: str, outputs: list[str]) -> None:
        """Run on the device and on the CPU and compare."""
        self.graph.outputs = list(dict.fromkeys(outputs))
        expected = run(self.graph, self.feeds, "cpu")
        for mine, theirs in zip(run(self.graph, self.feeds, device), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, *tolerance(DType.FLOAT32, "arithmetic"))
