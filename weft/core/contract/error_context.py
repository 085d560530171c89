"""Put the node or device into whatever is raised while it works (contract section 4), and know what is no error.

A SystemExit, a GeneratorExit, a KeyboardInterrupt and whatever a signal's handler raises are not the failure of what
was under way: they pass through Weft as they are, and so does what a function of the user's raises (debug, progress).
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
from weft.errors import ExecutionError, OutOfMemory, WeftError

SHOWN = 8


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What a backend may raise as its own failure while it is looked for, unless a signal's handler raised it."""


def sent_by_signal(e: BaseException) -> bool:
    """Tell whether the handler of a signal raised an exception: it is the program's then, wherever it came.

    Handlers are those that are registered now. One that has replaced itself before it raises is not known any more.
    """
    codes = {_code(h) for h in map(signal.getsignal, signal.valid_signals()) if callable(h)}
    frame = e.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in codes:
            return True
        frame = frame.tb_next
    return False


def _code(handler: Callable[..., object]) -> CodeType | None:
    """Return the code that a handler runs first, or None where that is not Python's."""
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


_OF_USER = "_weft_of_user"
"""The attribute of an exception that came out of a function of the user's."""


@contextmanager
def users_function() -> Iterator[None]:
    """Let what is raised inside, by a function that the user gave, pass through Weft as it is."""
    try:
        yield
    except Exception as e:
        vars(e)[_OF_USER] = True
        raise


def is_error(e: BaseException) -> bool:
    """Tell whether an exception is the failure of what was under way."""
    return isinstance(e, Exception) and _OF_USER not in vars(e) and not sent_by_signal(e)


def ends_program(e: BaseException) -> bool:
    """Tell whether an exception is the program's and not to be held against a backend that is examined."""
    return isinstance(e, KeyboardInterrupt) or sent_by_signal(e)


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Do every step, whatever some of them raise; then raise the first that is no error, or else the first error."""
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
        raised.clear()  # the frames of which hold this one


@contextmanager
def caught(tell: Callable[[Exception], object]) -> Iterator[None]:
    """Tell of an error that is raised inside, and go on after the block; what is no error passes."""
    try:
        yield
    except Exception as e:
        if not is_error(e):
            raise
        tell(e)


class blame:  # noqa: N801  (it is read as a function, as contextlib.suppress is)
    """Add `where` to the errors that are raised inside: a WeftError keeps its class, others become ExecutionError.

    Those name the callback, too ("AcmeBackend.onResizeEnd"). What is called for each of many nodes is put into a `try`
    instead, and re-raised within this: then the names are put together for a failure only.
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
                place = f"{where}: {e.where}" if e.where else where
                WeftError.__init__(e, e.what, where=place, why=e.why, fix=e.fix)
            return
        made = OutOfMemory if isinstance(e, MemoryError) else ExecutionError
        place = f"{where}: {self._callback}" if self._callback else where
        raise made(self._what, where=place, why=f"{type(e).__name__}: {e}") from e


def callback_of(owner: object, name: str) -> str:
    """Return a callback as messages name it."""
    return f"{type(owner).__name__}.{name}"


def at_node(node: Node, device: str) -> str:
    """Return the place of a failure in one node."""
    return f"{_named(node)} on {device}"


def at_nodes(nodes: Sequence[Node], device: str) -> str:
    """Return the place of a failure of a device that ran these nodes and does not say which failed."""
    named = ", ".join(_named(n) for n in nodes[:SHOWN])
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"{device}, which ran {named}{more}"


def _named(node: Node) -> str:
    op = node.op
    kinds = [op.base.type, *(step.op.type for step in op.steps)] if isinstance(op, Fused) else [op.type]
    return f"node {node.name!r} ({' + '.join(kinds)})"
