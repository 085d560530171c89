"""Backends that are wrong in runs: what ops compute, the order of their work, threads."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tests.helpers.faults.listing import LOADS, RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, Execution, StorageType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor

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
