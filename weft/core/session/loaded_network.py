"""A loaded network: a pipeline for each part, the copies between them, runs, and the end."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, BackendConfig, MemoryMode, SameNodes, Wait
from weft.core.contract.contexts import MemoryManager
from weft.core.contract.error_context import blame, callback_of, caught, do_all, is_error
from weft.core.contract.profile import Event, Profile, ProfilingContext
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.graph.validate import misdeclared
from weft.core.host import shutdown
from weft.core.host.parallel_copy import copy_into
from weft.core.host.result_memory import KEPT, ResultMemory, is_large
from weft.core.host.tensor_copy import copy_tensor
from weft.core.placement.check_network import imports
from weft.core.placement.in_place import keeps_state
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.notices import Notices
from weft.core.session.overflow import OverflowWatch, are_finite
from weft.core.session.pipeline import Pipeline, Progress, open_pipeline
from weft.core.session.report import CopyRecord, Report, make_report
from weft.errors import BackendError, Refusal

log = logging.getLogger("weft.session")
MOST_IDLE = 7
"""For how many other shapes a network stays loaded: enough for a handful of batches, pictures or lengths in turns."""
IDLE_BYTES = 512 << 20
"""Most bytes that they may take together, on all devices."""
IDLE_BYTES_OF_STATE = 4 << 30
"""The same for networks of one state, which are for one word and for prompts: a prompt's logits alone take hundreds of
megabytes, and the next word or prompt would be planned anew."""
NO_STATE: Mapping[str, Tensor] = {}


@dataclass(frozen=True, slots=True)
class PipelineCopy:
    """A copy that every run makes before a pipeline starts."""

    name: str
    value: str
    source: Pipeline
    target: Pipeline
    made: str
    """The name of the value in the target."""

    def run(self) -> float:
        """Wait for the value and copy it; return the seconds of the copy, without those of the wait."""
        self.source.wait()
        begun = perf_counter()
        with blame(self.name, "a copy between devices failed"):
            self.target.take(self.made, self.source.port(self.value))
        return perf_counter() - begun


@dataclass(eq=False)
class Loaded:
    """What is loaded for certain shapes: the pipelines, and what a run has to know of them."""

    results: ResultMemory
    pipelines: list[Pipeline] = field(default_factory=list)
    network: OptimizedNetwork | None = None
    """None until all of it is loaded; in memory mode LIMIT it has only weights that are outputs."""
    report: Report | None = None
    """As of the load."""
    reported: Callable[[], Report] | None = None
    made: dict[str, Pipeline] = field(default_factory=dict)
    copies: dict[Pipeline, list[PipelineCopy]] = field(default_factory=dict)
    waits: dict[Pipeline, list[Pipeline]] = field(default_factory=dict)
    """The pipelines whose memory each one uses."""
    told: set[ProfilingContext] = field(default_factory=set)
    """Receives the reports of the backends, in a profiled session."""
    kept: set[str] = field(default_factory=set)
    """The values of parts that other parts read, which therefore stay where the plan has them."""
    large: dict[str, Pipeline] = field(default_factory=dict)
    """The pipelines of the outputs for which there may be result memory that backends reach."""
    aliased: frozenset[str] = frozenset()
    """The outputs that lie in STATE memory."""
    unaliased: Mapping[str, str] = field(default_factory=dict)
    """Why inputs for which there is STATE memory do not use it."""

    @property
    def nbytes(self) -> int:
        """Return about how many bytes are free once it is closed; weights that others share are not among them."""
        results = sum(p.mapped[name].nbytes for name, p in self.large.items())
        return KEPT * results + sum(pipeline.nbytes for pipeline in self.pipelines)


class LoadedNetwork:
    """Owns the pipelines, memory managers and spare backends of one session, and notifies contexts of their end.

    What was loaded for the last few shapes stays loaded beside what is loaded now, if the session asks for that.
    It outlives a session that was dropped without a close, so it does not refer to the session.

    `choices` are the devices that parts may be on; the user's come first, in order of preference. `same_nodes` is what
    it has in common with other networks of the same nodes for other sizes. `wait` says how soon it is to run.
    """

    def __init__(
        self,
        choices: Sequence[DeviceChoice],
        config: BackendConfig,
        *,
        progress: Progress | None = None,
        profile: Profile | None = None,
        same_nodes: SameNodes | None = None,
        wait: Wait = Wait.ALL,
    ) -> None:
        self.config, self.profile, self._same_nodes = config, profile, same_nodes
        self.wait = wait
        """How soon the next network is to run."""
        self.now = self._nothing()
        """What is loaded now."""
        self._key: Hashable = None
        """The key under which that may stay loaded."""
        self._idle: dict[Hashable, Loaded] = {}
        """What is loaded for other shapes, by key; the least recently used is first."""
        self.notices: Notices | None = None
        """The id and the notices to contexts; None before the first load."""
        self.is_closed = False
        self._choices = {c.device: c for c in choices}
        self._progress = progress
        self._managers: dict[str, MemoryManager | None] = {}
        self._acquired: dict[str, bool] = {}
        """Whether the memory manager of each device has acquired its memory; only devices that have one."""
        self._spare: dict[str, Backend] = {}
        self._watched: tuple[OverflowWatch, Mapping[str, Array]] | None = None
        """What sees the run that was started, and the run's inputs."""
        self._stored: dict[str, Array] = {}
        """The arrays in which the backends themselves leave outputs of the run."""
        self._warned = set[str]()
        """The outputs of which it was said that they are declared with another shape."""
        self._passed: dict[str, Array] | None = None
        """The inputs of the last run that are outputs too; None if there is no run to wait for."""

    def _nothing(self) -> Loaded:
        return Loaded(ResultMemory(0 if self.config.memory is MemoryMode.LIMIT else KEPT))

    @property
    def pipelines(self) -> list[Pipeline]:
        """Return the pipelines that are loaded now, in the order of execution."""
        return self.now.pipelines

    @property
    def network(self) -> OptimizedNetwork | None:
        """Return the network that is loaded now; in memory mode LIMIT it has only weights that are outputs."""
        return self.now.network

    @property
    def report(self) -> Report | None:
        """Return the report as of the load."""
        return self.now.report

    # -- backends --------------------------------------------------------------------------------------

    def ask(self, device: str) -> Backend:
        """Return a backend of the device for questions of support: a pipeline's, or one for a new pipeline."""
        for pipeline in self.now.pipelines:
            if pipeline.device == device:
                return pipeline.backend
        if device not in self._spare:
            self._spare[device] = self._open(device)
        return self._spare[device]

    def _open(self, device: str) -> Backend:
        choice = self._choices[device]
        if device not in self._managers:
            manager = self._managers[device] = _memory_manager(choice)
            if manager is not None:
                self._acquired[device] = False
        profiling = ProfilingContext(device, self.profile) if self.profile is not None else None
        return choice.open(
            self.config, self._managers[device], profiling, loads=True, wait=self.wait,
            same_nodes=self._same_nodes,
        )

    def turn_to_choices(self, choices: Sequence[DeviceChoice]) -> None:
        """Load on the same devices with these options from now on, and wait for everything; nothing is loaded yet."""
        self._choices |= {c.device: c for c in choices}
        self.wait = Wait.ALL
        spare, self._spare = self._spare, {}
        close_all(list(spare.values()))

    # -- loading ---------------------------------------------------------------------------------------

    def load(
        self,
        network: OptimizedNetwork,
        key: Hashable = None,
        *,
        beside: bool = False,
        state: Mapping[str, Tensor] = NO_STATE,
    ) -> None:
        """Make or resize the pipelines; NodeRefused if a backend changes its mind about a node.

        What was loaded until now stays loaded if this is to be loaded `beside` it; else its pipelines are resized.
        Under its key, `turn_to` finds it again, as long as few others were loaded since, and they take little memory.

        `state` are tensors of a `StateMemory`, by the names of inputs in `OptimizedNetwork.state`: runs read these
        inputs there, and leave the outputs that lie in them. `unaliased` then says which inputs do not use theirs, and
        why: they and their outputs are like any others. BackendError if a tensor has not its input's shape and type.
        """
        for pipeline in self.now.pipelines:
            pipeline.wait()  # a later part may still read memory that the resize frees
        if key in self._idle:
            self._close_idle(key)
        if beside and self._key is not None:
            self._idle[self._key] = self.now
            self.now = self._nothing()
            self._make_room()
        imported, unaliased = self._state(network, state)
        old: dict[str, deque[Pipeline]] = {}
        for pipeline in self.now.pipelines:
            old.setdefault(pipeline.device, deque()).append(pipeline)
        before = self.now.told
        self._forget_now()
        now = self.now
        now.unaliased = unaliased
        now.aliased = frozenset(network.state[name].output for name in imported)
        copies = {n.outputs[0]: n for n in network.copies}
        fetched = {*network.graph.outputs} - now.aliased | {n.inputs[0] for n in copies.values()}
        try:
            for part in network.parts:
                self.now.pipelines.append(self._pipeline(part, copies, old, fetched, imported))
        finally:
            spare, self._spare = self._spare, {}
            close_all([*(p for left in old.values() for p in left), *spare.values()])
        if self.profile is not None:
            now.told = {c for p in self.now.pipelines if (c := p.backend.info.profiling) is not None}
            self.profile.forget(before - now.told)
        mapped = {o: p for o in network.graph.outputs if (p := now.made.get(o)) is not None and o in p.mapped}
        now.large = {o: p for o, p in mapped.items() if o not in now.kept and is_large(p.mapped[o])}
        records = [self._record(t) for transfers in now.copies.values() for t in transfers]
        user = [self._choices[d] for d in network.devices if d in self._choices]
        network = network.without_constants() if self.config.memory is MemoryMode.LIMIT else network
        now.reported = partial(
            make_report, user, self.now.pipelines, by_node(network.refusals), records, self.config, network.notes,
            network.journal, network.parts,
        )
        now.report = now.reported()
        now.network = network
        self._key = key
        for name, note in misdeclared(network.graph).items():
            if name not in self._warned:
                self._warned.add(name)
                log.warning("%s", note)

    def _state(
        self, network: OptimizedNetwork, state: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
        """Return the tensors that inputs use, and why others do not."""
        known = network.state if state else {}
        imported, unaliased = dict[str, Tensor](), dict[str, str]()
        for name, tensor in state.items():
            if name not in known:
                unaliased[name] = "no output lies in it"
                continue
            device, spec = known[name].device, known[name].spec
            if (tensor.shape, tensor.dtype) != (spec.dims, spec.dtype):
                raise BackendError(
                    f"the state {name!r} does not fit the network",
                    why=f"it is {TensorSpec(tensor.shape, tensor.dtype)}, and the input {spec}",
                    fix="make it of OptimizedNetwork.state, or copy it to that type",
                )
            backend = self.ask(device)
            if not keeps_state(backend):
                unaliased[name] = f"{device} does not keep state"
            elif not isinstance(tensor.backend, Backend) or not imports(backend, tensor.backend):
                unaliased[name] = f"{device} cannot use its memory"
            elif not any(_lies_there(part, name) for part in network.parts):
                unaliased[name] = f"{device} does not write it in place"
            else:
                imported[name] = tensor
        return imported, unaliased

    @property
    def unaliased(self) -> Mapping[str, str]:
        """Return why inputs do not use the STATE memory that `load` was given for them, by name."""
        return self.now.unaliased

    @property
    def results(self) -> list[str]:
        """Return the names of the outputs that `finish` returns: those that do not lie in STATE memory."""
        assert self.now.network is not None
        return [o for o in self.now.network.graph.outputs if o not in self.now.aliased]

    @property
    def report_now(self) -> Report | None:
        """Return the report with what the backends say now: a run may have changed it."""
        return None if self.now.reported is None else self.now.reported()

    def holds(self, key: Hashable) -> bool:
        """Tell whether what was loaded under a key is loaded now, or stayed loaded beside it."""
        return key in self._idle or (key is not None and key == self._key)

    def settle(self) -> None:
        """Wait for the last run, whose outputs are lost unless they were taken."""
        self.abandon()
        self._wait()

    def turn_to(self, key: Hashable) -> None:
        """Let what stayed loaded under a key be what is loaded now, once the last run is done."""
        self.settle()
        if key == self._key:
            return
        if self._key is None:
            self._close_pipelines()
        else:
            self._idle[self._key] = self.now
        self.now, self._key = self._idle.pop(key), key

    def _make_room(self) -> None:
        """Close what was not used for long, until the rest of what stays loaded is little."""
        keeps_state = any(each.aliased for each in self._idle.values())
        most = IDLE_BYTES_OF_STATE if keeps_state else IDLE_BYTES
        while self._idle and (len(self._idle) > MOST_IDLE or sum(i.nbytes for i in self._idle.values()) > most):
            self._close_idle(next(iter(self._idle)))

    def close_idle(self) -> bool:
        """Close what stayed loaded for other shapes; tell whether there was something."""
        found = bool(self._idle)
        while self._idle:
            self._close_idle(next(iter(self._idle)))
        return found

    def forget(self, key: Hashable) -> None:
        """Close what stayed loaded under a key, and keep what is loaded now under it no longer."""
        if key in self._idle:
            self._close_idle(key)
        if key == self._key:
            self._key = None

    def forget_all(self) -> None:
        """Forget under all keys what is loaded, and what stayed loaded."""
        self.close_idle()
        self._key = None

    def _close_idle(self, key: Hashable) -> None:
        gone = self._idle.pop(key)
        if self.profile is not None:
            self.profile.forget(gone.told)
        close_all(gone.pipelines[::-1])

    @property
    def wants_other_sizes(self) -> bool:
        """Tell whether a pipeline wants to be shown, before the second shape, what other sizes change."""
        return any(pipeline.wants_other_sizes for pipeline in self.now.pipelines)

    def show(self, other: OptimizedNetwork) -> None:
        """Show the pipelines their parts of the network for other sizes."""
        held = {(p.device, tuple(p.graph.outputs)): p for p in self.now.pipelines}
        for part in other.parts:
            graph = part.graph if part.lowered is None else part.lowered.graph
            pipeline = held.get((part.device, tuple(graph.outputs)))
            if pipeline is not None:  # for other sizes the devices may divide the network otherwise
                pipeline.show(part)

    def _pipeline(
        self,
        part: Part,
        copies: Mapping[str, Node],
        old: Mapping[str, deque[Pipeline]],
        fetched: Collection[str],
        state: Mapping[str, Tensor],
    ) -> Pipeline:
        """Resize the next old pipeline of the device, or make a new one."""
        waiting = old.get(part.device)
        first = not waiting
        if waiting:
            pipeline = waiting.popleft()
        else:
            backend = self._spare.pop(part.device, None) or self._open(part.device)
            thrifty = self.config.memory is MemoryMode.LIMIT
            pipeline = open_pipeline(part, backend, thrifty=thrifty, progress=self._progress)
        try:
            shared = self._connect(part, pipeline, copies)
            shared |= {name: tensor for name, tensor in state.items() if name in part.graph.inputs}
            pipeline.resize(part, shared, fetched, first=first)
        except BaseException:
            close_all([pipeline])
            raise
        self.now.made.update(dict.fromkeys(part.graph.outputs, pipeline))
        return pipeline

    def _connect(self, part: Part, pipeline: Pipeline, copies: Mapping[str, Node]) -> dict[str, Tensor]:
        """Record the copies and pipelines that the part waits for; return the tensors whose memory it uses."""
        imports = {}
        for name in part.graph.inputs:
            held = self.now.made.get(name)
            if held is not None:
                imports[name] = held.tensor(name)
                self.now.kept.add(name)
                self.now.waits.setdefault(pipeline, []).append(held)
            elif name in copies:
                value = copies[name].inputs[0]
                copy = PipelineCopy(copies[name].name, value, self.now.made[value], pipeline, name)
                self.now.copies.setdefault(pipeline, []).append(copy)
                self.now.kept.add(value)
                self.now.made[name] = pipeline  # later parts may use its memory
        return imports

    @staticmethod
    def _record(t: PipelineCopy) -> CopyRecord:
        return CopyRecord(t.value, t.source.device, t.target.device, t.source.tensor(t.value).nbytes, t.name)

    # -- running ---------------------------------------------------------------------------------------

    def lend(self, name: str, spec: TensorSpec, *, is_input: bool) -> Array:
        """Return a new array for an input or output: of the pipeline that reads or makes it, or else of numpy."""
        pipelines = [p for p in self.now.pipelines if name in (p.graph.inputs if is_input else p.graph.outputs)]
        for pipeline in pipelines:
            array = pipeline.lend(Tensor(name, spec.dims, spec.dtype), is_input=is_input)
            if array is not None:
                return array
        return np.zeros(spec.dims, spec.dtype.numpy)

    def start(
        self,
        arrays: dict[str, Array],
        targets: Sequence[Array | None] = (),
        *,
        first: bool = True,
        watch: OverflowWatch | None = None,
    ) -> None:
        """Start a run with the given inputs; only the last part is left running.

        Inputs in STATE memory have no arrays. `targets` are arrays for the outputs in `results`, which backends may
        fill themselves; `finish` gets them, too. Outputs for which there are none go to result memory that the backend
        reaches, if any is free. `first` says whether the session's run begins here. In a later stage, the profile keeps
        its events. A `watch` sees what the run stores; `arrays` must be the same until `finish`.
        """
        self.abandon()
        self._acquire()
        self._wait()
        if self.profile is not None:
            if first:
                self.profile.begin()
            self.profile.start(self.now.told)
        self._stored = {}
        self._watched = None if watch is None else (watch, arrays)
        try:
            self._execute(arrays, targets, watch)
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise
        assert self.now.network is not None
        self._passed = {i: arrays[i].copy() for i in self.now.network.graph.outputs if i in arrays}

    def _execute(
        self, arrays: Mapping[str, Array], targets: Sequence[Array | None], watch: OverflowWatch | None
    ) -> None:
        assert self.now.network is not None
        graph = self.now.network.graph
        wanted = zip(self.results, targets, strict=True) if targets else ()
        given = {
            o: t for o, t in wanted
            if t is not None and t.size and o not in self.now.kept and t.dtype == graph.specs[o].dtype.numpy
        }
        for name in self.now.large:
            if name not in given:
                pipeline = self.now.large[name]
                mapped = pipeline.mapped[name]
                result = self.now.results.reached(name, mapped.shape, mapped.dtype, pipeline.reach)
                if result is not None:
                    given[name] = result
        for pipeline in self.now.pipelines:
            for source in self.now.waits.get(pipeline, ()):
                source.wait()
            for copy in self.now.copies.get(pipeline, ()):
                self._copy(copy)
            for name in pipeline.graph.inputs:
                if name in arrays:
                    pipeline.fill(name, arrays[name])
            if not given:
                pipeline.execute(watch=watch)
                continue
            mine = {o: t for o, t in given.items() if self.now.made.get(o) is pipeline}
            self._stored.update((name, given[name]) for name in pipeline.execute(mine, watch))

    def _copy(self, copy: PipelineCopy) -> None:
        seconds = copy.run()
        if self.profile is not None:
            self.profile.events.append(Event(copy.target.device, copy.name, seconds))

    def _wait(self) -> None:
        """Wait for all pipelines, then raise the first error: no error is left for the next run."""
        try:
            for pipeline in self.now.pipelines:
                pipeline.wait()
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise

    def _quiet(self) -> None:
        """After a failed run, wait for all pipelines and log their errors."""
        for pipeline in self.now.pipelines:
            with caught(partial(log.warning, "after a run that failed, %s failed as well: %s", pipeline.device)):
                pipeline.wait()

    @property
    def started(self) -> bool:
        """Tell whether a run was started whose outputs were not taken yet."""
        return self._passed is not None

    def abandon(self) -> None:
        """Give up the outputs of a run that was started, if there is one."""
        self._passed = None

    def finish(self, given: Sequence[Array | None]) -> list[Array]:
        """Wait for the run and return the outputs in `results`, in the given arrays, one or None for each, or none.

        An array may have another float type than the output, which is then converted.
        The run is over even if this raises: its outputs may be incomplete.
        """
        passed, self._passed = self._passed, None
        assert passed is not None and self.now.network is not None
        self._wait()
        if self.profile is not None:
            self.profile.end(p.device for p in self.now.pipelines if p.tasks)
        graph = self.now.network.graph
        stored, self._stored = self._stored, {}
        if not given and not stored:
            results = [self._fetch(graph, name, None, passed) for name in self.results]
            if self._watched is not None:
                self._repeat(self._watched, results)
            return results
        results = list[Array]()
        names = self.results
        for name, target in zip(names, given or [None] * len(names), strict=True):
            left = stored.get(name)
            if left is None:
                results.append(self._fetch(graph, name, target, passed))
            elif target is None or target is left:
                results.append(left)
            else:  # the array came after the run had begun
                _convert(target, left)
                results.append(target)
        if self._watched is not None:
            self._repeat(self._watched, results)
        return results

    def _repeat(self, watched: tuple[OverflowWatch, Mapping[str, Array]], results: Sequence[Array]) -> None:
        """Let the watch of the run see what devices stored: their parts run once more."""
        (watch, arrays), self._watched = watched, None
        watch.give(arrays)
        for pipeline in self.now.pipelines:
            for copy in self.now.copies.get(pipeline, ()):
                watch.copy(copy.value, copy.made)
                pipeline.give(copy.made, copy.source.port(copy.value))
            for name in pipeline.graph.inputs:
                if name in arrays:
                    pipeline.give(name, Tensor.from_numpy(arrays[name], name=name))
            pipeline.repeat(watch, suspect=watch.thorough or not are_finite(results))

    def _fetch(self, graph: Graph, name: str, target: Array | None, passed: Mapping[str, Array]) -> Array:
        pipeline = self.now.made.get(name)
        if pipeline is not None and name in pipeline.mapped:
            mapped = pipeline.mapped[name]
            result = self.now.results.array(name, mapped.shape, mapped.dtype) if target is None else target
            (copy_into if result.dtype == mapped.dtype else _convert)(result, mapped)
            return result
        spec = graph.specs[name]
        result = self.now.results.array(name, spec.dims, spec.dtype.numpy) if target is None else target
        if pipeline is None:
            known = graph.constants.get(name)
            np.copyto(result, known if known is not None else passed[name])
        elif result.flags.c_contiguous:
            with pipeline.copying(name):
                copy_tensor(pipeline.tensor(name), Tensor(name, spec.dims, DType.of(result.dtype), memory=result))
        else:
            with pipeline.copying(name):
                np.copyto(result, pipeline.tensor(name).numpy())
        return result

    def _acquire(self) -> None:
        """Have the memory managers of all devices in use acquire their memory, once each (A11)."""
        if not self._acquired or all(self._acquired.values()):  # few devices have one, and each run asks
            return
        for device in dict.fromkeys(p.device for p in self.now.pipelines):
            manager = self._managers.get(device)
            if manager is not None and not self._acquired[device]:
                what = "the backend's memory manager could not acquire its memory"
                with blame(device, what, callback=callback_of(manager, "acquire")):
                    answer: object = manager.acquire()
                    check_answers.done(answer, f"{device}: {callback_of(manager, 'acquire')}", what)
                self._acquired[device] = True

    def _release(self) -> None:
        """Have the memory managers release their memory; if one fails, log the error and go on."""
        managers, self._managers = self._managers, {}
        acquired, self._acquired = [device for device, done in self._acquired.items() if done], {}

        def release(device: str) -> None:
            manager = managers[device]
            assert manager is not None
            with caught(partial(log.warning, "the memory manager of %s could not release its memory: %s", device)):
                answer: object = manager.release()
                check_answers.done(answer, callback_of(manager, "release"), "it failed")

        do_all(partial(release, device) for device in acquired)

    # -- end -------------------------------------------------------------------------------------------

    @contextmanager
    def announced(self, notices: Notices) -> Iterator[None]:
        """Notify contexts before and after the block, which is the first load.

        If it fails, or a context refuses, free everything and notify the contexts that heard of the load.
        """
        try:
            notices.before_load()
            yield
            notices.after_load()
        except BaseException:
            do_all([*notices.after_failure("before_unload"), self.drop, *notices.after_failure("after_unload")])
            raise
        self.notices = notices

    def drop(self) -> None:
        """Close the pipelines; only a new load makes the network run again."""
        do_all([self._close_pipelines, self.close_idle])

    def _close_pipelines(self) -> None:
        pipelines = self.now.pipelines[::-1]  # a pipeline that uses the memory of others is closed before them
        spare, self._spare = self._spare, {}
        self._forget_now()
        close_all([*pipelines, *spare.values()])

    def _forget_now(self) -> None:
        self.now, self._key = self._nothing(), None
        self._passed, self._stored = None, {}

    def close(self) -> None:
        """Close everything and release the memory managers; a second close does nothing.

        BackendError if a context refuses; the network then stays loaded.
        """
        if self.is_closed:
            return
        if self.notices is not None:
            self.notices.before_unload()
        self._free()

    def close_unheard(self) -> None:
        """Close when no caller is left: refusals of contexts and errors are logged."""
        if self.is_closed:
            return

        def ask() -> None:
            if self.notices is not None:
                with caught(partial(log.warning, "a network whose session is gone is unloaded all the same: %s")):
                    self.notices.before_unload()

        def free() -> None:
            with caught(lambda e: log.warning("closing a network failed: %s: %s", type(e).__name__, e)):
                self._free()

        do_all([ask, free])

    def _free(self) -> None:
        self.is_closed = True
        do_all([self.drop, self._release, *([self.notices.after_unload] if self.notices else [])])


class _Forgotten:
    """Networks of sessions that were dropped without a close.

    They are closed when the next session is made or the process ends, not when they are collected: that may be during
    a driver call. A forked process has none, because they belong to its parent.
    """

    def __init__(self) -> None:
        self.networks: deque[LoadedNetwork] = deque()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.networks.clear)

    def add(self, network: LoadedNetwork) -> None:
        """Take the network of a collected session, unless it is closed."""
        if not network.is_closed:
            self.networks.append(network)

    def close(self) -> None:
        """Close all of the networks."""
        while self.networks:
            try:
                network = self.networks.popleft()
            except IndexError:
                return  # another thread took the last
            network.close_unheard()

    def end(self, patience: float) -> bool:
        """Close all at the end of the process."""
        self.close()
        return True


_forgotten = _Forgotten()
shutdown.note(_forgotten)
forget, close_forgotten = _forgotten.add, _forgotten.close


def _memory_manager(choice: DeviceChoice) -> MemoryManager | None:
    callback = callback_of(choice.creator, "create_memory_manager")
    with blame(choice.device, "the backend could not make its memory manager", callback=callback):
        made = choice.creator.create_memory_manager(choice.index)
    return check_answers.optional(made, MemoryManager, f"{choice.device}: {callback}", "a MemoryManager")  # type: ignore[type-abstract]


def _convert(target: Array, source: Array) -> None:
    """Copy an output to an array that may be of another float type; numbers beyond that become infinite."""
    with np.errstate(over="ignore"):
        copy_into(target, source)


def _lies_there(part: Part, source: str) -> bool:
    """Tell whether an output of a part lies in an input of that name, as its backend runs it."""
    graph = part.graph if part.lowered is None else part.lowered.graph
    return source in graph.aliases.values()


def by_node(refusals: Sequence[Refusal]) -> Mapping[str, Mapping[str, str]]:
    """Return the reasons by node and device."""
    out: dict[str, dict[str, str]] = {}
    for r in refusals:
        out.setdefault(r.node, {})[r.device] = r.reason
    return out


@contextmanager
def opened(choices: Iterable[DeviceChoice], config: BackendConfig) -> Iterator[dict[str, Backend]]:
    """Open a backend of each device for the block; close them after it, or if one cannot be opened."""
    backends: dict[str, Backend] = {}
    try:
        for choice in choices:
            backends[choice.device] = choice.open(config)
        yield backends
    finally:
        close_all(list(backends.values()))


def close_all(owners: Sequence[Pipeline | Backend]) -> None:
    """Close each; an error, such as that of a lost device, is logged, and the others are closed."""
    do_all(partial(_close, owner) for owner in owners)


def _close(owner: Pipeline | Backend) -> None:
    with caught(lambda e: log.warning("closing %s failed: %s: %s", type(owner).__name__, type(e).__name__, e)):
        owner.close()
