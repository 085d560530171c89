"""Records what happens to the backends of a creator, every callback and object, without changing what they do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from weft.core.contract.backend import Backend, BackendCreator, BackendInfo, Execution, StorageType
from weft.core.contract.engine import Engine

CALLBACKS = (
    "onCreate", "onAcquireBuffer", "onReleaseBuffer", "onImportBuffer", "onClearBuffer", "onCopyBuffer",
    "onExecuteBegin", "onExecuteEnd", "onResizeBegin", "onResizeEnd", "onAllocateBuffer", "onWaitFinish",
    "why_not", "OptimizeSubgraph", "lower", "canImport", "statistics", "notes", "close",
)
OF_EXECUTIONS = ("onResize", "onExecute", "close")
CLEANING = frozenset({"onReleaseBuffer", "onClearBuffer", "onWaitFinish", "close", "Execution.close"})
"""Callbacks that also come after an error."""
RAISED_BY = "raised_by_callback"
"""The attribute of an exception that names the callback that raised it."""
ABOUT_NODES = ("onCreate", "why_not")
"""Callbacks whose second argument is the outputs of a node."""


@dataclass(frozen=True, slots=True)
class Call:
    """A callback: the index of its backend object, its name, its tensor or node, and the callback that it came from."""

    backend: int
    name: str
    what: str = ""
    storage: StorageType | None = None
    within: str = ""
    """The callback of the backend that was under way in the same thread, "" if there was none."""

    @property
    def is_static(self) -> bool:
        """Tell whether it acquires or releases STATIC memory."""
        return self.storage is StorageType.STATIC

    def __str__(self) -> str:
        return f"{self.name} for {self.what!r}" if self.what else self.name


class Watch:
    """Records the callbacks of all backends that a creator makes while the block runs.

    `before` is called with each callback before it happens; its exceptions are raised as the callback's. Objects
    are held by weak references only. Without `record`, only `latest` and `declined` are kept.
    """

    def __init__(
        self, creator: BackendCreator, before: Callable[[Call], None] | None = None, *, record: bool = True
    ) -> None:
        self.calls: list[Call] = []
        self.backends: list[weakref.ref[Backend]] = []
        self.executions: list[weakref.ref[Execution]] = []
        self.declined: list[str] = []
        """The first outputs of nodes for which `onCreate` returned None."""
        self.before = before
        self.record = record
        self._creator = creator
        self._held = vars(creator).get("onCreate")
        self._local = threading.local()
        self._mark = f"_watch_{id(self)}"

    def __enter__(self) -> Watch:
        make = self._creator.onCreate

        def onCreate(info: BackendInfo) -> Backend:
            return self._watched(self._call(Call(-1, "BackendCreator.onCreate"), make, (info,), {}))

        vars(self._creator)["onCreate"] = onCreate
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._held is None:
            vars(self._creator).pop("onCreate", None)
        else:
            vars(self._creator)["onCreate"] = self._held

    @property
    def within(self) -> str:
        """Return the callback that is under way in this thread, "" if there is none."""
        stack: list[str] = getattr(self._local, "stack", [])
        return stack[-1] if stack else ""

    @property
    def latest(self) -> str:
        """Return what this thread's last callback returned, not counting those that free; "" if there was none."""
        ended: str = getattr(self._local, "ended", "")
        return ended

    def alive(self) -> tuple[int, int]:
        """Return how many of the backend objects and of the executions still exist."""
        backends = sum(ref() is not None for ref in self.backends)
        return backends, sum(ref() is not None for ref in self.executions)

    def held_static(self) -> int:
        """Return how many STATIC tensors were acquired and not released, of backends that are not closed."""
        closed = {c.backend for c in self.calls if c.name == "close"}
        held = [c for c in self.calls if c.is_static and c.backend not in closed]
        return sum(1 if c.name == "onAcquireBuffer" else -1 for c in held)

    def _watched(self, backend: Backend) -> Backend:
        if not isinstance(backend, Backend):
            return backend  # the caller reports it
        index = len(self.backends)
        if self.record:
            self.backends.append(weakref.ref(backend))
        for name in CALLBACKS:
            if name == "lower" and not isinstance(backend, Engine):
                continue
            vars(backend)[name] = self._wrapped(index, name, getattr(backend, name))
        return backend

    def _wrapped(self, index: int, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def callback(*args: Any, **kwargs: Any) -> Any:
            storage = args[1] if name in ("onAcquireBuffer", "onReleaseBuffer") and len(args) > 1 else None
            what = _node(args) if name in ABOUT_NODES else getattr(args[0], "name", "") if args else ""
            result = self._call(Call(index, name, what, storage, self.within), call, args, kwargs)
            if name == "onCreate":
                return self._created(index, what, result)
            return result

        return callback

    def _created(self, index: int, what: str, execution: Execution | None) -> Execution | None:
        if execution is None:
            self.declined.append(what)
        elif isinstance(execution, Execution) and self._mark not in vars(execution):  # it may serve several nodes
            vars(execution)[self._mark] = True
            if self.record:
                self.executions.append(weakref.ref(execution))
            for name in OF_EXECUTIONS:
                vars(execution)[name] = self._step(index, name, getattr(execution, name))
        return execution

    def _step(self, index: int, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        label = name if name != "close" else "Execution.close"

        def callback(*args: Any) -> Any:
            return self._call(Call(index, label, _node(args), None, self.within), call, args, {})

        return callback

    def _call(self, call: Call, do: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.record:
            self.calls.append(call)
        stack: list[str] = self._local.__dict__.setdefault("stack", [])
        stack.append(call.name)
        try:
            if self.before is not None:
                self.before(call)
            result = do(*args, **kwargs)
        except BaseException as e:
            vars(e).setdefault(RAISED_BY, str(call))
            raise
        finally:
            stack.pop()
        if call.name not in CLEANING:
            self._local.ended = f"{call} returned {_brief(result)}"
        return result


def _node(args: tuple[Any, ...]) -> str:
    """Return the name of the first output among the arguments of a callback that is about a node."""
    return getattr(args[1][0], "name", "") if len(args) > 1 and args[1] else ""


def _brief(result: object) -> str:
    """Return the answer as text, or its type, so that no object is kept."""
    if result is None or isinstance(result, (bool, int, float)):
        return repr(result)
    return repr(result[:60]) if isinstance(result, str) else f"a {type(result).__name__}"
