"""The device contract over a table of C functions: on host memory, or on the library's own buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p

import numpy as np

from weft.core.contract.backend import Backend, BackendInfo, Execution, StorageType
from weft.core.graph.layout import Array, convert
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.host.host_backend import HostBackend
from weft.core.host.tensor_copy import copy_host, copy_tensor, is_host
from weft.core.memory.buffer_manager import BufferManager, Slot
from weft.errors import LESS_MEMORY, BackendError, DeviceError, ExecutionError, InputError, OutOfMemory
from weft.plugins.native import NativeDevice
from weft.plugins.native_abi import CTensor, Message, NodeView

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
Locate = Callable[[Tensor, CTensor], None]


class NativeExecution(Execution):
    """A node that C computes. Its state is created when the shapes are known, and again when they change.

    The state keeps the device open, even when session and creator are closed; nothing keeps the backend object.
    `locate` tells C where a tensor is.
    """

    def __init__(self, op: Op, device: NativeDevice, locate: Locate) -> None:
        self.op = op
        self._device, self._locate = device, locate
        self._message = Message()
        self._state: c_void_p | None = None
        self._view: NodeView

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Have the node prepared for these shapes."""
        self.close()
        self._view = NodeView(inputs, outputs, self.op)
        device, state = self._device, c_void_p()
        with device.lock:
            node = ctypes.byref(self._view.node)
            device.retain()
            status = device.table.create(device.handle, node, ctypes.byref(state), *self._message.clear())
            self._view.hide_constants()
            if status:
                device.release()
            else:
                self._state = state
            self._check(status, "prepare", "create")

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Tell C where the tensors are, and run."""
        device, view, locate = self._device, self._view, self._locate
        for tensor, seen in zip((*inputs, *outputs), (*view.inputs, *view.outputs), strict=True):
            if tensor is not None:
                locate(tensor, seen)
        with device.lock:
            status = device.table.execute(self._state, view.input_array, view.output_array, *self._message.clear())
            self._check(status, "run", "execute")

    def _check(self, status: int, what: str, function: str) -> None:
        if status:
            why = self._message.text() or f"{function} returned {status} and wrote no message"
            fix = "" if self._message.text() else f"let {function} write why it failed"
            what = f"{self._device.name} could not {what} a node of type {self.op.type}"
            raise ExecutionError(what, why=why, fix=fix)

    def close(self) -> None:
        """Have the state freed, once."""
        state, self._state = self._state, None
        if state is not None:
            with self._device.lock:
                try:
                    self._device.wait()
                finally:
                    self._device.table.destroy(state)
                    self._device.release()


class NativeBackend(Backend):
    """What both kinds share: support, executions, the queue and the device."""

    def __init__(self, info: BackendInfo, device: NativeDevice) -> None:
        super().__init__(info)
        self.device = device
        self._is_open = True

    # -- what the kinds differ in --------------------------------------------------------------------------

    @staticmethod
    def locate(tensor: Tensor, seen: CTensor) -> None:
        """Tell C where a tensor is."""
        raise NotImplementedError

    def free_all(self) -> None:
        """Free all memory of this pipeline; nothing uses it any more."""
        raise NotImplementedError

    # -- ops -------------------------------------------------------------------------------------------------

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        """Return the reason of the library, word for word, which is empty where it gave none.

        BackendError if it answers neither 1 nor 0.
        """
        try:
            view = NodeView(inputs, outputs, op)
        except TypeError as e:
            return str(e)
        message, device = Message(), self.device
        with device.lock:
            takes = device.table.supports(device.handle, ctypes.byref(view.node), *message.clear())
        if takes not in (0, 1):
            raise BackendError(
                f"{self.info.device} did not say whether it takes a node of type {op.type}",
                where="supports",
                why=f"it returned {takes}",
                fix="return 1, or 0 and a reason",
            )
        return None if takes else message.text()

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        """Return the execution of a node that the library takes."""
        return NativeExecution(op, self.device, self.locate) if self.why_not(inputs, outputs, op) is None else None

    # -- runs ----------------------------------------------------------------------------------------------------

    def onExecuteBegin(self) -> None:
        """Do nothing: each execution runs, or is queued, when it is called."""

    def onExecuteEnd(self) -> None:
        """Do nothing: `onWaitFinish` waits for queued work."""

    def onWaitFinish(self) -> bool:
        """Wait for the queue, if the library has one."""
        self.device.wait()
        return True

    def close(self) -> None:
        """Free all memory of this pipeline, and give up the device."""
        if self._is_open:
            self._is_open = False
            with self.device.lock:
                try:
                    self.device.wait()
                finally:
                    try:
                        self.free_all()
                    finally:
                        self.device.release()


class NativeHostBackend(NativeBackend, HostBackend):
    """Tensors are numpy arrays; C gets their addresses.

    C gets no strides, so each run first copies imported arrays that are not contiguous.
    """

    def __init__(self, info: BackendInfo, device: NativeDevice) -> None:
        super().__init__(info, device)
        self._spread: dict[Tensor, Tensor] = {}
        """The source of each tensor that a run copies."""

    @staticmethod
    def locate(tensor: Tensor, seen: CTensor) -> None:
        """Tell C the address."""
        seen.data = tensor.memory.ctypes.data

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        """Use the array of another tensor, or a copy where C could not read it."""
        if not super().onImportBuffer(tensor, source):
            return False
        if source.memory.flags.c_contiguous and source.memory.flags.aligned:
            return True
        self._spread[tensor] = source
        return self.onAcquireBuffer(tensor, StorageType.DYNAMIC_SEPERATE)

    def onExecuteBegin(self) -> None:
        """Copy the arrays that are not contiguous; each execution runs, or is queued, when it is called."""
        for tensor, source in self._spread.items():
            copy_host(source, tensor)

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Take the array back as the storage type says."""
        if storage_type is StorageType.STATIC:
            self.onWaitFinish()
        return super().onReleaseBuffer(tensor, storage_type)

    def onClearBuffer(self) -> bool:
        """Free all that is not STATIC."""
        self.onWaitFinish()
        self._spread.clear()
        return super().onClearBuffer()

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy between arrays, converting layout and element type."""
        self.onWaitFinish()
        super().onCopyBuffer(src, dst)

    def free_all(self) -> None:
        """Drop all arrays."""
        self._spread.clear()
        HostBackend.close(self)


class BufferBackend(NativeBackend):
    """Tensors are pieces of buffers that the library allocates; the host's copies go through its functions."""

    def __init__(self, info: BackendInfo, device: NativeDevice) -> None:
        super().__init__(info, device)
        self._memory = BufferManager(self.allocate, self.free)

    def allocate(self, nbytes: int) -> int:
        """Return a buffer of the device."""
        with self.device.lock:
            buffer: int | None = self.device.table.allocate(self.device.handle, nbytes)
        if not buffer:
            raise OutOfMemory(
                f"{nbytes:,} bytes cannot be allocated",
                where=self.info.device,
                why="the library's allocate returned NULL",
                fix=LESS_MEMORY,
            )
        return buffer

    def free(self, buffer: int) -> None:
        """Give a buffer back to the device; the caller keeps the device idle."""
        with self.device.lock:
            self.device.table.free(self.device.handle, buffer)

    @staticmethod
    def locate(tensor: Tensor, seen: CTensor) -> None:
        """Tell C the buffer and the offset."""
        slot: Slot = tensor.memory
        seen.data, seen.offset = slot.buffer, slot.offset

    def _slot(self, tensor: Tensor) -> Slot | None:
        return tensor.memory if isinstance(tensor.memory, Slot) and tensor.backend is self else None

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor a piece of a buffer, at once or in the plan."""
        tensor.backend, tensor.memory = self, self._memory.acquire(tensor.nbytes, storage_type)
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Take the memory back as the storage type says."""
        slot = self._slot(tensor)
        if slot is None:
            return False
        if storage_type is StorageType.STATIC:
            with self.device.idle():
                self._memory.release(slot)
        else:
            self._memory.release(slot)
        return True

    def onResizeBegin(self) -> None:
        """Begin to record lifetimes."""
        self._memory.begin()

    def onAllocateBuffer(self) -> bool:
        """Allocate the arena."""
        self._memory.allocate()
        return True

    def onClearBuffer(self) -> bool:
        """Free all that is not STATIC."""
        with self.device.idle():
            self._memory.clear()
        return True

    def statistics(self) -> Mapping[str, int]:
        """Return the bytes of the arena, of its lower bound, and of constants."""
        return self._memory.statistics()

    def free_all(self) -> None:
        """Free all buffers."""
        self._memory.close()

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy within the device, or between it and anything else; layout and element type are converted."""
        if src.shape != dst.shape:
            what = f"cannot copy {src.name!r} {src.shape} to {dst.name!r} {dst.shape}"
            raise InputError(what, why="the shapes differ", fix="copy between tensors of one shape")
        stored = convert(self._read(src), src.shape, src.layout, dst.layout, dst.dtype.numpy)
        self._write(dst, np.ascontiguousarray(stored).reshape(dst.storage_shape))

    def _read(self, src: Tensor) -> Array:
        if src.backend is not self and is_host(src):
            memory: Array = src.memory
            return memory
        host = Tensor.empty(src.shape, src.dtype, src.layout, src.name)
        if src.backend is self:
            slot: Slot = src.memory
            self._move("download", slot, host.memory)
        else:
            copy_tensor(src, host)
        stored: Array = host.memory
        return stored

    def _write(self, dst: Tensor, stored: Array) -> None:
        if dst.backend is self:
            self._move("upload", dst.memory, stored)
        else:
            copy_tensor(Tensor(dst.name, dst.shape, dst.dtype, dst.layout, stored), dst)

    def _move(self, function: str, slot: Slot, host: Array) -> None:
        if not host.nbytes:
            return
        device, message = self.device, Message()
        call = getattr(device.table, function)
        with device.idle():
            status = call(device.handle, slot.buffer, slot.offset, host.ctypes.data, host.nbytes, *message.clear())
        device.check(status, message, DeviceError, f"{function} failed on {device.name}", function)
