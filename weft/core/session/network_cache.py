"""The networks that a session optimised last, so that it need not optimise again for shapes that it had before."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from weft.core.graph.layout import Array
from weft.core.placement.optimized_network import OptimizedNetwork

KEPT = 4
"""How many networks a session keeps: enough for batches of two sizes and an odd last one."""


class NetworkCache:
    """At most KEPT networks by input shapes; the least recently used one is dropped first."""

    def __init__(self) -> None:
        self._held: dict[Hashable, OptimizedNetwork] = {}

    def find(self, shapes: Hashable) -> OptimizedNetwork | None:
        """Return the network of these shapes, or None."""
        return self._held.get(shapes)

    def keep(self, shapes: Hashable, network: OptimizedNetwork) -> None:
        """Keep a network as the most recently used one."""
        self._held.pop(shapes, None)
        self._held[shapes] = network
        while len(self._held) > KEPT:
            del self._held[next(iter(self._held))]

    def forget(self, shapes: Hashable) -> None:
        """Drop the network of these shapes."""
        self._held.pop(shapes, None)

    def clear(self) -> None:
        """Drop all networks."""
        self._held.clear()

    def share_weights(self, network: OptimizedNetwork) -> None:
        """Let a new network use the last network's arrays for equal weights.

        Otherwise each network would hold its own copy of folded and rounded weights.
        """
        if not self._held:
            return
        last = next(reversed(self._held.values())).graph.constants
        for graph in (network.graph, *(p.graph for p in network.parts)):
            for name, value in graph.constants.items():
                if name in last and _is_same(last[name], value):
                    graph.constants[name] = last[name]


def _is_same(old: Array, new: Array) -> bool:
    """Tell whether two arrays hold the same bytes."""
    if old is new:
        return True
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return False
    bits = np.dtype(f"V{old.itemsize}")  # NaN is itself here, and 0 is not -0
    return bool((np.ascontiguousarray(old).view(bits) == np.ascontiguousarray(new).view(bits)).all())
