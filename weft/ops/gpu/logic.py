"""Comparisons, truth values and the choice between two tensors on GPUs."""

from __future__ import annotations

from math import prod

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import noise, one_node, truths
from weft.kernels.special import register_family
from weft.ops.binary import And, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Or, Where, Xor
from weft.ops.elementwise import Elementwise
from weft.ops.gpu.elementwise import broadcast_ints, launch_expression
from weft.ops.gpu.integers import CODED, INTEGERS, OPERATIONS, is_integer, launch_integers
from weft.ops.unary import IsInf, IsNaN, Not

EXPRESSIONS: dict[type[Elementwise], str] = {
    Equal: "({0} == {1} ? 1.0 : 0.0)",
    Less: "({0} < {1} ? 1.0 : 0.0)",
    LessOrEqual: "({0} <= {1} ? 1.0 : 0.0)",
    Greater: "({0} > {1} ? 1.0 : 0.0)",
    GreaterOrEqual: "({0} >= {1} ? 1.0 : 0.0)",
    And: "({0} * {1})",
    Or: "fmax({0}, {1})",
    Xor: "({0} == {1} ? 0.0 : 1.0)",
    Not: "(1.0 - {0})",
    IsNaN: "(is_nan({0}) ? 1.0 : 0.0)",
}


@gpu_op(*EXPRESSIONS, IsInf)
class TruthOnGpu(GpuOp):
    """Expressions of floats and bools, stored as bytes of 0 or 1; comparisons of integers."""

    fuses_into_store = False
    any_place = True
    integers = INTEGERS | {DType.BOOL}
    floats = CODED
    computes_double = True

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        if any(map(is_integer, inputs)):
            launch_integers(k, OPERATIONS[type(op)], inputs, outputs[0])
            return
        expr = _infinity(op) if isinstance(op, IsInf) else EXPRESSIONS[type(op)]
        launch_expression(k, expr, inputs, outputs[0])


def _infinity(op: IsInf) -> str:
    above = "{0} == INFINITY_F" if op.detect_positive else "false"
    below = "{0} == -INFINITY_F" if op.detect_negative else "false"
    return f"({above} || {below} ? 1.0 : 0.0)"


@gpu_op(Where)
class WhereOnGpu(GpuOp):
    """Chooses elements of any type, moved as bits."""

    fuses_into_store = False
    any_place = True
    moves_bits = True

    def why_not(self, op: Where, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Accept every choice."""
        return None

    def launches(self, op: Where, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the output, with axes merged as far as broadcasting allows."""
        y = outputs[0]
        reads = {name: t for name, t in zip(("condition", "a", "b"), inputs, strict=True) if t is not None}
        axes, rank = broadcast_ints(reads, y)
        ints = {"TOTAL": prod(y.shape), **axes}
        k.launch(
            "choose", reads=reads, writes={"y": y}, ints=ints, variant={"rank": rank}, items=ints["TOTAL"],
            raw=True, epilogue=False,
        )


register_family(
    "choose", "choices between elements",
    cases=lambda: (one_node(Where(), truths(7, 13), noise(7, 13), noise(1, 13)),),
    claimed=lambda caps: caps.int8_storage,
)
