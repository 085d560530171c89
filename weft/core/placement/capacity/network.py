"""A network for all sizes up to their capacities, and what runs feed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import Terms
from weft.core.placement.capacity.axes import Axes, Part, pad_into
from weft.core.placement.open_network import LaterConstants


@dataclass(frozen=True, eq=False)
class Fed:
    """An input that follows from the sizes: its name, and what computes it.

    That gets the numbers and the later constants for the sizes of a run.
    """

    name: str
    make: Callable[[Sequence[int], Mapping[str, Array]], Array]


@dataclass(frozen=True, eq=False)
class CapacityNetwork:
    """A network for all sizes up to their capacities; see the module.

    The inputs of `graph` are those of the model, at their capacities, and what follows from the sizes.
    """

    graph: Graph
    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    capacities: Mapping[Terms, int]
    appends: int
    """How many caches there are behind which a run puts new elements."""
    equations: Mapping[str, int]
    """The sizes that follow from others, such as the length of all, and where runs compute what they must be."""
    masks: frozenset[str]
    """The inputs that hide padding by minus infinity."""
    _fed: Sequence[Fed]
    _later: LaterConstants
    _places: Mapping[Terms, int]
    _numbers: Callable[[Mapping[str, int]], list[int] | None]
    _rooms: dict[str, Array] = field(default_factory=dict)
    """The arrays of inputs at their capacities, which each run fills."""

    def numbers(self, sizes: Mapping[str, int]) -> Sequence[int]:
        """Return what is computed of open sizes, by name, for a run."""
        found = self._numbers(sizes)
        assert found is not None
        return found

    def holds(self, sizes: Mapping[str, int], numbers: Sequence[int]) -> bool:
        """Tell whether all sizes are within their capacities, and what others say that they are."""
        if any(sizes[name] != numbers[place] for name, place in self.equations.items()):
            return False
        return all(numbers[self._places[terms]] <= most for terms, most in self.capacities.items())

    def feed(self, arrays: Mapping[str, Array], numbers: Sequence[int]) -> dict[str, Array]:
        """Return all inputs for some arrays, which are copied unless they fill their capacities."""
        known = self._later.made(numbers)
        fed = {each.name: each.make(numbers, known) for each in self._fed}
        for name, array in arrays.items():
            fed[name] = self._filled(name, array)
        return fed

    def _filled(self, name: str, array: Array) -> Array:
        dims = self.graph.specs[name].dims
        if array.shape == dims:
            return array
        room = self._rooms.get(name)
        if room is None or room.dtype != array.dtype:
            room = self._rooms[name] = np.zeros(dims, array.dtype)
        pad_into(room, array)
        return room

    def live_shape(self, name: str, numbers: Sequence[int]) -> Shape:
        """Return the shape of an output without its padding."""
        return tuple(prod(self._sizes(axis, numbers)) for axis in self.outputs[name])

    def rows(self, numbers: Sequence[int]) -> int:
        """Return by how many elements a run makes its state longer; 0 if there is none that grows."""
        for output, given in self.graph.aliases.items():
            for before, after in zip(self.inputs[given], self.outputs[output], strict=True):
                if before != after:
                    return prod(self._sizes(after, numbers)) - prod(self._sizes(before, numbers))
        return 0

    def cut(self, name: str, array: Array, numbers: Sequence[int]) -> Array:
        """Return the live elements of an output, without a copy where they are all of it, or one array's corner."""
        axes = self.outputs[name]
        parts = [p for axis in axes for p in axis]
        whole = array.reshape([p if isinstance(p, int) else self.capacities[p] for p in parts])
        live = whole[tuple(slice(0, size) for size in self._sizes(parts, numbers))]
        return live.reshape(self.live_shape(name, numbers))

    def _sizes(self, parts: Sequence[Part], numbers: Sequence[int]) -> list[int]:
        return [p if isinstance(p, int) else numbers[self._places[p]] for p in parts]
