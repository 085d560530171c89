"""Elements at places that other tensors hold: reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Operand, Value
from weft.frontends.torch.rules import Unsupported, aten

Indices = Sequence[Value | None]


@aten("embedding")
def embedding(g: Builder, table: Value, places: Value, *_: object) -> Value:
    return g.op("Gather", table, places, axis=0)


@aten("index_select")
def index_select(g: Builder, x: Value, dim: int, places: Value) -> Value:
    if not x.rank:
        return x
    return g.op("Gather", x, g.unsqueeze(places, [0]) if not places.rank else places, axis=dim % x.rank)


@aten("gather")
def gather(g: Builder, x: Value, dim: int, places: Value, sparse: bool) -> Value:
    if not x.rank or not places.rank:
        raise Unsupported("reads a tensor of no dimensions")
    return g.op("GatherElements", x, places, axis=dim % x.rank)


def _scatter(g: Builder, x: Value, dim: int, places: Value, updates: Operand, reduction: str = "none") -> Value:
    if not x.rank or not places.rank:
        raise Unsupported("writes into a tensor of no dimensions")
    if not isinstance(updates, Value) or updates.rank != places.rank:
        updates = g.expand(g.as_type(updates, x.dtype), g.shape_of(places), places.shape)
    elif updates.shape != places.shape:  # only as many updates count as there are places
        for axis, (size, wanted) in enumerate(zip(updates.shape, places.shape, strict=True)):
            if size != wanted:
                updates = g.slice(updates, axis, 0, g.size(places, axis))
    return g.op("ScatterElements", x, places, g.cast(updates, x.dtype), axis=dim % x.rank, reduction=reduction)


@aten("scatter.src scatter.value")
def scatter(g: Builder, x: Value, dim: int, places: Value, updates: Operand) -> Value:
    return _scatter(g, x, dim, places, updates)


@aten("scatter_add")
def scatter_add(g: Builder, x: Value, dim: int, places: Value, updates: Value) -> Value:
    return _scatter(g, x, dim, places, updates, "add")


@aten("scatter_reduce.two")
def scatter_reduce(
    g: Builder, x: Value, dim: int, places: Value, updates: Value, reduction: str, include_self: bool
) -> Value:
    kinds = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduction not in kinds or not include_self:
        raise Unsupported(f"reduces by {reduction!r}, include_self={include_self}")
    return _scatter(g, x, dim, places, updates, kinds[reduction])


@aten("nonzero")
def nonzero(g: Builder, x: Value) -> Value:
    places = g.op("NonZero", x, dtype=DType.INT64, shape=(x.rank, None))
    return g.transpose(places, [1, 0])


@aten("masked_select")
def masked_select(g: Builder, x: Value, mask: Value) -> Value:
    if x.shape != mask.shape:
        raise Unsupported("has a mask of another shape")
    return _of_mask(g, x, mask)


def _of_mask(g: Builder, x: Value, mask: Value) -> Value:
    if not mask.rank:
        raise Unsupported("has a mask of no dimensions")
    return g.op("GatherND", x, nonzero(g, mask))


# -- x[...] ---------------------------------------------------------------------------------------------------


def _of_bool(indices: Indices) -> Value | None:
    """Return a mask that is the only index, None if there is no mask; Unsupported beside other indices."""
    given = [i for i in indices if i is not None]
    masks = [i for i in given if i.dtype in (DType.BOOL, DType.UINT8)]
    if masks and (len(given) > 1 or indices[0] is None):
        raise Unsupported("has a mask beside other indices")
    return masks[0] if masks else None


def _together(g: Builder, indices: Sequence[Value]) -> Value:
    """Return rows of one place each, (..., number of indices), of indices that are broadcast together."""
    given = [g.cast(i, DType.INT64) for i in indices]
    rank = max(i.rank for i in given)
    if len({i.shape for i in given}) > 1 or any(None in i.shape for i in given):
        # A sum of zeros has the shape of all.
        zeros = [g.op("Mul", i, g.scalar(0, DType.INT64), shape=i.shape) for i in given]
        shape = (None,) * rank
        none = reduce(lambda a, b: g.op("Add", a, b, shape=shape), zeros)
        given = [g.op("Add", i, none, shape=shape) for i in given] if len(given) > 1 else given
    rows = [g.unsqueeze(i, [rank]) for i in given]
    return rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=rank, shape=(*given[0].shape, len(rows)))


@aten("index.Tensor _unsafe_index.Tensor")
def index(g: Builder, x: Value, indices: Indices) -> Value:
    mask = _of_bool(indices)
    if mask is not None:
        return _of_mask(g, x, g.cast(mask, DType.BOOL))
    axes = [k for k, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if len(axes) == 1:
        return g.op("Gather", x, given[0], axis=axes[0])
    rest = [k for k in range(x.rank) if k not in axes]
    places = _together(g, given)
    lead = places.rank - 1
    first = g.transpose(x, [*axes, *rest])
    side_by_side = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if side_by_side else 0
    if not before:
        return g.op("GatherND", first, places)
    found = g.op("GatherND", first, places, shape=(None,) * g.out.rank)
    order = [*range(lead, lead + before), *range(lead), *range(lead + before, g.out.rank)]
    return g.transpose(found, order)


@aten("index_put _unsafe_index_put")
def index_put(g: Builder, x: Value, indices: Indices, values: Value, accumulate: bool) -> Value:
    values = g.cast(values, x.dtype)
    mask = _of_bool(indices)
    if mask is not None:
        mask = g.cast(mask, DType.BOOL)
        if values.rank and (values.rank > 1 or values.shape[0] != 1):
            if accumulate:
                raise Unsupported("adds as many values as a mask is true")
            places, behind = nonzero(g, mask), range(mask.rank, x.rank)
            sizes = [g.size(places, 0), *(g.size(x, k) for k in behind)]
            return g.op("ScatterND", x, places, g.expand(values, sizes, (None, *(x.shape[k] for k in behind))))
        if accumulate:
            values = g.op("Add", x, values)
        mask = g.unsqueeze(mask, range(mask.rank, x.rank))
        return g.op("Where", mask, g.squeeze(values, [0]) if values.rank == 1 else values, x, dtype=x.dtype)
    axes = [k for k, i in enumerate(indices) if i is not None]
    rest = [k for k in range(x.rank) if k not in axes]
    places = _together(g, [i for i in indices if i is not None])
    lead = places.rank - 1
    side_by_side = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if side_by_side else 0
    sizes, shape = [g.size(places, k) for k in range(lead)], [*places.shape[:-1]]
    outer, inner = rest[:before], rest[before:]
    sizes = [*(g.size(x, k) for k in outer), *sizes, *(g.size(x, k) for k in inner)]
    shape = [*(x.shape[k] for k in outer), *shape, *(x.shape[k] for k in inner)]
    updates = g.expand(values, sizes, tuple(shape))  # as x[...] gives them; ScatterND wants the places first
    updates = g.transpose(updates, [*range(before, before + lead), *range(before), *range(before + lead, len(shape))])
    first = g.transpose(x, [*axes, *rest])
    kind = "add" if accumulate else "none"
    made = g.op("ScatterND", first, places, updates, reduction=kind, shape=first.shape)
    order = [*axes, *rest]
    return g.transpose(made, [order.index(k) for k in range(x.rank)])


@aten("index_add")
def index_add(g: Builder, x: Value, dim: int, places: Value, source: Value, alpha: float) -> Value:
    if alpha != 1:
        source = g.op("Mul", source, g.scalar(alpha, source.dtype), shape=source.shape)
    indices: list[Value | None] = [None] * (dim % x.rank)
    return index_put(g, x, [*indices, places], source, True)


@aten("index_copy")
def index_copy(g: Builder, x: Value, dim: int, places: Value, source: Value) -> Value:
    indices: list[Value | None] = [None] * (dim % x.rank)
    return index_put(g, x, [*indices, places], source, False)
