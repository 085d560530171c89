"""Functions of two values or more, which broadcast."""

from __future__ import annotations

from functools import reduce
from math import pi

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

FUSED = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}
"""The ops that may have an activation behind them."""
ALIKE = {
    "MAXIMUM": "Max", "MINIMUM": "Min", "POW": "Pow", "LOGICAL_AND": "And", "LOGICAL_OR": "Or", "EQUAL": "Equal",
    "LESS": "Less", "LESS_EQUAL": "LessOrEqual", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual",
    "BITWISE_XOR": "BitwiseXor", "STABLEHLO_ADD": "Add", "STABLEHLO_SUBTRACT": "Sub", "STABLEHLO_MULTIPLY": "Mul",
    "STABLEHLO_DIVIDE": "Div", "STABLEHLO_MAXIMUM": "Max", "STABLEHLO_MINIMUM": "Min", "STABLEHLO_POWER": "Pow",
}  # fmt: skip
"""The ops that have one of Weft's in their place."""
COMPARED = ("Equal", "", "GreaterOrEqual", "Greater", "LessOrEqual", "Less")
"""Weft's comparisons by StableHLO's numbers; not equal is none of its own."""


@importer(*FUSED)
def fused(node: TFLiteNode) -> str:
    """Return what Weft's op computes, behind an activation."""
    return node.activated(node.add(FUSED[node.op], node.value(0), node.value(1)))


@importer(*ALIKE)
def alike(node: TFLiteNode) -> str:
    """Return what Weft's op computes."""
    return node.add(ALIKE[node.op], node.value(0), node.value(1))


@importer("NOT_EQUAL")
def not_equal(node: TFLiteNode) -> str:
    """Compare."""
    return node.add("Not", node.add("Equal", node.value(0), node.value(1)))


@importer("STABLEHLO_COMPARE")
def compare(node: TFLiteNode) -> str:
    """Compare in the way that an option says."""
    direction = node.option("direction")
    if not 0 <= direction < len(COMPARED):
        raise ModelError(f"there is no comparison {direction}")
    return node.add(COMPARED[direction], node.value(0), node.value(1)) if COMPARED[direction] else not_equal(node)


@importer("STABLEHLO_AND", "STABLEHLO_OR")
def bits(node: TFLiteNode) -> str:
    """Combine truths, or the bits of integers."""
    name = "And" if node.op == "STABLEHLO_AND" else "Or"
    name = name if node.dtype() is DType.BOOL else f"Bitwise{name}"
    return node.add(name, node.value(0), node.value(1))


@importer("RIGHT_SHIFT")
def right_shift(node: TFLiteNode) -> str:
    """Shift bits to the right; signed integers keep their sign, so they are divided."""
    x, by = node.value(0), node.value(1)
    if node.dtype().name.startswith("UINT"):
        return node.add("BitShift", x, by, direction="RIGHT")
    dtype = node.dtype()
    step = node.cast(node.add("Pow", node.const(2.0, DType.FLOAT64), node.cast(by, DType.FLOAT64)), DType.INT64)
    return node.cast(_floor_divided(node, node.cast(x, DType.INT64, dtype), step), dtype, DType.INT64)


@importer("SQUARED_DIFFERENCE")
def squared_difference(node: TFLiteNode) -> str:
    """Return the square of the difference."""
    difference = node.add("Sub", node.value(0), node.value(1))
    return node.add("Mul", difference, difference)


@importer("FLOOR_DIV")
def floor_div(node: TFLiteNode) -> str:
    """Divide, and round down."""
    if node.dtype().is_float:
        return node.add("Floor", node.add("Div", node.value(0), node.value(1)))
    return _floor_divided(node, node.value(0), node.value(1))


def _floor_divided(node: TFLiteNode, x: str, by: str) -> str:
    """Divide integers and round down: less what is left over, the division is exact."""
    return node.add("Div", node.add("Sub", x, node.add("Mod", x, by, fmod=0)), by)


@importer("FLOOR_MOD")
def floor_mod(node: TFLiteNode) -> str:
    """Return what is left by a division that rounds down; it has the sign of the divisor."""
    x, by = node.value(0), node.value(1)
    if not node.dtype().is_float:
        return node.add("Mod", x, by, fmod=0)
    rest = node.add("Mod", x, by, fmod=1)
    zero = node.const(0, node.dtype())
    other = node.add("Less", node.add("Mul", rest, by), zero)
    return node.add("Where", other, node.add("Add", rest, by), rest)


@importer("STABLEHLO_REMAINDER")
def remainder(node: TFLiteNode) -> str:
    """Return what is left by a division that rounds towards zero; it has the sign of the dividend."""
    return node.add("Mod", node.value(0), node.value(1), fmod=1)


@importer("ADD_N")
def add_n(node: TFLiteNode) -> str:
    """Return the sum of all inputs."""
    return reduce(lambda x, y: node.add("Add", x, y), node.values())


@importer("ATAN2")
def atan2(node: TFLiteNode) -> str:
    """Return the angle of the point (x, y), whose inputs are y and x."""
    y, x, zero = node.value(0), node.value(1), node.scalar(0)
    angle = node.add("Atan", node.add("Div", y, x))
    turned = node.add("Where", node.add("Less", y, zero), node.scalar(-pi), node.scalar(pi))
    angle = node.add("Where", node.add("Less", x, zero), node.add("Add", angle, turned), angle)
    origin = node.add("And", node.add("Equal", x, zero), node.add("Equal", y, zero))
    return node.add("Where", origin, zero, angle)


@importer("SELECT")
def select(node: TFLiteNode) -> str:
    """Choose between two values of one shape; a condition of one axis is that of whole rows."""
    condition = node.value(0)
    if node.rank(0) == 1 and node.rank(1) > 1:
        condition = node.reshaped(condition, (-1, *(1,) * (node.rank(1) - 1)))
    return node.add("Where", condition, node.value(1), node.value(2))


@importer("SELECT_V2", "STABLEHLO_SELECT")
def select_v2(node: TFLiteNode) -> str:
    """Choose between two values; all broadcast."""
    return node.add("Where", node.value(0), node.value(1), node.value(2))


@importer("STABLEHLO_CLAMP")
def clamp(node: TFLiteNode) -> str:
    """Keep values between two others; inputs min, x, max."""
    return node.add("Min", node.add("Max", node.value(1), node.value(0)), node.value(2))
