"""Adds the node or device to errors raised while it works (contract section 4), and tells errors from other exceptions.

SystemExit, GeneratorExit, KeyboardInterrupt and exceptions from signal handlers are not failures of the work that they
interrupt, so they pass through Weft unchanged. So do exceptions from a user's function (debug, progress).
Only a backend that is being discovered cannot end the program (A15).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, TracebackType

from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Node
from weft.errors import ExecutionError, OutOfMemory, WeftError, listing

SHOWN = 8


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What counts as a backend's own failure while it is discovered, unless a signal handler raised it."""


_SIGNALS = tuple(signal.valid_signals())
"""Asked for once: the list is made anew each time, and the conformance kit needs it thousands of times."""


def sent_by_signal(e: BaseException) -> bool:
    """Tell whether a signal handler raised an exception; then it belongs to the program, wherever it was raised.

    Only the handlers registered now are known, not one that replaced itself before it raised.
    """
    codes = {_code(h) for h in map(signal.getsignal, _SIGNALS) if callable(h)}
    frame = e.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in codes:
            return True
        frame = frame.tb_next
    return False


def _code(handler: Callable[..., object]) -> CodeType | None:
    """Return the code object that a handler runs first, or None if it is not Python code."""
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


_OF_USER = "_weft_of_user"
"""Attribute that marks an exception from a user's function."""


@contextmanager
def users_function() -> Iterator[None]:
    """Let exceptions of a user's function, called inside, pass through Weft unchanged."""
    try:
        yield
    except Exception as e:
        vars(e)[_OF_USER] = True
        raise


def is_error(e: BaseException) -> bool:
    """Tell whether an exception is a failure of the work that it interrupted."""
    return isinstance(e, Exception) and _OF_USER not in vars(e) and not sent_by_signal(e)


def ends_program(e: BaseException) -> bool:
    """Tell whether an exception belongs to the program, and not to the backend under examination."""
    return isinstance(e, KeyboardInterrupt) or sent_by_signal(e)


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step even if some raise; then raise the first exception that is not an error, else the first error."""
    raised: list[BaseException] = []
    try:
        for step in steps:
            try:
                step()
            except BaseException as e:
                raised.append(e)
        if raised:
            raise min(raised, key=is_error)
    finally:
        raised.clear()  # the exceptions' frames refer to this one


@contextmanager
def caught(tell: Callable[[Exception], object]) -> Iterator[None]:
    """Report an error raised inside to `tell` and continue after the block; exceptions that are not errors pass."""
    try:
        yield
    except Exception as e:
        if not is_error(e):
            raise
        tell(e)


class blame:  # noqa: N801  (it is read as a function, as contextlib.suppress is)
    """Add `where` to errors raised inside: a WeftError keeps its class, others become ExecutionError.

    The latter name the callback, too ("AcmeBackend.onResizeEnd"). Code that runs for each of many nodes catches errors
    in a `try` and re-raises them inside this, so that only a failure pays for composing the names.
    """

    __slots__ = ("_callback", "_what", "_where")

    def __init__(self, where: str, what: str = "a node failed", *, callback: str = "") -> None:
        self._where, self._what, self._callback = where, what, callback

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(e, Exception) or not is_error(e):
            return
        where = self._where
        if isinstance(e, WeftError):
            if where not in e.where:
                e.placed(f"{where}: {e.where}" if e.where else where)
            return
        made = OutOfMemory if isinstance(e, MemoryError) else ExecutionError
        place = f"{where}: {self._callback}" if self._callback else where
        raise made(self._what, where=place, why=f"{type(e).__name__}: {e}") from e


def callback_of(owner: object, name: str) -> str:
    """Return a callback's name as messages show it."""
    return f"{type(owner).__name__}.{name}"


def at_node(node: Node, device: str) -> str:
    """Return the location of a failure in one node."""
    return f"{_named(node)} on {device}"


def at_nodes(nodes: Sequence[Node], device: str) -> str:
    """Return the location of a failure on a device that ran these nodes and does not say which failed."""
    return f"{device}, which ran {listing([_named(n) for n in nodes], ', ', most=SHOWN)}"


def _named(node: Node) -> str:
    op = node.op
    kinds = [op.base.type, *(step.op.type for step in op.steps)] if isinstance(op, Fused) else [op.type]
    return f"node {node.name!r} ({' + '.join(kinds)})"
