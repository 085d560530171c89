"""Built kernels by key: each is built once; kernels in use stay, and the most recently used of the others."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from weft.core.host.background import aside
from weft.core.host.turns import Turns

KERNELS_KEPT = 256
"""Built kernels that a device keeps besides those in use; the option `kernels_kept` changes it."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Objects by key, which several threads may request.

    It keeps the `limit` most recently requested objects. Others can be found here as long as something else refers to
    them, so no object is made twice while the first one is used. An object frees its resources with its last reference;
    it must allow weak references.
    """

    def __init__(self, limit: int, used: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Make a store; `used` gives the block in which an object is made, such as one that keeps its device open."""
        self._limit, self._used = limit, used
        self._recent: OrderedDict[K, V] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()
        self._turns = Turns[K]()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the object under `key`, making it if there is none, and mark it as the most recently used.

        Ctrl-C does not wait until it is made: it is then kept for the next `get`.
        """
        held = self.find(key)
        return aside(lambda: self._make(key, make)) if held is None else held

    def _make(self, key: K, make: Callable[[], V]) -> V:
        with self._turns.of(key), self._used():  # other threads may make other objects meanwhile
            held = self.find(key)
            if held is None:
                held = make()
                self._hold(key, held)
            return held

    def find(self, key: K) -> V | None:
        """Return the object under `key` and mark it as the most recently used; None if there is none."""
        held = self._alive.get(key)
        if held is not None:
            self._hold(key, held)
        return held

    def _hold(self, key: K, held: V) -> None:
        with self._lock:
            self._alive[key] = self._recent[key] = held
            self._recent.move_to_end(key)
            gone = self._surplus()
        del gone  # outside the lock: freeing may take time

    def limit(self, count: int) -> None:
        """Keep this many objects from now on."""
        with self._lock:
            self._limit = count
            gone = self._surplus()
        del gone

    def _surplus(self) -> list[tuple[K, V]]:
        """Remove and return the objects beyond the limit."""
        return [self._recent.popitem(last=False) for _ in range(len(self._recent) - self._limit)]

    def drop(self, key: K) -> None:
        """Forget the object under `key`; the next `get` makes it again."""
        with self._lock:
            gone = self._alive.pop(key, None), self._recent.pop(key, None)
        del gone

    def clear(self) -> list[V]:
        """Forget all objects and return those alive."""
        with self._lock:
            alive = list(self._alive.values())
            self._recent.clear()
            self._alive.clear()
        return alive

    def __len__(self) -> int:
        """Return how many objects are alive."""
        return len(self._alive)
