"""Backends and creators made for tests: recording, asynchronous, failing, absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.backends.cpu.backend import CpuBackend
from weft.core.backend import (
    Backend,
    BackendCreator,
    BackendInfo,
    DeviceInfo,
    Execution,
    ForwardType,
    StorageType,
)
from weft.core.op import Op
from weft.core.registry import DeviceName, registry
from weft.core.tensor import Tensor

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
Call = tuple[str, ...]


class Creator(BackendCreator):
    """Makes backends of a class; its devices and its absence are given."""

    def __init__(
        self,
        made: type[Backend] = CpuBackend,
        *,
        id: str = "",
        forward_type: ForwardType | None = None,
        auto_rank: int | None = None,
        devices: Sequence[bool] = (True,),
        absent: str | None = None,
    ) -> None:
        self.made, self.id, self.forward_type, self.auto_rank = made, id, forward_type, auto_rank
        self._software, self._absent = devices, absent
        self.backends: list[Backend] = []
        self.closed = False

    def onCreate(self, info: BackendInfo) -> Backend:
        self.backends.append(self.made(info))
        return self.backends[-1]

    def absent(self) -> str | None:
        return self._absent

    def devices(self) -> list[DeviceInfo]:
        if self._absent:
            return []
        return [DeviceInfo(self.id, k, f"{self.id}-{k}", software=s) for k, s in enumerate(self._software)]

    def close(self) -> None:
        self.closed = True


@contextmanager
def registered(creator: BackendCreator, key: DeviceName = "acme") -> Iterator[BackendCreator]:
    """Register a creator for the time of a test."""
    registry.insert(key, creator)
    try:
        yield creator
    finally:
        registry.remove(key)


class RecordedExecution(Execution):
    """Tells its backend about every call, and lets another execution do the work."""

    def __init__(self, inner: Execution, backend: RecordingBackend, name: str) -> None:
        self.inner, self.backend, self.name = inner, backend, name

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.note("onResize", self.name)
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.note("onExecute", self.name)
        self.inner.onExecute(inputs, outputs)

    def close(self) -> None:
        self.backend.note("Execution.close", self.name)


class RecordingBackend(CpuBackend):
    """The CPU backend, with every callback noted in `calls`."""

    log: list[Call] = []

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.note("construct")

    @classmethod
    def note(cls, *call: str) -> None:
        cls.log.append(call)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        self.note("onCreate", outputs[0].name)
        inner = super().onCreate(inputs, outputs, op)
        return RecordedExecution(inner, self, outputs[0].name) if inner else None

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.note("onAcquireBuffer", tensor.name, storage_type.name)
        return super().onAcquireBuffer(tensor, storage_type)

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.note("onReleaseBuffer", tensor.name, storage_type.name)
        return super().onReleaseBuffer(tensor, storage_type)

    def onClearBuffer(self) -> bool:
        self.note("onClearBuffer")
        return super().onClearBuffer()

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        self.note("onCopyBuffer", dst.name)
        super().onCopyBuffer(src, dst)

    def onExecuteBegin(self) -> None:
        self.note("onExecuteBegin")

    def onExecuteEnd(self) -> None:
        self.note("onExecuteEnd")

    def onResizeBegin(self) -> None:
        self.note("onResizeBegin")
        super().onResizeBegin()

    def onResizeEnd(self) -> None:
        self.note("onResizeEnd")
        super().onResizeEnd()

    def onAllocateBuffer(self) -> bool:
        self.note("onAllocateBuffer")
        return super().onAllocateBuffer()

    def onWaitFinish(self) -> bool:
        self.note("onWaitFinish")
        return super().onWaitFinish()

    def close(self) -> None:
        self.note("close")
        super().close()


class _Queued(Execution):
    def __init__(self, inner: Execution, backend: AsynchronousBackend, name: str) -> None:
        self.inner, self.backend, self.name = inner, backend, name

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.queue.append((self, inputs, outputs))


class AsynchronousBackend(CpuBackend):
    """Does its work in `onWaitFinish` only; the op in `fails` then raises what is given there."""

    host_memory = False
    fails: dict[str, Exception] = {}

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.queue: list[Any] = []
        self.finished = 0

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        inner = super().onCreate(inputs, outputs, op)
        return _Queued(inner, self, op.type) if inner else None

    def onExecuteBegin(self) -> None:
        self.queue.clear()

    def onWaitFinish(self) -> bool:
        work, self.queue = self.queue, []
        for execution, inputs, outputs in work:
            if execution.name in self.fails:
                raise self.fails[execution.name]
            execution.inner.onExecute(inputs, outputs)
        self.finished += bool(work)
        return True

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        self.onWaitFinish()
        ours = [t for t in (src, dst) if t.backend is self]
        for tensor in ours:
            tensor.backend = None
        try:
            super().onCopyBuffer(src, dst)
        finally:
            for tensor in ours:
                tensor.backend = self
