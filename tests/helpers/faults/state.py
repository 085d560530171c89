"""Backends that keep, share or reuse what they may not: constants, memory, plans, numbers of an earlier run."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tests.helpers.faults.listing import COMPUTES, RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo, StorageType
from weft.core.graph.layout import Array, Layout
from weft.core.graph.tensor import Tensor


class _PacksInPlace(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        weights = inputs[1]
        assert weights is not None
        owner = self.backend.packed.setdefault(id(weights), outputs[0].name)
        if weights.constant is not None and owner != outputs[0].name:
            kept = weights.memory.copy()
            weights.memory[...] = np.flip(kept)
            super().onExecute(inputs, outputs)
            weights.memory[...] = kept
            return
        super().onExecute(inputs, outputs)


@fault("inputs", "one constant of two nodes", COMPUTES | RUNS)
class PacksAConstantForOneReader(Wrapping):
    """It packs a constant where it lies, for the first node that reads it; the second sees packed numbers."""

    execution, ops = _PacksInPlace, ("Add", "Mul", "Sub", "MatMul", "Max", "Div")

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.packed: dict[int, str] = {}


class _InSecondInput(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        second = inputs[1]
        assert second is not None
        if second.constant is None and second.shape == outputs[0].shape and inputs[0] is not second:
            second.memory[...] = outputs[0].memory


@fault("networks", "differ", COMPUTES | RUNS)
class ComputesInItsSecondInput(Wrapping):
    """It computes a difference where its second input lies, which others may read later."""

    execution, ops = _InSecondInput, ("Add", "Sub", "Mul")


@fault("inputs", "that is read late", COMPUTES | RUNS)
class SharesMemoryOfAReleasedInput(Wrapping):
    """A reshaped value lies where its input does, and goes when that is written again."""

    ops = ("Reshape", "Flatten", "Unsqueeze", "Squeeze", "Identity")

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.given: dict[Tensor, Tensor] = {}

    def onResizeBegin(self) -> None:
        self.given = {}
        super().onResizeBegin()

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Any) -> Any:
        made = Wrapped(op, self)
        run, resize = made.onExecute, made.onResize
        is_view = op.type in self.ops

        def onResize(sources: Inputs, results: Outputs) -> None:
            if is_view and sources[0] is not None:
                self.given[results[0]] = sources[0]
            resize(sources, results)

        def onExecute(sources: Inputs, results: Outputs) -> None:
            kept = [(t, t.memory.copy()) for t in sources if t in self.given]
            for tensor, _ in kept:
                source = self.given[tensor]
                if source.dtype is tensor.dtype:
                    tensor.memory[...] = source.memory.reshape(tensor.memory.shape)
            run(sources, results)

        vars(made)["onExecute"], vars(made)["onResize"] = onExecute, onResize
        return made


class _Borders(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        y = outputs[0].memory
        before = y.copy()
        super().onExecute(inputs, outputs)
        if getattr(self.op, "mode", "") == "constant" and len(inputs) == 2:
            was_zero = y == 0
            y[was_zero] = before[was_zero]


@fault("networks", "differ", COMPUTES | RUNS)
class AssumesThatBordersAreZero(Wrapping):
    """It copies the middle of a padded value, into memory that others have used."""

    execution, ops = _Borders, ("Pad",)


class _ByCount(Wrapped):
    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onResize(inputs, outputs)
        shape = outputs[0].shape
        self.plan = self.backend.plans.setdefault((outputs[0].name, int(np.prod(shape))), shape)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        y = outputs[0].memory
        if self.plan != y.shape and len(self.plan) == y.ndim:
            axes = sorted(range(y.ndim), key=lambda k: y.shape[k])
            y[...] = np.ascontiguousarray(y.transpose(axes)).reshape(y.shape)


@fault("networks", "differ", COMPUTES | RUNS)
class KeepsPlansByTheirElements(Wrapping):
    """A plan that it made for as many elements serves, whatever their shape."""

    execution, ops = _ByCount, ("Relu", "Conv", "MaxPool", "AveragePool", "Softmax", "Add")

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.plans: dict[Any, tuple[int, ...]] = {}


class _Poisoned(Wrapped):
    scratch: Array | None = None

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        y = outputs[0].memory
        if y.dtype.kind != "f":
            return
        if self.scratch is not None and self.scratch.shape == y.shape:
            y += self.scratch * 0
        self.scratch = y.copy()


@fault("table", "after a NaN", COMPUTES | RUNS)
class MultipliesScratchByZero(Wrapping):
    """It begins a sum with its scratch memory times zero, which stays NaN after one NaN."""

    execution, ops = _Poisoned, ("Conv", "MatMul", "Gemm", "ReduceSum", "AveragePool", "Relu", "Softmax")


@fault("copies", "stored as", frozenset())
class CopiesOneImageOfRank3(CpuBackend):
    """It knows one image of three axes, whatever the layout."""

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        super().onCopyBuffer(src, dst)
        if dst.backend is None and len(dst.shape) == 3 and dst.shape[0] > 1 and dst.layout is not Layout.NCHW:
            dst.memory[1:] = dst.memory[:1]


class _WritesWhatItImports(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        for tensor in inputs:
            if tensor is not None and tensor in self.backend.imported:
                tensor.memory[...] = 0


@fault("imports", "was written to", frozenset())
class WritesImportedMemory(Wrapping):
    """It uses an input as scratch, though another object's nodes read it too."""

    execution = _WritesWhatItImports

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.imported: set[Tensor] = set()

    def canImport(self, source: Backend) -> bool:
        return isinstance(source, CpuBackend)

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        tensor.backend, tensor.memory = self, source.memory
        self.imported.add(tensor)
        return True


@fault("threads", "differ", frozenset())
class FreesWithTheFirstSession(CpuBackend):
    """The first session that is closed frees the constants of all."""

    every: ClassVar[list[CpuBackend]] = []

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.every.append(self)

    def close(self) -> None:
        if self in self.every:
            self.every.remove(self)
        for other in self.every:
            for tensor, slot in other._slots.items():
                if slot.storage is StorageType.STATIC:
                    tensor.memory[...] = np.zeros((), tensor.dtype.numpy)
        super().close()
