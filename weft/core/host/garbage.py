"""Work that Python's collector of cycles does not interrupt: it would look at all objects, again and again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """Counts who wants no collections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._were_on = False

    def begin(self) -> None:
        with self._lock:
            self._were_on = gc.isenabled() if not self._count else self._were_on
            self._count += 1
            gc.disable()

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._were_on and not self._count:
                gc.enable()


_pause = _Pause()


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no cycles in a block, or a function that this decorates; it makes many objects and few cycles.

    It should take a second at most: other threads may make cycles meanwhile.
    """
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
