"""What becomes of memory and objects that nobody holds any more."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Dropped(Generic[T]):
    """Notes of what was collected, for whom it suits to see to it.

    A collection may run at any time, such as during a driver call, or while the thread holds a lock. So what it calls
    only adds a note, which takes no lock. With `of_process` a forked process starts without notes: what they are about
    belongs to its parent.
    """

    def __init__(self, *, of_process: bool = False) -> None:
        self._notes: deque[T] = deque()
        self.add = self._notes.append
        """Add a note, from any thread and at any time."""
        if of_process and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._notes.clear)

    def __bool__(self) -> bool:
        return bool(self._notes)

    def take(self) -> Iterator[T]:
        """Take one note after the other, those that come meanwhile, too; several threads may."""
        while self._notes:
            try:
                note = self._notes.popleft()
            except IndexError:
                return  # another thread took the last
            yield note


class ArrayBase:
    """What an array has as its base: each view of the array keeps `holder`, which holds the memory."""

    def __init__(self, interface: dict[str, Any], holder: object) -> None:
        self.__array_interface__, self._holder = interface, holder
