"""The plans that a session made last, so that it need not plan again for shapes that it had before."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KEPT = 8
"""How many plans a session keeps: enough for a handful of batches, pictures or lengths in turns."""
Key = tuple[Hashable, Hashable]
"""Input shapes, and what else a plan depends on."""
PlanT = TypeVar("PlanT")


class NetworkCache(Generic[PlanT]):
    """At most KEPT plans by their keys; the least recently used one is dropped first."""

    def __init__(self) -> None:
        self._held: dict[Key, PlanT] = {}

    def __iter__(self) -> Iterator[tuple[Key, PlanT]]:
        """Yield the keys and plans."""
        return iter(self._held.items())

    def keep(self, key: Key, plan: PlanT) -> None:
        """Keep a plan as the most recently used one."""
        self._held.pop(key, None)
        self._held[key] = plan
        while len(self._held) > KEPT:
            del self._held[next(iter(self._held))]

    def forget(self, key: Key) -> None:
        """Drop the plan of a key."""
        self._held.pop(key, None)

    def clear(self) -> None:
        """Drop all plans."""
        self._held.clear()
