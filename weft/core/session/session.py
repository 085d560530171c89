"""A session: a network bound to shapes and devices, ready to run."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.buffers.device_memories import device_memories
from weft.core.contract.backend import MemoryMode, Precision, SameNodes, Wait
from weft.core.contract.doors import door
from weft.core.contract.error_context import do_all
from weft.core.contract.not_copied import NotCopied
from weft.core.contract.profile import Profile, Profiled
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.later_constants import MOST_INTEGERS
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.graph.validate import validate
from weft.core.host import shutdown
from weft.core.placement.capacity import Axes
from weft.core.placement.hints import check_hints
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.arguments import (
    Given,
    Input,
    Outputs,
    as_given,
    buffers_in,
    half_outputs,
    host_outputs,
    hosted,
    is_half,
    take_inputs,
    take_shapes,
)
from weft.core.session.capacities import RoomyPlan
from weft.core.session.growing import Growth
from weft.core.session.later import Later, in_turn
from weft.core.session.left_weights import LeftWeights
from weft.core.session.loader import Loader, close_forgotten, forget
from weft.core.session.network_plan import NetworkPlan, are_values
from weft.core.session.open_devices import OpenDevices
from weft.core.session.overflow import RangeCheck, masks_of
from weft.core.session.pipeline import Pipeline, Progress
from weft.core.session.planner import Planner, Sooner
from weft.core.session.prefetch import Prefetch
from weft.core.session.report import Report, Transfers, joined
from weft.core.session.run import Run
from weft.core.session.state import State, StateStore
from weft.errors import ClosedError, ConfigError, InputError, OutOfMemory, WeftError, listing

if TYPE_CHECKING:
    from weft.core.session.runtime import Runtime

log = logging.getLogger("weft.session")
shutdown.parks(__name__)

_NOT_RESIZED = "the last resize failed, or another thread's is under way"
"""Why a network whose shapes are bound is not loaded."""

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Session, P], R]:
    """Let one thread at a time call a method of a session; InputError if a callback of that session calls it."""
    name = method.__name__.lstrip("_")

    @wraps(method)
    def alone(session: Session, /, *arguments: P.args, **named: P.kwargs) -> R:
        me = threading.get_ident()
        if session._caller == me:
            raise InputError(
                f"the session cannot {name} here",
                where=f"network {session.graph.name!r}",
                why=f"this is called during its {session._doing}, by a callback that it waits for",
                fix=f"call it when the {session._doing} has returned, or call another session",
            )
        with session._lock:
            session._caller, session._doing = me, name
            try:
                return method(session, *arguments, **named)
            finally:
                session._caller = None
                if session._later is not None:
                    session._later.release()

    return door(alone)


class Session(NotCopied):
    """Run a network. Made by `weft.load`; close it, or use it as a context manager.

    A session that is still open when the process ends is closed then.

    `run` takes arrays in input order, or one dict by input name, and returns the outputs in order. A session may be
    used from several threads: runs take turns. After an error a session can be used again, or closed.

    `choices` are the devices in order of preference; debug nodes run on `host`, which may be among them. `fixed` is a
    network that was optimised before for these devices. `prefetch` is another thread's work: the graph bound to these
    shapes, and the prepared network with the precision of `options`. `reread` reads the model's file again: then the
    session leaves the weights to the devices. With `overflow_check`, values that overflow at precision LOW are planned
    again as float32 (`weft.core.session.overflow`). `wait` says for what the first load waits; one that is profiled or
    debugged, or saves memory, waits for everything.
    """

    _noun = "session"
    _in_a_worker = (
        "load the network in each process: weft.load(model), or weft.optimize(model, device).save('model.weft') once "
        "and weft.load('model.weft') there"
    )
    _a_second = "share it, since runs take turns, or load the network again for a second session"

    def __init__(
        self, graph: Graph, choices: Sequence[DeviceChoice], options: OptimizerOptions | None = None, *,
        runtime: Runtime, host: DeviceChoice | None = None, shapes: Mapping[str, Shape] | None = None,
        progress: Progress | None = None, profile: Profiled = False, fixed: OptimizedNetwork | None = None,
        prefetch: Prefetch | None = None, reread: Callable[[], Graph] | None = None,
        overflow_check: bool = True, wait: Wait = Wait.ALL, state: Mapping[str, str] | None = None,
    ) -> None:
        close_forgotten()
        device_memories.free_dropped()
        if prefetch is None and (fixed is None or fixed.tail is None):  # a first stage does not make all outputs
            validate(graph)
        bound = bind(graph, take_shapes(shapes or {})) if prefetch is None else prefetch.bound()
        self.options = options or OptimizerOptions()
        self.config = self.options.config
        self.runtime = runtime
        self._weights = LeftWeights(reread)
        self._lock = threading.RLock()
        self._caller: int | None = None
        """The thread that runs one of the methods marked `_alone`."""
        self._doing = ""
        """The name of that method."""
        self._profile = Profile.of(profile)
        self._hosts = () if host is None else (host,)
        waits = self.config.memory is MemoryMode.LIMIT or self._profile is not None or self.options.debug is not None
        self._progress = in_turn(progress)
        loader = self._made_loader(choices, Wait.ALL if waits else wait)
        self._planner = Planner(
            graph, bound, choices, host.device if host else choices[-1].device, self.options, loader,
            make_room=partial(_make_room, weakref.ref(self)), fixed=fixed, prefetch=prefetch, progress=progress,
            state=state or None,
        )
        self._later: Later | None = None
        """Prepares what takes the place of what is loaded."""
        self._general = ""
        """Why kernels that were there soon stay: others could not be prepared."""
        self._decided = False
        """Whether it was looked at which inputs decide shapes, after a run that went on by values."""
        self._range = RangeCheck(is_on=overflow_check and self.config.precision is Precision.LOW)
        self._growth = Growth(partial(_planner_of, weakref.ref(self)))
        self._asked = _asked(graph, state or {})
        """The network as callers see it: without its state."""
        self._run = Run(self._asked)
        """The last run."""
        self._process = os.getpid()
        if fixed is None:
            check_hints(graph, self.options.hints, [c.device for c in choices])
        self._ends: list[Loader | Later] = [loader]
        """What ends with the session if it is dropped without a close."""
        weakref.finalize(self, _forget_all, self._ends).atexit = False
        with self._lock:  # the end of the process waits for the lock
            _sessions.add(self)
            shutdown.note(self)
            self._growth.begin()
            if self._store is None:
                self._prepare(bound, ahead=True)
            else:
                self._prepare_state()
        self._planner.loaded()

    def _made_loader(self, choices: Sequence[DeviceChoice], wait: Wait) -> Loader:
        devices = OpenDevices([*self._hosts, *choices], self.config, self._profile)
        return Loader(devices, progress=self._progress, same_nodes=SameNodes(), wait=wait)

    # -- what a user sees ------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """Return the network as it was given, before shapes are bound and passes run.

        In memory mode LIMIT it may lack the weights that devices have; after `close` it is inputs and outputs alone.
        """
        return self._planner.graph

    @property
    def _store(self) -> StateStore | None:
        return self._planner.store

    @property
    def id(self) -> int | None:
        """Return the network's id in the runtime; None until it is loaded."""
        notices = self._planner.loader.notices
        return None if notices is None else notices.network

    @property
    def is_closed(self) -> bool:
        """Tell whether the session was closed."""
        return self._planner.loader.is_closed

    @property
    def inputs(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of each input; a str is a dimension that is not bound yet."""
        specs = self._planner.bound.specs  # one look: another thread's run may bind others
        return {i: specs[i].shape for i in self._asked.inputs}

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self._asked.outputs)

    @property
    def keeps_state(self) -> bool:
        """Tell whether the session has a `state`."""
        return self._store is not None

    @property
    def state(self) -> State:
        """Return the values that live from run to run; ConfigError if the session was loaded without `state`."""
        self._check_open()
        if self._store is None:
            raise ConfigError("this session keeps no state", fix="pass state=True, or the pairs, to weft.load")
        return State(self)

    @property
    def report(self) -> Report:
        """Return which device runs which node, and why; InputError while symbolic dimensions are unbound.

        Where sizes follow from values, it tells of the first stage until a run, and then of all stages of that run.
        """
        self._check_open()
        later, general = self._later, self._general
        planner = self._planner  # one look: another thread's run may put another in its place
        now = planner.now
        report = now.executable.report_now
        if report is None:
            open_dims = {i: s for i, s in self.inputs.items() if not all(isinstance(d, int) for d in s)}
            raise InputError(
                "there is no report yet",
                why="; ".join(f"the shape of {i!r} is {s}" for i, s in open_dims.items())
                or _NOT_RESIZED,
                fix="pass shapes={name: shape} to weft.load, call resize, or run once; it will run on "
                + ", ".join(c.why or c.device for c in planner.choices),
            )
        report = replace(report, plan=planner.plans.line(now))
        if later is not None:
            note = f"general kernels run until better ones are ready: {later.why}"
            report = replace(report, notes=(*report.notes, note), final=False)
        elif general:
            report = replace(report, notes=(*report.notes, general))
        return joined(report, [*self._run.used.values()], self._run.own)

    @door
    def wait_all(self) -> None:
        """Wait until the session has the kernels with which it runs from then on; see `wait` of `weft.load`.

        Other threads may run it meanwhile. If better kernels could not be prepared, the report says why.
        """
        while (later := self._later) is not None:
            later.wait()
            if self._caller == threading.get_ident():
                return  # a callback of a run calls this: the next run has the kernels
            self._wait_all()
            if self._later is later:
                return  # outputs of a run that was started are not taken yet: the next run has the kernels

    @_alone
    def _wait_all(self) -> None:
        self._take_later()

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """Return the pipelines in the order of execution, for tools that look inside.

        Where sizes follow from values, the later stages that are loaded come after the first.
        """
        self._check_open()
        planner = self._planner
        return (*planner.now.executable.pipelines, *planner.rests.pipelines)

    @property
    def profile(self) -> Profile:
        """Return the times of the last run, by node or as the backends report them; see `weft.load(profile=True)`."""
        self._check_open()
        if self._profile is None:
            raise ConfigError("this session is not profiled", fix="pass profile=True to weft.load")
        return self._profile

    @property
    def optimized(self) -> OptimizedNetwork:
        """Return the network as it was optimised for the current shapes; InputError while they are unbound.

        In memory mode LIMIT it has no weights: it can be printed, but not loaded or saved. It may be used after the
        session is closed, if it is taken before. Where sizes follow from values, it is the network of the first stage,
        with the later stages that are loaded as its `tail`. It waits as `wait_all` does.
        """
        self.wait_all()
        planner = self._planner
        network = self._first_stage(planner)
        if network.tail is None:
            return network
        return replace(network, tail=replace(network.tail, stages=tuple(planner.rests.stages)))

    def _first_stage(self, planner: Planner | None = None) -> OptimizedNetwork:
        """Return the network that is loaded, by the planner of now or another."""
        self._check_open()
        planner = planner or self._planner
        network = planner.now.executable.network
        if network is None:
            open_sizes = ", ".join(map(repr, sorted(planner.bound.symbols())))
            why = f"the sizes {open_sizes} of its inputs are open" if open_sizes else _NOT_RESIZED
            raise InputError("the network has no shapes yet", why=why, fix="call resize, or run it once")
        return network

    @_alone
    def resize(self, shapes: Mapping[str, Shape]) -> None:
        """Prepare for other input shapes; inputs that are not named keep their shapes."""
        self._check_open()
        given = take_shapes(shapes)
        bound = bind(self.graph, self._kept(given) | given, self._planner.bound)
        if self._store is None:
            self._prepare(bound, ahead=True)
        else:
            self._planner.bound = bound
            self._prepare_state()

    @_alone
    def run(self, *inputs: Input | Mapping[str, Input], outputs: Outputs | None = None) -> list[Any]:
        """Return the outputs, in order, for arrays in input order or a dict by name.

        An input or an output that is a sequence is a list of arrays, an optional that holds nothing None. Arrays may be
        numpy's or of any library with DLPack, such as PyTorch's tensors on the CPU, or buffers, which stay on their
        device. `outputs` may hold arrays and buffers of the right shape and type, which are written and returned; the
        class `weft.Buffer` in the place of one, or of all, asks for a new buffer on the device that makes the output.
        If the arrays' shapes differ from the current ones, the session is resized to them first. At precision LOW,
        inputs and outputs of float32 may be float16 where the network stores them so; where the last run had the other
        type, it is planned anew.
        """
        own, outputs = outputs, None if outputs is None else host_outputs(outputs)
        run = self._accepted(inputs, outputs)
        try:
            self._start(run)
            results = self._finish(run)
            if self._range.is_on:
                results = self._in_range(run, results)
            return results if own is outputs else as_given(self._asked, own, results)
        finally:
            run.let_go()
            self._planner.now.executable.abandon()  # after an interrupt, too

    def _in_range(self, run: Run, results: list[Any]) -> list[Any]:
        """Return the results of a run, or of another with what overflowed in float32; see `RangeCheck`."""
        repeat = partial(self._repeated, run)
        return self._range.settled(results, run.arrays, lambda: self._planner, repeat, self._plan_in_float32)

    def _repeated(self, run: Run) -> list[Any]:
        """Return the results of a run once more, from the state that was before it."""
        self._undo_run()
        again = self._accepted([run.arrays if run.unpadded is None else run.unpadded], run.outputs)
        try:
            self._start(again)
            return self._finish(again)
        finally:
            again.let_go()

    def _undo_run(self) -> None:
        """Let the state be as it was before the last run."""
        if self._store is not None:
            self._store.undo(self._run.state)

    def _plan_in_float32(self, overflowing: frozenset[str]) -> None:
        """Load the network again with these values in float32."""
        self._undo_run()
        self._settle()
        self._planner.plan_again(overflowing)
        self._growth.begin()
        if self._store is None:
            self._prepare(self._planner.bound)
            return
        self._planner.now = NetworkPlan()

    def _accepted(self, inputs: Sequence[Input | Mapping[str, Input]], outputs: Outputs | None) -> Run:
        """Return a run of these arrays, for whose shapes and types the session is prepared."""
        run = Run(self._asked, outputs)
        run.arrays = self._accept(run, inputs)
        if outputs is not None:
            plan = self._planner.now
            run.given = plan.targets(self._asked, outputs, run.numbers, self._new_output, halves=self._range.halves)
            repeats = self._range.is_on and (run.unpadded is not None or self._range.may_repeat(run.given))
            if plan.reads_late or repeats or buffers_in(run.given):
                run.keep_apart()
        return run

    def _new_output(self, specs: Mapping[str, TensorSpec], name: str) -> Buffer:
        return self._new_buffer(name, specs[name], self._maker(name))

    def _start(self, run: Run, *, lasting: bool = False) -> None:
        """Start a run; `lasting` copies what it reads later, which the caller may change."""
        planner, watch, arrays = self._planner, self._range.watch, run.arrays
        plan, store = planner.now, planner.store
        planner.plans.begin(plan)
        if watch is not None or plan.rest is not None:
            arrays = hosted(arrays)
        if watch is not None:
            assert plan.executable.network is not None
            own = () if plan.roomy is None else plan.roomy.network.masks
            watch.masks = masks_of(plan.executable.network.graph, own)
        self._run, run.watch = run, watch
        if store is not None:
            run.store, run.state = store, store.arrays
        plan.executable.start(arrays, run.given, watch=watch)
        if plan.steps:
            run.keep(plan.steps, arrays, lasting=lasting)
        if store is not None and plan.roomy is not None:
            store.rows = plan.roomy.network.rows(run.numbers)
            store.length += store.rows

    def _finish(self, run: Run) -> list[Any]:
        """Return the outputs of the run that was started; if it fails, the state is as it was before."""
        plan = self._planner.now
        try:
            results = plan.executable.finish(run.given)
            if plan.steps:
                made = dict(zip(plan.executable.results, results, strict=True))
                results = run.go_on(plan.steps, made, self._new_output)
        except BaseException:
            self._undo_run()
            raise
        return results

    @_alone
    def submit(self, *inputs: Input | Mapping[str, Input], outputs: Outputs | None = None) -> None:
        """Start a run and return while the device may still be at work; `wait` returns its outputs.

        If the network is divided over devices, only its last part may still run; where sizes follow from values, only
        the first stage. A second submit, a run or a resize waits for the first run, whose outputs are lost. Arrays of
        the caller's own may be changed at once; those of `input_arrays` and `outputs` only after `wait`.
        """
        own, outputs = outputs, None if outputs is None else host_outputs(outputs)
        run = self._accepted(inputs, outputs)
        is_watched = self._range.watch is not None
        if is_watched:
            run.keep_copies()
        self._start(run, lasting=True)
        run.asked_outputs, run.may_repeat = own, is_watched
        if not is_watched:
            run.arrays = {}

    @_alone
    def wait(self, outputs: Outputs | None = None) -> list[Any]:
        """Wait for the run that `submit` started and return its outputs, once.

        Arrays for them are copied to, and those of `output_arrays` converted to if they are float16; only arrays that
        `submit` got are written by the device. InputError if there is no such run: none was submitted since the last
        run, or it failed; or if both calls give arrays for the outputs.
        """
        self._check_open()
        if not self._planner.now.executable.started:
            raise InputError(
                "there is no run to wait for",
                why="none was submitted since outputs were last taken, a run failed or the session was resized",
                fix="call submit, and wait before anything else",
            )
        run, before = self._run, self._run.asked_outputs
        own, outputs = outputs, None if outputs is None else host_outputs(outputs)
        if before is not None and outputs is not None:
            raise InputError(
                "two sets of arrays were given for the outputs",
                where=f"network {self.graph.name!r}",
                why="submit had one already, and wait has another",
                fix="give them to submit, which may then save a copy, or to wait",
            )
        if outputs is not None:
            run.given = self._planner.now.targets(
                self._asked, outputs, run.numbers, self._new_output, halves=self._range.halves,
                converted=half_outputs(self._asked, outputs) & {*self._asked.outputs},
            )
            run.outputs = outputs
        else:
            own, outputs = before, run.outputs
        run.asked_outputs = None
        try:
            results = self._finish(run)
            if run.may_repeat:
                results = self._in_range(run, results)
        finally:
            run.let_go()
        return results if own is outputs else as_given(self._asked, own, results)

    @_alone
    def with_state(self, use: Callable[[StateStore, Mapping[str, Axes]], R], *, values: bool = True) -> R:
        """Return what a function makes of the state; `Session.state` calls this.

        `values` tells whether it reads or writes them: InputError if a run that was submitted does so, too.
        """
        plan = self._planner.now
        self._check_open()
        assert self._store is not None
        if values and plan.executable.started:
            raise InputError(
                "a run is under way, which makes the state another",
                where=f"network {self.graph.name!r}",
                why="submit started it, and nobody has waited for it",
                fix="call wait first",
            )
        if values:
            plan.executable.settle()
        return use(self._store, {} if plan.roomy is None else plan.roomy.network.inputs)

    # -- arrays in the devices' reach ------------------------------------------------------------------

    @_alone
    def input_arrays(self, *, half: bool = True) -> dict[str, Array]:
        """Return new arrays of zeros for the inputs, by name, in memory that the device reads without a copy.

        Fill them and pass them to `run` or `submit`; each call returns others, so that one set can be filled while the
        device works on another. They are float16 for float32 inputs that the network stores so (precision LOW), unless
        `half` is False, and otherwise of the model's types. They fit the current shapes. They stay valid as long as you
        hold them, also after a resize, and after `close`. Devices without such memory, and memory mode LIMIT, get
        numpy's own arrays, which runs copy. InputError while shapes are unbound. Sequences and optionals have none.
        """
        self._settle()
        plan, bound = self._planner.now, self._planner.bound
        graph = self._first_stage().graph
        arrays = {}
        for name in self._asked.inputs:
            spec = bound.specs[name] if plan.roomy else graph.specs.get(name, bound.specs[name])
            if plan.roomy and self._run.shapes:
                spec = TensorSpec(self._run.shapes[name], spec.dtype)
            if not isinstance(spec, SequenceSpec):
                spec = plan.travelling(name, spec) if half else TensorSpec(spec.shape, self.graph.specs[name].dtype)
                arrays[name] = plan.executable.lend(name, spec, is_input=True)
        return arrays

    @_alone
    def output_arrays(self) -> dict[str, Array]:
        """Return new arrays for the outputs, by name, in memory that the device writes without a copy.

        Pass them as `outputs` of `run` or `submit`, which return them filled; see `input_arrays`. InputError if shapes
        of outputs follow from values that only a run tells.
        """
        self._settle()
        plan = self._planner.now
        specs = {name: plan.travelling(name, spec) for name, spec in self._output_specs().items()}
        return {name: plan.executable.lend(name, spec, is_input=False) for name, spec in specs.items()}

    def _output_specs(self) -> dict[str, TensorSpec]:
        """Return the specs of the outputs for the current sizes; InputError if these do not tell them."""
        plan = self._planner.now
        if plan.rest is not None or self.keeps_state:
            raise InputError(
                "the shapes of the outputs are not known before a run",
                where=f"network {self.graph.name!r}",
                why="it runs in stages, since shapes, or which nodes run, follow from values"
                if plan.rest is not None
                else "the session keeps a state, which each run may make longer",
                fix="let run make the arrays or buffers (outputs=weft.Buffer), or give your own for outputs of known "
                "shapes (outputs={name: array})",
            )
        graph = self._first_stage().graph
        if plan.roomy is not None:
            return plan.roomy.live_specs(self._asked.outputs, self._run.numbers)
        return {o: graph.specs[o] for o in graph.outputs}

    @_alone
    def buffer(self, what: str | TensorSpec, value: Any = None) -> Buffer:
        """Return a new buffer for an input or output, by name, on the device that reads or makes it.

        It has the current shape, and the type of `input_arrays`. A `TensorSpec` makes one of that shape and type on the
        first device. Its content is arbitrary without a `value`. InputError while shapes are unbound, and for outputs
        whose shapes follow from values that only a run tells.
        """
        self._settle()
        plan, bound = self._planner.now, self._planner.bound
        if isinstance(what, TensorSpec):
            spec, device = what, self._first_stage().devices[0]
        elif what in self._asked.inputs:
            graph = self._first_stage().graph
            spec = plan.travelling(what, bound.specs[what] if plan.roomy else graph.specs[what])
            readers = (p.device for p in plan.executable.pipelines if what in p.graph.inputs)
            device = next(readers, self._planner.choices[0].device)
        elif what in self._asked.outputs:
            spec = plan.travelling(what, self._output_specs()[what])
            device = self._maker(what)
        else:
            names = listing([*self._asked.inputs, *self._asked.outputs], ", ")
            raise InputError(f"the network has no input or output {what!r}", why=f"it has {names}",
                             fix="name one of these, or pass a TensorSpec")
        made = self._new_buffer(what if isinstance(what, str) else "buffer", spec, device)
        if value is not None:
            made.write(value)
        return made

    def _maker(self, output: str) -> str:
        """Return the device that makes an output; the first one for what no device makes."""
        pipeline = self._planner.now.executable.made.get(output)
        return self._planner.choices[0].device if pipeline is None else pipeline.device

    def _new_buffer(self, name: str, spec: TensorSpec, device: str) -> Buffer:
        choices = self._planner.choices if self._later is None else self._later.choices  # where later runs are
        choice = next(choice for choice in (*choices, *self._hosts) if choice.device == device)
        return device_memories.make(choice, spec, name)

    @property
    def transfers(self) -> Transfers:
        """Return what the runs so far copied to and from devices; of stages, what the first one copied."""
        return replace(self._planner.loader.transfers)

    @_alone
    def close(self) -> None:
        """Free everything; the devices stay open for other sessions. A second close does nothing.

        It waits for a run in another thread. BackendError if a backend's context refuses; the session then stays open.
        InputError if it is called during a run of this thread, such as by a debug callback.
        """
        if self._later is not None:
            self._later.give_up()
        do_all([self._planner.loader.close, self._close_rest])

    def _end_later(self, patience: float | None = None) -> bool:
        """Stop what is prepared for later, and what closes what it replaced; tell whether both have ended."""
        self._later = None
        return all(later.end(patience) for later in self._ends if isinstance(later, Later))

    def _close_rest(self) -> None:
        """Free all but the loaded network itself, if that is closed."""
        if self._planner.loader.is_closed:
            self._end_later()
            self._ends.clear()
            self._planner.close()
            self._growth.end()
            self._asked = _interface(self._asked)
            self._run = Run(self._asked)
            self._planner.forget(_interface(self.graph), _interface(self._planner.bound))

    def end(self, patience: float) -> bool:
        """Close at the end of the process, and admit no thread any more; return False if one does not leave in time.

        A context that refuses is logged. In a forked process nothing is done: the session belongs to the parent.
        """
        if self._process != os.getpid():
            return True
        if not self._lock.acquire(timeout=patience):
            return False
        ended = self._end_later(patience)
        self._planner.loader.close_unheard()
        return ended

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- preparing -------------------------------------------------------------------------------------

    def _kept(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the inputs that are not given, with symbols that they share with a given one rebound."""
        specs = {i: self.graph.specs[i] for i in self.graph.inputs}
        declared = {i: spec.shape for i, spec in specs.items() if not spec.has_open_rank}
        sizes = {d: n for i, shape in given.items() for d, n in zip(declared.get(i, ()), shape, strict=False)}
        kept = {}
        for name, old in self.inputs.items():
            dims = tuple(sizes.get(d, now) for d, now in zip(declared.get(name, old), old, strict=True))
            whole = tuple(d for d in dims if isinstance(d, int))
            if name not in given and len(whole) == len(dims):
                kept[name] = whole
        return kept

    def _prepare(self, bound: Graph, wanted: frozenset[str] | None = None, *, ahead: bool = False) -> None:
        """Load the graph if all its shapes are known; else unload the one before.

        `wanted` are the inputs and outputs for which there are fp16 arrays, by default those of the last plan. `ahead`
        of a run, later stages are planned and loaded as far as they can be foreseen.
        """
        self._settle()
        planner = self._planner
        wanted = planner.now.wanted if wanted is None else wanted
        overflowing = planner.graph.overflowing
        planner.graph, bound = self._weights.taken(planner.graph, bound)
        planner.graph.overflowing = bound.overflowing = overflowing
        if bound.symbols():
            planner.loader.drop()
        else:
            self._loading(lambda: planner.place(bound, wanted, ahead=ahead))
        planner.bound = bound
        if planner.sooner is not None:
            half = planner.now.wanted
            self._begin_later(planner.sooner, lambda usual: usual.place(usual.bound, half, ahead=True))
        if planner.now.executable.is_loaded and planner.now.rest is None:
            planner.graph, planner.bound = self._weights.left(planner.graph, bound)

    def _loading(self, place: Callable[[], None]) -> None:
        """Load by `place`; contexts hear of the first load. If a later one fails, nothing stays loaded."""
        loader = self._planner.loader
        if loader.notices is None:
            with self.runtime.notifier.loading(self._planner.choices) as notices, loader.announced(notices):
                place()
            return
        try:
            place()
        except BaseException:
            loader.drop()
            raise

    def _prepare_state(self) -> None:
        """Load for the first run of a network with a state, as far as its sizes are known."""
        self._run = Run(self._asked)
        self._growth.load_for_state(self._run, self._prepare_roomy)

    def _prepare_roomy(self, roomy: RoomyPlan, why: str) -> None:
        """Load a network for capacities. One that comes while better kernels are prepared gets such, too, with them."""
        def task(usual: Planner) -> None:
            usual.place_roomy(roomy, why)

        if self._later is not None and not self._later.also(task):
            self._settle()
        planner = self._planner
        self._loading(lambda: planner.place_roomy(roomy, why))
        if planner.sooner is not None:
            self._begin_later(planner.sooner, task)

    # -- what takes the place of a plan that was there sooner ------------------------------------------

    def _begin_later(self, sooner: Sooner, task: Callable[[Planner], None]) -> None:
        """Have a thread plan and load with the usual options what runs now: `task` does that."""
        planner, choices = self._planner, sooner.choices
        assert planner.loader.notices is not None
        loader = self._made_loader(choices, Wait.ALL)
        loader.notices = planner.loader.notices.silent()
        self._later = Later(planner.usual(loader), task, choices, sooner.why, held=self._caller is not None)
        self._ends[1:] = [self._later]

    def _settle(self) -> None:
        """Wait for what takes the place of what is loaded, and let it; outputs of a run that was started are lost."""
        if self._later is not None:
            self._later.wait()
            self._planner.now.executable.abandon()
            self._take_later()

    def _take_later(self) -> None:
        """Let what was prepared take the place of what is loaded, unless outputs of that were not taken yet."""
        later = self._later
        if later is None or not later.is_made or self._planner.now.executable.started:
            return
        self._later = None
        later.take(self._swap)
        if isinstance(later.error, OutOfMemory):
            self._load_in_place(later)
        elif later.error is not None:
            self._general = f"general kernels stay, since better ones could not be prepared: {later.error}"

    def _swap(self, other: Planner) -> Planner:
        """Plan and run with another planner from now on; return the one before."""
        before, self._planner = self._planner, other
        if before.store is not None:
            other.take_state(before.store, before.now)
        before.loader.notices, other.loader.notices = other.loader.notices, before.loader.notices
        other.loader.transfers.add(before.loader.transfers)
        self._ends[0] = other.loader
        log.info("network %r runs with all of its kernels from now on", self.graph.name)
        return before

    def _load_in_place(self, later: Later) -> None:
        """Load the network anew where there is no memory for it twice; with general kernels again if that fails."""
        planner = self._planner
        general, bound, roomy = planner.choices, planner.bound, planner.now.roomy
        for choices in (later.choices, general):
            planner.loader.drop()
            planner.plans.forget_all()
            planner.turn_to_choices(choices, alone=choices is general)
            try:
                if roomy is None:
                    self._prepare(bound)
                else:
                    self._prepare_roomy(roomy, "there is no memory for two kinds of kernels")
                return
            except WeftError as e:
                if choices is general:
                    raise
                self._general = f"general kernels stay, since better ones could not be prepared: {e}"

    def _make_room(self) -> bool:
        """Close what stayed loaded for other shapes, unless another thread uses the session; tell whether it did."""
        if self._process != os.getpid() or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._caller is None and self._planner.plans.free()
        finally:
            self._lock.release()

    # -- running ---------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._planner.loader.is_closed:
            raise ClosedError("the session is closed", fix="load the model again")

    def _accept(self, run: Run, inputs: Sequence[Input | Mapping[str, Input]]) -> Mapping[str, Any]:
        """Check the arrays, prepare the session for their shapes and types if it must be, and return them by name."""
        planner, outputs = self._planner, run.outputs
        if planner.loader.is_closed:
            self._check_open()
        if self._later is not None and self._later.is_made:
            planner.now.executable.abandon()
            self._take_later()
            planner = self._planner
        if planner.store is not None:
            if planner.now.executable.started:  # its outputs are lost, but not what it made of the state
                self._finish(self._run)
            with nullcontext() if self._later is None else self._later.paused():
                return self._growth.feed_state(run, hosted(take_inputs(self._asked, inputs)), self._prepare_roomy)
        plan = planner.now
        if plan.executable.network is not None and (planned := self._taken(plan, inputs, outputs)) is not None:
            return planned
        for plan in planner.plans.all(NetworkPlan):
            if plan.executable.is_loaded and (planned := self._taken(plan, inputs, outputs)) is not None:
                assert plan.bound is not None
                planner.turn_to(plan)
                planner.bound = plan.bound
                return planned
        arrays = take_inputs(self.graph, inputs, keep_half=self.config.precision is Precision.LOW)
        specs = self._planner.bound.specs
        tensors = {i: a for i, a in arrays.items() if not isinstance(specs[i], SequenceSpec)}
        self._learn_deciding(tensors)
        values = hosted({i: tensors[i] for i in self.graph.inputs if i in self._planner.deciding})
        halves = _half_inputs(specs, tensors)
        wanted = halves | half_outputs(self.graph, outputs)
        grown = self._growth.feed(run, tensors, halves, values, self._prepare_roomy)
        if grown is not None:
            return grown
        specs = self._planner.bound.specs
        is_new = not self._planner.now.executable.is_loaded or self._planner.now.roomy is not None
        is_new = is_new or any(a.shape != specs[i].shape for i, a in tensors.items())
        if is_new or not are_values(self._planner.now.values, values):
            shapes = {i: a.shape for i, a in tensors.items()}
            self._prepare(_with_values(bind(self.graph, shapes, self._planner.bound), values), wanted)
            if values and self._planner.now.rest is not None:  # other shapes follow from values that only a run tells
                self._planner.deciding = frozenset()
                self._prepare(bind(self.graph, shapes), wanted)
        elif (self._planner.now.wanted ^ wanted) & self._planner.now.narrowable:
            self._prepare(self._planner.bound, wanted)
        for name in halves - self._planner.now.narrowable:
            arrays[name] = np.asarray(tensors[name]).astype(np.float32)
        return arrays

    def _learn_deciding(self, arrays: Mapping[str, Given]) -> None:
        """After a run in stages, note which inputs decided the shapes, if they are few integers.

        A caller's total length decides the size of a cache, for example. With its value known, as shapes are, the
        network needs no stages, and the value may be an open size.
        """
        rest = self._planner.now.rest
        if self._decided or not self._run.went_on or rest is None:
            return
        self._decided = True
        wanted = rest.wanted
        few = all(i in arrays and arrays[i].dtype.kind in "iu" and arrays[i].size <= MOST_INTEGERS for i in wanted)
        planner = self._planner
        keeps = planner.fixed is None and self.config.memory is not MemoryMode.LIMIT and self.options.debug is None
        if few and wanted and keeps:
            planner.deciding, planner.open = frozenset(wanted), None
            planner.take_open()

    def _taken(
        self, plan: NetworkPlan, inputs: Sequence[Input | Mapping[str, Input]], outputs: Outputs | None
    ) -> dict[str, Given] | None:
        """Return the arrays by name if a plan takes them as they come, else None."""
        if plan.rest is not None and not self._decided:
            return None
        return plan.take(self._asked, inputs, outputs, self._planner.deciding)


def _forget_all(ends: Sequence[Loader | Later]) -> None:
    """Leave what a session had that was dropped to the next one, which closes it and stops what was prepared for it."""
    for each in ends:
        forget(each.give_up if isinstance(each, Later) else each.close_unheard)


def _planner_of(session: Callable[[], Session | None]) -> Planner | None:
    owner = session()
    return None if owner is None else owner._planner


def _asked(graph: Graph, state: Mapping[str, str]) -> Graph:
    """Return a network as callers see it, without its state."""
    made = {*state.values()}
    inputs, outputs = ([n for n in names if n not in hidden] for names, hidden in
                       ((graph.inputs, state), (graph.outputs, made)))
    return replace(_interface(graph), inputs=inputs, outputs=outputs)


def _make_room(session: Callable[[], Session | None]) -> bool:
    """Free what buffers left, and what stayed loaded in other sessions; tell whether there was something."""
    owner = session()
    others = [other for other in list(_sessions) if other is not owner and not other.is_closed]
    freed = [device_memories.free_dropped(), *(other._make_room() for other in others)]
    return any(freed)


def _with_values(bound: Graph, values: Mapping[str, Array]) -> Graph:
    """Return a graph with the values of some inputs as constants in their place."""
    if values:
        bound.inputs = [i for i in bound.inputs if i not in values]
        bound.constants = bound.constants | {name: value.copy() for name, value in values.items()}
    return bound


def _interface(graph: Graph) -> Graph:
    """Return a graph's inputs and outputs, without its nodes and weights."""
    ends = (*graph.inputs, *graph.outputs)
    specs = {name: graph.specs[name] for name in ends if name in graph.specs}
    return Graph(graph.name, list(graph.inputs), list(graph.outputs), specs=specs, declared=dict(graph.declared),
                 defaults=graph.defaults)


def _half_inputs(specs: Mapping[str, TensorSpec], arrays: Mapping[str, Given]) -> frozenset[str]:
    """Return the fp32 inputs for which there are fp16 arrays."""
    return frozenset(i for i, a in arrays.items() if specs[i].dtype is DType.FLOAT32 and is_half(a))
