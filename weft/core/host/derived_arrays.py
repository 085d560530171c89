"""What was computed of arrays that nobody changes, found again as long as it is in use.

A network is prepared once for each form that its sizes decide, such as prompts and single words, and each time its
weights are converted and transposed alike. What the first time made is then the same arrays, not equal ones.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from weft.core.graph.layout import Array
from weft.core.host.dropped import Dropped
from weft.core.host.shared_arrays import SHARED_FROM, is_lasting

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class _Made:
    sources: tuple[weakref.ref[Array], ...]
    results: tuple[weakref.ref[Array], ...]


class DerivedArrays:
    """Remembers which arrays follow from which, and keeps none of them alive. Several threads may use it."""

    def __init__(self) -> None:
        self._made: dict[Key, _Made] = {}
        self._gone = Dropped[Key]()
        """The keys of which an array has no user any more."""
        self._lock = threading.Lock()

    def find(self, what: Hashable, sources: Sequence[Array]) -> tuple[Array, ...] | None:
        """Return what `note` got for the same computation and arrays, if it is still in use."""
        key = (what, *map(id, sources))
        with self._lock:
            self._forget_gone()
            made = self._made.get(key)
        if made is None or any(ref() is not source for ref, source in zip(made.sources, sources, strict=True)):
            return None
        results = [result for ref in made.results if (result := ref()) is not None]
        return tuple(results) if len(results) == len(made.results) else None

    def note(self, what: Hashable, sources: Sequence[Array], results: Sequence[Array]) -> None:
        """Remember what a computation made of arrays; nothing of small ones, or of such as may change."""
        if sum(source.nbytes for source in sources) < SHARED_FROM or not all(map(is_lasting, sources)):
            return
        key = (what, *map(id, sources))

        def gone(_: object) -> None:
            self._gone.add(key)

        for result in results:
            result.setflags(write=False)
        made = _Made(*(tuple(weakref.ref(each, gone) for each in arrays) for arrays in (sources, results)))
        with self._lock:
            self._made[key] = made

    def make(
        self, what: Hashable, sources: Sequence[Array], make: Callable[[], Sequence[Array]]
    ) -> Sequence[Array]:
        """Return what was noted, or make and note it."""
        found = self.find(what, sources)
        if found is not None:
            return found
        made = make()
        self.note(what, sources, made)
        return made

    def _forget_gone(self) -> None:
        for key in self._gone.take():
            made = self._made.get(key)
            if made is not None and any(ref() is None for ref in (*made.sources, *made.results)):
                del self._made[key]


derived_arrays = DerivedArrays()
