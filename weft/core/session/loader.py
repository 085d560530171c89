"""Loads networks on their devices, and ends what was loaded with its session."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from weft.core.buffers.buffer import ends_runs
from weft.core.contract.backend import Backend, BackendConfig, MemoryMode, SameNodes, Wait
from weft.core.contract.error_context import caught, do_all
from weft.core.graph.graph import Node
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.graph.validate import misdeclared
from weft.core.host import shutdown
from weft.core.host.dropped import Dropped
from weft.core.placement.assign import Backends
from weft.core.placement.check_network import imports
from weft.core.placement.in_place import keeps_state
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.executable import Executable, close_all
from weft.core.session.notices import Notices
from weft.core.session.open_devices import OpenDevices
from weft.core.session.pipeline import Pipeline, Progress, open_pipeline
from weft.core.session.report import CopyRecord, Report, Transfers, make_report
from weft.errors import BackendError, Refusal

log = logging.getLogger("weft.session")
NO_STATE: Mapping[str, Tensor] = {}


class Loader:
    """Makes the executables of one session; owns its backends and memory managers, and notifies contexts of the end.

    It outlives a session that was dropped without a close, so it does not refer to the session.

    `devices` are those that parts may be on. `same_nodes` is what its networks have in common: the same nodes for other
    sizes. `wait` says how soon the next network is to run. `parent` loads other nodes for the same session: it frees
    what both make, and counts what both copy.
    """

    def __init__(
        self, devices: OpenDevices, *, progress: Progress | None = None, same_nodes: SameNodes | None = None,
        wait: Wait = Wait.ALL, parent: Loader | None = None,
    ) -> None:
        self._devices, self._same_nodes, self._progress = devices, same_nodes, progress
        self.config, self.profile = devices.config, devices.profile
        self.wait = wait
        """How soon the next network is to run."""
        self.notices: Notices | None = None
        """The id and the notices to contexts; None before the first load."""
        self.is_closed = False
        self._spare: dict[str, Backend] = {}
        self._warned = set[str]()
        """The outputs of which it was said that they are declared with another shape."""
        self._made: list[Executable] = [] if parent is None else parent._made
        """All that has pipelines, the latest last."""
        self.transfers: Transfers = Transfers() if parent is None else parent.transfers
        """What runs copied to and from devices."""
        self.now = Executable()
        """What was loaded or run last: its backends are asked, and the next network takes its place."""

    def beside(self, same_nodes: SameNodes, progress: Progress | None) -> Loader:
        """Return what loads other nodes for the same session."""
        return Loader(self._devices, progress=progress, same_nodes=same_nodes, parent=self)

    # -- backends --------------------------------------------------------------------------------------

    def ask(self, device: str) -> Backend:
        """Return a backend of the device for questions of support: a pipeline's, or one for a new pipeline."""
        for pipeline in self.now.pipelines:
            if pipeline.device == device:
                return pipeline.backend
        if device not in self._spare:
            self._spare[device] = self._opened(device)
        return self._spare[device]

    def asked(self, devices: Iterable[str]) -> Backends:
        """Return a backend of each device for questions of support."""
        return {device: self.ask(device) for device in devices}

    def _opened(self, device: str) -> Backend:
        return self._devices.open(device, wait=self.wait, same_nodes=self._same_nodes)

    def turn_to_choices(self, choices: Sequence[DeviceChoice]) -> None:
        """Load on the same devices with these options from now on, and wait for everything; nothing is loaded yet."""
        self._devices.choices |= {c.device: c for c in choices}
        self.wait = Wait.ALL
        self.close_spare()

    def close_spare(self) -> None:
        """Close the backends that were only asked."""
        spare, self._spare = self._spare, {}
        close_all(list(spare.values()))

    # -- loading ---------------------------------------------------------------------------------------

    def load(
        self, network: OptimizedNetwork, *, beside: bool = False, state: Mapping[str, Tensor] = NO_STATE
    ) -> Executable:
        """Return the executable of a network, which is `now` afterwards; NodeRefused if a backend changes its mind.

        It resizes the pipelines of what was `now`, unless it is to be loaded `beside` that.

        `state` are tensors of a `DeviceMemory`, by the names of inputs in `OptimizedNetwork.state`: runs read these
        inputs there, and leave the outputs that lie in them. `unaliased` then says which inputs do not use theirs, and
        why: they and their outputs are like any others. BackendError if a tensor has not its input's shape and type.
        """
        before = self.now
        for pipeline in before.pipelines:
            pipeline.wait()  # a later part may still read memory that the resize frees
        before.abandon()
        before.leave_buffers()
        imported, unaliased = self._state(network, state)
        old: dict[str, deque[Pipeline]] = {}
        for pipeline in () if beside else before.given_up():
            old.setdefault(pipeline.device, deque()).append(pipeline)
        thrifty = self.config.memory is MemoryMode.LIMIT
        now = self.now = Executable(
            thrifty=thrifty, profile=self.profile, acquire=self._devices.acquire, transfers=self.transfers
        )
        self._made[:] = [*(each for each in self._made if each.pipelines), now]
        now.unaliased = unaliased
        now.aliased = frozenset(network.state[name].output for name in imported)
        copies = {n.outputs[0]: n for n in network.copies}
        fetched = {*network.graph.outputs} - now.aliased | {n.inputs[0] for n in copies.values()}
        try:
            for part in network.parts:
                now.pipelines.append(self._pipeline(part, copies, old, fetched, imported))
        finally:
            do_all([partial(close_all, [p for left in old.values() for p in left]), self.close_spare])
        choices = self._devices.choices
        user = [choices[d] for d in network.devices if d in choices]
        network = network.without_constants() if thrifty else network
        now.complete(network, partial(self._report, user, network))
        if self.profile is not None and not beside:
            self.profile.forget(before.told - now.told)
        for name, note in misdeclared(network.graph).items():
            if name not in self._warned:
                self._warned.add(name)
                log.warning("%s", note)
        return now

    def _report(
        self, user: Sequence[DeviceChoice], network: OptimizedNetwork, pipelines: Sequence[Pipeline],
        copies: Sequence[CopyRecord],
    ) -> Report:
        refusals = by_node(network.refusals)
        return make_report(
            user, pipelines, refusals, copies, self.config, network.notes, network.journal, network.parts
        )

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
        self, part: Part, copies: Mapping[str, Node], old: Mapping[str, deque[Pipeline]],
        fetched: Collection[str], state: Mapping[str, Tensor],
    ) -> Pipeline:
        """Resize the next old pipeline of the device, or make a new one."""
        waiting = old.get(part.device)
        first = not waiting
        if waiting:
            pipeline = waiting.popleft()
        else:
            backend = self._spare.pop(part.device, None) or self._opened(part.device)
            thrifty = self.config.memory is MemoryMode.LIMIT
            pipeline = open_pipeline(part, backend, thrifty=thrifty, progress=self._progress)
        try:
            shared = {name: tensor for name, tensor in state.items() if name in part.graph.inputs}
            for name in part.graph.inputs:
                copy = copies.get(name)
                given = () if copy is None or name in self.now.made else (copy.inputs[0], copy.name)
                tensor = self.now.connect(name, pipeline, *given)
                if tensor is not None:
                    shared[name] = tensor
            pipeline.resize(part, shared, fetched, first=first)
        except BaseException:
            close_all([pipeline])
            raise
        self.now.made.update(dict.fromkeys(part.graph.outputs, pipeline))
        return pipeline

    def turn_to(self, executable: Executable) -> None:
        """Let another executable be `now`, once the last run is done."""
        self.now.settle()
        self.now = executable

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

    def unload(self) -> None:
        """Close all executables; the backends that were asked since stay for the next load."""
        do_all(each.close for each in reversed(self._made))

    def drop(self) -> None:
        """Close all executables and backends; only a new load makes a network run again."""
        do_all([self.unload, self.close_spare])

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
        do_all([self.drop, self._devices.release, *([self.notices.after_unload] if self.notices else [])])


class _Forgotten(Dropped[Callable[[], object]]):
    """Closes what sessions had that were dropped without a close: when the next one is made, or the process ends."""

    def close(self) -> None:
        """Close all of it."""
        for close in self.take():
            close()

    def end(self, patience: float) -> bool:
        """Close all at the end of the process."""
        self.close()
        return True


_forgotten = _Forgotten(of_process=True)
shutdown.note(_forgotten)
forget, close_forgotten = _forgotten.add, _forgotten.close
ends_runs(close_forgotten)


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
