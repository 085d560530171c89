"""Integers on GPUs: arithmetic and comparisons, exact for all 64 bits, and conversions from and to floats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import DeviceCaps, KernelBuilder, gpu_op
from weft.ops.binary import (
    Add,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    Min,
    Mul,
    Sub,
)
from weft.ops.elementwise import Elementwise
from weft.ops.gpu.elementwise import ElementwiseOnGpu, collapse, launch_expression
from weft.ops.unary import Abs, Cast, Neg

INTEGERS = frozenset({DType.INT64, DType.INT32, DType.INT8, DType.UINT8})
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
}
"""Their names in the template."""
HALF = 1 << 32


def is_integer(tensor: Tensor | None) -> bool:
    """Tell whether a tensor holds integers; bools do not count."""
    return tensor is not None and not tensor.dtype.is_float and tensor.dtype is not DType.BOOL


def launch_integers(k: KernelBuilder, operation: str, inputs: Sequence[Tensor | None], y: Tensor) -> None:
    """Launch an integer operation, broadcast to the shape of `y`."""
    given = [t for t in inputs if t is not None]
    ints = {"TOTAL": prod(y.shape)}
    reads: dict[str, Tensor] = {}
    for number, t in enumerate(given):
        if t.constant is not None and t.constant.size == 1:
            value = int(t.constant.item())
            low = value % HALF
            ints |= {f"K{number}": low - HALF if low >= HALF // 2 else low, f"K{number}_HIGH": value >> 32}
        else:
            reads[f"x{number}"] = t
    strides, sizes = collapse([t.shape for t in reads.values()], y.shape)
    for d, size in enumerate(sizes or [1]):
        ints[f"D{d}"] = max(size, 1)
    for name, row in zip(reads, strides, strict=True):
        ints |= {f"{name}_S{d}": step for d, step in enumerate(row or [0])}
    grid, local = k.for_items(ints["TOTAL"])
    k.launch(
        "integers",
        reads=reads,
        writes={"y": y},
        ints=ints,
        variant={
            "operation": operation,
            "names": tuple(reads),
            "count": len(given),
            "rank": max(len(sizes), 1),
        },
        grid=grid,
        local=local,
        epilogue=False,
    )


@gpu_op(Add, Sub, Mul, Neg, Abs, Max, Min)
class ArithmeticOnGpu(ElementwiseOnGpu):
    """Floats by the op's expression; integers exactly, and always in NCHW."""

    integers = INTEGERS

    def launches(
        self, op: Elementwise, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch over the output."""
        if is_integer(outputs[0]):
            launch_integers(k, OPERATIONS[type(op)], inputs, outputs[0])
        else:
            super().launches(op, k, inputs, outputs)


@gpu_op(Cast)
class CastOnGpu(ElementwiseOnGpu):
    """Loads and stores convert between floats; integers and bools are in NCHW."""

    integers = INTEGERS | {DType.BOOL}

    def why_not(
        self, op: Elementwise, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Accept: the supported element types are all that matters."""
        return None

    def fits_channels(self, op: Elementwise, inputs: Sequence[Shape | None], output: Shape) -> bool:
        """Accept conversions to floats: only floats can be in NC4HW4."""
        return isinstance(op, Cast) and op.to.is_float and super().fits_channels(op, inputs, output)

    def launches(
        self, op: Elementwise, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the conversion between these types."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        if x.dtype.is_float and y.dtype.is_float:
            launch_expression(k, "{0}", inputs, y)
        elif not x.dtype.is_float and not y.dtype.is_float:
            launch_integers(k, "truth" if y.dtype is DType.BOOL else "none", inputs, y)
        else:
            grid, local = k.for_items(prod(y.shape))
            k.launch(
                "float_to_integers" if x.dtype.is_float else "integers_to_float",
                reads={"x": x},
                writes={"y": y},
                ints={"TOTAL": prod(y.shape)},
                variant={"truth": y.dtype is DType.BOOL},
                grid=grid,
                local=local,
                epilogue=y.dtype.is_float,
            )
