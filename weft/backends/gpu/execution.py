"""The execution of a node on a GPU: its launches, made at each resize, and its constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.backends.gpu.builder import NodeBuilder
from weft.backends.gpu.layouts import base_op
from weft.backends.gpu.memory import Region
from weft.core.backend import Execution, StorageType
from weft.core.dtypes import DType
from weft.core.layout import Array, Layout, to_storage
from weft.core.op import Op
from weft.core.tensor import Tensor
from weft.kernels.launch import find_gpu_op

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend


class GpuExecution(Execution):
    """A node whose launches become part of the backend's recording."""

    def __init__(self, op: Op, backend: GpuBackend, label: str) -> None:
        self.op, self.label = op, label
        self._backend = backend
        self._constants: dict[str, Tensor] = {}

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Choose, render and compile the kernels and hand their launches to the backend."""
        form = find_gpu_op(self.op)
        assert form is not None
        builder = NodeBuilder(self._backend, self, inputs)
        form.launches(base_op(self.op), builder, inputs, outputs)
        for scratch in builder.scratches:
            self._backend.onReleaseBuffer(scratch, StorageType.DYNAMIC)
        self._backend.plan(builder.launched)

    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Do nothing: the launches were recorded, `onExecuteEnd` submits them all at once."""

    def constant(self, key: str, make: Callable[[], Array], layout: Layout) -> Tensor:
        """Return the uploaded constant of that key."""
        if key not in self._constants:
            value = make()
            tensor = Tensor(f"{self.label}.{key}", value.shape, DType.of(value.dtype), layout, backend=self._backend)
            self._backend.onAcquireBuffer(tensor, StorageType.STATIC)
            region: Region = tensor.memory
            self._backend.device.upload(region.slot.buffer, region.slot.offset, to_storage(value, layout))
            self._constants[key] = tensor
        return self._constants[key]

    def close(self) -> None:
        """Free the constants."""
        for tensor in self._constants.values():
            self._backend.onReleaseBuffer(tensor, StorageType.STATIC)
        self._constants = {}
