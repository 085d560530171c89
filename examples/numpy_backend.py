"""A backend in one file, for an accelerator that numpy stands in for.

"Acme" has memory of its own and one queue. It runs plain convolutions, Relu and Add, and says of every
other node why it does not take it: those go to the next device. docs/add-a-backend.md explains each part.

    python numpy_backend.py model.onnx
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

import weft
from weft import Backend, BackendCreator, BackendInfo, DeviceInfo, DType, Execution, Op, StorageType, Tensor
from weft.extend import Array, BufferManager, DeviceError, OutOfMemory, Slot, convert
from weft.ops.conv import Conv

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
Work = tuple[str, Callable[[], object]]


class AcmeDevice:
    """The open accelerator, which all sessions share: its memory, and the queue that it works through."""

    def __init__(self, memory: int = 256 << 20) -> None:
        self.memory, self.used = memory, 0
        self.queue = ThreadPoolExecutor(1)

    def allocate(self, nbytes: int) -> Array:
        """Return memory of the accelerator."""
        if self.used + nbytes > self.memory:
            why = f"{self.used:,} of {self.memory:,} bytes are in use"
            raise OutOfMemory(f"{nbytes:,} bytes cannot be allocated", where="acme", why=why)
        self.used += nbytes
        return np.empty(nbytes, np.uint8)

    def free(self, buffer: Array) -> None:
        """Take memory back."""
        self.used -= buffer.nbytes


def array(tensor: Tensor) -> Array:
    """Return what the accelerator holds for a tensor; only after the memory plan is made."""
    slot: Slot = tensor.memory
    stored: Array = slot.buffer[slot.offset : slot.offset + tensor.nbytes].view(tensor.dtype.numpy)
    return stored.reshape(tensor.storage_shape)


class AcmeBackend(Backend):
    """The accelerator as one pipeline sees it."""

    def __init__(self, info: BackendInfo, device: AcmeDevice) -> None:
        super().__init__(info)
        self.device = device
        self._memory = BufferManager(device.allocate, device.free)
        self._work: list[Work] = []
        self._running: Future[None] | None = None

    # -- memory: BufferManager knows the storage types and makes the plan --------------------------------

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor a slot; within a resize its place is only planned."""
        tensor.backend, tensor.memory = self, self._memory.acquire(tensor.nbytes, storage_type)
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Take the slot back; the storage type it was acquired with says what that means."""
        self._memory.release(tensor.memory)
        return True

    def onClearBuffer(self) -> bool:
        """Free all that is not STATIC."""
        self.onWaitFinish()
        self._memory.clear()
        return True

    def onResizeBegin(self) -> None:
        """From now on acquires and releases are recorded."""
        self._memory.begin()

    def onAllocateBuffer(self) -> bool:
        """Pack what was recorded into one arena and allocate it."""
        self._memory.allocate()
        return True

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy between host and accelerator or inside it; `convert` changes layout and element type."""
        self.onWaitFinish()
        stored = array(src) if src.backend is self else src.memory
        target = array(dst) if dst.backend is self else dst.memory
        np.copyto(target, convert(stored, src.shape, src.layout, dst.layout, dst.dtype.numpy))

    def close(self) -> None:
        """Free all of this pipeline, STATIC memory too; the device stays open for others."""
        super().close()
        self._memory.close()

    # -- runs: executions put work into the queue, onExecuteEnd starts it ---------------------------------

    def enqueue(self, name: str, work: Callable[[], object]) -> None:
        """Note what the accelerator will do in this run."""
        self._work.append((name, work))

    def onExecuteBegin(self) -> None:
        """Wait for the run before, and begin a new list of work."""
        self.onWaitFinish()
        self._work = []

    def onExecuteEnd(self) -> None:
        """Start the work and return at once."""
        self._running = self.device.queue.submit(_run_all, self._work)

    def onWaitFinish(self) -> bool:
        """Wait for the work; what went wrong in it is raised here."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
        return True

    # -- support ---------------------------------------------------------------------------------------------

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        """Refuse element types the accelerator does not have, then ask the op's creator."""
        for t in (*inputs, *outputs):
            if t is not None and t.dtype is not DType.FLOAT32:
                return f"Acme computes in float32 alone; {t.name!r} is {t.dtype.value}"
        return super().why_not(inputs, outputs, op)


def _run_all(work: Sequence[Work]) -> None:
    for name, do in work:
        try:
            do()
        except Exception as e:
            raise DeviceError(f"the accelerator failed in {name}", why=f"{type(e).__name__}: {e}") from e


@AcmeBackend.creator("Conv")
class AcmeConv(Execution):
    """A convolution as a matrix product over windows of the padded input."""

    def __init__(self, inputs: Inputs, outputs: Outputs, op: Conv, backend: AcmeBackend) -> None:
        self.op, self.backend = op, backend

    @staticmethod
    def why_not(inputs: Inputs, outputs: Outputs, op: Conv, backend: AcmeBackend) -> str | None:
        """Accept two spatial dimensions and no groups."""
        if op.group != 1:
            return f"Acme has no grouped convolution, and this one has {op.group} groups"
        rank = len(outputs[0].shape) - 2
        return None if rank == 2 else f"Acme convolves in two dimensions, and this is {rank}-dimensional"

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Take the geometry, and scratch memory for the padded input until this node is done."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        self.window = self.op.window(x.shape, w.shape)
        shape = (*x.shape[:2], *self.window.padded)
        self.padded = Tensor(f"{outputs[0].name}.padded", shape, x.dtype)
        self.backend.onAcquireBuffer(self.padded, StorageType.DYNAMIC)
        self.backend.onReleaseBuffer(self.padded, StorageType.DYNAMIC)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Put the convolution into the queue; it runs after `onExecuteEnd`."""
        self.backend.enqueue(outputs[0].name, lambda: self._compute(inputs, outputs[0]))

    def _compute(self, inputs: Inputs, y: Tensor) -> None:
        x, w, *bias = (array(t) for t in inputs if t is not None)
        padded, window = array(self.padded), self.window
        padded[...] = 0
        window.crop(padded)[...] = x
        patches = np.lib.stride_tricks.sliding_window_view(padded, window.extent, (2, 3))
        (sy, sx), (dy, dx) = window.strides, window.dilations
        rows, columns = window.outputs
        patches = patches[:, :, : rows * sy : sy, : columns * sx : sx, ::dy, ::dx]
        array(y)[...] = np.moveaxis(np.tensordot(w, patches, ((1, 2, 3), (1, 4, 5))), 0, 1)
        if bias:
            array(y)[...] += bias[0].reshape(-1, 1, 1)


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0, out=out)


@AcmeBackend.creator("Relu")
@AcmeBackend.creator("Add")
class AcmeElementwise(Execution):
    """One call of the accelerator's library."""

    def __init__(self, inputs: Inputs, outputs: Outputs, op: Op, backend: AcmeBackend) -> None:
        self.function: Callable[..., object] = np.add if op.type == "Add" else _relu
        self.backend = backend

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Prepare nothing."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Put the call into the queue."""
        given = [t for t in inputs if t is not None]
        self.backend.enqueue(
            outputs[0].name, lambda: self.function(*(array(t) for t in given), out=array(outputs[0]))
        )


class AcmeCreator(BackendCreator):
    """Opens the accelerator once and makes a backend for each pipeline."""

    id = "acme"

    def __init__(self) -> None:
        self._device: AcmeDevice | None = None

    def absent(self) -> str | None:
        """Return why the accelerator cannot be used here, or None: numpy is always there."""
        return None

    def devices(self) -> list[DeviceInfo]:
        """Return the one accelerator."""
        return [DeviceInfo("acme", 0, "Acme accelerator", driver=f"numpy {np.__version__}", software=True)]

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend on the open device."""
        self._device = self._device or AcmeDevice()
        return AcmeBackend(info, self._device)

    def close(self) -> None:
        """Close the device."""
        if self._device is not None:
            self._device.queue.shutdown()
            self._device = None


def main(model: str) -> None:
    """Run a model on Acme, and what Acme refuses on the CPU, with random inputs."""
    weft.insertExtraBackendCreator(weft.ForwardType.USER_0, AcmeCreator())
    with weft.load(model, device=["acme", "cpu"]) as session:
        rng = np.random.default_rng(0)
        shapes = {name: [d if isinstance(d, int) else 1 for d in s] for name, s in session.inputs.items()}
        outputs = session.run({name: rng.random(s, np.float32) for name, s in shapes.items()})
        for name, y in zip(session.outputs, outputs, strict=True):
            print(f"{name}: {y.shape}, {y.min():.6g} to {y.max():.6g}")
        print(session.report)


if __name__ == "__main__":
    main(sys.argv[1])
