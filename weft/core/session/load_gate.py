"""A gate: work goes in until somebody closes it, and the close waits for what is inside."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import ClosedError, InputError


class Gate:
    """Counts who is inside, by thread. `name` is what closes, for messages: "the runtime"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._closer: int | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Tell whether new work may come in: nobody has closed the gate or is about to."""
        with self._changed:
            return not self._closed and self._closer is None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Hold off a close for as long as the block runs; ClosedError once a close has begun.

        A thread that is inside may come in again, whoever waits.
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
        """Let nobody in, wait for who is inside, and close the gate after the block; if that raises, open it again.

        InputError in a thread that is inside or closes already: it would wait for itself.
        """
        me = threading.get_ident()
        with self._changed:
            if self._inside[me] or self._closer == me:
                raise InputError(
                    f"{self._name} cannot be closed here",
                    why="this is called in the middle of a load or a close, for which the close would wait",
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
