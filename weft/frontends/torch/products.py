"""Products of matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontends.torch.builder import Builder, Scalar, Value, static
from weft.frontends.torch.rules import Unsupported, aten


def _product(g: Builder, a: Value, b: Value) -> Value:
    return g.op("MatMul", g.cast(a, g.out.dtype), g.cast(b, g.out.dtype))


@aten("linear")
def linear(g: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    if x.rank == 2 and weight.rank == 2:
        return g.op("Gemm", x, weight, bias, transB=1)
    y = g.op("MatMul", x, g.transpose(weight, range(weight.rank)[::-1]))
    return y if bias is None else g.op("Add", y, bias)


@aten("mm bmm matmul mv dot")
def matmul(g: Builder, a: Value, b: Value) -> Value:
    return _product(g, a, b)


@aten("addmm")
def addmm(g: Builder, c: Value, a: Value, b: Value, beta: Scalar, alpha: Scalar) -> Value:
    if g.out.dtype.is_float:
        return g.op("Gemm", a, b, c, alpha=float(alpha), beta=float(beta))
    return _sum(g, c, _product(g, a, b), beta, alpha)


@aten("baddbmm")
def baddbmm(g: Builder, c: Value, a: Value, b: Value, beta: Scalar, alpha: Scalar) -> Value:
    return _sum(g, c, _product(g, a, b), beta, alpha)


def _sum(g: Builder, c: Value, y: Value, beta: Scalar, alpha: Scalar) -> Value:
    if alpha != 1:
        y = g.op("Mul", y, g.scalar(alpha, y.dtype))
    if beta == 0:
        return y
    c = g.cast(c, y.dtype)
    return g.op("Add", y, c if beta == 1 else g.op("Mul", c, g.scalar(beta, c.dtype), shape=c.shape))


# -- convolutions --------------------------------------------------------------------------------------------


def _each(values: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return a number for each axis of an image; one number stands for all."""
    given = (values,) if isinstance(values, int) else tuple(values)
    if any(not isinstance(v, int) for v in given):
        raise Unsupported("has an attribute that depends on an open size")
    return given * count if len(given) == 1 else given


def _convolve(
    g: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int], groups: int, output_padding: Sequence[int] | None = None,
) -> Value:
    """Add a convolution, transposed if there is an output padding; `pads` are those before, then those behind."""
    rank = weight.rank - 2
    kernel = static(weight, "weights")[2:]
    alone = x.rank == weight.rank - 1  # an image without a batch
    shape = (1, *g.out.shape) if alone else g.out.shape
    x = g.unsqueeze(x, [0]) if alone else x
    window: dict[str, Any] = {
        "kernel_shape": kernel, "strides": _each(stride, rank), "pads": tuple(pads),
        "dilations": _each(dilation, rank), "group": groups,
    }
    if output_padding is None:
        y = g.op("Conv", x, weight, bias, shape=shape, **window)
    else:
        y = g.op("ConvTranspose", x, weight, bias, shape=shape, output_padding=_each(output_padding, rank), **window)
    return g.squeeze(y, [0]) if alone else y


@aten("conv1d conv2d conv3d")
def conv(
    g: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:
    pads = _each(padding, weight.rank - 2)
    return _convolve(g, x, weight, bias, stride, (*pads, *pads), dilation, groups)


@aten("conv1d.padding conv2d.padding conv3d.padding")
def conv_padding(
    g: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: str,
    dilation: Sequence[int], groups: int,
) -> Value:
    steps = _each(dilation, weight.rank - 2)
    kernel = static(weight, "weights")[2:]
    whole = [d * (k - 1) if padding == "same" else 0 for d, k in zip(steps, kernel, strict=True)]
    pads = (*(n // 2 for n in whole), *(n - n // 2 for n in whole))
    return _convolve(g, x, weight, bias, stride, pads, dilation, groups)


@aten("conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
def conv_transpose(
    g: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    output_padding: Sequence[int], groups: int, dilation: Sequence[int],
) -> Value:
    pads = _each(padding, weight.rank - 2)
    return _convolve(g, x, weight, bias, stride, (*pads, *pads), dilation, groups, output_padding)


@aten("convolution")
def convolution(
    g: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:
    if transposed:
        return conv_transpose(g, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(g, x, weight, bias, stride, padding, dilation, groups)
