"""Ops that give elements other places: reshapes, parts, joins, pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Scalar, Size, Value
from weft.frontends.torch.indexing import index_put
from weft.frontends.torch.rules import Unsupported, aten

END = 2**63 - 1
"""Behind every element, as torch and ONNX write it."""


@aten("view reshape _unsafe_view view_copy _reshape_copy")
def view(g: Builder, x: Value, sizes: Sequence[Size]) -> Value:
    return g.reshape(x, sizes)


@aten("flatten.using_ints")
def flatten(g: Builder, x: Value, start: int, end: int) -> Value:
    if not x.rank:
        return g.reshape(x, [1])
    begin, last = start % x.rank, end % x.rank
    sizes = [g.size(x, k) for k in range(x.rank)]
    return g.reshape(x, [*sizes[:begin], -1, *sizes[last + 1:]])


@aten("unflatten.int")
def unflatten(g: Builder, x: Value, dim: int, sizes: Sequence[Size]) -> Value:
    around = [g.size(x, k) for k in range(x.rank)]
    return g.reshape(x, [*around[: dim % x.rank], *sizes, *around[dim % x.rank + 1:]])


@aten("unsqueeze unsqueeze_copy")
def unsqueeze(g: Builder, x: Value, dim: int) -> Value:
    return g.unsqueeze(x, [dim])


@aten("squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dims squeeze_copy.dim")
def squeeze(g: Builder, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    axes = range(x.rank) if dims is None else [dims % x.rank if x.rank else 0] if isinstance(dims, int) else dims
    return g.squeeze(x, [a for a in axes if x.rank and x.shape[a] == 1])


@aten("permute permute_copy")
def permute(g: Builder, x: Value, dims: Sequence[int]) -> Value:
    return g.transpose(x, dims)


@aten("transpose.int swapaxes swapdims transpose_copy.int")
def transpose(g: Builder, x: Value, first: int, second: int) -> Value:
    axes = list(range(x.rank))
    if axes:
        axes[first], axes[second] = axes[second], axes[first]
    return g.transpose(x, axes)


@aten("t numpy_T mT t_copy")
def t(g: Builder, x: Value) -> Value:
    return transpose(g, x, -2, -1) if x.rank > 1 else x


@aten("expand expand_copy")
def expand(g: Builder, x: Value, sizes: Sequence[Size], *_: object) -> Value:
    kept = [1 if not isinstance(d, Value) and d == -1 else d for d in sizes]  # an axis of -1 stays as it is
    return g.expand(x, kept)


@aten("repeat tile")
def repeat(g: Builder, x: Value, times: Sequence[Size]) -> Value:
    times = [*[1] * (x.rank - len(times)), *times]
    x = g.unsqueeze(x, range(len(times) - x.rank))
    return g.op("Tile", x, g.ints(times))


@aten("repeat_interleave.self_int")
def repeat_interleave(g: Builder, x: Value, times: Size, dim: int | None, *_: object) -> Value:
    if dim is None or isinstance(times, Value) or not x.rank:
        raise Unsupported("repeats a flat tensor, or by an open number")
    axis = dim % x.rank
    sizes = [g.size(x, k) for k in range(x.rank)]
    wide = g.unsqueeze(x, [axis + 1])
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1:])
    wide = g.expand(wide, [*[1] * (axis + 1), times, *[1] * (x.rank - axis - 1)], shape)
    size = sizes[axis]
    return g.reshape(wide, [*sizes[:axis], -1 if isinstance(size, Value) else size * times, *sizes[axis + 1:]])


# -- joins and parts -----------------------------------------------------------------------------------------


@aten("cat concat")
def cat(g: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    # Of old, torch takes an empty row for nothing, whatever the others are.
    real = [p for p in parts if p.shape != (0,)] or [*parts][:1]
    real = [g.cast(p, g.out.dtype) for p in real]
    return real[0] if len(real) == 1 else g.op("Concat", *real, axis=dim % real[0].rank)


@aten("stack")
def stack(g: Builder, parts: Sequence[Value], dim: int) -> Value:
    axis = dim % (parts[0].rank + 1)
    rows = [g.unsqueeze(g.cast(p, g.out.dtype), [axis]) for p in parts]
    return rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=axis)


@aten("split.Tensor split_copy.Tensor")
def split(g: Builder, x: Value, size: Size, dim: int) -> list[Value]:
    return _parts(g, x, size, dim)


@aten("split_with_sizes split.sizes split_with_sizes_copy")
def split_with_sizes(g: Builder, x: Value, sizes: Sequence[Size], dim: int) -> list[Value]:
    return _parts(g, x, sizes, dim)


@aten("chunk unsafe_chunk")
def chunk(g: Builder, x: Value, count: int, dim: int) -> list[Value]:
    size = x.shape[dim]
    if size is None:
        raise Unsupported("divides an axis of an open size")
    return _parts(g, x, -(-size // count), dim)


def _parts(g: Builder, x: Value, sizes: Size | Sequence[Size], dim: int) -> list[Value]:
    axis = dim % x.rank
    known = [out.shape[axis] for out in g.outs]
    if len(known) == 1:
        return [x]
    if None in known:
        if isinstance(sizes, Sequence) and any(isinstance(s, Value) for s in sizes):
            return _split(g, x, g.ints(sizes), axis)
        step = sizes if not isinstance(sizes, Sequence) else None
        if isinstance(step, int):
            places = [k * step for k in range(len(known))]
            ends = [*places[1:], END]
            return [g.slice(x, axis, begin, end) for begin, end in zip(places, ends, strict=True)]
        raise Unsupported("divides an axis of an open size")
    return _split(g, x, g.ints([d for d in known if d is not None]), axis)


def _split(g: Builder, x: Value, sizes: Value, axis: int) -> list[Value]:
    count = len(g.outs)
    shapes = [out.shape for out in g.outs]
    return g.ops("Split", x, sizes, dtypes=[None] * count, shapes=shapes, axis=axis, outputs=count)


@aten("unbind.int unbind_copy.int")
def unbind(g: Builder, x: Value, dim: int) -> list[Value]:
    return [select(g, x, dim, k) for k in range(len(g.outs))]


@aten("slice.Tensor slice_copy.Tensor")
def slice_(g: Builder, x: Value, dim: int, start: Size | None, end: Size | None, step: int) -> Value:
    begin, behind = 0 if start is None else start, END if end is None else end
    made = g.slice(x, dim, begin, behind, step)
    return Value(made.name, made.dtype, g.out.shape)


@aten("narrow")
def narrow(g: Builder, x: Value, dim: int, start: Size, length: Size) -> Value:
    if isinstance(start, Value) or isinstance(length, Value):
        end = g.op("Add", g.as_type(start, DType.INT64), g.as_type(length, DType.INT64), shape=())
        return slice_(g, x, dim, start, end, 1)
    return slice_(g, x, dim, start, start + length if start >= 0 or start + length else END, 1)


@aten("select.int select_copy.int")
def select(g: Builder, x: Value, dim: int, index: Size) -> Value:
    axis = dim % x.rank
    place = g.as_type(index, DType.INT64)
    return g.op("Gather", x, place, axis=axis, shape=(*x.shape[:axis], *x.shape[axis + 1:]))


@aten("slice_scatter")
def slice_scatter(
    g: Builder, x: Value, source: Value, dim: int, start: Size | None, end: Size | None, step: int
) -> Value:
    size = x.shape[dim % x.rank]
    if size is None or isinstance(start, Value) or isinstance(end, Value):
        raise Unsupported("writes into an axis of an open size")
    begin, behind, _ = slice(start, end, step).indices(size)
    if step != 1:
        places = g.constant(np.arange(begin, behind, step, dtype=np.int64))
        return index_put(g, x, [*[None] * (dim % x.rank), places], source, False)
    return _replaced(g, x, g.cast(source, x.dtype), dim % x.rank, begin, max(begin, behind), size)


@aten("select_scatter")
def select_scatter(g: Builder, x: Value, source: Value, dim: int, index: Size) -> Value:
    axis, size = dim % x.rank, x.shape[dim % x.rank]
    if size is None or isinstance(index, Value):
        raise Unsupported("writes into an axis of an open size")
    place = index % size
    return _replaced(g, x, g.unsqueeze(g.cast(source, x.dtype), [axis]), axis, place, place + 1, size)


def _replaced(g: Builder, x: Value, source: Value, axis: int, begin: int, end: int, size: int) -> Value:
    inner = g.expand(source, [end - begin if k == axis else g.size(x, k) for k in range(x.rank)],
                     (*x.shape[:axis], end - begin, *x.shape[axis + 1:]))
    parts = [g.slice(x, axis, 0, begin)] if begin else []
    parts += [inner, *([g.slice(x, axis, end, END)] if end < size else [])]
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=axis, shape=x.shape)


@aten("flip")
def flip(g: Builder, x: Value, dims: Sequence[int]) -> Value:
    axes = [d % x.rank for d in dims] if x.rank else []
    if not axes:
        return x
    rows = ([-1] * len(axes), [-END] * len(axes), axes, [-1] * len(axes))
    return g.op("Slice", x, *(g.ints(row) for row in rows))


@aten("roll")
def roll(g: Builder, x: Value, shifts: Sequence[Size] | Size, dims: Sequence[int]) -> Value:
    given = list(shifts) if isinstance(shifts, Sequence) else [shifts]
    if any(isinstance(s, Value) for s in given):
        raise Unsupported("moves by an open number")
    moves = [s for s in given if not isinstance(s, Value)]
    if not dims:
        flat = _rolled(g, g.reshape(x, [-1], (None,)), moves[0], 0)
        return g.reshape(flat, [g.size(x, k) for k in range(x.rank)])
    for shift, dim in zip(moves, dims, strict=True):
        x = _rolled(g, x, shift, dim % x.rank)
    return x


def _rolled(g: Builder, x: Value, shift: int, axis: int) -> Value:
    size = x.shape[axis]
    if size:
        shift %= size
    if not shift:
        return x
    parts = g.slice(x, axis, -shift, END), g.slice(x, axis, 0, -shift)
    return g.op("Concat", *parts, axis=axis, shape=x.shape)


@aten("unfold unfold_copy")
def unfold(g: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    axis, length = dim % x.rank, x.shape[dim % x.rank]
    if length is None:
        raise Unsupported("takes windows of an axis of an open size")
    count = (length - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    made = g.op("Gather", x, g.constant(places.astype(np.int64)), axis=axis,
                shape=(*x.shape[:axis], count, size, *x.shape[axis + 1:]))
    order = [k for k in range(x.rank + 1) if k != axis + 1]
    return g.transpose(made, [*order, axis + 1])


@aten("diagonal diagonal_copy")
def diagonal(g: Builder, x: Value, offset: int, first: int, second: int) -> Value:
    rows, columns = (x.shape[d] for d in (first, second))
    if rows is None or columns is None:
        raise Unsupported("takes the diagonal of a matrix of an open size")
    rest = [k for k in range(x.rank) if k not in (first % x.rank, second % x.rank)]
    x = g.transpose(x, [*rest, first, second])
    lead = [g.size(x, k) for k in range(len(rest))]
    flat = g.reshape(x, [*lead, rows * columns], (*x.shape[:-2], rows * columns))
    places = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset).astype(np.int64)
    return g.op("Gather", flat, g.constant(places.copy()), axis=len(rest))


# -- pads ----------------------------------------------------------------------------------------------------


def _pad(g: Builder, x: Value, pads: Sequence[Size], mode: str, value: Scalar = 0) -> Value:
    rank = len(pads) // 2
    before, behind = [0] * x.rank, [0] * x.rank
    placed: tuple[list[Any], list[Any]] = (before, behind)
    for k in range(rank):  # the last axis comes first
        placed[0][x.rank - 1 - k], placed[1][x.rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    fill = g.scalar(value, x.dtype) if mode == "constant" and value else None
    return g.op("Pad", x, g.ints([*placed[0], *placed[1]]), fill, mode=mode)


@aten("constant_pad_nd")
def constant_pad(g: Builder, x: Value, pads: Sequence[Size], value: Scalar) -> Value:
    return _pad(g, x, pads, "constant", value)


@aten("pad")
def pad(g: Builder, x: Value, pads: Sequence[Size], mode: str, value: float | None) -> Value:
    kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _pad(g, x, pads, kinds[mode], value or 0)


@aten("reflection_pad1d reflection_pad2d reflection_pad3d")
def reflection_pad(g: Builder, x: Value, pads: Sequence[Size]) -> Value:
    return _pad(g, x, pads, "reflect")


@aten("replication_pad1d replication_pad2d replication_pad3d")
def replication_pad(g: Builder, x: Value, pads: Sequence[Size]) -> Value:
    return _pad(g, x, pads, "edge")
