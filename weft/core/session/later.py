"""What a thread plans and loads beside a session that runs already, for it (`weft.load`, `wait="first"`)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isinf
from time import monotonic

from weft.core.contract.error_context import is_error
from weft.core.host import cancelled, shutdown
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.pipeline import Progress
from weft.core.session.planner import Planner

log = logging.getLogger("weft.session")
QUIET = 0.3
"""Seconds after a load before a thread begins to plan: the first word follows a prompt at once."""


class Later:
    """A thread in which a planner plans and loads for a session, `why` that takes long, and how it ended.

    The thread ends once the session has taken the planner, and then closes the one that the session had until then.
    """

    def __init__(
        self, planner: Planner, task: Callable[[Planner], None], choices: Sequence[DeviceChoice], why: str, *,
        held: bool = False,
    ) -> None:
        """Call `task` with the planner in a thread, for a session on these devices; if `held`, after `release`."""
        self.choices, self.why = choices, why
        self._planner: Planner | None = planner
        """The planner; once it was taken, the one that the session had until then; None if it failed."""
        self.error: Exception | None = None
        """Why there is none."""
        self._tasks = deque([task])
        self._changed = threading.Condition()
        self._pauses, self._since, self._is_awaited = 0, monotonic(), False
        self._is_held = held
        self._stop, self._made, self._taken = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-later", daemon=True)
        self._thread.start()
        shutdown.note(self)

    @property
    def is_made(self) -> bool:
        """Tell whether the thread has done all its tasks, or failed."""
        return self._made.is_set()

    def also(self, task: Callable[[Planner], None]) -> bool:
        """Give the thread another task; False if it has done the others, and does no more."""
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

    def release(self) -> None:
        """Let the thread begin: the call of the session that made it has ended. Another may follow at once."""
        if self._is_held:
            with self._changed:
                self._is_held, self._since = False, monotonic()
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the thread has done all its tasks, or failed."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
        self._made.wait()

    def take(self, swap: Callable[[Planner], Planner]) -> None:
        """Give the planner to `swap`, and close the one that it returns, in the thread; nothing if it failed."""
        try:
            if self._planner is not None:
                self._planner = swap(self._planner)
        finally:
            self._taken.set()

    def give_up(self) -> None:
        """Have the thread stop, and close its planner."""
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
        planner = self._planner
        assert planner is not None
        try:
            with cancelled.until(self._stop):
                while (task := self._next()) is not None:
                    task(planner)
        except BaseException as e:
            self._planner = None
            planner.close()
            if isinstance(e, cancelled.Cancelled):
                pass
            elif not isinstance(e, Exception) or not is_error(e):
                raise
            else:
                self.error = e
                log.warning("better kernels for a network could not be prepared: %s", e)
        finally:
            del planner
            task = None  # it holds the network
            with self._changed:
                self._made.set()
        self._taken.wait()
        if self._planner is not None:
            self._planner.close()

    def _next(self) -> Callable[[Planner], None] | None:
        """Return the next task, once the session plans nothing itself; None if there is none."""
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
        return inf if self._pauses or self._is_held else self._since + QUIET - monotonic()


def in_turn(progress: Progress | None) -> Progress:
    """Return what a load calls after each node: it stops if it was cancelled, and is quiet in a thread of its own."""

    def turn(done: int, count: int) -> None:
        if not cancelled.check() and progress is not None:
            progress(done, count)

    return turn
