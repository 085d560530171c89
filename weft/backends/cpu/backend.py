"""The CPU backend: every op's numpy reference, in planned memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.backends.cpu.pipeline import CpuPipeline
from weft.core.contract.backend import (
    Backend,
    BackendCreator,
    BackendInfo,
    BackendOption,
    DeviceInfo,
    Execution,
    ForwardType,
    Recorded,
    StorageType,
)
from weft.core.contract.engine import Engine
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Layout
from weft.core.graph.op import Filler, Op, WritingOp
from weft.core.graph.tensor import Tensor
from weft.core.host.host_backend import HostBackend
from weft.core.host.parallel_copy import cores
from weft.core.host.threads import can_limit_blas, use_threads
from weft.core.memory.buffer_manager import Slot
from weft.core.passes.moves import RESHAPES
from weft.core.placement.optimized_network import PreCompiled


class ReshapeExecution(Recorded):
    """Keep the elements of the first input in their order: the result lies where the input does, or is copied."""

    any_shape = True

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Have the result lie where the input does, if the backend can; then runs skip the node.

        In a profiled session they do not: every node of the host is an event.
        """
        (result,), source = outputs, inputs[0]
        assert source is not None
        backend, run = result.backend, self._copy
        if isinstance(backend, CpuBackend) and result.dtype is source.dtype and backend.share(result, source):
            run = self._rest if backend.info.profiling is not None else super().onExecute
        self.onExecute = run  # type: ignore[method-assign]

    def close(self) -> None:
        """Forget what runs call: it holds this object, which would stay until a collection."""
        self.__dict__.pop("onExecute", None)

    def _rest(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Do nothing, as a node that is timed."""

    def _copy(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Copy; the inputs that gave the shape are not read."""
        assert inputs[0] is not None
        np.copyto(outputs[0].memory, inputs[0].memory.reshape(outputs[0].shape), casting="no")


class ReferenceExecution(Execution):
    """Run an op's numpy reference and put the results into the output tensors."""

    any_shape = True

    def __init__(self, op: Op) -> None:
        self.op = op
        self._fill: Filler | None = getattr(op.reference, "fill", None)

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Prepare nothing: numpy plans within the call."""

    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Compute the reference, in the memory of the outputs if it can; all tensors of this backend lie as NCHW."""
        given = [t.memory if t is not None else None for t in inputs]
        if self._fill is not None and self._fill(self.op, [t.memory for t in outputs], *given):
            return
        results = evaluate(self.op, given)
        for tensor, value in zip(outputs, results, strict=False):
            memory = tensor.memory
            if value.dtype is memory.dtype and value.shape == memory.shape:
                memory[...] = value  # a third of what `copyto` takes for a small array
            else:
                np.copyto(memory, value.reshape(tensor.shape), casting="no")


class WritingExecution(Execution):
    """Write the new elements of the result: into what it copies of the first input, unless it lies there."""

    any_shape = True

    def __init__(self, op: WritingOp) -> None:
        self.op = op

    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Copy what is not there yet, and write."""
        source, result = inputs[0], outputs[0].memory
        assert source is not None
        if source.memory is not result:
            np.copyto(result, source.memory, casting="no")
        self.op.write(result, *(t.memory if t is not None else None for t in inputs[1:]))


class CpuBackend(HostBackend, Engine):
    """Numpy on the host. Constants are the model's own arrays, so that all sessions of a model have one copy."""

    pipeline_type = CpuPipeline
    takes_open_sizes = True
    keeps_state = True
    copies_constants = False

    def __init_subclass__(cls, **named: object) -> None:
        """Give a subclass constants in STATIC memory, as any backend of its own has, unless it says otherwise."""
        super().__init_subclass__(**named)
        if "copies_constants" not in vars(cls):
            cls.copies_constants = True

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self._threads = int(info.options.get("threads", 1)) or cores()
        self._sharing: dict[Slot, int] = {}
        """How many tensors that are not released yet lie in a slot, by the slots in which several were put."""

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return None: every op has a reference, but for what another backend compiled."""
        foreign = isinstance(op, PreCompiled) and op.backend != self.info.id and self.find_creator(op.type) is None
        return f"{op.backend} compiled it for itself" if isinstance(op, PreCompiled) and foreign else None

    def why_not_optimized(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why no reference runs the node as it is; a creator answers for its op."""
        if self.find_creator(op.type) is not None:
            return super().why_not_optimized(inputs, outputs, op)
        packed = [t for t in (*inputs, *outputs) if t is not None and t.layout is not Layout.NCHW]
        if packed:
            return f"{packed[0].name!r} lies as {packed[0].layout.value}; the CPU computes in NCHW"
        return CpuBackend.why_not(self, inputs, outputs, op) or super().why_not_optimized(inputs, outputs, op)

    def onCreate(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> Execution | None:
        """Return the execution a creator makes, or else the op's reference."""
        made = super().onCreate(inputs, outputs, op)
        if made is not None:
            return made
        if isinstance(op, WritingOp) and op.in_place:
            return WritingExecution(op)
        return ReshapeExecution() if op.type in RESHAPES else ReferenceExecution(op)

    def onExecuteBegin(self) -> None:
        """Take the threads of the option for what this thread computes."""
        use_threads(self._threads)

    def onExecuteEnd(self) -> None:
        """Compute with one thread again."""
        use_threads(1)

    def notes(self) -> Sequence[str]:
        """Return what is not as the options and the configuration ask."""
        alone = self._threads > 1 and not can_limit_blas()
        return [*super().notes(), *([BLAS_NOTE] if alone else [])]

    @property
    def reads_late(self) -> bool:
        """Tell whether all executions ask their tensors for the memory in each run, as ours do."""
        return type(self) is CpuBackend and not CpuBackend._creators

    # -- memory ------------------------------------------------------------------------------------------

    def share(self, tensor: Tensor, source: Tensor) -> bool:
        """Have an output lie where an input does, which the node copies: called in the node's `onResize`.

        False if they have different bytes, or the input is a constant or in another backend's memory.
        """
        own, held = self._slots.get(tensor), self._slots.get(source)
        if own is held and own is not None:
            return True  # since the last plan, which was kept
        if own is None or held is None or own.storage.stays or held.storage.stays:
            return False
        if tensor.nbytes != source.nbytes or not self._memory.withdraw(own):
            return False
        self._slots[tensor] = held
        self._sharing[held] = self._sharing.get(held, 1) + 1
        return True

    def shares(self, tensor: Tensor) -> bool:
        """Tell whether another tensor of this plan lies where this one does, after `share`."""
        return self._slots.get(tensor) in self._sharing

    def refit(self, tensors: Sequence[Tensor]) -> bool:
        """Give the tensors, whose sizes have changed, places in the last plan if it has room; no other one moves."""
        sizes: dict[Slot, int] = {}
        for tensor in tensors:
            slot = self._slots.get(tensor)
            if slot is None:
                return False
            sizes[slot] = tensor.nbytes
        apart = any(slot.storage is StorageType.DYNAMIC_SEPERATE for slot in sizes)
        moved = [
            (tensor, slot)
            for tensor, slot in self._slots.items()
            if slot in sizes or (apart and slot.storage is StorageType.DYNAMIC_SEPERATE)
        ]
        # Tensors that share a slot must still be of one size.
        if any(tensor.nbytes != sizes.get(slot, slot.nbytes) for tensor, slot in moved):
            return False
        if not self._memory.refit(sizes):
            return False
        if apart:
            for tensor, _ in moved:
                tensor.memory = None  # frees the old buffer before there is a new one
            self._memory.renew_separate()
        for tensor, slot in moved:
            self._bind(tensor, slot)
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Free the array according to its storage type, once no other tensor lies there."""
        slot = self._slots.get(tensor)
        others = self._sharing.get(slot, 1) - 1 if slot is not None else 0
        if slot is not None and others:
            self._sharing[slot] = others
            return True
        return super().onReleaseBuffer(tensor, storage_type)

    def onClearBuffer(self) -> bool:
        """Free everything except STATIC and STATE memory."""
        self._sharing.clear()
        return super().onClearBuffer()


BLAS_NOTE = (
    "convolutions have the threads of numpy's own library; pip install threadpoolctl, and they have those of the option"
)


class CpuCreator(BackendCreator):
    """Makes CPU backends; there is always one CPU."""

    id = "cpu"
    forward_type = ForwardType.CPU
    options: Sequence[BackendOption] = (
        BackendOption(
            "threads", 1, "How many threads compute a node; 0 is one for each core. Products of matrices have those of "
            "numpy's library.", least=0,
        ),
    )

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a CPU backend."""
        return CpuBackend(info)

    def devices(self) -> list[DeviceInfo]:
        """Return the one CPU."""
        return [DeviceInfo("cpu", 0, "numpy", f"numpy {np.__version__}", software=True)]
