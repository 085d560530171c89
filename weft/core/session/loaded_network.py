"""A loaded network: one pipeline for each part, what every run brings from one to another, and its end."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend, BackendConfig, MemoryMode
from weft.core.contract.contexts import MemoryManager
from weft.core.contract.error_context import blame, callback_of, caught, do_all, is_error
from weft.core.contract.profile import Profile, ProfilingContext
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.core.host.parallel_copy import copy_into
from weft.core.host.tensor_copy import copy_tensor
from weft.core.placement.assign import Refusal
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.core.registry.backend_registry import Choice
from weft.core.session import shutdown
from weft.core.session.notices import Notices
from weft.core.session.pipeline import Pipeline, Progress
from weft.core.session.report import CopyRecord, Report, make_report

log = logging.getLogger("weft.session")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy that every run makes before a pipeline starts."""

    name: str
    value: str
    source: Pipeline
    target: Pipeline
    made: str
    """The name of the value in the target."""

    def run(self) -> None:
        """Wait for the value and copy it."""
        self.source.wait()
        with blame(self.name, "a copy between devices failed"):
            copy_tensor(self.source.port(self.value), self.target.port(self.made))


class LoadedNetwork:
    """Owns the pipelines, memory managers and spare backends of one session, and tells contexts when they go.

    It outlives a session that nobody closed, so it knows none.

    `choices` are the devices that parts may be on; the first are the user's, in order of preference.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        config: BackendConfig,
        *,
        progress: Progress | None = None,
        profile: Profile | None = None,
    ) -> None:
        self.config, self.profile = config, profile
        self.pipelines: list[Pipeline] = []
        self.network: OptimizedNetwork | None = None
        """What is loaded, or was at the close; in memory mode LIMIT without weights but those that are outputs."""
        self.report: Report | None = None
        self.notices: Notices | None = None
        """The id, and what contexts are told; None before the first load."""
        self.is_closed = False
        self._choices = {c.device: c for c in choices}
        self._progress = progress
        self._managers: dict[str, MemoryManager | None] = {}
        self._acquired: set[str] = set()
        """The devices whose memory managers have their memory."""
        self._spare: dict[str, Backend] = {}
        self._made: dict[str, Pipeline] = {}
        self._transfers: dict[Pipeline, list[Transfer]] = {}
        self._waits: dict[Pipeline, list[Pipeline]] = {}
        """The pipelines whose memory each one uses."""
        self._passed: dict[str, Array] | None = None
        """Of the last run, the inputs that are outputs too; None if there is no run to wait for."""

    # -- backends --------------------------------------------------------------------------------------

    def ask(self, device: str) -> Backend:
        """Return a backend of the device to ask for support: that of a pipeline, or one for a new pipeline."""
        for pipeline in self.pipelines:
            if pipeline.device == device:
                return pipeline.backend
        if device not in self._spare:
            self._spare[device] = self._open(device)
        return self._spare[device]

    def _open(self, device: str) -> Backend:
        choice = self._choices[device]
        if device not in self._managers:
            self._managers[device] = _memory_manager(choice)
        profiling = ProfilingContext(device, self.profile) if self.profile is not None else None
        return choice.open(self.config, self._managers[device], profiling, loads=True)

    # -- loading ---------------------------------------------------------------------------------------

    def load(self, network: OptimizedNetwork) -> None:
        """Make or resize the pipelines; NodeRefused if a backend changes its mind about a node."""
        for pipeline in self.pipelines:
            pipeline.wait()  # the memory that a resize frees may be what a later part still reads
        old: dict[str, deque[Pipeline]] = {}
        for pipeline in self.pipelines:
            old.setdefault(pipeline.device, deque()).append(pipeline)
        self._forget_pipelines()
        self.network = None
        copies = {n.outputs[0]: n for n in network.copies}
        fetched = {*network.graph.outputs, *(n.inputs[0] for n in copies.values())}
        try:
            for part in network.parts:
                self.pipelines.append(self._pipeline(part, copies, old, fetched))
        finally:
            spare, self._spare = self._spare, {}
            close_all([*(p for left in old.values() for p in left), *spare.values()])
        if self.profile is not None:
            self.profile.keep([c for p in self.pipelines if (c := p.backend.info.profiling) is not None])
        records = [self._record(t) for transfers in self._transfers.values() for t in transfers]
        user = [self._choices[d] for d in network.devices if d in self._choices]
        self.report = make_report(
            user, self.pipelines, by_node(network.refusals), records, self.config, network.notes, network.journal,
            network.parts,
        )  # fmt: skip
        self.network = network.without_constants() if self.config.memory is MemoryMode.LIMIT else network

    def _pipeline(
        self, part: Part, copies: Mapping[str, Node], old: Mapping[str, deque[Pipeline]], fetched: Collection[str]
    ) -> Pipeline:
        """Resize the old pipeline of the device that comes next, or make a new one."""
        waiting = old.get(part.device)
        first = not waiting
        if waiting:
            pipeline = waiting.popleft()
        else:
            backend = self._spare.pop(part.device, None) or self._open(part.device)
            thrifty = self.config.memory is MemoryMode.LIMIT
            pipeline = Pipeline(part, backend, thrifty=thrifty, progress=self._progress)
        try:
            pipeline.resize(part, self._connect(part, pipeline, copies), fetched, first=first)
        except BaseException:
            close_all([pipeline])
            raise
        self._made.update(dict.fromkeys(part.graph.outputs, pipeline))
        return pipeline

    def _connect(self, part: Part, pipeline: Pipeline, copies: Mapping[str, Node]) -> dict[str, Tensor]:
        """Note the copies, by what they make, that the part waits for; return the tensors whose memory it uses."""
        imports = {}
        for name in part.graph.inputs:
            held = self._made.get(name)
            if held is not None:
                imports[name] = held.tensor(name)
                self._waits.setdefault(pipeline, []).append(held)
            elif name in copies:
                value = copies[name].inputs[0]
                transfer = Transfer(copies[name].name, value, self._made[value], pipeline, name)
                self._transfers.setdefault(pipeline, []).append(transfer)
                self._made[name] = pipeline  # from here on others may use its memory
        return imports

    @staticmethod
    def _record(t: Transfer) -> CopyRecord:
        return CopyRecord(t.value, t.source.device, t.target.device, t.source.tensor(t.value).nbytes, t.name)

    # -- running ---------------------------------------------------------------------------------------

    def start(self, arrays: dict[str, Array]) -> None:
        """Start a run with the given inputs; only the last part is left running."""
        self.abandon()
        self._acquire()
        self._wait()
        if self.profile is not None:
            self.profile.events.clear()
        try:
            self._execute(arrays)
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise
        assert self.network is not None
        self._passed = {i: arrays[i].copy() for i in self.network.graph.outputs if i in arrays}

    def _execute(self, arrays: Mapping[str, Array]) -> None:
        for pipeline in self.pipelines:
            for source in self._waits.get(pipeline, ()):
                source.wait()
            for transfer in self._transfers.get(pipeline, ()):
                self._transfer(transfer)
            for name in pipeline.graph.inputs:
                if name in arrays:
                    feed(pipeline, name, arrays[name])
            pipeline.execute()

    def _transfer(self, transfer: Transfer) -> None:
        begun = perf_counter()
        transfer.run()
        if self.profile is not None:
            ProfilingContext(transfer.target.device, self.profile).event(transfer.name, perf_counter() - begun)

    def _wait(self) -> None:
        """Wait for all pipelines; the first error is raised when none is at work, so that no later run meets others."""
        try:
            for pipeline in self.pipelines:
                pipeline.wait()
        except Exception as e:
            if is_error(e):
                self._quiet()
            raise

    def _quiet(self) -> None:
        """Wait for what a run that failed has left at work; that it fails, too, is logged."""
        for pipeline in self.pipelines:
            with caught(partial(log.warning, "after a run that failed, %s failed as well: %s", pipeline.device)):
                pipeline.wait()

    @property
    def started(self) -> bool:
        """Tell whether there is a run whose outputs were not taken."""
        return self._passed is not None

    def abandon(self) -> None:
        """Let nobody have the outputs of the run that was started, if one was."""
        self._passed = None

    def finish(self, given: Sequence[Array | None]) -> list[Array]:
        """Wait for the run and return the network's outputs, in the given arrays where there are any.

        Whatever is raised, that run is over: its outputs may be half of it.
        """
        passed, self._passed = self._passed, None
        assert passed is not None and self.network is not None
        self._wait()
        graph = self.network.graph
        return [self._fetch(graph, name, target, passed) for name, target in zip(graph.outputs, given, strict=True)]

    def _fetch(self, graph: Graph, name: str, target: Array | None, passed: Mapping[str, Array]) -> Array:
        pipeline = self._made.get(name)
        if pipeline is not None and name in pipeline.mapped:
            mapped = pipeline.mapped[name]
            result: Array = np.empty(mapped.shape, mapped.dtype) if target is None else target
            copy_into(result, mapped)
            return result
        spec = graph.specs[name]
        result = np.empty(spec.dims, spec.dtype.numpy) if target is None else target
        if pipeline is None:
            known = graph.constants.get(name)
            np.copyto(result, known if known is not None else passed[name])
        elif result.flags.c_contiguous:
            with pipeline.copying(name):
                copy_tensor(pipeline.tensor(name), Tensor(name, spec.dims, spec.dtype, memory=result))
        else:
            with pipeline.copying(name):
                np.copyto(result, pipeline.tensor(name).numpy())
        return result

    def _acquire(self) -> None:
        """Let the memory managers of the devices that run something get their memory, once each (A11)."""
        for device in dict.fromkeys(p.device for p in self.pipelines):
            manager = self._managers.get(device)
            if manager is not None and device not in self._acquired:
                what = "the backend's memory manager could not acquire its memory"
                with blame(device, what, callback=callback_of(manager, "acquire")):
                    answer: object = manager.acquire()
                    check_answers.done(answer, f"{device}: {callback_of(manager, 'acquire')}", what)
                self._acquired.add(device)

    def _release(self) -> None:
        """Let them give it back; an error is logged and stops none of the others."""
        managers, self._managers = self._managers, {}
        acquired, self._acquired = self._acquired, set()

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
        """Do the first load within the block, before and after which contexts are asked.

        Where it fails, or a context refuses, everything is freed, and those that were told hear that it is gone again.
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
        """Close the pipelines; a new load must follow."""
        self.network = None
        self._close_pipelines()

    def _close_pipelines(self) -> None:
        pipelines = self.pipelines[::-1]  # those that use the memory of others go first
        spare, self._spare = self._spare, {}
        self._forget_pipelines()
        close_all([*pipelines, *spare.values()])

    def _forget_pipelines(self) -> None:
        self.pipelines.clear()
        self._made, self._transfers, self._waits, self.report, self._passed = {}, {}, {}, None, None

    def close(self) -> None:
        """Close everything and release the memory managers; a second close does nothing.

        BackendError if a context refuses: then all stays as it is.
        """
        if self.is_closed:
            return
        if self.notices is not None:
            self.notices.before_unload()
        self._free()

    def close_unheard(self) -> None:
        """Close where nobody is left to hear that a context refuses, or what fails: both are logged."""
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
        do_all([self._close_pipelines, self._release, *([self.notices.after_unload] if self.notices else [])])


class _Forgotten:
    """Networks of sessions that were dropped without a close.

    They are closed when the next session is made or the process ends, not where the collector ran, which may be in
    the middle of a driver call. A forked process has none: they are its parent's.
    """

    def __init__(self) -> None:
        self.networks: deque[LoadedNetwork] = deque()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.networks.clear)

    def add(self, network: LoadedNetwork) -> None:
        """Take the network of a session that is gone, unless that closed it."""
        if not network.is_closed:
            self.networks.append(network)

    def close(self) -> None:
        """Close all."""
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


def _memory_manager(choice: Choice) -> MemoryManager | None:
    callback = callback_of(choice.creator, "create_memory_manager")
    with blame(choice.device, "the backend could not make its memory manager", callback=callback):
        made = choice.creator.create_memory_manager(choice.index)
    return check_answers.optional(made, MemoryManager, f"{choice.device}: {callback}", "a MemoryManager")  # type: ignore[type-abstract]


def feed(pipeline: Pipeline, name: str, array: Array) -> None:
    """Put an input where the pipeline reads it."""
    if name in pipeline.mapped:
        pipeline.fill(name, array)
    else:
        with pipeline.copying(name):
            copy_tensor(Tensor.from_numpy(array, name=name), pipeline.tensor(name))


def by_node(refusals: Sequence[Refusal]) -> Mapping[str, Mapping[str, str]]:
    """Return the reasons by node and device."""
    out: dict[str, dict[str, str]] = {}
    for r in refusals:
        out.setdefault(r.node, {})[r.device] = r.reason
    return out


@contextmanager
def opened(choices: Iterable[Choice], config: BackendConfig) -> Iterator[dict[str, Backend]]:
    """Open a backend of each device, to be asked, and close them after the block, or where one cannot be opened."""
    backends: dict[str, Backend] = {}
    try:
        for choice in choices:
            backends[choice.device] = choice.open(config)
        yield backends
    finally:
        close_all(list(backends.values()))


def close_all(owners: Sequence[Pipeline | Backend]) -> None:
    """Close each; an error (of a lost device, say) is logged and stops none of the others."""
    do_all(partial(_close, owner) for owner in owners)


def _close(owner: Pipeline | Backend) -> None:
    with caught(lambda e: log.warning("closing %s failed: %s: %s", type(owner).__name__, type(e).__name__, e)):
        owner.close()
