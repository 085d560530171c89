"""A gate that admits work until it is closed; closing it waits for running work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import ClosedError, InputError


class LoadGate:
    """Counts running work by thread. `name` says in errors what was closed: "the runtime"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._closer: int | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Tell whether the gate admits new work: it is neither closed nor closing."""
        with self._changed:
            return not self._closed and self._closer is None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block as work that a close waits for; ClosedError once a close has begun.

        A thread that is inside already may enter again, even while a close waits.
        """
        me = threading.get_ident()
        with self._changed:
            if self._closed or (self._closer is not None and not self._inside[me]):
                raise ClosedError(f"{self._name} is closed", fix="make another")
            self._inside[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                self._changed.notify_all()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Stop new work, wait for running work, run the block, then stay closed. If the block raises, reopen.

        InputError in a thread that is inside or closing already: it would wait for itself.
        """
        me = threading.get_ident()
        with self._changed:
            if self._inside[me] or self._closer == me:
                raise InputError(
                    f"{self._name} cannot be closed here",
                    why="this thread is inside a load or a close; a close would wait for that, and so for itself",
                    fix="close it when the load has returned",
                )
            self._changed.wait_for(lambda: self._closer is None)
            self._closer = me
        try:
            with self._changed:
                self._changed.wait_for(lambda: not +self._inside)
            yield
            self._closed = True
        finally:
            with self._changed:
                self._closer = None
                self._changed.notify_all()
