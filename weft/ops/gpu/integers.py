"""Integers on GPUs: arithmetic and comparisons, exact for all 64 bits, and conversions from and to floats."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.formats import SMALL_FLOATS, is_coded
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import indices, noise, one_node
from weft.kernels.special import register_family
from weft.ops.binary import (
    Add,
    BitShift,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    Clip,
    Div,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    Min,
    Mod,
    Mul,
    Pow,
    Sub,
    Sum,
)
from weft.ops.conversion import SATURATING
from weft.ops.elementwise import Elementwise
from weft.ops.gpu.elementwise import ElementwiseOnGpu, broadcast_ints, launch_expression
from weft.ops.shape import given
from weft.ops.unary import Abs, BitwiseNot, Cast, CastLike, Neg, Relu, Sign

INTEGERS = frozenset(t for t in DType if t.is_integer and t.bits >= 8)
OPERATIONS: dict[type[Op], str] = {
    Add: "add",
    Sub: "subtract",
    Mul: "multiply",
    Neg: "negate",
    Abs: "size",
    Max: "max",
    Min: "min",
    Equal: "equal",
    Less: "less",
    LessOrEqual: "less_equal",
    Greater: "greater",
    GreaterOrEqual: "greater_equal",
    Div: "divide",
    Sum: "add",
    BitwiseAnd: "and",
    BitwiseOr: "or",
    BitwiseXor: "xor",
    BitwiseNot: "invert",
    Sign: "sign",
    Relu: "positive",
}
"""Their names in the template."""
HALF = 1 << 32
BITS = 64
"""How often quotients and powers go round, at most, once for each bit."""


def is_integer(tensor: Tensor | None) -> bool:
    """Tell whether a tensor holds integers that are no quantised floats; bools do not count."""
    return tensor is not None and tensor.dtype.is_integer and tensor.quantised is None


def launch_integers(k: KernelBuilder, operation: str, inputs: Inputs, y: Tensor, steps: tuple[str, ...] = ()) -> None:
    """Launch an integer operation, broadcast to the shape of `y`; `steps` names one for each further operand."""
    given = [t for t in inputs if t is not None]
    ints = {"TOTAL": prod(y.shape)}
    reads: dict[str, Tensor] = {}
    for number, t in enumerate(given):
        if t.constant is not None and t.constant.size == 1:
            value = int(t.constant.item())
            low, high = halves(value)
            ints |= {f"K{number}": low, f"K{number}_HIGH": high}
        else:
            reads[f"x{number}"] = t
    axes, rank = broadcast_ints(reads, y)
    ints |= axes
    k.launch(
        "integers", reads=reads, writes={"y": y}, ints=ints,
        variant={
            "operation": operation,
            "steps": steps,
            "bits": given[0].dtype.bits,
            "wide": given[0].dtype is DType.UINT64,
            "signed_exponent": given[-1].dtype.is_signed or given[-1].dtype.is_float,
            "names": tuple(reads),
            "count": len(given),
            "rank": rank,
        },
        items=ints["TOTAL"], epilogue=False,
    )


def halves(value: int) -> tuple[int, int]:
    """Return the lower and the upper 32 bits of an integer, as i32."""
    return _as_i32(value), _as_i32(value >> 32)


def _as_i32(value: int) -> int:
    """Return the i32 that has the lower 32 bits of a number."""
    low = value % HALF
    return low - HALF if low >= HALF // 2 else low


@gpu_op(Add, Sub, Mul, Div, Neg, Abs, Max, Min, Sign, Relu, Sum)
class ArithmeticOnGpu(ElementwiseOnGpu):
    """Floats by the op's expression; integers exactly, and always in NCHW."""

    integers = INTEGERS

    def rounds(self, op: Elementwise, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of a quotient or a power of integers."""
        return BITS if isinstance(op, (Div, Mod, Pow)) and any(map(is_integer, inputs)) else 0

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        if is_integer(outputs[0]):
            launch_integers(k, OPERATIONS[type(op)], inputs, outputs[0])
        else:
            super().launches(op, k, inputs, outputs)


@gpu_op(BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot, BitShift)
class BitsOnGpu(GpuOp):
    """Integers alone."""

    fuses_into_store = False
    integers = INTEGERS

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        operation = f"shift_{op.direction.lower()}" if isinstance(op, BitShift) else OPERATIONS[type(op)]
        launch_integers(k, operation, inputs, outputs[0])


@gpu_op(Mod, Clip)
class RemainderOnGpu(ArithmeticOnGpu):
    """Floats by the op's expression; of integers the remainder, or the limits that are given."""

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        if not is_integer(outputs[0]):
            ElementwiseOnGpu.launches(self, op, k, inputs, outputs)
        elif isinstance(op, Mod):
            launch_integers(k, "remainder" if op.fmod else "modulo", inputs, outputs[0])
        else:
            limits = zip(("max", "min"), inputs[1:], strict=False)
            steps = tuple(step for step, limit in limits if limit is not None)
            launch_integers(k, "none", inputs, outputs[0], steps)


@gpu_op(Pow)
class PowOnGpu(ArithmeticOnGpu):
    """Floats by the op's expression, whatever the exponent's type; integers to the power of integers exactly."""

    def why_not(self, op: Elementwise, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse integers to the power of floats, but for one whole number that is known, as in x to the power of 2.0.

        Others would be rounded towards zero: the last bit of a float decides between 24 and 25 there.
        """
        exponent = given(inputs, 1)
        known = exponent.constant if exponent.constant is not None and exponent.constant.size == 1 else None
        whole = is_integer(exponent) or (known is not None and float(known.item()).is_integer())
        if is_integer(inputs[0]) and not whole:
            return "GPU kernels compute powers of integers for exponents that are integers"
        return super().why_not(op, inputs, outputs, caps)

    def fits_channels(self, op: Elementwise, inputs: Inputs, outputs: Outputs) -> bool:
        """Refuse: the exponent may be of integers."""
        return False

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the output; an exponent of integers becomes floats first."""
        x, exponent = inputs
        assert exponent is not None
        if is_integer(x):
            launch_integers(k, "power", inputs, outputs[0])
            return
        if is_integer(exponent) and (exponent.constant is None or exponent.constant.size != 1):
            floats = k.scratch(exponent.shape, DType.FLOAT32)
            launch_conversion(k, "integers_to_float", exponent, floats, {"most": ""}, epilogue=False)
            exponent = floats
        ElementwiseOnGpu.launches(self, op, k, [x, exponent], outputs)


CODED = frozenset(t for t in DType if is_coded(t))
INTO_EXPONENT = {"up": "f > 0u", "down": "false", "nearest": "f > 0x400000u || f == 0x400000u && e > 0u"}
"""For each `round_mode` of a cast to float8_e8m0: whether to take the next exponent, for the fraction f behind e."""


@gpu_op(Cast, CastLike)
class CastOnGpu(ElementwiseOnGpu):
    """Loads and stores convert between floats; integers, bools and small floats are in NCHW."""

    integers = frozenset(t for t in DType if t.is_integer) | {DType.BOOL}
    floats = CODED | {DType.FLOAT64}

    def why_not(self, op: Elementwise, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse what passes through float32 and would be rounded there, where the device has no doubles."""
        source, to = given(inputs, 0).dtype, outputs[0].dtype
        pair = f"from {source.value} to {to.value}"
        exact = (DType.FLOAT64, DType.FLOAT32, DType.BOOL)
        if source is DType.FLOAT64 and to not in exact and not caps.doubles:
            return f"the device reads float64 as float32, which a conversion {pair} would round twice"
        if to is DType.FLOAT64 and source.is_integer and source.bits > 16 and not caps.doubles:
            return f"the device writes float64 from float32, which a conversion {pair} would round"
        if to is DType.FLOAT8E8M0 and source.is_integer and source.bits > 16:
            return f"a conversion {pair} passes through float32, which would be rounded before"
        return None

    def rounds(self, op: Elementwise, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of a conversion from integers, which looks for the highest bit."""
        return 0 if given(inputs, 0).dtype.is_float else BITS

    def fits_channels(self, op: Elementwise, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept conversions from floats to floats: nothing else is in NC4HW4, and other kernels are linear."""
        floats = inputs[0] is not None and inputs[0].dtype.is_float and isinstance(op, Cast) and op.to.is_float
        return floats and super().fits_channels(op, inputs, outputs)

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        assert isinstance(op, (Cast, CastLike))
        x, y = given(inputs, 0), outputs[0]
        from_float, to_float = (t.dtype.is_float or t.dtype.is_small_float or t.quantised is not None for t in (x, y))
        most = SMALL_FLOATS[y.dtype].largest if op.saturate and y.dtype in SATURATING else 0.0
        if y.dtype is DType.FLOAT8E8M0 and x.dtype is not y.dtype:
            raised = {"raised": INTO_EXPONENT[op.round_mode], "most": 254 if op.saturate else 255}
            if not from_float:
                floats = k.scratch(x.shape, DType.FLOAT32)
                launch_conversion(k, "integers_to_float", x, floats, {"most": ""}, epilogue=False)
                x = floats
            launch_conversion(k, "float_to_exponent", x, y, raised, epilogue=False)
        elif from_float and to_float:
            launch_expression(k, f"fmin(fmax({{0}}, -{most}), {most})" if most else "{0}", [x], y)
        elif not from_float and not to_float:
            launch_integers(k, "truth" if y.dtype is DType.BOOL else "none", [x], y)
        elif from_float:
            whole = {"truth": y.dtype is DType.BOOL, "saturates": False}
            launch_conversion(k, "float_to_integers", x, y, whole, epilogue=False)
        else:
            numbers = {"most": str(most) if most else ""}
            launch_conversion(k, "integers_to_float", x, y, numbers, epilogue=y.dtype.is_float)


def launch_conversion(
    k: KernelBuilder, template: str, x: Tensor, y: Tensor, variant: Mapping[str, str | int | bool], *, epilogue: bool
) -> None:
    """Launch a template that converts element by element; `epilogue` is for floats that are the node's output."""
    k.launch(
        template, reads={"x": x}, writes={"y": y}, ints={"TOTAL": prod(y.shape)}, variant=variant,
        items=prod(y.shape), epilogue=epilogue,
    )
register_family(
    "integers", "integer arithmetic",
    cases=lambda: (
        one_node(Add(), indices((7, 13), 99).astype(np.int64), indices((1, 13), 99).astype(np.int64)),
        one_node(Mul(), indices((5, 3), 9).astype(np.int32), indices((5, 3), 9).astype(np.int32)),
    ),
)
register_family(
    "conversions", "conversions of numbers and integers",
    cases=lambda: (
        one_node(Cast(to=DType.INT32), 50 * noise(7, 13)),
        one_node(Cast(to=DType.FLOAT32), indices((7, 13), 99).astype(np.int64)),
    ),
    templates=("float_to_integers", "integers_to_float"),
)
register_family(
    "exponents", "conversions to powers of two",
    cases=lambda: (one_node(Cast(to=DType.FLOAT8E8M0), 50 * noise(7, 13)),),
    templates=("float_to_exponent",),
)
