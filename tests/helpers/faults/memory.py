"""Backends that are wrong in their memory: copies, storage, leaks, imports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from tests.helpers.faults.listing import LOADS, RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo, Execution, StorageType
from weft.core.graph.layout import Array, Layout, convert
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor

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


@fault("storage", "onReleaseBuffer of DYNAMIC memory returned False", LOADS)
class AnswersFalse(CpuBackend):
    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        return super().onReleaseBuffer(tensor, storage_type) and storage_type is StorageType.STATIC


@fault("storage", "onAcquireBuffer of DYNAMIC memory returned None", LOADS | {"copies", "element types"})
class AcquiresWithoutAnswer(CpuBackend):
    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> Any:
        super().onAcquireBuffer(tensor, storage_type)


class _ReadsLate(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        constants = [t.constant if t is not None and t.backend is not None else None for t in inputs]
        if self.backend.is_constant(inputs):
            assert all(c is not None for c in constants[1:]), "the host's constant is gone"
        super().onExecute(inputs, outputs)


@fault("limit", "the host's constant is gone")
class ReadsConstantsInRuns(Wrapping):
    """It reads a constant from the host in a run; its memory is no host's, as far as Weft knows."""

    execution, ops, host_memory = _ReadsLate, ("MatMul", "Conv"), False

    def is_constant(self, inputs: Inputs) -> bool:
        slots = [self._slots.get(t) for t in inputs[1:] if t is not None]
        return bool(slots) and all(s is not None and s.storage is StorageType.STATIC for s in slots)

    def canImport(self, source: Backend) -> bool:
        return False

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        stored = convert(src.memory, src.shape, src.layout, dst.layout, dst.dtype.numpy)
        np.copyto(dst.memory, stored.reshape(dst.storage_shape))


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


@fault("leaks", "each session that was closed left")
class KeepsABufferForEachTensor(CpuBackend):
    kept: ClassVar[list[Array]] = []

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        self.kept.append(np.ones(tensor.nbytes, np.uint8))
        return super().onAcquireBuffer(tensor, storage_type)


class _KeepsInputs(Wrapped):
    kept: ClassVar[list[Array]] = []

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.kept.extend(t.memory.copy() for t in inputs if t is not None)
        super().onExecute(inputs, outputs)


@fault("leaks", "each run left")
class KeepsInputsOfRuns(Wrapping):
    execution, ops = _KeepsInputs, ("Softmax",)


# -- imports -------------------------------------------------------------------------------------------------


@fault("imports", "differ")
class ImportsACopy(CpuBackend):
    """It takes what the other object has at the time of the resize, and never looks again."""

    def canImport(self, source: Backend) -> bool:
        return isinstance(source, CpuBackend)

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        tensor.backend, tensor.memory = self, source.memory.copy()
        return True


# -- state ---------------------------------------------------------------------------------------------------


@fault("state", "STATE outlives a clear")
class ClearFreesState(CpuBackend):
    keeps_state = True

    def onClearBuffer(self) -> bool:
        for tensor, slot in self._slots.items():
            if slot.storage is StorageType.STATE:
                tensor.memory[...] = 0
        return super().onClearBuffer()


@fault("state", "from run to run")
class CopiesState(CpuBackend):
    """Its runs write to a copy of the memory that they import."""

    keeps_state = True

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        imported = super().onImportBuffer(tensor, source)
        if tensor.name in ("past", "present"):
            tensor.memory = tensor.memory.copy()
        return imported


@fault("state", "from run to run")
class WritesBesideState(CpuBackend):
    """It takes the input from where it is, and gives the output memory of its own."""

    keeps_state = True

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        if tensor.name == "present":
            return self.onAcquireBuffer(tensor, StorageType.DYNAMIC)
        return super().onImportBuffer(tensor, source)


@fault("state", "before a run, once its network was loaded")
class EmptiesState(CpuBackend):
    """A network begins with zeros in the memory that it writes, whatever another has left there."""

    keeps_state = True

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        if tensor.name == "present":
            source.memory[...] = 0
        return super().onImportBuffer(tensor, source)


@fault("state", "after a network that used it is closed")
class ClosesStateWithItsReader(CpuBackend):
    """It frees what it imported when it is closed."""

    keeps_state = True

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._imported: list[Tensor] = []

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        if tensor.name == "present":
            self._imported.append(source)
        return super().onImportBuffer(tensor, source)

    def close(self) -> None:
        super().close()
        for source in self._imported:
            source.memory[...] = 0
