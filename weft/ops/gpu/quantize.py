"""Quantised numbers on GPUs: to and from floats, and exact products and convolutions of integers.

Products of integers are summed in 32 bits, which wraps as it does on the CPU, so they are exact where the result fits.
What consists of these (QLinearMatMul, QLinearConv, DynamicQuantizeLinear) is taken apart. Weights that com.microsoft's
ops have quantised in blocks become floats when the network is loaded.
"""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.formats import SMALL_FLOATS
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import indices, noise, one_node
from weft.kernels.special import register_family
from weft.ops.conversion import SATURATING
from weft.ops.gpu.conv.problem import window_constants
from weft.ops.gpu.elementwise import collapse
from weft.ops.quantize import (
    QUANTISED,
    ConvInteger,
    DequantizeLinear,
    MatMulInteger,
    QuantizeLinear,
    Spread,
)
from weft.ops.shape import given, optional

COLUMNS = 4
"""Numbers of a row that an item computes, so that it loads what they share once."""


class _Linear(GpuOp):
    fuses_into_store = False
    integers = frozenset(t for t in QUANTISED if t.is_integer) | {DType.INT32}
    floats = frozenset(t for t in QUANTISED if not t.is_integer) | {DType.BFLOAT16, DType.FLOAT8E8M0}

    def launch(
        self, k: KernelBuilder, template: str, reads: dict[str, Tensor], y: Tensor, spread: Spread, **variant: str
    ) -> None:
        """Launch a template over the output, which finds each element's scale."""
        ints = {
            "TOTAL": prod(y.shape),
            "SIZE": max(spread.size, 1),
            "INNER": max(spread.inner, 1),
            "BLOCK": spread.block,
            "OUTER_STEP": spread.outer_step,
            "BLOCK_STEP": spread.block_step,
            "INNER_STEP": spread.inner_step,
        }
        given: dict[str, str | int | bool | tuple[str, ...]] = {**variant}
        k.launch(
            template, reads=reads, writes={"y": y}, ints=ints, variant=given, items=prod(y.shape), epilogue=False
        )


@gpu_op(QuantizeLinear)
class QuantizeOnGpu(_Linear):
    """One item computes one number."""

    def why_not(self, op: QuantizeLinear, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse a division in another type than float32."""
        if op.precision not in (None, DType.FLOAT32):
            return f"GPU kernels divide in float32, and precision is {op.precision.value}"
        return None

    def launches(self, op: QuantizeLinear, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the division, the rounding and the limits."""
        x, scale, zero, y = given(inputs, 0), given(inputs, 1), optional(inputs, 2), outputs[0]
        spread = Spread.of(op, x.shape, scale.shape, op.axis, op.block_size)
        reads = {"x": x, "scale": scale}
        if zero is not None and y.dtype not in SATURATING:
            reads["zero"] = zero
        if y.dtype.is_integer:
            least, most = map(float, y.dtype.limits)
        else:
            most = SMALL_FLOATS[y.dtype].largest if op.saturate and y.dtype in SATURATING else 0.0
            least = -most
        rounded = "yes" if y.dtype.is_integer else ""
        self.launch(k, "quantize", reads, y, spread, rounded=rounded, least=str(least), most=str(most))


@gpu_op(DequantizeLinear)
class DequantizeOnGpu(_Linear):
    """One item computes one number."""

    def launches(self, op: DequantizeLinear, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the difference and the product."""
        x, scale, zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        spread = Spread.of(op, x.shape, scale.shape, op.axis, op.block_size)
        reads = {"x": x, "scale": scale}
        if zero is not None and x.dtype.is_integer:
            reads["zero"] = zero
        self.launch(k, "dequantize", reads, outputs[0], spread)


class _Sums(GpuOp):
    fuses_into_store = False
    integers = frozenset({DType.INT8, DType.UINT8, DType.INT32})


@gpu_op(MatMulInteger)
class MatMulIntegerOnGpu(_Sums):
    """One item computes a few numbers of a row."""

    def rounds(self, op: MatMulInteger, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the length of a sum."""
        return inputs[0].shape[-1] if inputs[0] is not None else 0

    def launches(self, op: MatMulInteger, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the rows of all matrices; vectors are matrices of one row or one column."""
        (a, b), y = inputs[:2], outputs[0]
        assert a is not None and b is not None
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        batch = tuple(y.shape[: len(y.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)])
        rows, inner, columns = left[-2], left[-1], right[-1]
        strides, sizes = collapse([left[:-2], right[:-2]], batch)
        ints = {"ROWS": rows, "INNER": inner, "N": columns, "GROUPS": -(-columns // COLUMNS)}
        ints["TOTAL"] = prod(batch) * rows * ints["GROUPS"]
        for d, size in enumerate(sizes):
            ints |= {f"D{d}": size, f"A{d}": strides[0][d] * rows * inner, f"B{d}": strides[1][d] * inner * columns}
        reads = {"a": a, "b": b}
        zeros = {name: t for name, t in zip(("a_zero", "b_zero"), inputs[2:], strict=False) if t is not None}
        spread = {}
        for name, t in zeros.items():
            reads[name] = t
            matrix = rows if name == "a_zero" else columns
            by_batch = len(t.shape) > 1 and prod(t.shape[:-2]) > 1
            spread[name] = "batch" if by_batch else "line" if prod(t.shape) > 1 else "one"
            ints[f"{name.upper()}_SIZE"] = matrix
            for d in range(len(sizes)):
                step = strides[0 if name == "a_zero" else 1][d]
                ints[f"{name.upper()}{d}"] = step * matrix if by_batch else 0
        k.launch(
            "matmul_integer", reads=reads, writes={"y": y}, ints=ints,
            variant={
                "rank": len(sizes),
                "columns": COLUMNS,
                "a_spread": spread.get("a_zero", ""),
                "b_spread": spread.get("b_zero", ""),
            },
            items=ints["TOTAL"], epilogue=False,
        )


@gpu_op(ConvInteger)
class ConvIntegerOnGpu(_Sums):
    """One item computes one number."""

    def rounds(self, op: ConvInteger, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the products that make a sum."""
        channels, *kernel = given(inputs, 1).shape[1:]
        return nested_rounds(channels, prod(kernel))

    def launches(self, op: ConvInteger, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the output; a window of any rank is one of three axes."""
        (x, w), y = inputs[:2], outputs[0]
        assert x is not None and w is not None
        window = op.conv.window(x.shape, w.shape)
        reads = {"x": x, "w": w}
        zeros = {name: t for name, t in zip(("x_zero", "w_zero"), inputs[2:], strict=False) if t is not None}
        reads |= zeros
        ints = {"TOTAL": prod(y.shape), "PER_GROUP": w.shape[1], "CHANNELS": x.shape[1], "OUT": y.shape[1]}
        ints["OUT_PER_GROUP"] = y.shape[1] // op.group
        ints |= window_constants(window)
        w_zero = zeros.get("w_zero")
        k.launch(
            "conv_integer", reads=reads, writes={"y": y}, ints=ints,
            variant={"by_channel": w_zero is not None and prod(w_zero.shape) > 1}, items=ints["TOTAL"],
            epilogue=False,
        )


def _bytes(shape: Shape) -> Array:
    return np.asarray(indices(shape, 255), np.uint8)


register_family(
    "quantize", "conversions to and from quantised numbers",
    cases=lambda: (
        one_node(QuantizeLinear(axis=0), 9 * noise(3, 13), np.abs(noise(3)) + 0.1, np.array([0, 3, 9], np.uint8)),
        one_node(
            DequantizeLinear(axis=0),
            indices((7, 13), 200).astype(np.uint8), np.abs(noise(7)), np.full(7, 3, np.uint8),
        ),
    ),
    templates=("quantize", "dequantize"),
)
register_family(
    "integer_sums", "products and convolutions of integers",
    cases=lambda: (
        one_node(MatMulInteger(), *map(_bytes, ((2, 3, 40), (40, 5), (), (5,)))),
        one_node(ConvInteger(pads=(1,) * 4), *map(_bytes, ((1, 3, 5, 7), (4, 3, 3, 3)))),
    ),
    templates=("matmul_integer", "conv_integer"),
)
