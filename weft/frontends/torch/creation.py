"""Ops that make tensors of sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Operand, Size, Value, static
from weft.frontends.torch.rules import Unsupported, aten


def _filled(g: Builder, value: Operand, sizes: Sequence[Size] | Value) -> Value:
    return g.expand(g.as_type(value, g.out.dtype), sizes)


@aten("full")
def full(g: Builder, size: Sequence[Size], value: Operand, *_: object) -> Value:
    return _filled(g, value, size)


@aten("zeros empty.memory_format")
def zeros(g: Builder, size: Sequence[Size], *_: object) -> Value:
    return _filled(g, 0, size)


@aten("ones")
def ones(g: Builder, size: Sequence[Size], *_: object) -> Value:
    return _filled(g, 1, size)


@aten("new_zeros new_empty new_empty_strided")
def new_zeros(g: Builder, like: Value, size: Sequence[Size], *_: object) -> Value:
    return _filled(g, 0, size)


@aten("new_ones")
def new_ones(g: Builder, like: Value, size: Sequence[Size], *_: object) -> Value:
    return _filled(g, 1, size)


@aten("new_full")
def new_full(g: Builder, like: Value, size: Sequence[Size], value: Operand, *_: object) -> Value:
    return _filled(g, value, size)


@aten("full_like")
def full_like(g: Builder, like: Value, value: Operand, *_: object) -> Value:
    return _filled(g, value, g.shape_of(like))


@aten("zeros_like empty_like")
def zeros_like(g: Builder, like: Value, *_: object) -> Value:
    return _filled(g, 0, g.shape_of(like))


@aten("ones_like")
def ones_like(g: Builder, like: Value, *_: object) -> Value:
    return _filled(g, 1, g.shape_of(like))


@aten("scalar_tensor")
def scalar_tensor(g: Builder, value: Operand, *_: object) -> Value:
    return g.as_type(value, g.out.dtype)


@aten("arange")
def arange(g: Builder, end: Operand, *_: object) -> Value:
    return _range(g, 0, end, 1)


@aten("arange.start")
def arange_start(g: Builder, start: Operand, end: Operand, *_: object) -> Value:
    return _range(g, start, end, 1)


@aten("arange.start_step")
def arange_step(g: Builder, start: Operand, end: Operand, step: Operand, *_: object) -> Value:
    return _range(g, start, end, step)


def _range(g: Builder, start: Operand, end: Operand, step: Operand) -> Value:
    dtype = g.out.dtype
    ends: list[Any] = [start, end, step]
    if not any(isinstance(v, Value) for v in ends):
        return g.constant(np.arange(*ends).astype(dtype.numpy))
    counted = DType.INT64 if not any(isinstance(v, float) for v in ends) else DType.FLOAT32
    return g.cast(g.op("Range", *(g.as_type(v, counted) for v in ends)), dtype)


@aten("linspace")
def linspace(g: Builder, start: Operand, end: Operand, steps: Size, *_: object) -> Value:
    if isinstance(start, Value) or isinstance(end, Value) or isinstance(steps, Value):
        raise Unsupported("has ends that are not known before a run")
    return g.constant(np.linspace(start, end, steps).astype(g.out.dtype.numpy))


@aten("eye eye.m")
def eye(g: Builder, *_: object) -> Value:
    rows, columns = static(g.out, "a matrix")
    return g.constant(np.eye(rows, columns, dtype=g.out.dtype.numpy))


@aten("tril")
def tril(g: Builder, x: Value, diagonal: int) -> Value:
    return _triangle(g, x, diagonal, 0)


@aten("triu")
def triu(g: Builder, x: Value, diagonal: int) -> Value:
    return _triangle(g, x, diagonal, 1)


def _triangle(g: Builder, x: Value, diagonal: int, upper: int) -> Value:
    return g.op("Trilu", x, g.constant(np.array(diagonal, np.int64)), upper=upper)
