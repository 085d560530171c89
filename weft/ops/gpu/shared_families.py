"""Families for what kernels of many templates do alike.

They compute steps and scalars exactly, store other types, reach index maps and read sizes as they run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step
from weft.core.graph.op import Op
from weft.kernels.launch import FOR_SHAPES, FUSED_STEPS, INDEX_MAPS, SCALARS
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import indices, noise, noise64, one_node, several_nodes
from weft.kernels.special import (
    COMPUTES_DOUBLE,
    MAPS_PLACES,
    READS_SIZES,
    STORES_BYTES,
    STORES_HALVES,
    register_family,
)
from weft.ops.binary import Add, Div, Equal, Min, Mul, Pow, Sub
from weft.ops.concat import Concat, Split
from weft.ops.conv import Conv
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.matmul import MatMul
from weft.ops.pool import GlobalAveragePool
from weft.ops.shape import Transpose
from weft.ops.softmax import Softmax
from weft.ops.unary import Cast, Exp, LeakyRelu, Log, Reciprocal, Relu, Sin

register_family(
    "doubles", "kernels that compute in float64",
    cases=lambda: (
        one_node(Mul(), noise64(7, 13), noise64(7, 1), tolerance=1e-15),
        one_node(Pow(), np.abs(noise64(5, 11)), noise64(5, 11), tolerance=1e-14),
        one_node(Sin(), 1e9 * noise64(37), tolerance=1e-15),
        one_node(Cast(to=DType.FLOAT64), indices((7, 13), 1 << 62), tolerance=1e-16),
    ),
    claimed=lambda caps: caps.doubles, withdraw=lambda caps: replace(caps, doubles=False),
    templates=("elementwise", "integers_to_float"), whole=False, trait=COMPUTES_DOUBLE,
)
register_family(
    INDEX_MAPS, "elements that are reached through index maps",
    cases=lambda: (
        several_nodes(
            "Softmax of a transposed Relu of (2, 5, 3, 7), transposed back",
            [
                (Relu(), ("x",), "r"), (Transpose(perm=(0, 2, 3, 1)), ("r",), "t"), (Softmax(axis=-1), ("t",), "s"),
                (Transpose(perm=(0, 3, 1, 2)), ("s",), "u"), (Add(), ("u", "x"), "y"),
            ],
            {"x": noise(2, 5, 3, 7)},
        ),
        several_nodes(
            "Concat of two ends that change places, of (6, 8)",
            [
                (Relu(), ("x",), "r"), (Split(axis=0), ("r", "sizes"), ("a", "b")),
                (Concat(axis=0), ("b", "a"), "c"),
                (Transpose(perm=(1, 0)), ("c",), "t"), (Softmax(axis=-1), ("t",), "y"),
            ],
            {"x": noise(6, 8)},
            {"sizes": np.array([2, 4])},
        ),
    ),
    templates=("elementwise", "softmax"), whole=False, trait=MAPS_PLACES, fallback="moves of elements",
)
register_family(
    FOR_SHAPES, "kernels that read sizes when they run",
    cases=lambda: (
        several_nodes(
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
        several_nodes(
            "MatMul and Softmax of (3, 5, 19) after (2, 4, 12)",
            [(MatMul(), ("x", "z"), "y"), (Softmax(), ("y",), "p")],
            {"x": noise(3, 5, 19), "z": noise(3, 19, 23)},
            before={"x": noise(2, 4, 12), "z": noise(2, 12, 17)},
        ),
    ),
    templates=("conv_gemm", "pool_global"), whole=False, trait=READS_SIZES,
    fallback="kernels built for each shape", seconds=2.0,
)
SPECIAL = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 3], np.float32)
EIGHTHS = (3 * np.arange(48) - 77).astype(np.float32) / 8
"""Numbers whose products with small whole ones, and sums of these, are exact in any order."""


def _number(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(value, np.float32)


def _rounded(base: Op, arity: int) -> Fused:
    """Return a node that rounds the result of a base to whole numbers: a large number is added and taken away again."""
    return Fused(base, arity, (Step(Add(), (RUNNING, arity)), Step(Sub(), (RUNNING, arity))))


register_family(
    FUSED_STEPS, "fused steps",
    cases=lambda: (
        several_nodes(
            "(x + 12582912) - 12582912 of (7, 13)",
            [(Fused(Add(), 2, (Step(Sub(), (RUNNING, 1)),)), ("x", "m"), "y")],
            {"x": 5 * noise(7, 13)}, {"m": _number(12582912)},
        ),
        several_nodes(
            "min(x * 1e30 * 1e-30, 1e20) of (8, 12)",
            [(Fused(Mul(), 2, (Step(Mul(), (RUNNING, 2)), Step(Min(), (RUNNING, 3)))), ("x", "a", "b", "c"), "y")],
            {"x": 1e10 * noise(8, 12)}, {"a": _number(1e30), "b": _number(1e-30), "c": _number(1e20)},
        ),
        several_nodes(
            "min(log(exp(x)), 1e9) of (37,)",
            [(Fused(Exp(), 1, (Step(Log(), (RUNNING,)), Step(Min(), (RUNNING, 1)))), ("x", "c"), "y")],
            {"x": np.linspace(1, 200, 37, dtype=np.float32)}, {"c": _number(1e9)},
        ),
        several_nodes(
            "Conv of (1, 4, 3, 4), rounded",
            [(_rounded(Conv(kernel_shape=(1, 1)), 2), ("x", "w", "m"), "y")],
            {"x": EIGHTHS.reshape(1, 4, 3, 4)},
            {"w": np.arange(-10, 10, dtype=np.float32).reshape(5, 4, 1, 1), "m": _number(12582912)},
        ),
        several_nodes(
            "MatMul of (6, 8) with (8, 5), rounded",
            [(_rounded(MatMul(), 2), ("x", "w", "m"), "y")],
            {"x": EIGHTHS.reshape(6, 8), "w": np.arange(40, dtype=np.float32).reshape(8, 5)},
            {"m": _number(12582912)},
        ),
    ),
    templates=("elementwise",), whole=False, anywhere=True, fallback="kernels of single nodes",
)
register_family(
    SCALARS, "scalar constants of element-wise kernels",
    cases=lambda: (
        one_node(Mul(), SPECIAL, _number(0), constants=(1,)),
        one_node(Div(), SPECIAL, _number(0), constants=(1,)),
        one_node(Div(), _number(0), SPECIAL, constants=(0,)),
        one_node(LeakyRelu(alpha=0.0), SPECIAL),
        one_node(Mul(), np.resize(SPECIAL, (1, 5, 3, 1)), _number(0), constants=(1,)),
        several_nodes(
            "1 / (x * 0) of (8,)",
            [(Fused(Mul(), 2, (Step(Reciprocal(), (RUNNING,)),)), ("x", "zero"), "y")],
            {"x": SPECIAL}, {"zero": _number(0)},
        ),
    ),
    templates=("elementwise", "elementwise_c4"), whole=False, anywhere=True, fallback="constants in memory",
)
register_family(
    "fp16_storage", "kernels that store halves",
    cases=lambda: (
        conv_with((1, 7, 10, 12), (5, 7, 3, 3), pads=(1, 1, 1, 1), precision=Precision.LOW),
        one_node(Add(), (7, 13), (7, 13), precision=Precision.LOW),
        one_node(Add(), (2, 6, 5, 3), (2, 6, 5, 3), precision=Precision.LOW),
        one_node(Transpose(perm=(1, 0)), (5, 7), precision=Precision.LOW),
        one_node(Softmax(), (5, 33), precision=Precision.LOW),
    ),
    templates=("elementwise_c4", "elementwise", "move"), whole=False, trait=STORES_HALVES,
    claimed=lambda caps: caps.fp16_storage, withdraw=lambda caps: replace(caps, fp16_storage=False),
    forced=lambda caps: caps.without_matrices(HALVES), seconds=0.3,
)
register_family(
    "int8_storage", "kernels that load and store bytes",
    cases=lambda: (
        one_node(Equal(), indices((7, 13), 3).astype(np.uint8), indices((1, 13), 3).astype(np.uint8)),
        one_node(Transpose(), indices((7, 5), 99).astype(np.int8)),
    ),
    templates=("move",), whole=False, trait=STORES_BYTES,
    claimed=lambda caps: caps.int8_storage, withdraw=lambda caps: replace(caps, int8_storage=False),
)
