"""Where the elements of one value lie in another value, as arithmetic on indices.

Moves (transpose, reshape, slice, expand, depth to space, roll ...) only say which element goes where. An `IndexMap`
says it too, so a chain of moves is one map, and a kernel can read or write through it in place of a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from weft.core.graph.layout import Array, Shape, row_major


@dataclass(frozen=True, slots=True)
class Axis:
    """A digit of an index: it counts to `size`; (digit + shift) modulo size, times `step`, is added to the place."""

    size: int
    step: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Digits:
    """One step of a map: the index is written in digits, the last axis fastest, and these give the new index."""

    axes: tuple[Axis, ...]
    offset: int = 0

    @property
    def count(self) -> int:
        """Return the number of indices that it takes."""
        return prod(axis.size for axis in self.axes)

    @property
    def weights(self) -> tuple[int, ...]:
        """Return by how much an index grows when a digit does."""
        return row_major(tuple(axis.size for axis in self.axes))

    @property
    def is_identity(self) -> bool:
        """Tell whether every index stays what it is."""
        if self.offset:
            return False
        return all(a.step == weight and not a.shift for a, weight in zip(self.axes, self.weights, strict=True))

    def of(self, index: Array) -> Array:
        """Return the new indices of an array of indices."""
        out = np.full(index.shape, self.offset, np.int64)
        for axis, weight in zip(self.axes, self.weights, strict=True):
            out += (index // weight % axis.size + axis.shift) % axis.size * axis.step
        return out


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The place of each element of a value, by its row-major index: `stages` are applied one after the other."""

    stages: tuple[Digits, ...] = ()

    @classmethod
    def by_steps(cls, shape: Shape, steps: Sequence[int], offset: int = 0, shifts: Sequence[int] = ()) -> IndexMap:
        """Return the map in which an element lies at `offset` plus the sum of its coordinates times `steps`.

        With `shifts`, coordinates are first moved by so many and wrap around.
        """
        if prod(shape) == 0:
            return cls()
        shifts = shifts or (0,) * len(shape)
        axes = [Axis(n, step, shift % n) for n, step, shift in zip(shape, steps, shifts, strict=True)]
        return cls(_without_identity((_joined(Digits(tuple(axes), offset)),)))

    @property
    def is_identity(self) -> bool:
        """Tell whether every element lies at its own index."""
        return not self.stages

    def __str__(self) -> str:
        return " then ".join(
            " x ".join(f"{a.size}:{a.step}{f' shifted by {a.shift}' if a.shift else ''}" for a in stage.axes)
            + (f" + {stage.offset}" if stage.offset else "")
            for stage in self.stages
        )

    def then(self, after: IndexMap) -> IndexMap:
        """Return the map that takes each index through this one and then through `after`."""
        stages = list(self.stages)
        for stage in after.stages:
            joint = _composed(stages[-1], stage) if stages else None
            if joint is None:
                stages.append(stage)
            else:
                stages[-1:] = [joint]
        return IndexMap(_without_identity(stages))

    def of_first(self, count: int) -> IndexMap:
        """Return a map that is the same for the first `count` indices, without the digits that are 0 in all of them."""
        if not self.stages or not count:
            return self
        first, *rest = self.stages
        axes, offset = list(first.axes), first.offset
        weights = list(first.weights)
        while axes and weights[0] >= count:
            offset += axes[0].shift * axes[0].step
            axes, weights = axes[1:], weights[1:]
        if axes and not axes[0].shift and count % weights[0] == 0:
            axes[0] = Axis(count // weights[0], axes[0].step)
        return IndexMap(_without_identity([_joined(Digits(tuple(axes), offset)), *rest]))

    def inverse(self) -> IndexMap | None:
        """Return the map back; None if this is no permutation."""
        stages = [_inverse(stage) for stage in reversed(self.stages)]
        known = [stage for stage in stages if stage is not None]
        return IndexMap(tuple(known)) if len(known) == len(stages) else None

    def steps(self, shape: Shape) -> tuple[tuple[int, ...], int] | None:
        """Return the steps of the axes of a value of that shape, and the place of its first element.

        None if the places are not the sum of coordinates times steps; see `by_steps`.
        """
        count = prod(shape)
        if not count:
            return tuple(0 for _ in shape), 0
        seconds = [w if n > 1 else 0 for n, w in zip(shape, row_major(shape), strict=True)]
        first, *places = (int(i) for i in self.of(np.array([0, *seconds])))
        steps = tuple(place - first for place in places)
        return (steps, first) if IndexMap.by_steps(shape, steps, first) == self else None

    def of(self, index: Array) -> Array:
        """Return the places of an array of indices."""
        for stage in self.stages:
            index = stage.of(index)
        return index

    def keeps_together(self, count: int) -> bool:
        """Tell whether `count` adjacent elements, the first at a multiple of `count`, always lie so."""
        for stage in self.stages:
            *outer, last = stage.axes or (Axis(1, 1),)
            if last.step != 1 or last.size % count or last.shift % count or stage.offset % count:
                return False
            if any(axis.step % count for axis in outer):
                return False
        return True


IDENTITY = IndexMap()


def _without_identity(stages: Sequence[Digits]) -> tuple[Digits, ...]:
    return tuple(stage for stage in stages if not stage.is_identity)


def _joined(stage: Digits) -> Digits:
    """Return the stage with as few axes as do the same."""
    out: list[Axis] = []
    for axis in stage.axes:
        if axis.size == 1:
            continue
        before = out[-1] if out else None
        if before is not None and before.step == axis.step * axis.size and not before.shift and not axis.shift:
            out[-1] = Axis(before.size * axis.size, axis.step)
        else:
            out.append(axis)
    return Digits(tuple(out), stage.offset)


def _inverse(stage: Digits) -> Digits | None:
    """Return the stage that undoes a permutation; None for any other."""
    if stage.offset:
        return None
    order = sorted(range(len(stage.axes)), key=lambda k: -stage.axes[k].step)
    axes, expected = [], 1
    for k in reversed(order):
        axis = stage.axes[k]
        if axis.step != expected:
            return None
        axes.append((k, axis))
        expected *= axis.size
    weights = stage.weights
    return _joined(Digits(tuple(Axis(a.size, weights[k], -a.shift % a.size) for k, a in reversed(axes))))


def _composed(first: Digits, then: Digits) -> Digits | None:
    """Return one stage that does the work of two; None if none can.

    Each digit of `first` must come to lie within one digit of `then`, or be split so that its parts do, and no sum of
    them may carry into the next.
    """
    split = [part for axis in first.axes for part in _split(axis, then)]
    weights, sizes = then.weights, [axis.size for axis in then.axes]
    low = [first.offset // w % n for w, n in zip(weights, sizes, strict=True)]
    if first.offset < 0 or first.offset >= max(then.count, 1):
        return None
    high, makers = list(low), [list[int]() for _ in sizes]
    steps = []
    for number, part in enumerate(split):
        place = next((k for k, w in enumerate(weights) if w <= abs(part.step)), None) if part.step else None
        if place is None:
            if part.step:
                return None
            steps.append(0)
            continue
        times, rest = divmod(abs(part.step), weights[place])
        if rest:
            return None
        reach = (part.size - 1) * times
        if part.step > 0:
            high[place] += reach
        else:
            low[place] -= reach
        steps.append(times if part.step > 0 else -times)
        makers[place].append(number)
    if any(a < 0 or b >= n for a, b, n in zip(low, high, sizes, strict=True)):
        return None
    axes = list(split)
    offset = then.offset
    for place, target in enumerate(then.axes):
        begin = first.offset // weights[place] % target.size
        if target.shift:
            if len(makers[place]) != 1 or begin or split[makers[place][0]].size != target.size:
                return None
            number = makers[place][0]
            if steps[number] != 1:
                return None
            axes[number] = Axis(target.size, target.step, (split[number].shift + target.shift) % target.size)
            continue
        offset += begin * target.step
        for number in makers[place]:
            axes[number] = Axis(split[number].size, steps[number] * target.step, split[number].shift)
    return _joined(Digits(tuple(axes), offset))


def _split(axis: Axis, then: Digits) -> list[Axis]:
    """Return a digit in parts, each within one digit of `then`, if that can be; else as it is."""
    if axis.shift or not axis.step:
        return [axis]
    for target, weight in zip(then.axes, then.weights, strict=True):
        if weight > abs(axis.step):
            continue
        times, rest = divmod(abs(axis.step), weight)
        room, uneven = divmod(target.size, times)
        if rest or uneven or axis.size <= room or axis.size % room or room < 2:
            return [axis]
        inner = Axis(room, axis.step)
        return [*_split(Axis(axis.size // room, axis.step * room), then), inner]
    return [axis]
