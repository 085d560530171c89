"""Backends that are wrong in what is large, in what lasts, and in what they keep from a run for the next."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np

from tests.helpers.faults.listing import RUNS, Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, StorageType
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor

# -- from a size on ------------------------------------------------------------------------------------------

PIECE = 1 << 16
"""A staging buffer in bytes, or what 16 bits count."""


class _GathersTheFirstPiece(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        x = inputs[0]
        assert x is not None
        kept = x.memory.copy()
        x.memory.reshape(-1)[PIECE:] = np.zeros((), x.dtype.numpy)
        super().onExecute(inputs, outputs)
        x.memory[...] = kept


@fault("table", "Gather-f32[70001x2]")
class CountsIn16Bits(Wrapping):
    """It counts elements in 16 bits."""

    execution, ops = _GathersTheFirstPiece, ("Gather",)


class _FirstPiece(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory.reshape(-1)[PIECE:] = 0


@fault("large", "Softmax of float32", frozenset({"threads"}))
class StopsAtAPiece(Wrapping):
    """It launches as many groups as 16 bits count."""

    execution, ops = _FirstPiece, ("Softmax",)


@fault("copies", "393,420 bytes as NCHW float32", frozenset({"storage", "large", "threads"}))
class CopiesThroughOneBuffer(CpuBackend):
    """It copies through a buffer that it fills once."""

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        kept = dst.memory.copy()
        super().onCopyBuffer(src, dst)
        if dst.nbytes > PIECE:
            dst.memory.reshape(-1)[PIECE // dst.dtype.itemsize :] = kept.reshape(-1)[PIECE // dst.dtype.itemsize :]


@fault("storage", "of tensors that take 393,420 bytes each", frozenset({"large", "threads"}))
class PlacesIn16Bits(CpuBackend):
    """It keeps where a tensor lies in 16 bits."""

    def onAllocateBuffer(self) -> bool:
        done = super().onAllocateBuffer()
        for tensor, slot in self._slots.items():
            if slot.storage is StorageType.DYNAMIC and slot.buffer is not None and slot.offset >= PIECE:
                slot.offset %= PIECE
                self._bind(tensor, slot)
        return done


# -- what is kept --------------------------------------------------------------------------------------------


class _SameAsBefore(Wrapped):
    def __init__(self, op: Op, backend: Any) -> None:
        super().__init__(op, backend)
        self.kept: tuple[Any, Array] | None = None

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onResize(inputs, outputs)
        self.kept = None

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        first = self.first(inputs)
        if self.kept is not None and self.kept[0] == first:
            outputs[0].memory[...] = self.kept[1]
            return
        super().onExecute(inputs, outputs)
        self.kept = (first, outputs[0].memory.copy())

    @staticmethod
    def first(inputs: Inputs) -> Any:
        x = inputs[0]
        assert x is not None
        return x.memory.reshape(-1)[:1].tolist()


@fault("changes", "a late element of the input", RUNS)
class KeepsAResult(Wrapping):
    """It does not compute again while the first element of its input is the same."""

    execution, ops = _SameAsBefore, ("Relu", "Softmax", "Conv", "MatMul")


class _SameButForTheEnd(_SameAsBefore):
    @staticmethod
    def first(inputs: Inputs) -> Any:
        x = inputs[0]
        assert x is not None
        return x.memory.reshape(-1)[:-1].tobytes()


@fault("changes", "a late element of the input", frozenset({"large"}))
class KeepsWhatDiffersAtTheEnd(Wrapping):
    """It compares all elements but the last."""

    execution, ops = _SameButForTheEnd, ("Relu",)


class _PackedWeights(Wrapped):
    packed: ClassVar[dict[Any, Array]] = {}

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        weights = inputs[1]
        assert weights is not None
        if weights.memory.size:
            key = (self.op.type, weights.shape, weights.dtype, weights.memory.reshape(-1)[0].item())
            weights.memory[...] = self.packed.setdefault(key, weights.memory.copy())
        super().onExecute(inputs, outputs)


@fault("changes", "of two networks whose constants differ in one element")
class SharesPackedWeights(Wrapping):
    """Sessions share weights that are packed once for each first element."""

    execution, ops = _PackedWeights, ("MatMul",)


# -- what lasts ----------------------------------------------------------------------------------------------


class _InPieces(Wrapped):
    scratch: ClassVar[Array] = np.zeros(1 << 19, np.float32)
    written: ClassVar[threading.Condition] = threading.Condition()
    writer: ClassVar[int] = 0
    """The thread that wrote `scratch` last."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        y = outputs[0].memory.reshape(-1)
        if PIECE < y.size <= self.scratch.size and y.dtype == np.float32:
            me = threading.get_ident()
            with self.written:
                others = _InPieces.writer not in (0, me)
                _InPieces.writer = me
                np.copyto(self.scratch[: y.size], y)
                self.written.notify_all()
                if others:
                    # The second pass of a device takes long; here it lasts until another thread comes.
                    self.written.wait_for(lambda: _InPieces.writer != me, timeout=0.1)
                np.copyto(y, self.scratch[: y.size])


@fault("threads", "several sessions with work that lasts")
class SharesScratchOfLargeWork(Wrapping):
    """What is too large for one pass goes through scratch memory of the device, which sessions share."""

    execution = _InPieces


class _NotDoneInTime(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        late = outputs[0].memory.reshape(-1)[PIECE:]
        before = late.copy()
        super().onExecute(inputs, outputs)
        self.backend.late.append((late, late.copy()))
        late[...] = before


@fault("large", "differ", frozenset({"threads"}))
class WaitsTooShort(Wrapping):
    """A wait ends after a time: what lasts longer is not all there, and comes when the next run begins."""

    execution = _NotDoneInTime

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.late: list[tuple[Array, Array]] = []

    def onExecuteBegin(self) -> None:
        arrived, self.late = self.late, []
        for place, numbers in arrived:
            place[...] = numbers
