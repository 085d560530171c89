"""A list of commands with everything bound, and the ways to replay it."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import length_hint

import numpy as np
import pyopencl as cl

from weft.backends.gpu.device.device import Binding, Command, CopyCommand, DeviceCaps, LaunchCommand, Size3
from weft.backends.gpu.device.limits import check_copy, check_launch
from weft.backends.opencl.cl_errors import failure
from weft.backends.opencl.native import Call, NativeCalls
from weft.backends.opencl.programs import Built, OpenCLKernel
from weft.core.contract.profile import Profiled
from weft.core.graph.layout import Array
from weft.errors import DeviceError
from weft.kernels.chain import CHAIN

FLUSH_AFTER = 4
"""After this many commands of a replay the device is told to start, while the rest is being enqueued."""


@dataclass(frozen=True)
class Queued(ABC):
    """One enqueued operation; `index` is its command's position in the recording."""

    index: int
    label: str

    @abstractmethod
    def native(self, api: NativeCalls, queue: ctypes.c_void_p) -> Call:
        """Return the direct call that enqueues the step."""

    @abstractmethod
    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue the step through pyopencl."""


@dataclass(frozen=True)
class QueuedLaunch(Queued):
    """Run a kernel whose arguments are set."""

    kernel: cl.Kernel
    items: Size3
    local: Size3
    built: Built
    """Keeps the program alive while the recording lives, so that it is not built again."""

    def native(self, api: NativeCalls, queue: ctypes.c_void_p) -> Call:
        """Return the direct call."""
        return api.launch(queue, self.kernel.int_ptr, self.items, self.local)

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue the launch."""
        return cl.enqueue_nd_range_kernel(queue, self.kernel, self.items, self.local)


@dataclass(frozen=True)
class QueuedWrite(Queued):
    """Copy pinned host memory to a buffer."""

    target: cl.Buffer
    offset: int
    host: Array

    def native(self, api: NativeCalls, queue: ctypes.c_void_p) -> Call:
        """Return the direct call."""
        return api.write(queue, self.target.int_ptr, self.offset, self.host.nbytes, self.host.ctypes.data)

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue the copy."""
        return cl.enqueue_copy(queue, self.target, self.host, dst_offset=self.offset, is_blocking=False)


@dataclass(frozen=True)
class QueuedRead(Queued):
    """Copy a buffer to pinned host memory."""

    source: cl.Buffer
    offset: int
    host: Array

    def native(self, api: NativeCalls, queue: ctypes.c_void_p) -> Call:
        """Return the direct call."""
        return api.read(queue, self.source.int_ptr, self.offset, self.host.nbytes, self.host.ctypes.data)

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue the copy."""
        return cl.enqueue_copy(queue, self.host, self.source, src_offset=self.offset, is_blocking=False)


@dataclass(frozen=True)
class QueuedCopy(Queued):
    """Copy from buffer to buffer."""

    source: cl.Buffer
    at: int
    target: cl.Buffer
    to: int
    nbytes: int

    def native(self, api: NativeCalls, queue: ctypes.c_void_p) -> Call:
        """Return the direct call."""
        return api.copy(queue, self.source.int_ptr, self.at, self.target.int_ptr, self.to, self.nbytes)

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue the copy."""
        return cl.enqueue_copy(
            queue, self.target, self.source, byte_count=self.nbytes, src_offset=self.at, dst_offset=self.to
        )


Start = Callable[[cl.CommandQueue], None]


@dataclass(eq=False)
class Recording:
    """Commands that can be started many times; `start` enqueues them all, in the way that `prepare` chose."""

    where: str
    commands: int
    steps: list[Queued]
    profile: Profiled
    labels: tuple[str, ...]
    chained: bool = False
    """Whether one of its launches is a chain."""
    cuts: tuple[int, ...] = ()
    """The commands before which the device is told to start: what was enqueued by then is a submission."""
    pieces: list[cl.Buffer] = field(default_factory=list)
    """The sub-buffers bound to kernels: clSetKernelArg does not keep its memory object alive."""
    events: dict[int, cl.Event] = field(default_factory=dict)
    """Of the last run, by the positions of steps."""
    queue: cl.CommandQueue | None = None
    start: Start = field(init=False)

    def prepare(self, api: NativeCalls | None) -> None:
        """Choose how to replay: with direct calls if possible, else (or for timestamps) through pyopencl."""
        if self.profile == "span" and api is not None:
            self.start = self._with_end_events(api)
        else:
            self.start = self._start_with_events if self.profile or api is None else self._direct(api)

    def give_back(self) -> None:
        """Let other recordings have the kernel objects; nothing of this one is at work any more."""
        for step in self.steps:
            if isinstance(step, QueuedLaunch):
                step.built.give_back(step.kernel)

    def timings(self) -> list[float]:
        """Return seconds per command of the last run; 0.0 for commands that enqueue nothing."""
        if self.profile is not True or not self.events:
            return []
        seconds = [0.0] * self.commands
        for position, event in self.events.items():
            seconds[self.steps[position].index] += (event.profile.end - event.profile.start) * 1e-9
        return seconds

    def span(self, first: int, last: int) -> float | None:
        """Return seconds from the start of one command to the end of another in the last run; None if unknown."""
        if not self.profile or not self.events:
            return None
        commands = {position: self.steps[position].index for position in self.events}
        starts = [self.events[p].profile.start for p, index in commands.items() if index == first]
        ends = [self.events[p].profile.end for p, index in commands.items() if index == last]
        return float(ends[-1] - starts[0]) * 1e-9 if starts and ends else None

    def _direct(self, api: NativeCalls) -> Start:
        queue = ctypes.c_void_p(None)
        calls = [step.native(api, queue) for step in self.steps]
        labels = [step.label for step in self.steps]
        ends = {min(FLUSH_AFTER, len(calls)), *self._cut_steps, len(calls)}
        for position in (end + k for k, end in enumerate(sorted(ends))):
            calls.insert(position, api.flush(queue))
            labels.insert(position, "flush")

        def start(target: cl.CommandQueue) -> None:
            queue.value = target.int_ptr
            left = iter(calls)
            code = next(filter(None, map(Call.__call__, left)), 0)  # a loop in C that stops at the first failure
            if code:
                raise self._refused(code, labels[len(calls) - length_hint(left) - 1])

        return start

    @property
    def _cut_steps(self) -> set[int]:
        """Return the steps before which the queue is flushed, besides the first few."""
        return {sum(step.index < cut for step in self.steps) for cut in self.cuts}

    def _with_end_events(self, api: NativeCalls) -> Start:
        """Return what starts the steps by direct calls, but for the first and the last launch, which have events."""
        handle = ctypes.c_void_p(None)
        launches = [position for position, step in enumerate(self.steps) if isinstance(step, QueuedLaunch)]
        ends = {*launches[:1], *launches[-1:]}
        calls = [None if p in ends else step.native(api, handle) for p, step in enumerate(self.steps)]
        flushed = self._cut_steps | {FLUSH_AFTER}

        def start(queue: cl.CommandQueue) -> None:
            handle.value = queue.int_ptr
            self.events = {}
            for position, (step, call) in enumerate(zip(self.steps, calls, strict=True)):
                if call is None:
                    self.events[position] = self._enqueued(step, queue)
                elif code := call():
                    raise self._refused(code, step.label)
                if position + 1 in flushed:
                    self._flushed(queue, step.label)
            self._flushed(queue)

        return start

    def _start_with_events(self, queue: cl.CommandQueue) -> None:
        self.events, flushed = {}, self._cut_steps | {FLUSH_AFTER}
        for position, step in enumerate(self.steps):
            self.events[position] = self._enqueued(step, queue)
            if len(self.events) in flushed:
                self._flushed(queue, step.label)
        self._flushed(queue)

    def _enqueued(self, step: Queued, queue: cl.CommandQueue) -> cl.Event:
        try:
            return step.enqueue(queue)
        except cl.Error as e:
            raise self._refused(e.code, step.label) from e

    def _flushed(self, queue: cl.CommandQueue, after: str = "") -> None:
        try:
            queue.flush()
        except cl.Error as e:
            raise self._refused(e.code, after) from e

    def _refused(self, code: int, label: str) -> DeviceError:
        return failure(code, f"the device refused {label or 'a command'!r}", self.where)


class Recorder:
    """Turns commands into steps and checks every binding, so that a replay need not check."""

    def __init__(self, context: cl.Context, where: str, caps: DeviceCaps, api: NativeCalls | None) -> None:
        self._context, self._where, self._caps, self._api = context, where, caps, api
        self._pieces: dict[tuple[int, int, int], cl.Buffer] = {}

    def record(self, commands: Sequence[Command], cuts: Sequence[int], profile: Profiled) -> Recording:
        """Return the commands with kernels created, arguments set and sub-buffers made."""
        steps: list[Queued] = []
        for index, command in enumerate(commands):
            if isinstance(command, LaunchCommand):
                steps += self._launch(index, command)
            elif isinstance(command, CopyCommand):
                steps += self._copy(index, command)
        labels = tuple(step.label for step in steps)
        chained = any(isinstance(c, LaunchCommand) and c.kernel.entry == CHAIN for c in commands)
        pieces = list(self._pieces.values())
        return Recording(self._where, len(commands), steps, profile, labels, chained, tuple(cuts), pieces)

    def _launch(self, index: int, command: LaunchCommand) -> list[Queued]:
        built: OpenCLKernel = command.kernel
        label = command.label or built.entry
        check_launch(command, built.entry, built.arguments, self._caps)
        if 0 in command.grid:
            return []
        kernel = built.built.kernel()
        for position, binding in enumerate(command.bindings):
            kernel.set_arg(position, self._piece(binding, label))
        self._set_constants(kernel, built, label)
        x, y, z = (groups * size for groups, size in zip(command.grid, built.local, strict=True))
        return [QueuedLaunch(index, label, kernel, (x, y, z), built.local, built.built)]

    def _set_constants(self, kernel: cl.Kernel, built: OpenCLKernel, label: str) -> None:
        """Set the constants that are arguments behind the buffers."""
        if self._api is None:
            for position, value in enumerate(built.constants, start=built.arguments):
                kernel.set_arg(position, value)
        elif built.constants:
            numbers = [np.asarray(value).tobytes() for value in built.constants]
            code = self._api.set_numbers(kernel.int_ptr, built.arguments, numbers)
            if code:
                raise failure(code, f"the device refused the arguments of {label!r}", self._where)

    def _copy(self, index: int, command: CopyCommand) -> list[Queued]:
        source, target, label = command.source, command.target, command.label or "copy"
        check_copy(command)
        if not source.nbytes:
            return []
        taken, given = _host_bytes(source), _host_bytes(target)
        if taken is not None and given is not None:
            # The queue cannot take a copy from host to host; two transfers keep the order.
            between = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, source.nbytes)
            return [QueuedWrite(index, label, between, 0, taken), QueuedRead(index, label, between, 0, given)]
        if taken is not None:
            return [QueuedWrite(index, label, target.buffer.handle, target.offset, taken)]
        if given is not None:
            return [QueuedRead(index, label, source.buffer.handle, source.offset, given)]
        pieces = (source.buffer.handle, source.offset, target.buffer.handle, target.offset)
        return [QueuedCopy(index, label, *pieces, source.nbytes)]

    def _piece(self, binding: Binding, label: str) -> cl.Buffer:
        """Return the buffer itself if all of it is bound, else a sub-buffer, made once per recording."""
        whole: cl.Buffer = binding.buffer.handle
        if binding.buffer.host is not None:
            what = f"a kernel cannot use memory of kind {binding.buffer.kind.name}"
            raise DeviceError(what, where=f"{label}, {self._where}", fix="copy it to DEVICE memory before")
        if not binding.nbytes or (binding.offset, binding.nbytes) == (0, binding.buffer.nbytes):
            return whole
        key = (whole.int_ptr, binding.offset, binding.nbytes)
        if key not in self._pieces:
            self._pieces[key] = whole.get_sub_region(key[1], key[2], cl.mem_flags.READ_WRITE)
        return self._pieces[key]


def _host_bytes(binding: Binding) -> Array | None:
    host = binding.buffer.host
    return None if host is None else host[binding.offset : binding.offset + binding.nbytes]
