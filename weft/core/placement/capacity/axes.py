"""The axes of values that are stored at their capacities: what is live of them, and how reshapes regroup them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import Terms, product

Part = int | Terms
"""A factor of an axis: a number, or a size that has a capacity, as a polynomial in open sizes."""
Axis = tuple[Part, ...]
"""An axis as its factors, from the outermost to the innermost; factors of 1 are left out."""
Axes = tuple[Axis, ...]


class NoCapacity(Exception):
    """A network cannot be given capacities; the text says why."""


def regrouped(parts: Sequence[Part], dims: Sequence[int | Terms]) -> Axes:
    """Return axes of other sizes over the same factors; NoCapacity if a size that grows would be cut."""
    left, out = [*reversed(parts)], list[Axis]()
    for dim in dims:
        taken, found = list[Part](), _product([])
        while found != _polynomial(dim):
            if not left or not _content(found):  # of no elements, whose sizes may become any others
                raise NoCapacity("a reshape cuts a size that grows")
            part = left.pop()
            if isinstance(part, int) and part:
                open_factor = _content(dim) // _content(found) if _content(dim) % _content(found) == 0 else 1
                if open_factor % part and open_factor > 1 and part % open_factor == 0:
                    left.append(part // open_factor)
                    part = open_factor
                elif open_factor % part:
                    raise NoCapacity("a reshape cuts a size that grows")
            taken.append(part)
            found = _product(taken)
        out.append(_merged(taken))
    if any(part != 1 for part in left):
        raise NoCapacity("a reshape cuts a size that grows")
    return tuple(out)


def _merged(parts: Sequence[Part]) -> Axis:
    """Return an axis of these factors: numbers that follow each other are one."""
    out = list[Part]()
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, int) and isinstance(last, int):
            out[-1] = last * part
        elif part != 1:
            out.append(part)
    return tuple(out)


def _polynomial(part: Part) -> Terms:
    return (((), part),) if isinstance(part, int) else part


def _product(parts: Sequence[Part]) -> Terms:
    found: Terms = (((), 1),)
    for part in parts:
        found = product(found, _polynomial(part))
    return found


def _content(part: Part | Terms) -> int:
    return gcd(*(factor for _, factor in _polynomial(part)))


def pad_into(room: Array, array: Array) -> None:
    """Copy an array to the first elements of a larger one, and repeat its last ones behind; zeros where it has none."""
    room[tuple(slice(0, n) for n in array.shape)] = array
    for axis, (live, size) in enumerate(zip(array.shape, room.shape, strict=True)):
        if live == size:
            continue
        # Axes before this one are whole by now, and of those behind it the live part.
        behind = tuple(slice(0, n) for n in array.shape[axis + 1 :])
        before = (slice(None),) * axis
        last = room[(*before, slice(live - 1, live), *behind)] if live else 0
        room[(*before, slice(live, size), *behind)] = last


def padded_to(array: Array, dims: Shape) -> Array:
    """Return an array with its last elements repeated up to a shape."""
    if array.shape == dims:
        return array
    room = np.zeros(dims, array.dtype)
    pad_into(room, array)
    return room


def is_padded(axis: Axis) -> bool:
    """Tell whether an axis has padding behind what is live of it."""
    return any(not isinstance(p, int) for p in axis)
