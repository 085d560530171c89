"""Backends that are wrong only with large tensors or with work that takes long."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np

from tests.helpers.faults.listing import Inputs, Outputs, Wrapped, Wrapping, fault
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, StorageType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor

PIECE = 1 << 16
"""A staging buffer in bytes, or what 16 bits count."""

MOST_INPUTS = 8

# -- large tensors -------------------------------------------------------------------------------------------


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


class _FirstInputs(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        axis: Any = self.op.attributes()["axis"]
        behind = sum(x.shape[axis] for x in inputs[MOST_INPUTS:] if x is not None)
        if behind:
            np.moveaxis(outputs[0].memory, axis, 0)[-behind:] = 0


@fault("table", "Concat-")
class ReadsEightInputs(Wrapping):
    """Its kernels have so many arguments."""

    execution, ops, rows = _FirstInputs, ("Concat",), ("many",)


class _FirstChannels(Wrapped):
    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        x, weights = inputs[:2]
        assert x is not None and weights is not None
        kept = weights.memory
        weights.memory = np.where(np.arange(kept.shape[1])[:, None, None] < 256, kept, 0) if kept.ndim == 4 else kept
        super().onExecute(inputs, outputs)
        weights.memory = kept


@fault("table", "Conv-")
class Counts256Channels(Wrapping):
    """It adds up as many channels as eight bits count."""

    execution, ops, rows = _FirstChannels, ("Conv",), ("many",)


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


# -- other sizes ---------------------------------------------------------------------------------------------


class _FirstSides(Wrapped):
    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        # Kept by the backend object: executions may be made anew for each size.
        self.sides = self.backend.sides.setdefault(outputs[0].name, outputs[0].shape[2:])

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        super().onExecute(inputs, outputs)
        for axis, size in enumerate(self.sides, 2):
            np.moveaxis(outputs[0].memory, axis, 0)[size:] = 0


@fault("table", "after its own size", frozenset({"networks", "convolutions"}))
class KeepsTheFirstSides(Wrapping):
    """It knows a change of the batch, and none of heights and widths."""

    execution, ops = _FirstSides, ("Relu", "Softmax")

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.sides: dict[str, tuple[int, ...]] = {}


# -- work that takes long ------------------------------------------------------------------------------------


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
