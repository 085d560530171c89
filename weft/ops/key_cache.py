"""Caches of keys and values that grow with the text: each image of a batch writes its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from weft.core.graph.composite import Body, Composite
from weft.core.graph.dtypes import DType
from weft.core.graph.op import register_op
from weft.core.graph.op_class import op_dataclass
from weft.ops.elementwise import misfit
from weft.ops.shape import one_axis


def gather_rows(make: Body, every: str, places: str) -> str:
    """Return (batch, parts, rows, elements) of (batch, parts, all rows, elements).

    `places`, (batch, rows) or (1, rows) of int64, says which of all rows each is.
    """
    batch, parts, height, elements = make.dims(every)
    rows = make.dims(places)[1]
    starts = make.add("Mul", make.counting(batch * parts, batch, parts, 1), make.integer(height))
    at = make.add("Add", starts, make.reshape(places, make.dims(places)[0], 1, rows))
    return make.add("Gather", make.reshape(every, batch * parts * height, elements), at, axis=0)


@register_op
@op_dataclass
class TensorScatter(Composite):
    """A cache with rows of `axis` replaced by an update; inputs past_cache, update, write_indices.

    write_indices has the first row of each image, 0 where it is missing; with the mode "circular" rows behind the
    last begin again at the first.
    """

    most_inputs: ClassVar[int | None] = 3
    axis: int = -2
    mode: str = "linear"

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Put the update behind the cache, and take each row from where it is."""
        cache, update, *rest = inputs
        shape, new = make.dims(cache), make.dims(update)
        axis = one_axis(self.axis, len(shape))
        length = new[axis] if len(new) == len(shape) else -1
        if axis == 0 or new != (*shape[:axis], length, *shape[axis + 1 :]) or not length <= shape[axis]:
            raise misfit(self, f"an update of {new} does not fit a cache of {shape} along axis {self.axis}")
        if make.dtype(cache) is not make.dtype(update) or self.mode not in ("linear", "circular"):
            raise misfit(self, "cache and update must have one type, and the mode is linear or circular")
        batch, size = shape[0], shape[axis]
        parts, elements = prod(shape[1:axis]), prod(shape[axis + 1 :])
        every = make.add(
            "Concat",
            make.reshape(cache, batch, parts, size, elements),
            make.reshape(update, batch, parts, length, elements),
            axis=2,
        )
        at = make.counting(size, 1, size)
        first = make.reshape(make.cast(rest[0], DType.INT64), batch, 1) if rest and rest[0] else ""
        place = at
        if first and self.mode == "circular":
            place = make.add("Sub", at, self._within(make, first, size))
            zero, round_ = make.integer(0), make.integer(size)
            place = make.add("Where", make.add("Less", place, zero), make.add("Add", place, round_), place)
        elif first:
            place = make.add("Sub", at, first)
        fresh = make.add("Less", place, make.integer(length))
        if first and self.mode == "linear":
            begun = make.add("GreaterOrEqual", place, make.integer(0))
            fresh = make.add("And", fresh, begun)
        moved = make.add("Add", place, make.integer(size))
        return [make.reshape(gather_rows(make, every, make.add("Where", fresh, moved, at)), *shape)]

    def _within(self, make: Body, first: str, size: int) -> str:
        """Return a row's remainder by the number of rows. Floats are exact up to 2^24 rows; `size` counts as 0, too."""
        number, whole = make.cast(first, DType.FLOAT32), make.cast(make.integer(size), DType.FLOAT32)
        rounds = make.add("Floor", make.add("Div", number, whole))
        return make.cast(make.add("Sub", number, make.add("Mul", rounds, whole)), DType.INT64)


__all__ = ["TensorScatter", "gather_rows"]
