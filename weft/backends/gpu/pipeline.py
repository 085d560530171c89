"""The pipeline of a GPU: what goes in and out passes host memory that the recording knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.backends.gpu.device.device import MemoryKind
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.backends.gpu.memory.slots import SMALLEST
from weft.backends.gpu.packing import Packing
from weft.backends.gpu.recording.chunked_upload import worthwhile
from weft.core.buffers.buffer import Buffer
from weft.core.contract.backend import StorageType
from weft.core.contract.error_context import blame
from weft.core.graph.layout import Array, Layout
from weft.core.graph.tensor import Tensor
from weft.core.host.parallel_copy import copy_converted, copy_into
from weft.core.host.tensor_copy import copy_tensor, is_host
from weft.core.placement.optimized_network import Part
from weft.core.session.arguments import Given
from weft.core.session.overflow import OverflowWatch
from weft.core.session.pipeline import Pipeline, show_stored

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend

SMALL_OUTPUT = 1 << 18
"""Most bytes of an output that kernels write to host memory themselves, which saves a copy and a barrier. It is a
guess: nobody measured from which size on a copy is faster."""


class GpuPipeline(Pipeline):
    """Has runs read inputs from host memory, and leave outputs there, without callbacks.

    In memory mode LIMIT, which has no room for that, values are copied as those of any device.
    """

    backend: GpuBackend
    _read: frozenset[str] = frozenset()
    """The values of this part that kernels read."""
    _written: frozenset[str] = frozenset()
    """The inputs in whose memory outputs lie."""
    _whole: frozenset[str] = frozenset()
    """The inputs and outputs that are no views of others, so that they may lie elsewhere in a run."""

    # -- resize ----------------------------------------------------------------------------------------

    def resize(self, part: Part, imports: Mapping[str, Tensor], fetched: Collection[str], *, first: bool) -> None:
        """Prepare for the part's shapes."""
        lowered = part.lowered
        assert lowered is not None and isinstance(lowered.plan, GpuPlan)
        self._read, self._written = lowered.plan.read, frozenset(lowered.graph.aliases.values())
        with Packing(self.backend.wanted_constants(lowered.plan)):
            super().resize(part, imports, fetched, first=first)
        self._whole = frozenset(name for name in self.mapped if self.backend.slots.is_whole(self.tensor(name)))

    def _stage(self, tensor: Tensor, *, is_input: bool) -> None:
        if self._may_stage(tensor):
            with blame(self.device, f"{tensor.name!r} got no host memory"):
                self.mapped[tensor.name] = self._staged_input(tensor) if is_input else self._staged_output(tensor)

    def _may_stage(self, tensor: Tensor) -> bool:
        return not self.thrifty and tensor.nbytes > 0 and tensor.layout is Layout.NCHW

    def _staged_input(self, tensor: Tensor) -> Array:
        """Return host memory that kernels read, or that each run uploads."""
        device = self.backend.device
        direct = device.computes_on_uploads and not worthwhile(device, tensor.nbytes)
        direct = direct and tensor.name not in self._written  # kernels must not write to what the caller lent
        if direct and self.backend.slots.is_whole(tensor):
            return self._in_place(tensor, MemoryKind.UPLOAD)
        return self.backend.recording.stage(tensor, MemoryKind.UPLOAD)

    def _staged_output(self, tensor: Tensor) -> Array:
        """Return host memory that kernels write, or to which each run downloads."""
        stores = self.backend.device.stores_to_host and tensor.nbytes <= SMALL_OUTPUT
        if stores and self._only_written(tensor):
            return self._in_place(tensor, MemoryKind.DOWNLOAD)
        return self.backend.recording.stage(tensor, MemoryKind.DOWNLOAD)

    def _only_written(self, tensor: Tensor) -> bool:
        """Tell whether kernels write a value in memory of its own, and no kernel reads it."""
        slot = tensor.memory.slot
        made_here = tensor.name in self.backend.makers and slot.storage is StorageType.DYNAMIC and slot.buffer is None
        return made_here and self.backend.slots.is_whole(tensor) and tensor.name not in self._read

    def _in_place(self, tensor: Tensor, kind: MemoryKind) -> Array:
        array, buffer = self.backend.recording.map_in_place(tensor, kind, SMALLEST)
        self.backend.slots.settle(tensor, buffer)
        return array

    @property
    def wants_other_sizes(self) -> bool:
        """Tell whether kernels are made for sizes, so that `show` says which they should read as they run."""
        return self.backend.wants_other_sizes

    def show(self, other: Part) -> None:
        """Learn which constants of kernels vary."""
        if self.wants_other_sizes and other.lowered is not None:
            with self._callbacks.blamed("compare"):
                self.backend.compare(other.lowered)

    # -- run -------------------------------------------------------------------------------------------

    def fill(self, name: str, value: Given) -> int:
        """Have kernels read a buffer of the device in place; upload arrays, lent ones from where they are.

        An upload may start at once: the previous run is done, and the same thread starts the next one, unless something
        fails first.
        """
        if isinstance(value, Buffer) and self._binds_input(name, value):
            return 0
        staging = self.mapped.get(name)
        if staging is None:
            return super().fill(name, value)
        array: Array = value.value() if isinstance(value, Buffer) else value
        try:
            taken = self.backend.recording.fill(self.tensors[name], array)
            if not taken:
                copy_into(staging, array)
        except Exception:
            with self._copying(name):
                raise
        return 0 if taken and self.backend.recording.reads_in_place(name) else array.nbytes

    def _binds_input(self, name: str, buffer: Buffer) -> bool:
        """Have the run take an input from a buffer, if that is on the device: kernels read it there, if they can."""
        tensor, source = self.tensor(name), buffer.tensor
        if not self._is_here(source, tensor):
            return False
        if name in self.mapped:
            in_place = name not in self._written and name in self._whole
            self.backend.recording.bind(tensor, source.memory.binding(), in_place=in_place)
        else:
            with self._copying(name):
                self.backend.copy_inside(source, tensor)
        return True

    def _binds_output(self, name: str, buffer: Buffer, *, late: bool) -> bool:
        """Have the run leave an output in a buffer of the device; `late`: after it has read everything."""
        tensor, target = self.tensor(name), buffer.tensor
        if name not in self.mapped or not self._is_here(target, tensor):
            return False
        in_place = not late and name in self._whole
        self.backend.recording.bind(tensor, target.memory.binding(), in_place=in_place)
        return True

    def _is_here(self, tensor: Tensor, like: Tensor) -> bool:
        """Tell whether a tensor is on the device, and has the type of another."""
        owner = tensor.backend
        is_here = isinstance(owner, type(self.backend)) and owner.device is self.backend.device
        return is_here and tensor.dtype is like.dtype

    def take(self, name: str, source: Tensor) -> None:
        """Copy an input from a tensor of another pipeline; on the host it may lie as the device wants it."""
        tensor = self.tensor(name)
        as_wanted = source.dtype is tensor.dtype and source.layout is tensor.layout is Layout.NCHW
        if name in self.mapped and as_wanted and is_host(source):
            self.fill(name, source.memory)
        else:
            copy_tensor(source, self.port(name))

    def port(self, name: str) -> Tensor:
        """Return the tensor of an input or output, in its lasting host array if it has one."""
        tensor, mapped = self.tensor(name), self.mapped.get(name)
        return tensor if mapped is None else Tensor(name, tensor.shape, tensor.dtype, tensor.layout, mapped)

    def _store(self, targets: Mapping[str, Given], read: Sequence[Buffer]) -> list[str]:
        """Have the run that has begun leave outputs in buffers, lent arrays, and memory that the device reaches."""
        stored = []
        for name, target in targets.items():
            if isinstance(target, Buffer):
                done = self._binds_output(name, target, late=any(target is buffer for buffer in read))
            else:
                done = self.backend.recording.store(self.tensor(name), target)
            if done:
                stored.append(name)
        return stored

    def fetch(self, name: str, target: Given) -> int:
        """Copy an output from where the run has left it."""
        staging = self.mapped.get(name)
        if staging is None:
            tensor = self.tensor(name)
            if not isinstance(target, Buffer) or not self._is_here(target.tensor, tensor):
                return super().fetch(name, target)
            with self._copying(name):
                self.backend.copy_inside(tensor, target.tensor)
            return 0
        if isinstance(target, Buffer):
            target.take(self.port(name))
        else:
            (copy_into if target.dtype == staging.dtype else copy_converted)(target, staging)
        return target.nbytes

    def lend(self, tensor: Tensor, *, is_input: bool) -> Array | None:
        """Return an array in pinned memory, from which runs upload or to which they download."""
        if not self._may_stage(tensor):
            return None
        kind = MemoryKind.STREAM if is_input else MemoryKind.DOWNLOAD
        array = self.backend.runtime.heap.lend(max(tensor.nbytes, SMALLEST), kind)[: tensor.nbytes]
        return array.view(tensor.dtype.numpy).reshape(tensor.shape)

    def reach(self, memory: Array) -> object:
        """Have runs download to the session's memory themselves, if the device can."""
        return self.backend.runtime.heap.adopt(memory)

    # -- a run that is repeated ------------------------------------------------------------------------

    def give(self, name: str, source: Tensor) -> None:
        """Put an input in its lasting host array, or else on the device."""
        with self._copying(name):
            copy_tensor(source, self.port(name))

    def repeat(self, watch: OverflowWatch, *, suspect: bool) -> None:
        """Repeat the run launch by launch, and show what each one stores; see `GpuBackend.repeat`."""
        with blame(self.device, "the run could not be repeated"):
            for stored in self.backend.repeat(suspect):
                show_stored(watch, stored)
