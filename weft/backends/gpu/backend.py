"""The backend of every GPU API: one class, over a `GpuDevice`.

A pipeline becomes one recording: uploads of its inputs, the launches of its nodes by dependency level,
downloads of its outputs. `onResizeEnd` seals it; a run is one submit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from weft.backends.gpu.builder import NodeBuilder, PlannedLaunch
from weft.backends.gpu.device import Binding, CopyCommand, GpuBuffer, LaunchCommand, MemoryKind
from weft.backends.gpu.fusion import can_fuse
from weft.backends.gpu.layouts import View, assign_layouts, base_op, find_views
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.schedule import Access, schedule
from weft.backends.gpu.support import why_not
from weft.core.backend import Backend, BackendInfo, Execution, StorageType
from weft.core.dtypes import DType
from weft.core.graph import Graph, depths
from weft.core.layout import Array, Layout, convert, storage_shape, storage_size, to_storage
from weft.core.memory import BufferManager, Slot
from weft.core.op import Op
from weft.core.optimize.fuse import fuse_epilogues
from weft.core.tensor import Tensor
from weft.errors import BackendError
from weft.kernels.launch import find_gpu_op
from weft.kernels.source import KernelSource
from weft.ops.relayout import Relayout, launch_relayout


@dataclass(eq=False, slots=True)
class Region:
    """The memory of one tensor: a slot, shared by the views of one root."""

    slot: Slot
    first: int = 0
    blocks: int = 0

    def binding(self) -> Binding:
        """Return the bytes of the whole slot; only after the plan is made."""
        return Binding(self.slot.buffer, self.slot.offset, self.slot.nbytes)


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
            stored = to_storage(value, layout)
            self._backend.device.upload(region.slot.buffer, region.slot.offset, stored)
            self._constants[key] = tensor
        return self._constants[key]

    def close(self) -> None:
        """Free the constants."""
        for tensor in self._constants.values():
            self._backend.onReleaseBuffer(tensor, StorageType.STATIC)
        self._constants = {}


@dataclass
class _Recording:
    handle: Any = None
    running: bool = False
    launches: list[PlannedLaunch] = field(default_factory=list)
    uploads: list[tuple[GpuBuffer, Tensor]] = field(default_factory=list)
    downloads: list[tuple[GpuBuffer, Tensor]] = field(default_factory=list)


class GpuBackend(Backend):
    """Run a pipeline on a GPU device."""

    copies_constants = False

    def __init__(self, info: BackendInfo, runtime: GpuRuntime) -> None:
        super().__init__(info)
        self.runtime, self.device = runtime, runtime.device
        self._memory = BufferManager(
            self.device.allocate,
            self.device.free,
            alignment=self.device.caps.offset_alignment,
            static=(runtime.static.take, runtime.static.give),
        )
        self._views: dict[str, View] = {}
        self._roots: dict[str, tuple[Slot, int]] = {}
        self._root_bytes: dict[str, int] = {}
        self._depth: dict[str, int] = {}
        self._level = 0
        self._dying: list[Slot] = []
        self._recording = _Recording()
        self._profile = False

    # -- support and rewriting -----------------------------------------------------------------------------

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why this device cannot run the node, or None."""
        if self.find_creator(op.type) is not None:
            return super().why_not(inputs, outputs, op)
        return why_not(inputs, outputs, op, self.device.caps)

    def onCreate(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> Execution | None:
        """Return the execution a creator makes, or else the op's own launches."""
        created = super().onCreate(inputs, outputs, op)
        if created is None and find_gpu_op(op) is not None:
            return GpuExecution(op, self, outputs[0].name)
        return created

    def optimize(self, graph: Graph) -> Graph:
        """Fuse element-wise steps, choose layouts, and find values that need no memory of their own."""
        graph = assign_layouts(fuse_epilogues(graph, can_fuse))
        self._depth = depths(graph)
        # Side by side in the order means side by side in the memory plan, and so on the device.
        graph.nodes.sort(key=lambda node: self._depth[node.outputs[0]])
        self._views = find_views(graph)
        self._root_bytes = {
            v.root: self._bytes(graph, v.root) for v in self._views.values()
        }
        return graph

    @staticmethod
    def _bytes(graph: Graph, name: str) -> int:
        spec = graph.specs[name]
        return storage_size(spec.dims, graph.layouts.get(name, Layout.NCHW)) * spec.dtype.itemsize

    # -- memory ----------------------------------------------------------------------------------------------

    def root_name(self, tensor: Tensor) -> str:
        """Return the name of the value whose memory the tensor lies in."""
        view = self._views.get(tensor.name)
        return view.root if view else tensor.name

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor a slot, or its place in the slot of its root."""
        tensor.backend = self
        if self._depth.get(tensor.name, self._level) != self._level:
            self._level = self._depth[tensor.name]
            self._bury()
        view = self._views.get(tensor.name)
        root = view.root if view else tensor.name
        if storage_type is StorageType.STATIC or (view is None and root not in self._root_bytes):
            tensor.memory = Region(self._memory.acquire(tensor.nbytes, storage_type))
            return True
        slot, users = self._roots.get(root) or (self._memory.acquire(self._root_bytes[root], storage_type), 0)
        self._roots[root] = (slot, users + 1)
        tensor.memory = Region(slot, view.first if view else 0, view.blocks if view else 0)
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Release the tensor's slot; one that views share is released by the last of them."""
        region: Region | None = tensor.memory
        if region is None:
            return False
        root = self.root_name(tensor)
        if storage_type is not StorageType.STATIC and root in self._roots:
            slot, users = self._roots[root]
            self._roots[root] = (slot, users - 1)
            if users > 1:
                return True
        if storage_type is StorageType.DYNAMIC and tensor.name in self._depth:
            self._dying.append(region.slot)
        else:
            self._memory.release(region.slot)
        return True

    def _bury(self) -> None:
        """Release what died in the level before: nodes of one level must not write each other's inputs."""
        for slot in self._dying:
            self._memory.release(slot)
        self._dying = []

    def place_of(self, tensor: Tensor, name: str) -> dict[str, int]:
        """Return the constants by which a kernel finds a c4 argument: blocks in the root, first block, pixels."""
        region: Region = tensor.memory
        _, c, *rest = tensor.shape
        own = -(-c // 4)
        return {
            f"{name}_C4T": region.blocks or own,
            f"{name}_C4O": region.first,
            f"{name}_HW": prod(rest),
            f"{name}_C": c,
        }

    # -- resize ----------------------------------------------------------------------------------------------

    def onResizeBegin(self) -> None:
        """Begin a new recording and a new memory plan."""
        self._drop_recording()
        self._level = 0
        self._memory.begin()

    def plan(self, launches: Sequence[PlannedLaunch]) -> None:
        """Add launches to the recording of this pipeline."""
        self._recording.launches += launches

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        """Return the device's kernel."""
        return self.device.compile(source, values)

    def onMapInput(self, tensor: Tensor) -> Array | None:
        """Return staging memory whose content each run uploads."""
        return self._stage(tensor, MemoryKind.UPLOAD, self._recording.uploads)

    def onMapOutput(self, tensor: Tensor) -> Array | None:
        """Return staging memory into which each run downloads."""
        return self._stage(tensor, MemoryKind.DOWNLOAD, self._recording.downloads)

    def _stage(self, tensor: Tensor, kind: MemoryKind, into: list[tuple[GpuBuffer, Tensor]]) -> Array | None:
        if not tensor.nbytes or tensor.layout is not Layout.NCHW:
            return None
        buffer = self.device.allocate(tensor.nbytes, kind)
        into.append((buffer, tensor))
        assert buffer.host is not None
        return buffer.host[: tensor.nbytes].view(tensor.dtype.numpy).reshape(tensor.shape)

    def onAllocateBuffer(self) -> bool:
        """Allocate the arena of this pipeline."""
        self._bury()
        self._memory.allocate()
        return True

    def onResizeEnd(self) -> None:
        """Record everything: addresses are known now."""
        r = self._recording
        accesses = [_upload(buffer, tensor) for buffer, tensor in r.uploads]
        accesses += [_access(launch) for launch in r.launches]
        accesses += [_download(buffer, tensor) for buffer, tensor in r.downloads]
        r.handle = self.device.record(schedule(accesses), profile=self._profile)

    # -- run -------------------------------------------------------------------------------------------------

    def onExecuteBegin(self) -> None:
        """Wait for the run before, whose staging memory this one writes."""
        self.onWaitFinish()

    def onExecuteEnd(self) -> None:
        """Submit the recording; the device works on while the caller goes on."""
        self._recording.running = True
        self.device.submit(self._recording.handle)

    def onWaitFinish(self) -> bool:
        """Wait for the last submit."""
        if self._recording.running:
            self.device.wait(self._recording.handle)
            self._recording.running = False
        return True

    # -- copies ----------------------------------------------------------------------------------------------

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy to, from or within the device; conversions within it run on it."""
        self.onWaitFinish()
        if src.backend is self and dst.backend is self:
            self._copy_inside(src, dst)
        elif dst.backend is self:
            stored = convert(src.memory, src.shape, src.layout, dst.layout, dst.dtype.numpy)
            binding = self._whole(dst)
            self.device.upload(binding.buffer, binding.offset, np.ascontiguousarray(stored))
        elif src.backend is self:
            binding = self._whole(src)
            stored = np.empty(storage_shape(src.shape, src.layout), src.dtype.numpy)
            self.device.download(binding.buffer, binding.offset, stored)
            converted = convert(stored, src.shape, src.layout, dst.layout, dst.dtype.numpy)
            np.copyto(dst.memory, converted.reshape(dst.storage_shape))
        else:
            raise BackendError("onCopyBuffer got two tensors of other backends", why=f"{src.name!r} to {dst.name!r}")

    def _whole(self, tensor: Tensor) -> Binding:
        region: Region = tensor.memory
        if region.slot.buffer is None:
            raise BackendError(f"tensor {tensor.name!r} has no memory", why="it was not acquired, or was cleared")
        if region.blocks and region.blocks != tensor.storage_shape[1]:
            raise BackendError(f"tensor {tensor.name!r} lies inside another and cannot be copied by itself")
        return region.binding()

    def _copy_inside(self, src: Tensor, dst: Tensor) -> None:
        if src.layout is dst.layout and src.dtype is dst.dtype:
            a, b = self._whole(src), self._whole(dst)
            command = CopyCommand(
                Binding(a.buffer, a.offset, src.nbytes), Binding(b.buffer, b.offset, src.nbytes), "copy"
            )
            commands = schedule([Access(command, (a,), (b,))])
        else:
            execution = GpuExecution(Relayout(dst.layout, dst.dtype), self, f"copy {src.name}")
            builder = NodeBuilder(self, execution, [src])
            launch_relayout(builder, src, dst)
            commands = schedule([_access(launch) for launch in builder.launched])
        handle = self.device.record(commands)
        try:
            self.device.submit(handle)
            self.device.wait(handle)
        finally:
            self.device.release(handle)

    # -- end -------------------------------------------------------------------------------------------------

    def _drop_recording(self) -> None:
        self.onWaitFinish()
        r, self._recording = self._recording, _Recording()
        if r.handle is not None:
            self.device.release(r.handle)
        for buffer, _ in (*r.uploads, *r.downloads):
            self.device.free(buffer)

    def onClearBuffer(self) -> bool:
        """Free the recording and all memory that is not STATIC."""
        self._drop_recording()
        self._memory.clear()
        self._roots.clear()
        self._dying = []
        return True

    def statistics(self) -> Mapping[str, int]:
        """Return bytes, launches and levels of this pipeline."""
        arena = self._memory.arena
        launches = len(self._recording.launches)
        return {"arena_bytes": arena.size, "arena_live_peak": arena.live_peak(), "launches": launches}

    def close(self) -> None:
        """Free everything of this pipeline; the device stays open."""
        self.onClearBuffer()
        self._memory.close()


def _upload(buffer: GpuBuffer, tensor: Tensor) -> Access:
    region: Region = tensor.memory
    target = Binding(region.slot.buffer, region.slot.offset, tensor.nbytes)
    source = Binding(buffer, 0, tensor.nbytes)
    return Access(CopyCommand(source, target, f"upload {tensor.name}"), (source,), (target,))


def _download(buffer: GpuBuffer, tensor: Tensor) -> Access:
    region: Region = tensor.memory
    source = Binding(region.slot.buffer, region.slot.offset, tensor.nbytes)
    target = Binding(buffer, 0, tensor.nbytes)
    return Access(CopyCommand(source, target, f"download {tensor.name}"), (source,), (target,))


def _touched(tensor: Tensor) -> Binding:
    """Return the bytes that belong to the tensor; of a channel view over several images, the whole root."""
    region: Region = tensor.memory
    whole = region.binding()
    if not region.blocks or tensor.shape[0] != 1:
        return whole
    start = region.first * prod(tensor.storage_shape[2:]) * tensor.dtype.itemsize
    return Binding(whole.buffer, whole.offset + start, tensor.nbytes)


def _access(launch: PlannedLaunch) -> Access:
    bindings = tuple(t.memory.binding() for t in (*launch.reads, *launch.writes))
    command = LaunchCommand(launch.kernel, bindings, launch.grid, launch.label)
    # STATIC memory is never written by a launch, so it takes no part in the search for hazards.
    reads = tuple(_touched(t) for t in launch.reads if t.memory.slot.storage is not StorageType.STATIC)
    return Access(command, reads, tuple(_touched(t) for t in launch.writes))
