"""See what happens to the backends of a creator: every callback, every object, without changing what they do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from weft.core.backend import Backend, BackendCreator, BackendInfo, Execution, StorageType

CALLBACKS = (
    "onCreate", "onAcquireBuffer", "onReleaseBuffer", "onImportBuffer", "onClearBuffer", "onCopyBuffer",
    "onExecuteBegin", "onExecuteEnd", "onResizeBegin", "onResizeEnd", "onAllocateBuffer", "onWaitFinish",
    "OptimizeSubgraph", "close",
)  # fmt: skip
OF_EXECUTIONS = ("onResize", "onExecute", "close")


@dataclass(frozen=True, slots=True)
class Call:
    """A callback: of which backend object, its name, the tensor or node it is about, and within which other."""

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


class Watch:
    """Records the callbacks of all backends that a creator makes while the block runs.

    `before` is called with each callback before it happens, in its place: what it raises is raised there.
    Objects are held by weak references only.
    """

    def __init__(self, creator: BackendCreator, before: Callable[[Call], None] | None = None) -> None:
        self.calls: list[Call] = []
        self.backends: list[weakref.ref[Backend]] = []
        self.executions: list[weakref.ref[Execution]] = []
        self.declined: list[str] = []
        """The first outputs of nodes for which `onCreate` returned None."""
        self.before = before
        self._creator = creator
        self._held = vars(creator).get("onCreate")
        self._local = threading.local()

    def __enter__(self) -> Watch:
        make = self._creator.onCreate

        def onCreate(info: BackendInfo) -> Backend:
            return self._watched(make(info))

        vars(self._creator)["onCreate"] = onCreate
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._held is None:
            vars(self._creator).pop("onCreate", None)
        else:
            vars(self._creator)["onCreate"] = self._held

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
            return backend  # for whoever asked to complain about
        index = len(self.backends)
        self.backends.append(weakref.ref(backend))
        for name in CALLBACKS:
            vars(backend)[name] = self._wrapped(index, name, getattr(backend, name))
        return backend

    def _wrapped(self, index: int, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def callback(*args: Any, **kwargs: Any) -> Any:
            storage = args[1] if name in ("onAcquireBuffer", "onReleaseBuffer") and len(args) > 1 else None
            what = args[1][0].name if name == "onCreate" else getattr(args[0], "name", "") if args else ""
            result = self._call(Call(index, name, what, storage, self._within), call, args, kwargs)
            if name == "onCreate":
                return self._created(index, what, result)
            return result

        return callback

    def _created(self, index: int, what: str, execution: Execution | None) -> Execution | None:
        if execution is None:
            self.declined.append(what)
        elif "onExecute" not in vars(execution):  # one object may serve several nodes
            self.executions.append(weakref.ref(execution))
            for name in OF_EXECUTIONS:
                vars(execution)[name] = self._step(index, name, getattr(execution, name))
        return execution

    def _step(self, index: int, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        label = name if name != "close" else "Execution.close"

        def callback(*args: Any) -> Any:
            what = args[1][0].name if len(args) > 1 and args[1] else ""
            return self._call(Call(index, label, what, None, self._within), call, args, {})

        return callback

    @property
    def _within(self) -> str:
        stack: list[str] = getattr(self._local, "stack", [])
        return stack[-1] if stack else ""

    def _call(self, call: Call, do: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append(call)
        stack: list[str] = self._local.__dict__.setdefault("stack", [])
        stack.append(call.name)
        try:
            if self.before is not None:
                self.before(call)
            return do(*args, **kwargs)
        finally:
            stack.pop()
