"""Recordings: commands bound once into a command buffer that is submitted many times."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    DeviceCaps,
    GpuBuffer,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.gpu.device.limits import check_copy, check_launch
from weft.backends.vulkan._vk import NULL, Arena, check, create, ffi, lib, vk
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.ptx_kernels import PtxKernel, PtxKernels
from weft.backends.vulkan.submission import Submission
from weft.core.contract.profile import Profiled
from weft.errors import BackendError

_NO_RECORDING = "a recording cannot be made"


class Recording(Submission):
    """One or several command buffers with their descriptor sets, submitted many times."""

    def __init__(
        self,
        context: Context,
        memory: Memory,
        ptx: PtxKernels | None,
        caps: DeviceCaps,
        commands: Sequence[Command],
        profile: Profiled,
        cuts: Sequence[int] = (),
    ) -> None:
        super().__init__(context)
        self._memory, self._ptx = memory, ptx
        self._caps = caps
        self._pool = self._descriptors = self._queries = NULL
        self._sets: dict[tuple[Any, ...], Any] = {}
        self._stamps = _stamps(commands, profile) if context.timestamps else {}
        """The number of the query of each timestamp, by command and whether it is the one behind it."""
        self._each, self._count = profile is True, len(commands)
        self._kernels = [c.kernel for c in commands if isinstance(c, LaunchCommand)]
        """Keeps the kernels alive: a kernel is destroyed with its last reference."""
        self._ran = False
        self._submitted = self._took = 0.0
        """When it was last submitted, by `perf_counter`, and about how long the last run took that was waited for."""
        try:
            self._check(commands)
            self._create_objects()
            self._write_sets(
                [c for c in commands if isinstance(c, LaunchCommand) and not isinstance(c.kernel, PtxKernel)]
            )
            self._record(commands, frozenset(cuts))
            self._prepare_submit(commands)
        except BaseException:  # an interrupt, too: nobody else has these objects
            self.destroy()
            raise

    # -- creating it -------------------------------------------------------------------------------------

    def _check(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, CopyCommand):
                check_copy(command)
            elif isinstance(command, LaunchCommand):
                check_launch(command, command.kernel.name, command.kernel.count, self._caps)

    def _create_objects(self) -> None:
        context = self._context
        self._pool = context.command_pool(0)
        self._buffers: list[Any] = []
        if self._stamps:
            info = self._arena.new(
                "VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=len(self._stamps)
            )
            self._queries = create(lib.vkCreateQueryPool, context.device, info, "VkQueryPool", _NO_RECORDING)

    def _write_sets(self, launches: Sequence[LaunchCommand]) -> None:
        """Create one descriptor set for each distinct list of pieces, all from one pool."""
        unique = {_set_key(c): c for c in launches if c.bindings}
        if not unique:
            return
        arena, device = Arena(), self._context.device
        total = sum(len(c.bindings) for c in unique.values())
        size = arena.new(
            "VkDescriptorPoolSize", type=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=total
        )
        info = arena.new("VkDescriptorPoolCreateInfo", maxSets=len(unique), poolSizeCount=1, pPoolSizes=size)
        make = lib.vkCreateDescriptorPool
        self._descriptors = create(make, device, info, "VkDescriptorPool", _NO_RECORDING)
        layouts = [c.kernel.interface.set_layout for c in unique.values()]
        info = arena.new(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._descriptors,
            descriptorSetCount=len(unique),
            pSetLayouts=layouts,
        )
        sets = self._arena.keep(ffi.new("VkDescriptorSet[]", len(unique)))
        check(lib.vkAllocateDescriptorSets(device, info, sets), _NO_RECORDING)
        pieces = arena.keep(ffi.new("VkDescriptorBufferInfo[]", total))
        writes = arena.keep(ffi.new("VkWriteDescriptorSet[]", len(unique)))
        at = 0
        for i, (key, command) in enumerate(unique.items()):
            self._sets[key] = sets + i
            write = writes[i]
            write.sType = vk.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            write.dstSet = sets[i]
            write.descriptorType = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            # one write covers the consecutive bindings 0, 1, ...
            write.descriptorCount = len(command.bindings)
            write.pBufferInfo = pieces + at
            for piece in command.bindings:
                pieces[at].buffer = piece.buffer.handle.buffer
                pieces[at].offset = piece.offset
                pieces[at].range = max(4, -(-piece.nbytes // 4) * 4)
                at += 1
        lib.vkUpdateDescriptorSets(device, len(unique), writes, 0, NULL)

    def _begin(self) -> Any:
        """Begin another command buffer, and return it."""
        self._commands = target = self._context.command_buffer(self._pool)
        self._buffers.append(target)
        check(lib.vkBeginCommandBuffer(target, Arena().new("VkCommandBufferBeginInfo")), _NO_RECORDING)
        return target

    def _end(self) -> None:
        """End the command buffer: what comes later sees its results."""
        self._context.last_barrier(self._commands)
        check(lib.vkEndCommandBuffer(self._commands), _NO_RECORDING)

    def _record(self, commands: Sequence[Command], cuts: frozenset[int]) -> None:
        target = self._begin()
        if self._stamps:
            lib.vkCmdResetQueryPool(target, self._queries, 0, len(self._stamps))
        bound, met = None, False
        copies = _barriers_by_copies(commands)
        for place, command in enumerate(commands):
            if place in cuts:
                self._end()
                target, bound, met = self._begin(), None, False
            if isinstance(command, BarrierCommand):
                self._context.barrier(target, launches_only=place not in copies)
                met = False
                continue
            self._timestamp(place, behind=False)
            if isinstance(command, CopyCommand):
                self._copy(command)
            elif isinstance(command.kernel, PtxKernel):
                if met and command.kernel.meets_groups:
                    self._context.barrier(target, launches_only=False)
                met = met or command.kernel.meets_groups
                assert self._ptx is not None, "its kernels come from there"
                self._ptx.record(target, command)
            else:
                if command.kernel.pipeline != bound:
                    bound = command.kernel.pipeline
                    lib.vkCmdBindPipeline(target, vk.VK_PIPELINE_BIND_POINT_COMPUTE, bound)
                self._launch(command)
            self._timestamp(place, behind=True)
        self._end()

    def _timestamp(self, command: int, *, behind: bool) -> None:
        """Write the time at which everything so far is finished, if it is wanted there."""
        query = self._stamps.get((command, behind))
        if query is not None:
            stage = vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT
            lib.vkCmdWriteTimestamp(self._commands, stage, self._queries, query)

    def _copy(self, command: CopyCommand) -> None:
        source, target = command.source, command.target
        if source.nbytes:
            region = ffi.new("VkBufferCopy*", (source.offset, target.offset, source.nbytes))
            pair = source.buffer.handle.buffer, target.buffer.handle.buffer
            lib.vkCmdCopyBuffer(self._commands, *pair, 1, region)

    def _launch(self, command: LaunchCommand) -> None:
        if command.bindings:
            lib.vkCmdBindDescriptorSets(
                self._commands,
                vk.VK_PIPELINE_BIND_POINT_COMPUTE,
                command.kernel.interface.layout,
                0,
                1,
                self._sets[_set_key(command)],
                0,
                NULL,
            )
        pushed = command.kernel.pushed
        if pushed:
            layout, stage = command.kernel.interface.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT
            lib.vkCmdPushConstants(self._commands, layout, stage, 0, len(pushed), ffi.from_buffer(pushed))
        lib.vkCmdDispatch(self._commands, *command.grid)

    def _prepare_submit(self, commands: Sequence[Command]) -> None:
        """Build what a submit passes to the driver, and find the buffers to flush before it and invalidate after it."""
        self.take(self._buffers)
        self._written = _incoherent(commands, (MemoryKind.UPLOAD, MemoryKind.STREAM))
        self._read = _incoherent(commands, (MemoryKind.DOWNLOAD,))

    # -- running it --------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Start it; a finished run need not have been waited for, because fences signal in the order of submits."""
        if self.pending and not self.is_done:
            raise BackendError(
                "a recording was submitted while it still runs",
                fix="wait for it first, or record it a second time",
            )
        if self._written:
            self._memory.flush(self._written)
        self.start(counted=True)
        self._submitted, self._ran = perf_counter(), True

    def wait(self) -> None:
        """Wait until it is done; return at once if it was not submitted."""
        if not self.pending:
            return
        waited = self.wait_for(self._submitted + self._took)
        since = perf_counter() - self._submitted
        self._took = since if waited else min(self._took, since)
        if self._read:
            self._memory.invalidate(self._read)

    def timings(self) -> list[float]:
        """Return seconds per command of the last run; barriers take 0.0; empty if not each command was timed."""
        ticks = self._ticks() if self._each else None
        if ticks is None:
            return []
        seconds = [0.0] * self._count
        for command in {command for command, _ in self._stamps}:
            seconds[command] = self._between(ticks, command, command)
        return seconds

    def span(self, first: int, last: int) -> float | None:
        """Return seconds from the start of one command to the end of another in the last run; None if unknown."""
        ticks = self._ticks()
        known = (first, False) in self._stamps and (last, True) in self._stamps
        return None if ticks is None or not known else self._between(ticks, first, last)

    def _between(self, ticks: Any, first: int, last: int) -> float:
        start, end = ticks[self._stamps[first, False]], ticks[self._stamps[last, True]]
        return float(max(0, end - start) * self._context.physical.timestamp_period * 1e-9)

    def _ticks(self) -> Any | None:
        """Return the timestamps of the last run; None if they are unknown."""
        if not self._stamps or not self._ran or self.pending:
            return None
        ticks = ffi.new("uint64_t[]", len(self._stamps))
        flags = vk.VK_QUERY_RESULT_64_BIT
        result = lib.vkGetQueryPoolResults(
            self._context.device, self._queries, 0, len(ticks), ffi.sizeof(ticks), ticks, 8, flags
        )
        if result == vk.VK_NOT_READY:
            return None
        check(result, "the times of a run cannot be read")
        return ticks

    def destroy(self) -> None:
        """Destroy what it holds; it must not be running."""
        device = self._context.device
        super().destroy()
        lib.vkDestroyQueryPool(device, self._queries, NULL)
        lib.vkDestroyDescriptorPool(device, self._descriptors, NULL)
        lib.vkDestroyCommandPool(device, self._pool, NULL)
        self._pool = self._descriptors = self._queries = NULL
        self._kernels = []


def _stamps(commands: Sequence[Command], profile: Profiled) -> dict[tuple[int, bool], int]:
    """Return which timestamps are wanted, numbered: each by its command and whether it is the one behind it."""
    timed = [i for i, c in enumerate(commands) if not isinstance(c, BarrierCommand)] if profile else []
    if profile == "span":
        launches = [i for i in timed if isinstance(commands[i], LaunchCommand)]
        wanted = [*((i, False) for i in launches[:1]), *((i, True) for i in launches[-1:])]
    else:
        wanted = [(i, behind) for i in timed for behind in (False, True)]
    return {stamp: query for query, stamp in enumerate(wanted)}


def _barriers_by_copies(commands: Sequence[Command]) -> set[int]:
    """Return the places of barriers next to a copy: those between which and it there is no other barrier."""
    found: set[int] = set()
    last, copied = -1, False
    for place, command in enumerate(commands):
        if isinstance(command, BarrierCommand):
            if copied:
                found |= {last, place}
            last, copied = place, False
        copied = copied or isinstance(command, CopyCommand)
    return found | ({last} if copied else set())


def _set_key(command: LaunchCommand) -> tuple[Any, ...]:
    pieces = tuple((p.buffer, p.offset, p.nbytes) for p in command.bindings)
    return (command.kernel.interface.count, pieces)


def _incoherent(commands: Sequence[Command], kinds: tuple[MemoryKind, ...]) -> list[GpuBuffer]:
    """Return the used buffers of these kinds whose memory is not coherent between host and device."""
    found: dict[GpuBuffer, None] = {}
    for command in commands:
        pieces: tuple[Binding, ...] = ()
        if isinstance(command, CopyCommand):
            pieces = (command.source, command.target)
        elif isinstance(command, LaunchCommand):
            pieces = command.bindings
        for piece in pieces:
            if piece.buffer.kind in kinds and not piece.buffer.handle.coherent:
                found[piece.buffer] = None
    return list(found)
