"""A session: a network bound to shapes and devices, ready to run."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from weft.core.contract.backend import MemoryMode
from weft.core.contract.profile import Profile
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array, Shape
from weft.core.graph.validate import validate
from weft.core.placement.assign import Assignment
from weft.core.placement.check_network import check_devices
from weft.core.placement.hints import Hints, check_hints
from weft.core.placement.lowering import lower_network
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions, divide
from weft.core.registry.backend_registry import Choice
from weft.core.session import shutdown
from weft.core.session.arguments import Outputs, take_inputs, take_outputs, take_shapes
from weft.core.session.loaded_network import LoadedNetwork, close_forgotten, forget
from weft.core.session.network_cache import RecentNetworks
from weft.core.session.pipeline import NodeRefused, Pipeline, Progress
from weft.core.session.prefetch import Ahead
from weft.core.session.report import Report
from weft.errors import BackendError, ClosedError, ConfigError, InputError

if TYPE_CHECKING:
    from weft.core.session.runtime import Runtime

log = logging.getLogger("weft.session")

P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Session, P], R]:
    """Let one thread at a time call a method of a session, and a callback that the session calls not at all."""
    name = method.__name__

    @wraps(method)
    def alone(session: Session, /, *arguments: P.args, **named: P.kwargs) -> R:
        me = threading.get_ident()
        if session._caller == me:
            raise InputError(
                f"the session cannot {name} here",
                where=f"network {session.graph.name!r}",
                why=f"this is called in the middle of its {session._doing}, by a callback that it waits for",
                fix=f"call it when the {session._doing} has returned, or call another session",
            )
        with session._lock:
            session._caller, session._doing = me, name
            try:
                return method(session, *arguments, **named)
            finally:
                session._caller = None

    return alone


class Session:
    """Run a network. Made by `weft.load`; close it, or use it as a context manager.

    What is open when the process ends is closed then.

    `run` takes arrays in input order, or one dict by input name, and returns the outputs in order. A
    session may be used from several threads: runs take turns. After an error a session can be used again,
    or closed.

    `choices` are the devices in order of preference; `host`, which may be among them, is the device of debug
    nodes. `fixed` is the graph as it was optimised before, for these devices. `ahead` is what another thread makes of
    the graph: bound to these shapes, and the network with the precision of `options`.
    """

    def __init__(
        self,
        graph: Graph,
        choices: Sequence[Choice],
        options: OptimizerOptions | None = None,
        *,
        runtime: Runtime,
        host: Choice | None = None,
        shapes: Mapping[str, Shape] | None = None,
        progress: Progress | None = None,
        profile: bool = False,
        fixed: OptimizedNetwork | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        close_forgotten()
        if ahead is None:
            validate(graph)
        self.graph = graph
        """The network as it was given: no shape is bound, nothing is rewritten."""
        self._bound = bind(graph, take_shapes(shapes or {})) if ahead is None else ahead.bound()
        self.options = options or OptimizerOptions()
        self.config = self.options.config
        self.runtime = runtime
        self._choices, self._fixed, self._ahead = list(choices), fixed, ahead
        self._host = host.device if host else choices[-1].device
        self._lock = threading.RLock()
        self._caller: int | None = None
        """The thread that has called one of the methods of which one runs at a time."""
        self._doing = ""
        """Which of them."""
        self._profile = Profile() if profile else None
        every = [*([host] if host else []), *choices]
        self._loaded = LoadedNetwork(every, self.config, progress=progress, profile=self._profile)
        self._recent = RecentNetworks()
        self._warned = ""
        self._process = os.getpid()
        check_hints(graph, self.options.hints, [c.device for c in choices])
        weakref.finalize(self, forget, self._loaded).atexit = False
        with self._lock:  # the end of the process waits for who holds it
            shutdown.note(self)
            self._prepare(self._bound)
        self._ahead = None

    # -- what a user sees ------------------------------------------------------------------------------

    @property
    def id(self) -> int | None:
        """Return the network's id in the runtime; None until it is loaded."""
        notices = self._loaded.notices
        return None if notices is None else notices.network

    @property
    def is_closed(self) -> bool:
        """Tell whether the session was closed."""
        return self._loaded.is_closed

    @property
    def inputs(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of each input; a str is a dimension that is not bound yet."""
        return {i: self._bound.specs[i].shape for i in self.graph.inputs}

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self.graph.outputs)

    @property
    def report(self) -> Report:
        """Return what runs where and why; InputError while symbolic dimensions are unbound."""
        self._check_open()
        report = self._loaded.report
        if report is None:
            open_dims = {i: s for i, s in self.inputs.items() if not all(isinstance(d, int) for d in s)}
            raise InputError(
                "there is no report yet",
                why="; ".join(f"the shape of {i!r} is {s}" for i, s in open_dims.items())
                or "the last resize failed",
                fix="pass shapes={name: shape} to weft.load, call resize, or run once; it will run on "
                + ", ".join(c.why or c.device for c in self._choices),
            )
        return report

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """Return what runs on each device, in the order of execution, for tools that look inside."""
        self._check_open()
        return tuple(self._loaded.pipelines)

    @property
    def profile(self) -> Profile:
        """Return what the last run cost, node by node or as the backends report it; see `weft.load(profile=True)`."""
        self._check_open()
        if self._profile is None:
            raise ConfigError("this session is not profiled", fix="pass profile=True to weft.load")
        return self._profile

    @property
    def optimized(self) -> OptimizedNetwork:
        """Return the network as it was optimised for the present shapes; InputError while they are unbound.

        In memory mode LIMIT it is without its weights: to be printed, not loaded or saved.
        """
        if self._loaded.network is None:
            why = "its shapes are not all known, or the last resize failed"
            raise InputError("the network is not optimised", why=why, fix="call resize")
        return self._loaded.network

    @_alone
    def resize(self, shapes: Mapping[str, Shape]) -> None:
        """Prepare for other input shapes; inputs that are not named keep theirs."""
        self._check_open()
        given = take_shapes(shapes)
        self._prepare(bind(self.graph, self._kept(given) | given))

    @_alone
    def run(self, *inputs: Array | Mapping[str, Array], outputs: Outputs | None = None) -> list[Array]:
        """Return the outputs, in order, for arrays in input order or a dict by name.

        `outputs` may hold arrays of the right shape and type that are written in place and returned.
        Symbolic dimensions that are unbound, or that differ from the last run, are bound to the arrays'
        shapes by a resize.
        """
        arrays = self._accept(inputs)
        network = self._loaded.network
        assert network is not None
        given = take_outputs(self.graph, network.graph.specs, outputs)
        try:
            self._loaded.start(arrays)
            return self._loaded.finish(given)
        finally:
            self._loaded.abandon()  # an interrupt in between leaves nothing to wait for

    @_alone
    def submit(self, *inputs: Array | Mapping[str, Array]) -> None:
        """Start a run and return while the device may still be at work; `wait` returns its outputs.

        Where the network is divided over devices, only the last part is left running. A second submit, a run or
        a resize waits for the first, whose outputs are lost.
        """
        self._loaded.start(self._accept(inputs))

    @_alone
    def wait(self, outputs: Outputs | None = None) -> list[Array]:
        """Wait for the run that `submit` started and return its outputs, once.

        InputError if there is none: nothing was submitted since the last run, or that failed.
        """
        self._check_open()
        if not self._loaded.started:
            raise InputError(
                "there is no run to wait for",
                why="none was submitted since outputs were last taken, a run failed or the session was resized",
                fix="call submit, and wait before anything else",
            )
        return self._loaded.finish(take_outputs(self.graph, self.optimized.graph.specs, outputs))

    @_alone
    def close(self) -> None:
        """Free everything; the devices stay open for other sessions. A second close does nothing.

        BackendError if a backend's context refuses; then the session stays as it is. A run in another thread is waited
        for; InputError where this is called in the middle of one, by a debug callback say.
        """
        self._loaded.close()
        self._recent.clear()

    def end(self, patience: float) -> bool:
        """Close at the end of the process, and let no thread in any more; False if one does not leave in time.

        Nobody is left to hear that a backend's context refuses: that is logged. In a forked process the session is
        its parent's.
        """
        if self._process != os.getpid():
            return True
        if not self._lock.acquire(timeout=patience):
            return False
        self._loaded.close_unheard()
        return True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- preparing -------------------------------------------------------------------------------------

    def _kept(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes that the other inputs keep, changed where they share a symbol with a given one."""
        declared = {i: self.graph.specs[i].shape for i in self.graph.inputs}
        sizes = {d: n for i, shape in given.items() for d, n in zip(declared.get(i, ()), shape, strict=False)}
        kept = {}
        for name, old in self.inputs.items():
            dims = tuple(sizes.get(d, now) for d, now in zip(declared[name], old, strict=True))
            whole = tuple(d for d in dims if isinstance(d, int))
            if name not in given and len(whole) == len(dims):
                kept[name] = whole
        return kept

    def _prepare(self, bound: Graph) -> None:
        """Load what has its shapes; unload what has not."""
        if bound.symbols():
            self._loaded.drop()
        elif self._loaded.notices is None:
            with self.runtime.notifier.loading(self._choices) as notices, self._loaded.announced(notices):
                self._place(bound)
        else:
            try:
                self._place(bound)
            except BaseException:
                self._loaded.drop()
                raise
        self._bound = bound

    def _place(self, bound: Graph) -> None:
        """Optimise and load; again, for as long as a backend refuses nodes that it had taken."""
        before, shapes = Assignment(), tuple(bound.specs[i].shape for i in bound.inputs)
        if self._fixed is not None:
            check_devices(self._fixed, {p.device: self._loaded.ask(p.device) for p in self._fixed.parts})
        while True:
            divided = self._fixed or self._recent.find(shapes) or self._divide(bound, before)
            network = lower_network(divided, {p.device: self._loaded.ask(p.device) for p in divided.parts})
            try:
                self._loaded.load(network)
            except NodeRefused as e:
                self._recent.forget(shapes)
                self._note_refusal(network, e, before)
                continue
            self._warn(network)
            if self._fixed is None and self.config.memory is not MemoryMode.LIMIT:
                self._recent.keep(shapes, divided)
            return

    def _divide(self, bound: Graph, before: Assignment) -> OptimizedNetwork:
        backends = {c.device: self._loaded.ask(c.device) for c in self._choices}
        prepared = self._ahead.take() if self._ahead else None
        network = divide(bound, backends, self.options, host=self._host, before=before, prepared=prepared)
        self._recent.share_weights(network)
        return network

    def _note_refusal(self, network: OptimizedNetwork, refusal: NodeRefused, before: Assignment) -> None:
        """Note what a backend refused late, so that the node is assigned anew."""
        if self._fixed is not None:
            names = ", ".join(repr(n.name) for n in refusal.nodes)
            raise BackendError(
                f"{refusal.device} does not take node(s) {names} of an optimised network",
                why="onCreate returned None",
                fix="optimise the model again on this machine",
            )
        for node in refusal.nodes:
            if (node.name, refusal.device) in before.refusals:
                raise BackendError(
                    f"onCreate returned None for node {node.name!r} ({node.op.type}), which its backend put there",
                    where=refusal.device,
                    fix="OptimizeSubgraph may only make nodes that the backend takes",
                )
            before.refuse(node, refusal.device, "onCreate returned None for these shapes and types")

    def _warn(self, network: OptimizedNetwork) -> None:
        """Log what is not on the first device; a resize that changes nothing about it says nothing."""
        where = network.placement
        lines = [
            f"{r.node!r} ({r.op}) is on {where.get(r.node, 'another')}: {r.device}: {r.reason}"
            for r in network.refusals
        ]
        text = "\n  ".join([f"{self._astray(network)}:", *lines])
        if lines and text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def _astray(self, network: OptimizedNetwork) -> str:
        """Return how many nodes are not where the order of preference, or a hint, puts them."""
        first, hints = self._choices[0].device, Hints.of(self.options.hints)
        wanted = {r.node: hints.device(r.node) for r in network.refusals}
        moved = {r.node for r in network.refusals if r.device == first and wanted[r.node] in (None, first)}
        unheeded: dict[str, set[str]] = {}
        for r in network.refusals:
            if r.device == wanted[r.node] != first:
                unheeded.setdefault(r.device, set()).add(r.node)
        parts = [f"{len(moved)} node(s) do not run on {first}"] if moved else []
        parts += [f"{len(those)} node(s) do not run on {d}, as a hint asks" for d, those in unheeded.items()]
        return "; ".join(parts) or f"{len(wanted)} node(s) were refused by a device before their own"

    # -- running ---------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._loaded.is_closed:
            raise ClosedError("the session is closed", fix="load the model again")

    def _accept(self, inputs: Sequence[Array | Mapping[str, Array]]) -> dict[str, Array]:
        """Return the checked arrays, with the session prepared for their shapes."""
        self._check_open()
        arrays = take_inputs(self.graph, inputs)
        specs = self._bound.specs
        if self._loaded.network is None or any(a.shape != specs[i].shape for i, a in arrays.items()):
            self._prepare(bind(self.graph, {i: a.shape for i, a in arrays.items()}))
        return arrays
