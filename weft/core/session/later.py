"""What a thread plans and loads beside a session that runs already, for it (`weft.load`, `wait="first"`)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isinf
from time import monotonic
from typing import Generic, Protocol, TypeVar

from weft.core.contract.error_context import is_error
from weft.core.host import cancelled, shutdown
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.pipeline import Progress

log = logging.getLogger("weft.session")
QUIET = 0.3
"""Seconds after a load before a thread begins to plan: the first word follows a prompt at once."""


class Closes(Protocol):
    """What is made: what plans for a session."""

    def close(self) -> None:
        """Free what it has loaded."""
        ...


Made = TypeVar("Made", bound=Closes)


class Later(Generic[Made]):
    """What a thread prepares for a session, `why` it takes long, and how it ended.

    The thread ends once the session has taken what it made, and then closes what the session had until then.
    """

    def __init__(
        self, made: Made, task: Callable[[Made], None], choices: Sequence[DeviceChoice], why: str
    ) -> None:
        """Call `task` with `made` in a thread, for a session on these devices."""
        self.choices, self.why = choices, why
        self._held: Made | None = made
        """What it makes; once that was taken, what the session had until then; None if it failed."""
        self.error: Exception | None = None
        """Why there is none."""
        self._tasks = deque([task])
        self._changed = threading.Condition()
        self._pauses, self._since, self._is_awaited = 0, monotonic(), False
        self._stop, self._made, self._taken = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-later", daemon=True)
        self._thread.start()
        shutdown.note(self)

    @property
    def is_made(self) -> bool:
        """Tell whether the thread has made it, or failed."""
        return self._made.is_set()

    def also(self, task: Callable[[Made], None]) -> bool:
        """Have the thread do more with what it makes; False if it has ended, and nothing is done."""
        with self._changed:
            if not self.is_made:
                self._tasks.append(task)
            return not self.is_made

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have the thread begin no task meanwhile: both would take turns with the interpreter.

        Nor does it soon afterwards, if that took as long as planning does: other plans follow at once.
        """
        with self._changed:
            self._pauses += 1
        begun = monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._since = monotonic() if monotonic() - begun > QUIET / 10 else self._since
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the thread has made it, or failed."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
        self._made.wait()

    def take(self, swap: Callable[[Made], Made]) -> None:
        """Give what it made to `swap`, and close what that returns in the thread; nothing if it failed."""
        try:
            if self._held is not None:
                self._held = swap(self._held)
        finally:
            self._taken.set()

    def give_up(self) -> None:
        """Have the thread stop, and close what it made."""
        self._stop.set()
        self._taken.set()
        with self._changed:
            self._changed.notify_all()

    def end(self, patience: float | None) -> bool:
        """Stop at the end of a session or of the process; return False if the thread has not ended in time."""
        self.give_up()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        made = self._held
        assert made is not None
        try:
            with cancelled.until(self._stop):
                while (task := self._next()) is not None:
                    task(made)
        except BaseException as e:
            self._held = None
            made.close()
            if isinstance(e, cancelled.Cancelled):
                pass
            elif not isinstance(e, Exception) or not is_error(e):
                raise
            else:
                self.error = e
                log.warning("better kernels for a network could not be prepared: %s", e)
        finally:
            del made
            task = None  # it holds the network
            with self._changed:
                self._made.set()
        self._taken.wait()
        if self._held is not None:
            self._held.close()

    def _next(self) -> Callable[[Made], None] | None:
        """Return the next task once nothing else is planned; None, and all is made, if there is none."""
        with self._changed:
            while (left := self._still()) > 0:
                self._changed.wait(None if isinf(left) else left)
            if self._tasks and not self._stop.is_set():
                return self._tasks.popleft()
            self._made.set()
            return None

    def _still(self) -> float:
        """Return for how many seconds to wait before the next task."""
        if self._is_awaited or self._stop.is_set() or not self._tasks:
            return 0.0
        return inf if self._pauses else self._since + QUIET - monotonic()


def in_turn(progress: Progress | None) -> Progress:
    """Return what a load calls after each node: it stops if it was cancelled, and is quiet in a thread of its own."""

    def turn(done: int, count: int) -> None:
        if not cancelled.check() and progress is not None:
            progress(done, count)

    return turn
