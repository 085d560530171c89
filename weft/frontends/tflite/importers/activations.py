"""Functions of one value: activations, and what is computed element by element."""

from __future__ import annotations

import numpy as np

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

ALIKE = {
    "LOGISTIC": "Sigmoid", "TANH": "Tanh", "EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "SIN": "Sin", "COS": "Cos",
    "ABS": "Abs", "NEG": "Neg", "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "SIGN": "Sign", "ELU": "Elu",
    "HARD_SWISH": "HardSwish", "LOGICAL_NOT": "Not", "RELU": "Relu",
    "STABLEHLO_LOGISTIC": "Sigmoid", "STABLEHLO_TANH": "Tanh", "STABLEHLO_EXPONENTIAL": "Exp", "STABLEHLO_LOG": "Log",
    "STABLEHLO_COSINE": "Cos", "STABLEHLO_ABS": "Abs", "STABLEHLO_NEGATE": "Neg", "STABLEHLO_FLOOR": "Floor",
}  # fmt: skip
"""The ops that have one of Weft's in their place."""


@importer(*ALIKE)
def alike(node: TFLiteNode) -> str:
    """Return what Weft's op computes."""
    return node.add(ALIKE[node.op], node.value(0))


@importer("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def clipped(node: TFLiteNode) -> str:
    """Keep values between two numbers."""
    return node.activated(node.value(0), node.op)


@importer("RSQRT", "STABLEHLO_RSQRT")
def rsqrt(node: TFLiteNode) -> str:
    """Return 1 / sqrt(x)."""
    return node.add("Reciprocal", node.add("Sqrt", node.value(0)))


@importer("SQUARE")
def square(node: TFLiteNode) -> str:
    """Return x * x."""
    return node.add("Mul", node.value(0), node.value(0))


@importer("STABLEHLO_CBRT")
def cbrt(node: TFLiteNode) -> str:
    """Return the cube root, which negative numbers have, too."""
    x = node.value(0)
    return node.add("Mul", node.add("Sign", x), node.add("Pow", node.add("Abs", x), node.scalar(1 / 3)))


@importer("LEAKY_RELU")
def leaky_relu(node: TFLiteNode) -> str:
    """Scale negative values."""
    return node.add("LeakyRelu", node.value(0), alpha=node.number("alpha"))


@importer("PRELU")
def prelu(node: TFLiteNode) -> str:
    """Scale negative values by factors, which broadcast."""
    return node.add("PRelu", node.value(0), node.value(1))


@importer("GELU")
def gelu(node: TFLiteNode) -> str:
    """Return x times the normal distribution's cumulative function."""
    return node.add("Gelu", node.value(0), approximate="tanh" if node.option("approximate") else "none")


@importer("SOFTMAX")
def softmax(node: TFLiteNode) -> str:
    """Normalise along the last axis; exponents are scaled by beta."""
    x, beta = node.value(0), node.number("beta")
    return node.add("Softmax", x if beta in (0, 1) else node.add("Mul", x, node.scalar(beta)), axis=-1)


@importer("LOG_SOFTMAX")
def log_softmax(node: TFLiteNode) -> str:
    """Return the logarithm of softmax along the last axis."""
    return node.add("LogSoftmax", node.value(0), axis=-1)


@importer("L2_NORMALIZATION")
def l2_normalization(node: TFLiteNode) -> str:
    """Divide by the 2-norm of the last axis."""
    x = node.value(0)
    squares = node.add("ReduceSum", node.add("Mul", x, x), node.const([-1]))
    return node.activated(node.add("Div", x, node.add("Sqrt", node.add("Max", squares, node.scalar(1e-6**2)))))


@importer("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(node: TFLiteNode) -> str:
    """Divide by a power of the squares in adjacent channels; TensorFlow Lite does not divide alpha by their number."""
    size = 2 * node.option("radius") + 1
    if size < 1 or node.rank() != 4:
        raise ModelError("a radius below zero, or an input that is no image")
    return node.last(node.add(
        "LRN", node.first(node.value(0)), size=size, alpha=node.number("alpha") * size, beta=node.number("beta"),
        bias=node.number("bias"),
    ))


@importer("CAST", "STABLEHLO_CONVERT")
def cast(node: TFLiteNode) -> str:
    """Convert to the output's type; floats become integers as in C, towards zero."""
    return node.cast(node.value(0), node.output_dtype(), node.dtype())


@importer("BITCAST")
def bitcast(node: TFLiteNode) -> str:
    """Take the bits of elements as those of another type of the same size."""
    if node.dtype().itemsize != node.output_dtype().itemsize:
        raise ModelError("elements of another size are not supported")
    return node.add("BitCast", node.value(0), to=node.output_dtype())


@importer("QUANTIZE")
def quantize(node: TFLiteNode) -> str:
    """Return the numbers, which become the output's integers."""
    return node.value(0)


@importer("DEQUANTIZE")
def dequantize(node: TFLiteNode) -> str:
    """Return the numbers that integers stand for; weights in float16 become float32 at once."""
    held = node.constant(0)
    if held is not None and held.dtype == np.float16:
        return node.const(held, DType.FLOAT32)
    if node.dtype() is DType.FLOAT16:
        return node.cast(node.value(0), node.output_dtype())
    return node.value(0)


@importer("DENSIFY")
def densify(node: TFLiteNode) -> str:
    """Return the constant, whose zeros are there since it was read."""
    if node.constant(0) is None:
        raise ModelError("only constants are sparse")
    return node.value(0)


@importer("FAKE_QUANT")
def fake_quant(node: TFLiteNode) -> str:
    """Round to the steps of integers between two numbers, which are moved so that zero is one of the steps."""
    low, high, bits = node.number("min"), node.number("max"), node.option("num_bits")
    least, most = int(bool(node.option("narrow_range"))), 2**bits - 1
    if not (low <= 0 <= high and low < high and 2 <= bits <= 16):
        raise ModelError(f"steps of {bits} bits between {low} and {high} make no sense")
    scale = (high - low) / (most - least)
    zero = min(max(round(least - low / scale), least), most)
    lowest, highest = (least - zero) * scale, (most - zero) * scale
    x = node.add("Clip", node.value(0), node.scalar(lowest), node.scalar(highest))
    # Halves go up, as in the original: Round would take them to the even number.
    steps = node.add("Div", node.add("Sub", x, node.scalar(lowest)), node.scalar(scale))
    whole = node.add("Floor", node.add("Add", steps, node.scalar(0.5)))
    return node.add("Add", node.add("Mul", whole, node.scalar(scale)), node.scalar(lowest))
