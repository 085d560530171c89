"""Threads that make what others need, too: one makes it, the others wait for that thing alone."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)


class _Turn:
    """It disappears with the last waiting thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Turns(Generic[K]):
    """Lets one thread at a time into blocks of the same key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[K, _Turn] = WeakValueDictionary()

    @contextmanager
    def of(self, key: K) -> Iterator[None]:
        """Enter the block when no other thread is in one of this key."""
        with self._lock:
            turn = self._turns.get(key) or self._turns.setdefault(key, _Turn())
        with turn.lock:
            yield
