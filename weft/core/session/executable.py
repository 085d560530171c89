"""An executable: a network on its devices, ready to run for certain sizes, and its runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from weft.core.buffers.buffer import Buffer, on_host
from weft.core.contract.backend import Backend
from weft.core.contract.error_context import blame, caught, do_all, is_error
from weft.core.contract.profile import Event, Profile, ProfilingContext
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.host.parallel_copy import copy_converted
from weft.core.host.result_memory import KEPT, ResultMemory, is_large
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session.arguments import Given
from weft.core.session.overflow import OverflowWatch, are_finite
from weft.core.session.pipeline import Pipeline
from weft.core.session.report import CopyRecord, Report, Transfers

log = logging.getLogger("weft.session")


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

    @property
    def record(self) -> CopyRecord:
        """Return what the report says of it."""
        source, target = self.source.device, self.target.device
        return CopyRecord(self.value, source, target, self.source.tensor(self.value).nbytes, self.name)


class Executable:
    """What is loaded for certain sizes: a pipeline for each part, the copies between them, and the run under way.

    `Loader.load` fills it, and may give its pipelines to another one later. `profile` gets the times of runs,
    `transfers` counts what they copy. `acquire` is called before each run, with the devices.
    """

    def __init__(
        self,
        *,
        thrifty: bool = False,
        profile: Profile | None = None,
        acquire: Callable[[Iterable[str]], None] = lambda devices: None,
        transfers: Transfers | None = None,
    ) -> None:
        self.profile, self._acquire = profile, acquire
        self._transfers = transfers or Transfers()
        self._memory = ResultMemory(0 if thrifty else KEPT)
        self.pipelines: list[Pipeline] = []
        """In the order of execution."""
        self.network: OptimizedNetwork | None = None
        """None unless all of it is loaded; in memory mode LIMIT it has only weights that are outputs."""
        self.report: Report | None = None
        """As of the load."""
        self._reported: Callable[[], Report] | None = None
        self.made: dict[str, Pipeline] = {}
        """The pipeline that makes each value, or that it is copied to."""
        self.copies: dict[Pipeline, list[PipelineCopy]] = {}
        self.waits: dict[Pipeline, list[Pipeline]] = {}
        """The pipelines whose memory each one uses."""
        self.kept: set[str] = set()
        """The values of parts that other parts read, which therefore stay where the plan has them."""
        self.aliased: frozenset[str] = frozenset()
        """The outputs that lie in STATE memory."""
        self.results: list[str] = []
        """The names of the outputs that `finish` returns: those that do not lie in STATE memory."""
        self.unaliased: Mapping[str, str] = {}
        """Why inputs for which there is STATE memory do not use it."""
        self.told: set[ProfilingContext] = set()
        """Receives the reports of the backends, in a profiled session."""
        self._devices: Sequence[str] = ()
        """The devices of the pipelines."""
        self._forms: Mapping[str, tuple[Shape, np.dtype[Any]]] = {}
        """The shapes and types of the outputs."""
        self._passes: Sequence[str] = ()
        """The inputs that are outputs too."""
        self._large: dict[str, Pipeline] = {}
        """The pipelines of the outputs for which there may be result memory that backends reach."""
        self._watched: tuple[OverflowWatch, Mapping[str, Array]] | None = None
        """What sees the run that was started, and the run's inputs."""
        self._used: list[tuple[Buffer, bool]] = []
        """The buffers that the run which was started uses, and whether it writes them."""
        self._stored: dict[str, Given] = {}
        """The arrays and buffers in which the backends themselves leave outputs of the run."""
        self._passed: dict[str, Array] | None = None
        """The inputs of the last run that are outputs too; None if there is no run to wait for."""

    @property
    def is_loaded(self) -> bool:
        """Tell whether it can run."""
        return self.network is not None

    @property
    def nbytes(self) -> int:
        """Return about how many bytes are free once it is closed; weights that others share are not among them."""
        results = sum(p.mapped[name].nbytes for name, p in self._large.items())
        return KEPT * results + sum(pipeline.nbytes for pipeline in self.pipelines)

    @property
    def report_now(self) -> Report | None:
        """Return the report with what the backends say now: a run may have changed it."""
        return None if self._reported is None else self._reported()

    # -- loading -----------------------------------------------------------------------------------------

    def connect(self, name: str, pipeline: Pipeline, value: str = "", copy: str = "") -> Tensor | None:
        """Have a pipeline read a value of another one; return the tensor whose memory it uses.

        None if a `copy` of that name makes it of another `value`, or if it is an input of the network.
        """
        if copy:
            made = PipelineCopy(copy, value, self.made[value], pipeline, name)
            self.copies.setdefault(pipeline, []).append(made)
            self.kept.add(value)
            self.made[name] = pipeline  # later parts may use its memory
            return None
        held = self.made.get(name)
        if held is None:
            return None
        self.kept.add(name)
        self.waits.setdefault(pipeline, []).append(held)
        return held.tensor(name)

    def complete(
        self, network: OptimizedNetwork, reported: Callable[[Sequence[Pipeline], Sequence[CopyRecord]], Report]
    ) -> None:
        """Note that all pipelines of a network are there; `reported` makes its report."""
        if self.profile is not None:
            self.told = {c for p in self.pipelines if (c := p.backend.info.profiling) is not None}
        mapped = {o: p for o in network.graph.outputs if (p := self.made.get(o)) is not None and o in p.mapped}
        self._large = {o: p for o, p in mapped.items() if o not in self.kept and is_large(p.mapped[o])}
        records = [copy.record for copies in self.copies.values() for copy in copies]
        self._reported = partial(reported, self.pipelines, records)
        self.report = self._reported()
        graph = network.graph
        self.results = [o for o in graph.outputs if o not in self.aliased]
        self._devices = [p.device for p in self.pipelines]
        self._forms = {o: (graph.specs[o].dims, graph.specs[o].dtype.numpy) for o in graph.outputs}
        self._passes = [o for o in graph.outputs if o in graph.inputs]
        self.network = network

    def given_up(self) -> list[Pipeline]:
        """Return the pipelines, for another executable; this one is loaded no more."""
        pipelines, self.pipelines = self.pipelines, []
        self.network = self.report = self._reported = None
        self.made, self.copies, self.waits, self._large = {}, {}, {}, {}
        self._passed, self._stored, self._watched = None, {}, None
        self._memory.clear()
        return pipelines

    # -- running -----------------------------------------------------------------------------------------

    def lend(self, name: str, spec: TensorSpec, *, is_input: bool) -> Array:
        """Return a new array for an input or output: of the pipeline that reads or makes it, or else of numpy."""
        pipelines = [p for p in self.pipelines if name in (p.graph.inputs if is_input else p.graph.outputs)]
        for pipeline in pipelines:
            array = pipeline.lend(Tensor(name, spec.dims, spec.dtype), is_input=is_input)
            if array is not None:
                return array
        return np.zeros(spec.dims, spec.dtype.numpy)

    def _use(self, buffer: Given | None, *, writes: bool) -> None:
        """Let the run that is about to start, or to end, use a buffer as it does not yet."""
        assert isinstance(buffer, Buffer)
        read = (buffer, False)
        for used, is_written in self._used:
            if used is buffer and (is_written or not writes):
                return
        reading = read in self._used
        try:
            buffer.begin(writes=writes, reading=reading)
        except BaseException:
            self.leave_buffers()
            raise
        if reading:
            self._used.remove(read)
        self._used.append((buffer, writes))

    def leave_buffers(self) -> None:
        """Leave the buffers of the last run, which has ended, to others."""
        used, self._used = self._used, []
        do_all(partial(buffer.end, writes=writes) for buffer, writes in used)

    def start(
        self, arrays: Mapping[str, Given], targets: Sequence[Given | None] = (), *, first: bool = True,
        watch: OverflowWatch | None = None,
    ) -> None:
        """Start a run with the given inputs; only the last part is left running.

        Inputs in STATE memory have no arrays. `targets` are those for the outputs in `results`, which backends may
        fill themselves; `finish` gets them, too. Outputs for which there are none go to result memory that the backend
        reaches, if any is free. `first` says whether the session's run begins here. In a later stage, the profile keeps
        its events. A `watch` sees what the run stores; `arrays` must be the same until `finish`.
        """
        self._passed = None
        self._transfers.runs += first
        self._acquire(self._devices)
        self._wait()
        if self._used:
            self.leave_buffers()
        for target in targets:  # most runs have no buffers, so this makes no calls
            if target.__class__ is Buffer:
                self._use(target, writes=True)
        for name in arrays:
            if arrays[name].__class__ is Buffer:
                self._use(arrays[name], writes=False)
        if self.profile is not None:
            if first:
                self.profile.begin()
            self.profile.start(self.told)
        self._stored = {}
        self._watched = None if watch is None else (watch, {name: on_host(value) for name, value in arrays.items()})
        try:
            self._execute(arrays, targets, watch)
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise
        self._passed = {i: _copied(arrays[i]) for i in self._passes if i in arrays}

    def _execute(
        self, arrays: Mapping[str, Given], targets: Sequence[Given | None], watch: OverflowWatch | None
    ) -> None:
        transfers = self._transfers
        given: dict[str, Given] = {}
        for name, target in zip(self.results, targets, strict=True) if targets else ():
            if target is not None and target.size and name not in self.kept and target.dtype == self._forms[name][1]:
                given[name] = target
        for name in self._large:
            if name not in given:
                pipeline = self._large[name]
                mapped = pipeline.mapped[name]
                result = self._memory.reached(name, mapped.shape, mapped.dtype, pipeline.reach)
                if result is not None:
                    given[name] = result
        for pipeline in self.pipelines:
            for source in self.waits.get(pipeline, ()):
                source.wait()
            for copy in self.copies.get(pipeline, ()):
                self._copy(copy)
            for name in pipeline.graph.inputs:
                if name in arrays:
                    transfers.to_devices += pipeline.fill(name, arrays[name])
            if not given:
                pipeline.execute(watch=watch)
                continue
            mine = {o: t for o, t in given.items() if self.made.get(o) is pipeline}
            read = [a for a in arrays.values() if isinstance(a, Buffer)] if self._used else ()
            self._stored.update((name, given[name]) for name in pipeline.execute(mine, watch, read))

    def _copy(self, copy: PipelineCopy) -> None:
        seconds = copy.run()
        if self.profile is not None:
            self.profile.events.append(Event(copy.target.device, copy.name, seconds))

    def _wait(self) -> None:
        """Wait for all pipelines, then raise the first error: no error is left for the next run."""
        try:
            for pipeline in self.pipelines:
                if pipeline.running:
                    pipeline.wait()
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise

    def _quiet(self) -> None:
        """After a failed run, wait for all pipelines and log their errors; others may use its buffers then."""
        for pipeline in self.pipelines:
            with caught(partial(log.warning, "after a run that failed, %s failed as well: %s", pipeline.device)):
                pipeline.wait()
        self.leave_buffers()

    @property
    def started(self) -> bool:
        """Tell whether a run was started whose outputs were not taken yet."""
        return self._passed is not None

    def abandon(self) -> None:
        """Give up the outputs of a run that was started, if there is one."""
        self._passed = None

    def finish(self, given: Sequence[Given | None]) -> list[Any]:
        """Wait for the run and return the outputs in `results`, in the given arrays, one or None for each, or none.

        An array may have another float type than the output, which is then converted.
        The run is over even if this raises: its outputs may be incomplete.
        """
        try:
            passed, self._passed = self._passed, None
            assert passed is not None
            self._wait()
            for target in given:
                if target.__class__ is Buffer:
                    self._use(target, writes=True)
            if self.profile is not None:
                self.profile.end(p.device for p in self.pipelines if p.tasks)
            stored, self._stored = self._stored, {}
            if not given and not stored:
                results = [self._fetch(name, None, passed) for name in self.results]
            else:
                results = []
                names = self.results
                for name, target in zip(names, given or [None] * len(names), strict=True):
                    left = stored.get(name)
                    if left is None:
                        results.append(self._fetch(name, target, passed))
                    elif target is None or target is left:
                        results.append(left)
                    else:  # the array came after the run had begun
                        _put(target, on_host(left))
                        results.append(target)
            if self._watched is not None:
                self._repeat(self._watched, results)
            if self._used:
                self.leave_buffers()
            return results
        except Exception as e:  # after an interrupt the run may go on, with its buffers
            if is_error(e):
                self.leave_buffers()
            raise

    def _repeat(self, watched: tuple[OverflowWatch, Mapping[str, Array]], results: Sequence[Given]) -> None:
        """Let the watch of the run see what devices stored: their parts run once more."""
        (watch, arrays), self._watched = watched, None
        watch.give(arrays)
        for pipeline in self.pipelines:
            for copy in self.copies.get(pipeline, ()):
                watch.copy(copy.value, copy.made)
                pipeline.give(copy.made, copy.source.port(copy.value))
            for name in pipeline.graph.inputs:
                if name in arrays:
                    pipeline.give(name, Tensor.from_numpy(arrays[name], name=name))
            pipeline.repeat(watch, suspect=watch.thorough or not are_finite([on_host(result) for result in results]))

    def _fetch(self, name: str, target: Given | None, passed: Mapping[str, Array]) -> Given:
        pipeline, result = self.made.get(name), target
        if result is None:
            result = self._memory.array(name, *self._forms[name])
        if pipeline is None:
            assert self.network is not None
            known = self.network.graph.constants.get(name)
            _put(result, known if known is not None else passed[name])
        else:
            self._transfers.from_devices += pipeline.fetch(name, result)
        return result

    # -- end ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for the last run, whose outputs are lost unless they were taken."""
        self.abandon()
        self._wait()
        self.leave_buffers()

    def evict(self) -> None:
        """Close it while its session goes on: the profile forgets what its backends reported."""
        if self.profile is not None and self.pipelines:
            self.profile.forget(self.told)
        self.close()

    def close(self) -> None:
        """Close the pipelines; errors, such as that of a lost device, are logged."""
        close_all(self.given_up()[::-1])  # a pipeline that uses the memory of others is closed before them
        self.leave_buffers()


def _copied(value: Given) -> Array:
    return value.value() if isinstance(value, Buffer) else value.copy()


def _put(target: Given, source: Array) -> None:
    if isinstance(target, Buffer):
        target.put(source)
    else:
        copy_converted(target, source)


def close_all(owners: Sequence[Pipeline | Backend]) -> None:
    """Close each; an error, such as that of a lost device, is logged, and the others are closed."""
    do_all(partial(_close, owner) for owner in owners)


def _close(owner: Pipeline | Backend) -> None:
    with caught(lambda e: log.warning("closing %s failed: %s: %s", type(owner).__name__, type(e).__name__, e)):
        owner.close()
