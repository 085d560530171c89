"""The recording of a pipeline: uploads, launches by level, downloads; sealed once, submitted every run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    CopyCommand,
    GpuBuffer,
    GpuDevice,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.gpu.memory.heap import DeviceHeap, LentBuffer
from weft.backends.gpu.memory.slots import Region, touched
from weft.backends.gpu.recording.chunked_upload import LEAST_DIRECT, Job, Stream, chunks, worthwhile
from weft.backends.gpu.recording.launches import access
from weft.backends.gpu.recording.run_launches import RunLaunches
from weft.backends.gpu.recording.schedule import Access, KeptLevels, run_once, schedule
from weft.backends.gpu.recording.stored import stored_by
from weft.backends.gpu.recording.submissions import WHOLE, Division, Submissions
from weft.core.contract.error_context import is_error
from weft.core.contract.profile import SPAN, ProfilingContext, Work
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.errors import DeviceError

log = logging.getLogger("weft.gpu")

MOST_KEPT = 8
"""How many sets of callers' arrays a recording keeps: a replay for each, and for each input the work before the run."""


@dataclass(frozen=True, eq=False)
class Port:
    """An input or output of a pipeline, and the host memory that runs use for it unless the caller brings his own."""

    tensor: Tensor
    buffer: GpuBuffer
    in_place: bool = False
    """Whether kernels access the host memory; if not, runs copy from or to it."""


@dataclass(eq=False)
class _Replay:
    """The commands of a run, with the host memory of its inputs and outputs bound."""

    handle: Any
    labels: list[str]
    owners: dict[str, str]
    """The owners of launches, by label."""
    launched: list[int]
    """The indices of the launches among the commands."""
    division: Division = WHOLE
    """Into which submissions it is divided."""


class Uploaded(Enum):
    """What stands for the memory of an input that is on the device before the run begins."""

    UPLOADED = "uploaded"


class Bound(NamedTuple):
    """A piece of the device's memory that a caller holds, for an input or an output of a run."""

    buffer: GpuBuffer
    offset: int
    in_place: bool
    """Whether kernels use it themselves; if not, the run copies inside the device."""


T = TypeVar("T")
_Memory = LentBuffer | Uploaded | Bound
_Key = tuple[_Memory | None, ...]
Chosen = Mapping[str, _Memory]
"""Memory of callers, by the names of inputs and outputs; a name that is missing has its port's."""


@dataclass(eq=False)
class PipelineRecording:
    """What one pipeline does on the device in every run."""

    heap: DeviceHeap
    profiling: ProfilingContext | None = None
    """Receives the device's times of each run; taking them makes a run slower."""
    run: RunLaunches = field(default_factory=RunLaunches)
    """What every run launches."""
    imports: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Pairs of tensors: one of another pipeline on the device, and the one to which every run copies it first."""
    work: dict[str, Work] = field(default_factory=dict)
    """The work of each owner of launches, for profiles."""
    tuned: int = 0
    """How many launches' kernels a tuning table chose."""
    submissions: Submissions = field(default_factory=Submissions)
    """How runs are divided."""
    _submitted: float = 0.0
    """When the last run with chains, or one whose time is noted, was submitted, by `perf_counter`."""
    _inputs: dict[str, Port] = field(default_factory=dict)
    _outputs: dict[str, Port] = field(default_factory=dict)
    _chosen: dict[str, _Memory] = field(default_factory=dict)
    """The callers' memory that the next run uses."""
    _streams: dict[tuple[str, LentBuffer | None], Stream] = field(default_factory=dict)
    """Work that begins before the run is submitted, by the names of inputs and the callers' memory of these, if any."""
    _replays: dict[_Key, _Replay] = field(default_factory=dict)
    """By the memory of each port that they copy or bind themselves (`_recorded_ports`), which they keep. The last used
    is last."""
    _usual: Chosen = field(default_factory=dict)
    """What runs choose that are given arrays of the caller's own. Their replay is recorded beforehand."""
    _usual_key: _Key = ()
    """The key of that replay, which is never dropped."""
    _direct: frozenset[str] = frozenset()
    """The inputs that are uploaded from the caller's array, if it has the bytes of the tensor."""
    _staged: set[str] = field(default_factory=set)
    """Those of them that went through the staging buffer in their last run; a resize expects that again."""
    _streamed: frozenset[str] = frozenset()
    """The inputs whose work begins before the run, unless the run takes them as a whole (`_is_streamed`): they are
    uploaded in chunks, or divided into micro-batches."""
    _unstreamed: dict[str, Port] = field(default_factory=dict)
    """The other inputs, and the outputs."""
    _current: _Replay | None = None
    """What was submitted last."""
    _levels: KeptLevels = field(default_factory=KeptLevels)
    """Of the last run that was recorded."""
    _running: bool = False
    _keeping: threading.Lock = field(default_factory=threading.Lock)
    """Held to change what is kept for callers' memory: another thread that lacks memory may drop some of it."""
    device: GpuDevice = field(init=False)
    _place: tuple[str, int] = field(init=False)
    """The device's id and index, for errors."""

    def __post_init__(self) -> None:
        self.device = self.heap.device
        self._place = self.device.info.id, self.device.info.index
        self.heap.add_keeper(self)

    @property
    def staging_bytes(self) -> int:
        """Return the bytes of staging buffers, and of host memory that kernels access."""
        return sum(port.buffer.nbytes for port in (*self._inputs.values(), *self._outputs.values()))

    @property
    def handles(self) -> list[Any]:
        """Return the device's recordings of a run without arrays of callers, in the order of their submits."""
        own = (self._streams[name, None] for name in self._inputs if name in self._streamed)
        return [*(r for stream in own for r in stream.recordings), self._replay({}).handle]

    def stage(self, tensor: Tensor, kind: MemoryKind) -> Array:
        """Return a staging buffer that every run copies to the tensor (UPLOAD) or from it (DOWNLOAD).

        A large input is uploaded in chunks if that is faster and no times are taken.
        """
        if kind is MemoryKind.UPLOAD and self.profiling is None and worthwhile(self.device, tensor.nbytes):
            kind = MemoryKind.STREAM
        return self._add(Port(tensor, self.heap.allocate(tensor.nbytes, kind)))

    def map_in_place(self, tensor: Tensor, kind: MemoryKind, least: int) -> tuple[Array, GpuBuffer]:
        """Return the array and buffer of host memory, at least `least` bytes, in which kernels access the tensor."""
        buffer = self.heap.allocate(max(tensor.nbytes, least), kind)
        return self._add(Port(tensor, buffer, in_place=True)), buffer

    def _add(self, port: Port) -> Array:
        ports = self._outputs if port.buffer.kind is MemoryKind.DOWNLOAD else self._inputs
        ports[port.tensor.name] = port
        return _mapped(port.buffer, port.tensor)

    # -- recording ---------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Record everything, now that the tensors have addresses."""
        for chain in self.run.chains.bound if self.profiling is not None else ():
            known = (self.work[node] for node in chain.plan.whole_nodes if node in self.work)
            self.work[chain.owner] = Work.sum(chain.owner, list(known))
        divided = self.run.divided_input
        self._streamed = frozenset(
            name
            for name, port in self._inputs.items()
            if port.buffer.kind is MemoryKind.STREAM or (name == divided and port.in_place)
        )
        ports = self._inputs | self._outputs
        self._unstreamed = {name: port for name, port in ports.items() if name not in self._streamed}
        for name in self._streamed:
            self._stream(name, None)
        self._direct = frozenset(name for name in self._inputs if self._uploads_directly(name))
        self._usual = dict.fromkeys(self._direct - self._staged, Uploaded.UPLOADED)
        self.submissions.begin()
        self._usual_key = self._key(self._usual)
        self._replay(self._usual)

    def _key(self, chosen: Chosen) -> _Key:
        """Return what tells the replays apart: the memory of a streamed input is its stream's alone."""
        return tuple([chosen.get(name) for name in self._recorded_ports(chosen)])

    def _recorded_ports(self, chosen: Chosen) -> Mapping[str, Port]:
        """Return the inputs and outputs that are part of the run's own recording if it has this memory."""
        if all(self._is_streamed(name, chosen.get(name)) for name in self._streamed):
            return self._unstreamed
        return self._inputs | self._outputs

    def _is_streamed(self, name: str, memory: _Memory | None) -> bool:
        """Tell whether work on an input begins before the run; not if it is there as a whole and nodes run on that."""
        if isinstance(memory, Bound):
            return False
        return name in self._streamed and (_lent(memory) is None or not self.run.undivided)

    def _uploads_directly(self, name: str) -> bool:
        """Tell whether runs upload an input from the caller's array; taking times, they upload it where it counts."""
        port, pays = self._inputs[name], self.device.uploads_directly and self.profiling is None
        return pays and name in self._unstreamed and not port.in_place and port.tensor.nbytes >= LEAST_DIRECT

    def _stream(self, name: str, lent: LentBuffer | None) -> Stream:
        """Return the work on an input that overlaps the copy of it: uploads in chunks, and micro-batches."""
        with self._keeping:
            known = self._streams.pop((name, lent), None)
            if known is None:
                lending = [key for key in self._streams if key[0] == name and key[1] is not None]
                self._drop_streams(_oldest(lending))
                known = self._recorded_stream(self._inputs[name], lent)
            self._streams[name, lent] = known
            return known

    def _recorded_stream(self, port: Port, lent: LentBuffer | None) -> Stream:
        tensor, jobs = port.tensor, list[Job]()
        buffer = port.buffer if lent is None else lent.buffer
        is_divided, count = tensor.name == self.run.divided_input, self.run.micro_batches.count
        if lent is not None or not port.in_place:
            copy = _upload(buffer, tensor).command
            assert isinstance(copy, CopyCommand)
            jobs += chunks(copy.source, copy.target, copy.label, count if is_divided else 1)
        for number, launches in self.run.of_micro_batches.items() if is_divided else ():
            end = tensor.nbytes * (number + 1) // count
            jobs.append(Job(end, schedule([access(launch) for launch in launches])))
        return Stream(self.device, _mapped(buffer, tensor), jobs)

    def _replay(self, chosen: Chosen) -> _Replay:
        """Return the commands of a run with this memory, recorded when it is used first."""
        usual = self._replays.get(self._usual_key) if chosen == self._usual else None  # which no other thread drops
        if usual is not None:
            return usual
        with self._keeping:
            return self._kept_replay(chosen)

    def _kept_replay(self, chosen: Chosen) -> _Replay:
        key = self._key(chosen)
        known = self._replays.pop(key, None)
        if known is None:
            self._drop_replays(_oldest([other for other in self._replays if other != self._usual_key]))
            known = self._recorded(chosen)
        self._replays[key] = known
        return known

    def _recorded(self, chosen: Chosen) -> _Replay:
        divided = self.run.micro_batches.input
        begun = self._is_streamed(divided, chosen.get(divided))  # then launches of micro-batches belong to a stream
        with ExitStack() as placed:
            before, after, copied = list[Access](), list[Access](), dict[str, Binding]()
            for name, port in self._recorded_ports(chosen).items():
                memory = chosen.get(name)
                if isinstance(memory, Uploaded):
                    continue
                offset, used = 0, port.in_place and (name in self._outputs or self.device.computes_on_streams)
                if isinstance(memory, Bound):
                    offset, used = memory.offset, memory.in_place
                buffer = port.buffer if memory is None else memory.buffer
                if used:
                    placed.enter_context(_placed(port.tensor, buffer, offset))
                elif name in self._outputs or memory is not None or not port.in_place:
                    copied[name] = Binding(buffer, offset, port.tensor.nbytes)
            for name, there in copied.items():  # now that tensors, and their views, are where kernels find them
                if name in self._outputs:
                    after.append(_copy(_own(self._outputs[name].tensor), there, f"download {name}"))
                else:
                    before.append(_copy(there, _own(self._inputs[name].tensor), f"upload {name}"))
            before += [_inside(source, target) for source, target in self.imports]
            parts = self.submissions.in_parts(self.run.joined if begun else self.run.at_once, self.device)
            launches = [part.launch for part in parts]
            known: dict[object, Binding] = {}
            accesses = [access(launch, known) for launch in launches]
            commands = schedule([*before, *accesses, *after], self._levels)
        labels = ["" if isinstance(c, BarrierCommand) else c.label for c in commands]
        launched = [i for i, c in enumerate(commands) if isinstance(c, LaunchCommand) and 0 not in c.grid]
        profile = self.profiling is not None and self.profiling.timed
        by_command = {id(a.command): part for a, part in zip(accesses, parts, strict=True)}
        division = self.submissions.division(commands, by_command, self.device)
        handle = self.device.record_divided(commands, division.cuts, profile=profile)
        owners = {launch.label: launch.owner for launch in launches}
        return _Replay(handle, labels, owners, launched, division)

    @property
    def submitted_parts(self) -> int:
        """Return into how many submissions a run is divided, work before it left out."""
        known = self._replays.get(self._usual_key)
        return 1 if known is None else len(known.division.cuts) + 1

    @property
    def too_long(self) -> list[tuple[str, float]]:
        """Return the launches, or parts of one, that take longer than a submission should, with the most seconds."""
        known = self._replays.get(self._usual_key)
        if known is None:
            return []
        found = self.submissions.too_long(known.division)
        seconds = dict[str, float]()
        for at, took in found:
            if at in known.launched:
                label = known.labels[at]
                seconds[label] = max(took, seconds.get(label, 0.0))
        return list(seconds.items())

    def _drop_streams(self, keys: Iterable[tuple[str, LentBuffer | None]]) -> None:
        for key in keys:
            stream = self._streams.pop(key)
            try:
                stream.settle()
            finally:
                stream.release()

    def _drop_replays(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            self.device.release(self._replays.pop(key).handle)

    def drop_unheld(self) -> None:
        """Release what is kept for callers' memory that is gone, unless a run is under way; any thread may call it.

        A caller holds his arrays until their run has been submitted, so no run to come has one of these.
        """
        with self._keeping:
            if self._running:
                return
            self._drop_streams([key for key in self._streams if _is_gone(key[1])])
            self._drop_replays([key for key in self._replays if any(map(_is_gone, key))])

    # -- running -----------------------------------------------------------------------------------------

    def fill(self, tensor: Tensor, source: Array) -> bool:
        """Take an input of the next run from an array; False if the caller must copy it to the tensor's host memory.

        An array that was lent is uploaded from where it is. Others are uploaded at once, where that is faster, or
        copied to the staging buffer, and uploaded in chunks, where the input is.
        """
        if self._running:
            self.wait()  # uploads overtake a run that is under way, and it may read what they write
        name = tensor.name
        lent = self.heap.lent(source, tensor, MemoryKind.STREAM) if name in self._inputs else None
        if lent is None and name in self._direct and _has_bytes_of(source, tensor):
            own = _own(tensor)
            fork_guard.check(*self._place)
            self.device.upload_beside(own.buffer, own.offset, source)
            self._choose(name, Uploaded.UPLOADED)
            return True
        self._choose(name, lent)
        if name not in self._streamed:
            return lent is not None
        fork_guard.check(*self._place)
        with self._keeping:
            for (other, memory), stream in self._streams.items():
                if other == name and memory is not lent:
                    stream.settle()
        if lent is None:
            self._stream(name, None).fill(source)
        elif self._is_streamed(name, lent):
            self._stream(name, lent).settle()
        return True

    def reads_in_place(self, name: str) -> bool:
        """Tell whether the next run reads the array that was given for an input where it is."""
        lies_there = self._inputs[name].in_place and self.device.computes_on_streams
        return lies_there and isinstance(self._chosen.get(name), LentBuffer)

    def bind(self, tensor: Tensor, piece: Binding, *, in_place: bool) -> None:
        """Have the next run take an input from a piece of the device's memory, or leave an output there."""
        name = tensor.name
        if name in self._streamed:
            self.wait()
            with self._keeping:
                for (other, _), stream in self._streams.items():
                    if other == name:
                        stream.settle()
        self._choose(name, Bound(piece.buffer, piece.offset, in_place))

    def store(self, tensor: Tensor, target: Array) -> bool:
        """Have the run that has begun leave an output in an array; False unless the array was lent."""
        lent = self.heap.lent(target, tensor, MemoryKind.DOWNLOAD) if tensor.name in self._outputs else None
        self._choose(tensor.name, lent)
        return lent is not None

    def begin(self) -> None:
        """Wait for the run before, and forget where a run that failed was to leave its outputs."""
        self.wait()
        if self._chosen:
            self._chosen = {name: lent for name, lent in self._chosen.items() if name not in self._outputs}

    def forget_replays(self) -> None:
        """Release the commands of runs, which are done; the next run records them anew."""
        with self._keeping:
            replays, self._replays = list(self._replays.values()), {}
        for replay in replays:
            self.device.release(replay.handle)

    def _choose(self, name: str, memory: _Memory | None) -> None:
        if memory is not None:
            self._chosen[name] = memory
        elif self._chosen:
            self._chosen.pop(name, None)

    def submit(self) -> None:
        """Start the run."""
        chosen, self._chosen = self._chosen, {}
        fork_guard.check(*self._place)
        streams: list[Stream] = []  # without a call of list[Stream], which takes as long as a small copy
        try:
            if self._streamed:
                early = [name for name in self._streamed if self._is_streamed(name, chosen.get(name))]
                streams = [self._stream(name, _lent(chosen.get(name))) for name in early]
            replay = self._replay(chosen)
            if self._direct:
                self._staged = {name for name in self._direct if name not in chosen}
            for stream in streams:
                stream.finish()
            self._running = True  # before the call: an interrupt during it must not leave the run without a wait
            self._current = replay
            if self.run.chains.bound or self.submissions.watches:
                self._submitted = perf_counter()
            self.device.submit(replay.handle)
        except Exception as e:
            if is_error(e):
                self._running = False
                for stream in streams:
                    stream.break_off()
            raise

    def wait(self) -> None:
        """Wait for the last run, once: a lost device is not waited for again."""
        if not self._running or self._current is None:
            return
        try:
            fork_guard.check(*self._place)
            asked = perf_counter() if self.submissions.watches else 0.0
            self.device.wait(self._current.handle)
            if asked:
                self._learn(self._current, asked)
            if self.run.chains.bound:
                self.run.chains.check(self.device, perf_counter() - self._submitted)
        except Exception as e:
            if is_error(e):  # after an interrupt the run must still be waited for
                self._end()
            raise
        try:
            if self.profiling is not None:
                self._report(self.profiling, self._current)
        finally:
            self._end()

    def _learn(self, run: _Replay, asked: float) -> None:
        """Learn from a run's time, which is known if the host `asked` before it ended; record anew if it was too long.

        What other replays are, they follow when they are recorded again.
        """
        now = perf_counter()
        took = now - self._submitted
        if self.submissions.learn(run.division, took, waited=now - asked > took / 10):
            self.forget_replays()

    def repeat(self) -> Iterator[list[Tensor]]:
        """Run every launch again, from the host memory of the inputs, and yield what each stored (`stored_by`)."""
        self.wait()
        fork_guard.check(*self._place)
        with ExitStack() as placed:
            before, filled = list[Access](), set[int]()
            for name, port in (self._inputs | self._outputs).items():
                if port.in_place:
                    placed.enter_context(_placed(port.tensor, port.buffer))
                elif name in self._inputs:
                    before.append(_upload(port.buffer, port.tensor))
                filled |= {id(port.tensor.memory.slot)} if name in self._inputs else set()
            before += [_inside(source, target) for source, target in self.imports]
            filled |= {id(target.memory.slot) for _, target in self.imports}
            if before:
                run_once(self.device, before)
            yield from stored_by(self.run.one_by_one, filled, self.heap, self.submissions)

    def _end(self) -> None:
        for stream in self._streams.values():
            stream.end()
        self._running = False  # from here on, `drop_unheld` may drop what the run used

    def _report(self, profiling: ProfilingContext, run: _Replay) -> None:
        for label, seconds in zip(run.labels, self.device.timings(run.handle), strict=False):
            if label:
                profiling.event(label, seconds, self.work.get(run.owners.get(label, "")))
        if run.launched:
            span = self.device.span(run.handle, run.launched[0], run.launched[-1])
            if span is not None:
                profiling.counter(SPAN, span)

    def drop(self) -> None:
        """Free the recording and its staging buffers, also on a device that was lost during a run."""
        with self._keeping:
            streams, self._streams = list(self._streams.values()), {}
        try:
            self.wait()
            for stream in streams:
                stream.settle()
        except DeviceError as e:
            log.warning("a run was given up when its session was closed or resized: %s", e)
        with self._keeping:
            replays, self._replays = list(self._replays.values()), {}
        self._current, self._chosen = None, {}
        for replay in replays:
            self.device.release(replay.handle)
        for stream in streams:
            stream.release()
        ports = [*self._inputs.values(), *self._outputs.values()]
        self._inputs, self._outputs, self._unstreamed, self._usual = {}, {}, {}, {}
        for port in ports:
            self.heap.free(port.buffer)
        self._direct = frozenset()
        self.run.clear()
        self.imports, self.tuned, self.work = [], 0, {}


def _lent(memory: _Memory | None) -> LentBuffer | None:
    return memory if isinstance(memory, LentBuffer) else None


def _is_gone(memory: _Memory | None) -> bool:
    if isinstance(memory, Bound):
        return memory.buffer.handle is None
    lent = _lent(memory)
    return lent is not None and not lent.is_held


def _has_bytes_of(array: Array, tensor: Tensor) -> bool:
    """Tell whether an array's memory is what the tensor's should be."""
    return array.flags.c_contiguous and array.dtype == tensor.dtype.numpy and array.shape == tensor.shape


def _oldest(keys: Sequence[T]) -> Sequence[T]:
    """Return what makes room for one more among the uses of callers' memory, of which the last is last."""
    return keys[: max(len(keys) - MOST_KEPT + 1, 0)]


def _inside(source: Tensor, target: Tensor) -> Access:
    a, b = touched(source), touched(target)
    return Access(CopyCommand(a, b, f"copy {source.name}"), (a,), (b,))


def _mapped(buffer: GpuBuffer, tensor: Tensor) -> Array:
    assert buffer.host is not None
    return buffer.host[: tensor.nbytes].view(tensor.dtype.numpy).reshape(tensor.shape)


def _upload(buffer: GpuBuffer, tensor: Tensor) -> Access:
    return _copy(Binding(buffer, 0, tensor.nbytes), _own(tensor), f"upload {tensor.name}")


def _copy(source: Binding, target: Binding, label: str) -> Access:
    return Access(CopyCommand(source, target, label), (source,), (target,))


def _own(tensor: Tensor) -> Binding:
    region: Region = tensor.memory
    return Binding(region.slot.buffer, region.slot.offset, tensor.nbytes)


@contextmanager
def _placed(tensor: Tensor, buffer: GpuBuffer, offset: int = 0) -> Iterator[None]:
    """Let a tensor that fills its slot, and its views, lie in another buffer while commands are recorded."""
    slot = tensor.memory.slot
    usual, slot.buffer, slot.offset = (slot.buffer, slot.offset), buffer, offset
    try:
        yield
    finally:
        slot.buffer, slot.offset = usual
