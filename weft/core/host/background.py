"""Threads for calls that nothing can interrupt, such as a driver's compiler.

Ctrl-C and the end of the process leave such calls behind.
Python raises KeyboardInterrupt in the main thread, and only between two instructions of its own. So the main thread
makes no such call itself; it waits for another thread, which the interpreter does not wait for at its end.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from weft.core.contract.error_context import is_error

LINGER = 1.0
"""Seconds for which an idle thread waits for more work."""
Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Busy:
    """Counts the calls that run in such threads of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    @property
    def is_any(self) -> bool:
        return self._count > 0

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._count)


_busy = _Busy()


class Background(Executor):
    """Up to `threads` threads, which start when there is work for them.

    As a context manager it cancels at the end of the block what has not begun, and waits for the rest; after an
    exception that is no error, such as KeyboardInterrupt, it leaves running calls behind. `ended` is called once, after
    `shutdown` and the end of all calls, in the thread that comes last.
    """

    def __init__(self, threads: int, name: str, ended: Callable[[], object] = lambda: None) -> None:
        self._most, self._name, self._ended = threads, name, ended
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = self._idle = 0
        self._started: list[threading.Thread] = []
        self._is_over = self._is_ended = False

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Return the future result of a call; RuntimeError if the system has no thread for it."""
        future: Future[Result] = Future()
        task = future, partial(fn, *args, **kwargs)
        with self._changed:
            if self._is_over:
                raise RuntimeError("these threads take no more work")
            self._waiting.append(task)
            starts = self._idle < len(self._waiting) and self._threads < self._most
            self._threads += starts
            self._changed.notify()
        if starts:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                thread.start()
            except Exception:
                if self._take_back(task):
                    raise
            else:
                self._started.append(thread)
        return future

    def _take_back(self, task: tuple[Future[Any], Callable[[], Any]]) -> bool:
        """Count a thread no more that could not start; tell whether its task is taken back: another may have it."""
        with self._changed:
            self._threads -= 1
            is_waiting = task in self._waiting
            if is_waiting:
                self._waiting.remove(task)
            is_last = self._is_over and not self._threads
        if is_last:
            self._end()
        return is_waiting

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            _do(*task)
            del task  # an idle thread holds no result

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for a call and return it; None if the thread should end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._is_over, LINGER)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            is_last = self._is_over and not self._threads
        if is_last:
            self._end()
        return None

    def _end(self) -> None:
        try:
            self._ended()
        finally:
            with self._changed:
                self._is_ended = True
                self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `wait` for those that are there, or cancel those that have not begun."""
        with self._changed:
            ends, self._is_over = not self._is_over and not self._threads, True
            cancelled = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for future, _ in cancelled:
            future.cancel()
        if ends:
            self._end()
        elif wait:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ended)
            for thread in self._started:
                thread.join()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown(wait=e is None or is_error(e), cancel_futures=True)


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    _busy.add(1)
    try:
        future.set_result(call())
    except BaseException as e:
        future.set_exception(e)
        del future  # which holds the error, whose traceback holds this frame: the cycle would keep what frames refer to
    finally:
        _busy.add(-1)


def aside(call: Callable[[], Result]) -> Result:
    """Return what a call returns that nothing can interrupt; in the main thread, Ctrl-C does not wait for its end."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    with Background(1, "weft-aside") as thread:
        return thread.submit(call).result()


def is_busy() -> bool:
    """Tell whether a call runs in such a thread."""
    return _busy.is_any


def wait() -> None:
    """Wait until no call runs in such a thread."""
    _busy.wait()


def leave_at_exit() -> None:
    """Have the process end without what libraries do at its end, which crashes those of their calls that still run.

    LLVM, in Mesa and in OpenCL's drivers for CPUs, frees what its compiler uses. Where the C library has no such way
    out, wait for the calls.
    """
    if not _busy.is_any:
        return
    if not ends_without_libraries():
        wait()


def ends_without_libraries() -> bool:
    """Have the process end at once, after the buffers of C's files are written; False where that cannot be had."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if libc is None or not hasattr(libc, "on_exit"):  # only glibc tells at its end with which status
        return False
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)  # what is registered last runs first
    return True


def _forget() -> None:
    global _busy
    _busy = _Busy()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # the threads are the parent's
