"""Quantised numbers on GPUs: to and from floats, and exact products and convolutions of integers.

Products of integers are summed in 32 bits, which wraps as it does on the CPU, so they are exact where the result fits.
What consists of these (QLinearMatMul, QLinearConv, DynamicQuantizeLinear) is taken apart. Weights that com.microsoft's
ops have quantised in blocks become floats when the network is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.formats import SMALL_FLOATS
from weft.kernels.gpu_op import GpuOp, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import indices, noise, one_node
from weft.kernels.special import KernelFamily, register_family
from weft.ops.conversion import SATURATING
from weft.ops.gpu.conv.problem import window_constants
from weft.ops.gpu.elementwise import collapse
from weft.ops.quantize import (
    QUANTISED,
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    GatherBlockQuantized,
    MatMulInteger,
    MatMulNBits,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
    Spread,
)

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
        grid, local = k.for_items(prod(y.shape))
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
            template, reads=reads, writes={"y": y}, ints=ints, variant=given, grid=grid, local=local, epilogue=False
        )


@gpu_op(QuantizeLinear)
class QuantizeOnGpu(_Linear):
    """One item computes one number."""

    def why_not(
        self, op: QuantizeLinear, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse a division in another type than float32."""
        if op.precision not in (None, DType.FLOAT32):
            return f"GPU kernels divide in float32, and precision is {op.precision.value}"
        return None

    def launches(
        self, op: QuantizeLinear, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the division, the rounding and the limits."""
        x, scale, zero, y = inputs[0], inputs[1], (inputs[2] if len(inputs) > 2 else None), outputs[0]
        assert x is not None and scale is not None
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

    def launches(
        self, op: DequantizeLinear, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the difference and the product."""
        x, scale, zero = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None
        assert x is not None and scale is not None
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

    def rounds(self, op: MatMulInteger, inputs: Sequence[Tensor | None], caps: DeviceCaps) -> int:
        """Return the length of a sum."""
        return inputs[0].shape[-1] if inputs[0] is not None else 0

    def launches(
        self, op: MatMulInteger, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
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
        grid, local = k.for_items(ints["TOTAL"])
        k.launch(
            "matmul_integer",
            reads=reads,
            writes={"y": y},
            ints=ints,
            variant={
                "rank": len(sizes),
                "columns": COLUMNS,
                "a_spread": spread.get("a_zero", ""),
                "b_spread": spread.get("b_zero", ""),
            },
            grid=grid,
            local=local,
            epilogue=False,
        )


@gpu_op(ConvInteger)
class ConvIntegerOnGpu(_Sums):
    """One item computes one number."""

    def rounds(self, op: ConvInteger, inputs: Sequence[Tensor | None], caps: DeviceCaps) -> int:
        """Return the products that make a sum."""
        assert inputs[1] is not None
        channels, *kernel = inputs[1].shape[1:]
        return nested_rounds(channels, prod(kernel))

    def launches(
        self, op: ConvInteger, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
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
        grid, local = k.for_items(ints["TOTAL"])
        k.launch(
            "conv_integer",
            reads=reads,
            writes={"y": y},
            ints=ints,
            variant={"by_channel": w_zero is not None and prod(w_zero.shape) > 1},
            grid=grid,
            local=local,
            epilogue=False,
        )


# -- as other ops -------------------------------------------------------------------------------------------------


@decomposition("DynamicQuantizeLinear")
def _dynamic_quantize(op: DynamicQuantizeLinear, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if not make.graph.specs[x].size:
        return []
    x = _as_float32(make, x)
    zeros, axes = make.number(0, x), make.ints(*range(len(make.dims(x))))
    numbers = make.add("Where", make.add("IsNaN", x), zeros, x)  # NaN does not count in the range, and 0 always does
    most, least = (
        make.add(pick, make.add(reduce, numbers, axes, keepdims=0), zeros)
        for reduce, pick in (("ReduceMax", "Max"), ("ReduceMin", "Min"))
    )
    span = make.add("Sub", most, least)
    none = make.add("Equal", span, zeros)
    shared = make.add("weft::Quotient", span, make.number(255, x))
    scale = make.add("Where", none, make.number(1, x), shared)
    zero = make.add("QuantizeLinear", make.add("Neg", least), scale, output_dtype=DType.UINT8)
    y = make.add("QuantizeLinear", x, scale, zero)
    return y, scale, zero


@decomposition("QLinearMatMul")
def _qlinear_matmul(op: QLinearMatMul, make: Body, node: Node) -> Sequence[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    total = make.add("MatMulInteger", a, b, a_zero, b_zero)
    rows = make.graph.specs[a_scale]
    if rows.size > 1 and len(rows.dims) == 1 and len(make.dims(a)) > 1:
        a_scale = make.add("Unsqueeze", a_scale, make.ints(1))
    step = make.add("Mul", _as_float32(make, a_scale), _as_float32(make, b_scale))
    return [_requantise(make, total, step, y_scale, y_zero, make.dims(node.outputs[0]))]


@decomposition("QLinearConv")
def _qlinear_conv(op: QLinearConv, make: Body, node: Node) -> Sequence[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    attributes: dict[str, Any] = op.attributes()
    total = make.add("ConvInteger", x, w, x_zero, w_zero, **attributes)
    channels = 1, -1, *(1 for _ in make.dims(x)[2:])
    if bias and bias[0]:
        total = make.add("Add", total, make.reshape(bias[0], *channels))
    if make.graph.specs[w_scale].size > 1:
        w_scale = make.reshape(w_scale, *channels)
    step = make.add("Mul", _as_float32(make, x_scale), _as_float32(make, w_scale))
    return [_requantise(make, total, step, y_scale, y_zero, make.dims(node.outputs[0]))]


def _requantise(make: Body, total: str, step: str, y_scale: str, y_zero: str, shape: Shape) -> str:
    """Finish with int32 sums in units of `step` as numbers of another scale and a zero point."""
    step, y_scale = _as_float32(make, step), make.reshape(_as_float32(make, y_scale))
    moved = make.add("Mul", make.add("Cast", total, to=DType.FLOAT32), make.add("weft::Quotient", step, y_scale))
    moved = make.reshape(moved, *shape)
    return make.add("QuantizeLinear", moved, make.number(1, moved), make.reshape(y_zero))


def _as_float32(make: Body, value: str) -> str:
    """Return a value as float32: a product of scales may be too small for float16."""
    return make.cast(value, DType.FLOAT32)


@decomposition("com.microsoft::MatMulNBits")
def _matmul_nbits(op: MatMulNBits, make: Body, node: Node) -> Sequence[str]:
    a, *packed = node.inputs
    bias = packed[4] if len(packed) > 4 else ""
    held: list[Any] = [make.known(name) for name in packed[:3]]
    if any(name and value is None for name, value in zip(packed, held, strict=False)):
        return []
    weights = op.weights(*[*held, None][:3])
    product = make.add("MatMul", a, make.constant(weights.T.astype(make.dtype(a).numpy)))
    return [make.add("Add", product, bias) if bias else product]


@decomposition("com.microsoft::GatherBlockQuantized")
def _gather_quantised(op: GatherBlockQuantized, make: Body, node: Node) -> Sequence[str]:
    table, indices, *scales = node.inputs
    held: list[Any] = [make.known(name) for name in (table, *scales)]
    if any(value is None for value in held):
        return []
    whole = op.table(*[*held, None][:3])
    return [make.add("Gather", make.constant(whole), indices, axis=op.gather_axis)]


def _bytes(shape: Shape) -> Array:
    return np.asarray(indices(shape, 255), np.uint8)


register_family(
    KernelFamily(
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
)
register_family(
    KernelFamily(
        "integer_sums", "products and convolutions of integers",
        cases=lambda: (
            one_node(MatMulInteger(), *map(_bytes, ((2, 3, 40), (40, 5), (), (5,)))),
            one_node(ConvInteger(pads=(1,) * 4), *map(_bytes, ((1, 3, 5, 7), (4, 3, 3, 3)))),
        ),
        templates=("matmul_integer", "conv_integer"),
    )
)
