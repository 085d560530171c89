"""What a thread plans and loads beside a session that runs already, for it (`weft.load`, `wait="first"`)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from weft.core.contract.error_context import is_error
from weft.core.host import cancelled, shutdown
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.pipeline import Progress

log = logging.getLogger("weft.session")


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
        self._lock = threading.Lock()
        """Held while more is asked for, or the thread ends because nothing is."""
        self._stop, self._made, self._taken = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-later", daemon=True)
        shutdown.note(self)
        self._thread.start()

    @property
    def is_made(self) -> bool:
        """Tell whether the thread has made it, or failed."""
        return self._made.is_set()

    def also(self, task: Callable[[Made], None]) -> bool:
        """Have the thread do more with what it makes; False if it has ended, and nothing is done."""
        with self._lock:
            if not self.is_made:
                self._tasks.append(task)
            return not self.is_made

    def wait(self) -> None:
        """Wait until the thread has made it, or failed."""
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
            with self._lock:
                self._made.set()
        self._taken.wait()
        if self._held is not None:
            self._held.close()

    def _next(self) -> Callable[[Made], None] | None:
        with self._lock:
            if self._tasks:
                return self._tasks.popleft()
            self._made.set()
            return None


def in_turn(progress: Progress | None) -> Progress:
    """Return what a load calls after each node: it stops if it was cancelled, and is quiet in a thread of its own."""

    def turn(done: int, count: int) -> None:
        if not cancelled.check() and progress is not None:
            progress(done, count)

    return turn
