"""Backends that are right but for one thing, each with the check that must find it and those that may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from weft.backends.cpu.backend import CpuBackend, ReferenceExecution
from weft.conformance.drive import Drive
from weft.core.backend import Backend, BackendInfo, Execution, StorageType
from weft.core.graph import Graph
from weft.core.layout import Array, Layout
from weft.core.op import Op
from weft.core.optimized import PreCompiled
from weft.core.tensor import Tensor
from weft.core.views import OptimizationViews, SubgraphView

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
RUNS = frozenset({
    "imports", "order", "resize", "limit", "determinism", "inputs", "errors", "threads", "short-lived", "leaks",
    "tensors",
})  # fmt: skip
"""Checks that run networks: a fault that spoils every network may show in each."""
LOADS = RUNS | {"table", "outputs", "support", "views"}


@dataclass(frozen=True)
class Fault:
    """A broken backend; the check that must find it; a piece of what is said; other checks that it may spoil."""

    made: type[Backend]
    check: str
    piece: str
    others: frozenset[str] = frozenset()


FAULTS: dict[str, Fault] = {}


def fault(check: str, piece: str, others: frozenset[str] = frozenset()) -> Callable[[type[Backend]], type[Backend]]:
    def register(made: type[Backend]) -> type[Backend]:
        FAULTS[made.__name__] = Fault(made, check, piece, others)
        return made

    return register


class Wrapped(Execution):
    """Does what another execution does; subclasses change a part of it."""

    def __init__(self, op: Op, backend: Any) -> None:
        self.inner, self.op, self.backend = ReferenceExecution(op), op, backend

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onExecute(inputs, outputs)


class Wrapping(CpuBackend):
    """The CPU backend with other executions for some ops (all, if none are named)."""

    execution: ClassVar[type[Wrapped]] = Wrapped
    ops: ClassVar[tuple[str, ...]] = ()

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if self.ops and op.type not in self.ops:
            return super().onCreate(inputs, outputs, op)
        return self.execution(op, self)


# -- copies --------------------------------------------------------------------------------------------------


@fault("copies", "padding lanes")
class WrongPaddingLanes(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        super().onCopyBuffer(src, dst)
        if dst.layout is Layout.NC4HW4 and len(dst.shape) > 1 and dst.shape[1] % 4:
            dst.memory[:, -1, ..., dst.shape[1] % 4 :] = 1


@fault("copies", "stored as")
class TruncatesHalves(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        super().onCopyBuffer(src, dst)
        if src.dtype is not dst.dtype:
            np.trunc(dst.memory, out=dst.memory)


@fault("copies", "instead of", frozenset({"element types"}))
class CopiesNothingInside(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        if not (src.backend is self and dst.backend is self):
            super().onCopyBuffer(src, dst)


@fault("element types", "came back")
class NarrowsIntegers(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        super().onCopyBuffer(src, dst)
        if dst.dtype.value == "int64" and dst.backend is self:
            dst.memory[...] %= 16


# -- storage -------------------------------------------------------------------------------------------------


@fault("storage", "STATIC outlives a clear", RUNS)
class ClearFreesStatic(CpuBackend):
    def onClearBuffer(self) -> bool:
        for tensor, slot in self._slots.items():
            if slot.storage is StorageType.STATIC:
                tensor.memory[...] = 0
        return super().onClearBuffer()


@fault("storage", "STATIC outlives the release", RUNS)
class ReleaseFreesStatic(CpuBackend):
    """A release of STATIC memory gives back the whole pool."""

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        if storage_type is StorageType.STATIC:
            for other, slot in self._slots.items():
                if slot.storage is StorageType.STATIC and other is not tensor:
                    other.memory[...] = np.zeros((), other.dtype.numpy)
        return super().onReleaseBuffer(tensor, storage_type)


@fault("storage", "DYNAMIC_SEPERATE")
class ReusesSeparate(CpuBackend):
    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        kind = StorageType.DYNAMIC if storage_type is StorageType.DYNAMIC_SEPERATE else storage_type
        return super().onAcquireBuffer(tensor, kind)


@fault("storage", "live at one time", LOADS)
class OverlapsLiveTensors(CpuBackend):
    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        return True

    def onAllocateBuffer(self) -> bool:
        done = super().onAllocateBuffer()
        planned = [(t, s) for t, s in self._slots.items() if s.storage is StorageType.DYNAMIC and s.buffer is not None]
        for tensor, slot in planned[1::2]:
            slot.offset = 0
            self._bind(tensor, slot)
        return done


@fault("storage", "onReleaseBuffer of DYNAMIC memory returned False")
class AnswersFalse(CpuBackend):
    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        return super().onReleaseBuffer(tensor, storage_type) and storage_type is StorageType.STATIC


# -- support -------------------------------------------------------------------------------------------------


@fault("table", "the reason is ''", frozenset({"support"}))
class GivesNoReason(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        return "" if op.type == "Softmax" else None


@fault("table", "the reason is 'no'", frozenset({"support"}))
class GivesOneWord(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        return "no" if op.type == "Softmax" else None


@fault("support", "onCreate returned None", frozenset({"table"}))
class RefusesLateWithoutReason(CpuBackend):
    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return None if op.type == "Softmax" else super().onCreate(inputs, outputs, op)


@fault("support", "and then", frozenset({"table"}))
class ChangesItsMind(CpuBackend):
    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._asked = 0

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        self._asked += op.type == "Erf"
        return "it is a bad day for this op" if op.type == "Erf" and self._asked % 2 else None


@fault("support", "why_not changed the layout of output 0", frozenset({"table"}))
class MarksTensors(CpuBackend):
    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        if op.type == "Erf":
            outputs[0].layout = Layout.NHWC
        return None


# -- ops -----------------------------------------------------------------------------------------------------


class _Off(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory *= np.asarray(1.001, outputs[0].dtype.numpy)


@fault("table", "numbers of output 0 differ")
class LiesAboutAnOp(Wrapping):
    """It says that it takes Erf, and computes something else."""

    execution, ops = _Off, ("Erf",)


class _InHalves(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        x = inputs[0]
        assert x is not None
        kept = x.memory.copy()
        x.memory[...] = kept.astype(np.float16)
        super().onExecute(inputs, outputs)
        x.memory[...] = kept


@fault("table", "numbers of output 0 differ")
class ComputesInHalves(Wrapping):
    execution, ops = _InHalves, ("Gelu", "Erf")


class _InPlace(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        x = inputs[0]
        if x is not None and x.shape == outputs[0].shape and x.dtype is outputs[0].dtype:
            x.memory[...] = outputs[0].memory


@fault("inputs", "of two nodes that read the input", RUNS)
class WritesIntoInputs(Wrapping):
    execution, ops = _InPlace, ("Relu", "Add", "Softmax")


class _WritesConstants(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        for tensor in inputs:
            if tensor is not None and tensor.constant is not None:
                tensor.memory += np.asarray(1, tensor.dtype.numpy)


@fault("inputs", "differ", RUNS)
class WritesIntoConstants(Wrapping):
    execution, ops = _WritesConstants, ("Add",)


# -- runs ----------------------------------------------------------------------------------------------------


class _Queued(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.queue.append((self.inner, inputs, outputs))


@fault("order", "differ", LOADS)
class RunsInReverse(Wrapping):
    """It collects the work of a run and does it at the end, the last node first."""

    execution = _Queued

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.queue: list[tuple[Execution, Inputs, Outputs]] = []

    def onExecuteBegin(self) -> None:
        self.queue.clear()

    def onExecuteEnd(self) -> None:
        for execution, inputs, outputs in reversed(self.queue):
            execution.onExecute(inputs, outputs)


@fault("order", "differ", LOADS)
class IsOneRunLate(RunsInReverse):
    """It does the work of a run when the next one begins, and does not wait for it."""

    def onExecuteBegin(self) -> None:
        queue, self.queue = self.queue, []
        for execution, inputs, outputs in queue:
            execution.onExecute(inputs, outputs)

    def onExecuteEnd(self) -> None:
        return None


class _Registered(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        self.backend.done.append((self, inputs, outputs))


@fault("order", "was called within onExecuteEnd")
class RunsTwice(Wrapping):
    """It calls executions by itself, beside the session."""

    execution = _Registered

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.done: list[tuple[Execution, Inputs, Outputs]] = []

    def onExecuteEnd(self) -> None:
        done, self.done = self.done, []
        for execution, inputs, outputs in done[-1:]:
            execution.onExecute(inputs, outputs)


class _Lazy(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        made = self.backend.onCreate(inputs, outputs, self.op) if not self.backend.inside else None
        super().onExecute(inputs, outputs)
        del made


@fault("order", "onCreate")
class CreatesInRuns(Wrapping):
    execution, inside = _Lazy, False


class _Allocates(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        scratch = Tensor("scratch", outputs[0].shape, outputs[0].dtype)
        self.backend.onAcquireBuffer(scratch, StorageType.STATIC)
        super().onExecute(inputs, outputs)
        self.backend.onReleaseBuffer(scratch, StorageType.STATIC)


@fault("order", "onAcquireBuffer scratch was called within onExecute")
class AllocatesInRuns(Wrapping):
    execution = _Allocates


class _Drifting(Wrapped):
    runs = 0

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        self.runs += 1
        if outputs[0].dtype.value == "float32":
            outputs[0].memory *= np.float32(1 + 2e-7 * (self.runs % 2))


@fault("determinism", "other bits", frozenset({"inputs", "threads"}))
class ChangesBetweenRuns(Wrapping):
    execution, ops = _Drifting, ("MatMul", "Softmax", "Conv")


class _FirstSize(Wrapped):
    batch = 0

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.batch = self.batch or (outputs[0].shape or (1,))[0]

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        y = outputs[0].memory
        before = y.copy()
        super().onExecute(inputs, outputs)
        if y.ndim:
            y[self.batch :] = before[self.batch :]


@fault("resize", "images", RUNS)
class KeepsTheFirstSize(Wrapping):
    execution, ops = _FirstSize, ("Relu", "Softmax")


@fault("errors", "not usable afterwards", frozenset())
class StaysBusyAfterAnError(CpuBackend):
    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._half_done = False

    def onExecuteBegin(self) -> None:
        self._spoiled, self._half_done = self._half_done, True

    def onExecuteEnd(self) -> None:
        self._half_done = False

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        super().onCopyBuffer(src, dst)

    def onWaitFinish(self) -> bool:
        if self.__dict__.get("_spoiled"):
            for tensor, slot in self._slots.items():
                if slot.storage is StorageType.DYNAMIC:
                    tensor.memory[...] = 0
        return True


# -- threads -------------------------------------------------------------------------------------------------


class _Scratch(Wrapped):
    """Leaves its result in scratch memory of all sessions; the next step takes it from there."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.backend.flush()
        super().onExecute(inputs, outputs)
        for tensor in outputs:
            SharesScratch.scratch[tensor.shape] = tensor.memory.copy()
            tensor.memory[...] = 0
            self.backend.pending.append(tensor)


@fault("threads", "differ", frozenset({"outputs"}))
class SharesScratch(Wrapping):
    execution = _Scratch
    scratch: ClassVar[dict[tuple[int, ...], Array]] = {}

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.pending: list[Tensor] = []

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        for tensor in pending:
            if tensor.memory is not None:
                tensor.memory[...] = self.scratch[tensor.shape]

    def onExecuteBegin(self) -> None:
        self.pending = []

    def onExecuteEnd(self) -> None:
        self.flush()


# -- leaks ---------------------------------------------------------------------------------------------------


class _Remembered(Wrapped):
    every: ClassVar[list[Execution]] = []

    def __init__(self, op: Op, backend: Any) -> None:
        super().__init__(op, None)
        self.every.append(self)


@fault("leaks", "executions are still there")
class LeaksExecutions(Wrapping):
    execution = _Remembered


class _Hoards(Wrapped):
    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        packed = Tensor("packed", (8,), outputs[0].dtype)
        self.backend.onAcquireBuffer(packed, StorageType.STATIC)


@fault("leaks", "grew with each resize")
class HoardsStatic(Wrapping):
    execution = _Hoards


@fault("leaks", "the device had more of live_bytes")
class HoldsDeviceMemory(CpuBackend):
    """Each object that is closed leaves something on the device, which counts it."""

    device = SimpleNamespace(stats=SimpleNamespace(live_bytes=0))

    def onResizeEnd(self) -> None:
        self.device.stats.live_bytes += 64


# -- optimising ----------------------------------------------------------------------------------------------


@fault("views", "is in none of the lists", LOADS)
class LosesANode(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        if len(view.nodes) > 1:
            views.keep(view.part(view.nodes[1:]))
        return views


@fault("views", "lost output slot", LOADS)
class LosesASlot(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        replacement = view.graph.copy()
        replacement.outputs = []
        views.substitute(view, replacement)
        return views


@fault("views", "changed the graph", LOADS)
class EditsTheView(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        view.graph.nodes[:] = [replace(n, name=f"{n.name}.mine") for n in view.graph.nodes]
        return OptimizationViews().keep_rest(view)


@fault("views", "failed without a reason", LOADS)
class FailsWithoutReason(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        softmax = [n for n in view.nodes if n.op.type == "Softmax"]
        if softmax:
            views.fail(view.part(softmax), "")
        return views.keep_rest(view)


@fault("short-lived", "differ", LOADS)
class ChangesNumbers(CpuBackend):
    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        changed = view.graph.copy()
        for name, value in list(changed.constants.items()):
            if value.dtype == np.float32:
                changed.constants[f"{name}.scaled"] = value * np.float32(1.5)
                changed.specs[f"{name}.scaled"] = changed.specs[name]
        scaled = {n: f"{n}.scaled" for n in view.graph.constants if f"{n}.scaled" in changed.constants}
        changed.nodes = [replace(n, inputs=tuple(scaled.get(i, i) for i in n.inputs)) for n in changed.nodes]
        if scaled:
            views.substitute(view, changed)
        return views.keep_rest(view)


class _Compiled(Execution):
    def __init__(self, op: PreCompiled) -> None:
        self.payload: Any = op.payload

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        return None

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        graph: Graph = self.payload["graph"]
        given = [t for t in inputs if t is not None]
        fed = {name: t.memory for name, t in zip(graph.inputs, given, strict=True)}
        with Drive(CpuBackend(BackendInfo("cpu")), graph) as drive:
            for tensor, value in zip(outputs, drive.run(fed), strict=True):
                tensor.memory[...] = value


@fault("short-lived", "KeyError", LOADS)
class CompilesIntoItself(CpuBackend):
    """What it compiles belongs to the backend object, and goes with it."""

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._compiled: list[dict[str, Graph]] = []

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        graph = view.graph.copy()
        payload = {"graph": graph}
        self._compiled.append(payload)
        results = tuple(graph.specs[o] for o in graph.outputs)
        node = replace(
            graph.nodes[0],
            op=PreCompiled(self.info.id, payload, results),
            inputs=tuple(graph.inputs),
            outputs=tuple(graph.outputs),
        )
        made = Graph(graph.name, list(graph.inputs), list(graph.outputs), [node])
        made.specs = {v: graph.specs[v] for v in (*graph.inputs, *graph.outputs)}
        views.substitute(view, made)
        return views

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return _Compiled(op) if isinstance(op, PreCompiled) else super().onCreate(inputs, outputs, op)

    def close(self) -> None:
        for payload in self._compiled:
            payload.clear()
        super().close()


# -- imports -------------------------------------------------------------------------------------------------


@fault("imports", "differ")
class ImportsACopy(CpuBackend):
    """It takes what the other object has at the time of the resize, and never looks again."""

    def canImport(self, source: Backend) -> bool:
        return isinstance(source, CpuBackend)

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        tensor.backend, tensor.memory = self, source.memory.copy()
        return True


# -- creator -------------------------------------------------------------------------------------------------


@fault("creator", "notes() has")
class NotesNothing(CpuBackend):
    def notes(self) -> Sequence[str]:
        return [""]


