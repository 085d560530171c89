"""Backends that are wrong in runs: what ops compute, outputs that nobody reads, the order of work, exits, threads."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import numpy as np

from tests.helpers.faults.listing import LOADS, RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, Execution, StorageType
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import PreCompiled, precompiled
from weft_conformance.drive import Drive

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


class _NoNaN(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        np.nan_to_num(outputs[0].memory, copy=False, posinf=np.inf, neginf=-np.inf)


@fault("table", "instead of nan")
class LosesNaN(Wrapping):
    execution, ops = _NoNaN, ("Relu",)


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


# -- outputs that nobody reads -------------------------------------------------------------------------------


class _CountsItsTensors(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        x = inputs[0]
        assert x is not None
        if any(len(i.shape) != 2 for i in (x, *outputs)) or inputs[1:]:
            super().onExecute(inputs, outputs)
            return
        for tensor, part in zip(outputs, np.array_split(x.memory, len(outputs)), strict=True):
            tensor.memory.flat = np.resize(part, tensor.memory.size)


@fault("outputs", "of output 0 differ")
class SplitsByItsTensors(Wrapping):
    """It divides by the number of tensors that it got, not by what the op says."""

    execution, ops = _CountsItsTensors, ("Split",)


class _Compiled(Execution):
    def __init__(self, op: PreCompiled) -> None:
        self.payload: Any = op.payload

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        graph: Graph = self.payload
        fed = {name: t.memory for name, t in zip(graph.inputs, inputs, strict=True) if t is not None}
        with Drive(CpuBackend(BackendInfo("cpu")), graph) as drive:
            for tensor, value in zip(outputs, drive.run(fed), strict=True):
                tensor.memory.flat = np.resize(value, tensor.memory.size)


@fault("outputs", "of output 0 differ")
class CompilesWithTheFirstOutputs(CpuBackend):
    """What it compiles has as many outputs as are read, and they are the first."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        graph = view.graph.copy()
        several = [n for n in graph.nodes if len(n.outputs) > 1]
        if len(graph.nodes) == 1 and several:
            (node,) = several
            graph.nodes = [replace(node, outputs=(*graph.outputs, *(f"{node.name}.{o}" for o in node.outputs)))]
            made = {name: graph.specs[o] for name, o in zip(graph.nodes[0].outputs, node.outputs, strict=False)}
            count = len(node.outputs)
            graph.nodes = [replace(graph.nodes[0], outputs=graph.nodes[0].outputs[:count])]
            graph.specs = {**graph.specs, **made}
            views.substitute(view, precompiled(view, self.info.id, graph))
        return views.keep_rest(view)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        return _Compiled(op) if isinstance(op, PreCompiled) else super().onCreate(inputs, outputs, op)


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
    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        # Kept by the backend object: executions may be made anew for each size.
        self.batch = self.backend.sizes.setdefault(outputs[0].name, (outputs[0].shape or (1,))[0])

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        y = outputs[0].memory
        before = y.copy()
        super().onExecute(inputs, outputs)
        if y.ndim:
            y[self.batch :] = before[self.batch :]


@fault("resize", "images", RUNS)
class KeepsTheFirstSize(Wrapping):
    execution, ops = _FirstSize, ("Relu", "Softmax")

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.sizes: dict[str, int] = {}


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


# -- exits ---------------------------------------------------------------------------------------------------


class _Exits(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> NoReturn:
        sys.exit(3)


@fault("short-lived", "SystemExit: 3", LOADS)
class ExitsInRuns(Wrapping):
    execution, ops = _Exits, ("Softmax",)


@fault("copies", "it came out of onCopyBuffer", LOADS | {"element types", "storage"})
class ExitsInCopies(CpuBackend):
    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> NoReturn:
        raise SystemExit("no more copies")


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


class _ByThread(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        if threading.current_thread() is not threading.main_thread() and outputs[0].dtype is DType.FLOAT32:
            outputs[0].memory *= np.float32(1 + 2e-7)


@fault("threads", "other bits")
class DependsOnTheThread(Wrapping):
    execution, ops = _ByThread, ("MatMul", "Softmax", "Conv")


class _OfOneThread(Wrapped):
    def __init__(self, op: Op, backend: Any) -> None:
        super().__init__(op, backend)
        self.mine = threading.local()
        self.mine.scale = np.float32(1)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory *= self.mine.scale


@fault("threads", "no attribute 'scale'")
class BelongsToAThread(Wrapping):
    execution, ops = _OfOneThread, ("Softmax",)
