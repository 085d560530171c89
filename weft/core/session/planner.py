"""Makes the plans of a session: divides its network over devices, has backends lower the parts, and loads them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from weft.core.contract.backend import Backend, BackendConfig, MemoryMode, Precision, Wait
from weft.core.contract.engine import Engine
from weft.core.contract.error_context import do_all, is_error
from weft.core.contract.lowered import PlanAgain, TakesLong
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.graph.tensor import OPEN_RANK, Tensor
from weft.core.placement.assign import Assignment, Backends
from weft.core.placement.check_network import check_devices
from weft.core.placement.hints import Hints
from weft.core.placement.lower_network import lower_network
from weft.core.placement.narrow_edges import narrowable, with_narrow_edges
from weft.core.placement.open_network import OpenNetwork, OpenNetworks
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions, divide, divide_first
from weft.core.placement.prepare import PreparedNetwork
from weft.core.placement.replan import NodeRefused, until_taken
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.capacities import RoomyPlan
from weft.core.session.loader import NO_STATE, Loader
from weft.core.session.network_plan import NetworkPlan, forms_of
from weft.core.session.pipeline import Progress
from weft.core.session.plans import Plans
from weft.core.session.prefetch import Prefetch
from weft.core.session.rests import Rests
from weft.core.session.run import Corners, GoOn, Live
from weft.core.session.stage_loader import LoadedStages
from weft.core.session.stages_ahead import foresee
from weft.core.session.state import StatePairs, StateStore
from weft.errors import BackendError, OutOfMemory, WeftError, brief, grouped

log = logging.getLogger("weft.session")


class Planner:
    """Makes the plans of a network on certain devices, and owns them, with what they are made from.

    `choices` are the devices in order of preference; debug nodes run on `host`. `fixed` is a network that was optimised
    before for these devices. `prefetch` is another thread's work on the model. `make_room` frees memory of other
    sessions, and tells whether there was something.
    """

    def __init__(
        self,
        graph: Graph,
        bound: Graph,
        choices: Sequence[DeviceChoice],
        host: str,
        options: OptimizerOptions,
        loader: Loader,
        *,
        make_room: Callable[[], bool],
        fixed: OptimizedNetwork | None = None,
        prefetch: Prefetch | None = None,
        progress: Progress | None = None,
        state: StatePairs | None = None,
        after: Sooner | None = None,
    ) -> None:
        """Make a planner; `after` is what a network that runs sooner leaves to the usual plans."""
        self.graph = graph
        """The model, before shapes are bound and passes run."""
        self.bound = bound
        """The model with the sizes of the moment."""
        self.choices, self.options, self.fixed = list(choices), options, fixed
        self.loader, self.plans = loader, Plans(loader)
        self.now = NetworkPlan()
        """The plan that runs use; one that could not be loaded does not take its place."""
        known = None if fixed is None else fixed.tail
        self.rests = Rests(
            LoadedStages(loader, [c.device for c in choices], host, options, known), self.plans
        )
        self.deciding: frozenset[str] = frozenset()
        """Inputs of few integers that decide shapes, as a run in stages told; later plans are for their values."""
        self.open: OpenNetworks | None = None if after is None else after.networks
        """Prepares the graph for one shape after the other; None where weights are not kept for a second one."""
        self.store = None if state is None else self._empty_store(state)
        """Holds the state of its plans; None if there is none."""
        self.sooner: Sooner | None = None
        """What is to take the place of the first plan, if that is to run soon."""
        self._host, self._make_room, self._prefetch, self._progress = host, make_room, prefetch, progress
        self._prepared: PreparedNetwork | None = None if after is None else after.prepared
        """The network that was prepared, if it is to be divided once more."""
        self._divides_alone = options.debug is not None
        """Whether backends are asked again for each shape: one refused a node late, or debug nodes are placed."""
        self._shows_other_sizes = fixed is None and not self._is_thrifty
        """Whether the next new shape is the first one, at which backends see what other sizes change."""
        self._warned = ""

    @property
    def config(self) -> BackendConfig:
        """Return what backends are opened with."""
        return self.options.config

    @property
    def narrowable(self) -> frozenset[str]:
        """Return the inputs and outputs that the plan of now can take and give in fp16."""
        return self.now.narrowable

    @property
    def _is_thrifty(self) -> bool:
        return self.config.memory is MemoryMode.LIMIT

    def close(self) -> None:
        """Close all that it has loaded, and free its state."""
        do_all([self.loader.close, *([] if self.store is None else [self.store.close])])

    def forget(self, graph: Graph, bound: Graph) -> None:
        """Forget the network once it is closed; `graph` and `bound` are all that remains of it."""
        self.plans.forget_all()
        self.rests.close()
        self.open = self.fixed = self._prefetch = self._prepared = self.sooner = None
        self.graph, self.bound, self.now = graph, bound, NetworkPlan()

    def loaded(self) -> None:
        """Note that the first load has ended."""
        self.take_open()
        self._prefetch = None

    def plan_again(self, overflowing: frozenset[str]) -> None:
        """Forget all plans; those to come keep these values float32."""
        self.graph = self.graph.copy()
        self.graph.overflowing = overflowing
        self.plans.forget_all()
        self.open = None
        self.rests.plan_again(overflowing)

    # -- plans for shapes ------------------------------------------------------------------------------

    def turn_to(self, plan: NetworkPlan) -> None:
        """Let runs use a plan that is loaded."""
        self.plans.turn_to(plan)
        self.now = plan

    def place(self, bound: Graph, wanted: frozenset[str], *, ahead: bool) -> None:
        """Let runs use the plan for a bound graph, which is made and loaded if there is none.

        `wanted` are the inputs and outputs for which there are fp16 arrays. `ahead` of a run, later stages are planned
        and loaded as far as they can be foreseen.
        """
        inputs = self.graph.inputs
        values = {i: bound.constants[i] for i in inputs if i in self.deciding and i in bound.constants}
        sizes = tuple(bound.specs[i].shape for i in inputs)
        is_new = sizes != tuple(self.bound.specs[i].shape for i in inputs)
        shapes = sizes, tuple(value.tobytes() for value in values.values())

        def attempt(before: Assignment) -> None:
            if is_new and self._shows_other_sizes and self.loader.wants_other_sizes:
                other = self._planned_for_other_sizes(bound, wanted, before)
                if other is not None:
                    self.loader.show(other)
                self._shows_other_sizes = False
            if self.fixed is not None:
                check_devices(self.fixed, self.loader.asked(p.device for p in self.fixed.parts))
            begun = perf_counter()
            alike = next((p for p in self.plans.all(NetworkPlan) if p.shapes == shapes), None)
            known = self.fixed or (None if alike is None else alike.divided)
            divided = known or self._divide(bound, before)
            after = divided.tail
            rest = None if after is None else self.rests.rest(after.rest)
            can = _narrowable(divided)
            half = wanted & can
            keeps = self.fixed is None and not self._is_thrifty
            key = (shapes, half) if keeps else None
            plan = self.plans.find(NetworkPlan, key)
            if plan is not None and plan.executable.is_loaded:
                plan.wanted = wanted
                self.turn_to(plan)
            else:
                plan = NetworkPlan(
                    key, self._why(bound, values, alike, before), shapes=shapes,
                    divided=divided if keeps else None, bound=bound if keeps else None, rest=rest, narrowable=can,
                    wanted=wanted, forms=forms_of(inputs, bound.specs, half),
                    given=None if rest is not None else forms_of(self.graph.outputs, divided.graph.specs, half),
                    half_outputs=half & {*self.graph.outputs}, values=values,
                    reads_late=rest is not None or len(divided.parts) > 1,
                )
                if after is not None and rest is not None:
                    plan.steps = [Corners(after.corners), GoOn(rest, self.rests)]
                narrow = with_narrow_edges(divided, half)
                divided_by = perf_counter()
                network = self._lowered(narrow, may_wait=rest is not None)
                # Shapes that come back alternate; others, such as lengths that grow, may never come again.
                beside = keeps and (known is not None or self.now.roomy is not None)
                self._load(plan, network, (begun, divided_by), beside=beside)
            self._warn(divided)
            if ahead and after is not None and not self._is_thrifty:
                foresee(self.rests, after, divided.graph, progress=self._progress)

        def anew() -> None:
            for plan in [plan for plan in self.plans.all(NetworkPlan) if plan.shapes == shapes]:
                self.plans.forget(plan)
            self._divides_alone = True

        def hear(refusal: NodeRefused) -> None:
            anew()
            self._check_may_refuse(refusal)

        self._place(partial(until_taken, attempt, hear, anew))
        self._prepared, self.bound = None, bound

    def _why(
        self, bound: Graph, values: Mapping[str, Array], alike: NetworkPlan | None, before: Assignment
    ) -> str:
        """Return for which sizes a plan is made, and why."""
        declared = [(i, self.graph.specs[i]) for i in self.graph.inputs if i in bound.specs]
        named = [pair for i, spec in declared if not spec.has_open_rank
                 for pair in zip(spec.shape, bound.specs[i].shape, strict=False)]
        sizes = dict.fromkeys(f"{d} {n}" for d, n in named if isinstance(d, str))
        sizes |= dict.fromkeys(f"{i} {brief(str(value.tolist()))}" for i, value in values.items())
        if before.refusals:
            why = "a device refused nodes of the one before"
        elif alike is not None:
            why = "arrays came in another type" if alike.executable.is_loaded else "these came back"
        elif self.graph.overflowing:
            why = "values overflowed float16"
        else:
            why = "none was kept for these" if self.now.shapes is not None else "it was the first"
        return f"made for {', '.join(sizes) or 'the sizes of the model'}, because {why}"

    def _lowered(self, narrow: OptimizedNetwork, *, may_wait: bool) -> OptimizedNetwork:
        """Return the network with its parts lowered: whatever it takes if it `may_wait`, else TakesLong may come up."""
        while True:
            try:
                return lower_network(narrow, self.loader.asked(p.device for p in narrow.parts))
            except TakesLong:  # each backend says that once
                if not may_wait:
                    raise

    def _planned_for_other_sizes(
        self, bound: Graph, wanted: frozenset[str], before: Assignment
    ) -> OptimizedNetwork | None:
        """Return the network for a shape in which every open dimension has another size than in a new shape.

        They are twice as large, which fits where a network halves them; where that does not fit, as in a table of fixed
        length, they are half as large. None if neither fits. What holds for the new shape does not depend on it.
        """
        if OPEN_RANK in self.graph.symbols():
            return None
        declared = {i: self.graph.specs[i].shape for i in bound.inputs}
        now: dict[int | str, int] = {}
        for i, shape in declared.items():
            now.update(zip(shape, bound.specs[i].shape, strict=True))  # type: ignore[arg-type]  # bound
        for up, down in ((2, 1), (1, 2)):
            sizes = {d: d if isinstance(d, int) else max(n * up // down, up) for d, n in now.items()}
            shapes = {i: tuple(sizes[d] for d in shape) for i, shape in declared.items()}
            try:
                divided = self._divide_apart(bind(self.graph, shapes), before.copy())
                narrow = with_narrow_edges(divided, wanted & _narrowable(divided))
                return lower_network(narrow, self.loader.asked(p.device for p in narrow.parts))
            except PlanAgain:
                raise
            except Exception as e:  # it may be a network for few sizes
                if not is_error(e):
                    raise
                log.info("nothing is known of how other sizes change the network: %s", e)
        return None

    # -- plans for capacities --------------------------------------------------------------------------

    def place_roomy(self, roomy: RoomyPlan, why: str) -> None:
        """Let runs use the plan for capacities, which is made and loaded if there is none."""
        graph = roomy.network.graph
        sizes = ", ".join(f"{name} {'' if name in roomy.fixed else 'up to '}{size}" for name, size in roomy.key)
        made = NetworkPlan(roomy.key, f"made for {sizes}, because {why}", roomy=roomy, steps=[Live(roomy)])
        plan = self.plans.find(NetworkPlan, roomy.key) or made

        def attempt(before: Assignment) -> None:
            store = self.store  # another one where other devices are turned to
            if plan.executable.is_loaded and (store is None or not store.has_pending):
                self.turn_to(plan)
                return
            begun = perf_counter()
            backends = self.loader.asked(c.device for c in self.choices)
            prepared = replace(roomy.prepared, graph=graph)
            divided = divide_first(graph, backends, self.options, host=self._host, before=before, prepared=prepared)
            divided_by = perf_counter()
            # Only the first plan may turn to general kernels. Later ones are planned by the backends that are loaded.
            network = self._lowered(divided, may_wait=self.now.executable.is_loaded)
            if store is not None and not store.fits(network, graph):
                self.loader.unload()  # what is loaded uses the memory of the state
                store.move(network, graph, roomy.network.inputs)
            state = NO_STATE if store is None else store.tensors
            self._load(plan, network, (begun, divided_by), beside=True, state=state)
            if store is not None:
                store.leave([*plan.executable.unaliased])
            self._warn(divided)

        self._place(partial(until_taken, attempt, self._check_may_refuse), asks=not self.now.executable.is_loaded)

    # -- dividing --------------------------------------------------------------------------------------

    def take_open(self) -> None:
        """Take what prepares the graph from the prefetch, or make it; weights are not kept in memory mode LIMIT."""
        if self.open is not None or self.fixed is not None or self._is_thrifty:
            return
        options = self.options
        made = OpenNetworks(self.graph, self.config.precision, options.limits, options.passes)
        self.open = made if self._prefetch is None else self._prefetch.open_networks()

    def _divide(self, bound: Graph, before: Assignment) -> OptimizedNetwork:
        prepared = self._prepared or (self._prefetch.take() if self._prefetch else None)
        self._prepared = prepared if self.loader.wait is not Wait.ALL else None
        self.take_open()
        alone = self._divides_alone or bool(before.refusals)
        known = self.open.known_division(bound) if self.open is not None and not alone else None
        if known is not None:
            return known
        backends = self.loader.asked(c.device for c in self.choices)
        found = self.open.find(bound) if self.open is not None else None
        if found is not None:
            opened, sized = found
            alike = None if alone else self._divided_open(opened, bound, backends)
            if alike is not None:
                return alike
            prepared = prepared or opened.prepared(sized)
        return divide_first(bound, backends, self.options, host=self._host, before=before, prepared=prepared)

    def _divide_apart(self, bound: Graph, before: Assignment) -> OptimizedNetwork:
        """Divide the network for sizes that nobody asked for: what is kept for sizes stays as it was."""
        known = self.open.known_division(bound) if self.open is not None and not self._divides_alone else None
        if known is not None:
            return known
        backends = self.loader.asked(c.device for c in self.choices)
        prepared = self.open.known(bound) if self.open is not None else None
        return divide_first(bound, backends, self.options, host=self._host, before=before, prepared=prepared)

    def _divided_open(self, opened: OpenNetwork, bound: Graph, backends: Backends) -> OptimizedNetwork | None:
        def divided(prepared: PreparedNetwork) -> OptimizedNetwork:
            return divide(bound, backends, self.options, host=self._host, prepared=prepared)

        return opened.divided(bound, divided, backends)

    # -- loading ---------------------------------------------------------------------------------------

    def _load(
        self, plan: NetworkPlan, network: OptimizedNetwork, times: tuple[float, float], *, beside: bool,
        state: Mapping[str, Tensor] = NO_STATE,
    ) -> None:
        """Load a network for a plan, which runs use then; in place of what stayed loaded elsewhere if memory lacks.

        `times` are when its planning began, and when it was divided.
        """
        begun = perf_counter()
        try:
            self.plans.load(plan, network, beside=beside, state=state)
        except OutOfMemory:
            if not any([self.plans.free(), self._make_room()]):
                raise
            self.plans.load(plan, network, beside=False, state=state)
        # The tests of kernels, which are a part of it, log their own times.
        read = "" if self._prefetch is None else f"read and checked in {self._prefetch.seconds:.3f} s, "
        log.info(
            "network %r on %s: %srewritten and divided in %.3f s, planned in %.3f s, compiled and loaded in %.3f s",
            self.graph.name, ", ".join(dict.fromkeys(p.device for p in network.parts)), read, times[1] - times[0],
            begun - times[1], perf_counter() - begun,
        )
        self.plans.keep(plan)
        self.now = plan

    def _check_may_refuse(self, refusal: NodeRefused) -> None:
        """Raise BackendError if nodes that a backend refused late cannot go to another device."""
        if self.fixed is not None:
            names = ", ".join(repr(n.name) for n in refusal.nodes)
            raise BackendError(
                f"{refusal.device} does not take node(s) {names} of an optimised network",
                why="onCreate returned None",
                fix="optimise the model again on this machine",
            )

    def _warn(self, network: OptimizedNetwork) -> None:
        """Log the nodes that are not on their wanted device, unless the last resize logged the same.

        Those that are alike share a line; `Report.refusals` has each.
        """
        where = network.placement
        lines = grouped(r.problem(f" on {where.get(r.node, 'another device')}") for r in network.refusals)
        text = "\n  ".join([f"{self._astray(network)}:", *lines])
        if lines and text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def _astray(self, network: OptimizedNetwork) -> str:
        """Return how many nodes are not on the first device, or not on that of their hint."""
        first, hints = self.choices[0].device, Hints.of(self.options.hints)
        wanted = {r.node: hints.device(r.node) for r in network.refusals}
        moved = {r.node for r in network.refusals if r.device == first and wanted[r.node] in (None, first)}
        unheeded: dict[str, set[str]] = {}
        for r in network.refusals:
            if r.device == wanted[r.node] != first:
                unheeded.setdefault(r.device, set()).add(r.node)
        parts = [f"{len(moved)} node(s) do not run on {first}"] if moved else []
        parts += [f"{len(those)} node(s) do not run on {d}, as a hint asks" for d, those in unheeded.items()]
        return "; ".join(parts) or f"{len(wanted)} node(s) were refused by a device before their own"

    # -- what runs sooner ------------------------------------------------------------------------------

    def turn_to_choices(self, choices: Sequence[DeviceChoice], *, alone: bool) -> None:
        """Plan on the same devices with these options from now on; `alone` each shape by itself."""
        self.choices, self._divides_alone = list(choices), alone
        self.loader.turn_to_choices(choices)
        if self.store is not None:
            self.take_state(self.store, self.now)

    def take_state(self, store: StateStore, plan: NetworkPlan) -> None:
        """Take the values of a store of the same state, which a plan had, in memory of the devices as they are now."""
        saved = store.save({} if plan.roomy is None else plan.roomy.network.inputs)
        if store is self.store:
            store.close()
            self.store = self._empty_store(store.pairs)
        assert self.store is not None
        self.store.restore(saved, {} if self.now.roomy is None else self.now.roomy.network.inputs)

    def _empty_store(self, pairs: StatePairs) -> StateStore:
        open_backend = partial(_state_backend, weakref.ref(self))
        return StateStore(pairs, open_backend, {i: self.graph.specs[i] for i in pairs}, self.graph.initial)

    def _ask_why_later(self) -> None:
        """Raise TakesLong if the first device knows of any network that it can only run later: none is divided then."""
        backend = self.loader.ask(self.choices[0].device)
        if isinstance(backend, Engine) and (why := backend.why_later()):
            raise TakesLong("the network can run later", where=self.choices[0].device, why=why)

    def _place(self, place: Callable[[], None], *, asks: bool = False) -> None:
        """Load a network; the first one with what is there sooner, if the usual way takes long.

        If it `asks`, the first device may tell that before anything is divided.
        """
        try:
            if asks:
                self._ask_why_later()
            place()
        except TakesLong as late:
            self._place_sooner(late.why, place)
        self.loader.wait = Wait.ALL

    def _place_sooner(self, why: str, place: Callable[[], None]) -> None:
        """Load the network with the options with which it runs sooner, and note what is to be prepared later.

        If it cannot be loaded so, the load waits for everything.
        """
        usual, alone = self.choices, self._divides_alone
        networks = self.open if self._prefetch is None else self._prefetch.open_networks()
        self.sooner = Sooner(usual, why, self._prepared, networks)
        self.turn_to_choices([c.sooner() for c in usual], alone=True)
        try:
            place()
        except WeftError as e:
            log.info("the network cannot run sooner: %s", e)
            self.sooner = None
            self.turn_to_choices(usual, alone=alone)
            place()

    def usual(self, loader: Loader) -> Planner:
        """Return what plans the same network with the options that it usually has, in another thread."""
        after, self.sooner = self.sooner, None
        assert after is not None
        return Planner(
            self.graph, self.bound, after.choices, self._host, self.options, loader, make_room=self._make_room,
            fixed=self.fixed, progress=self._progress, state=None if self.store is None else self.store.pairs,
            after=after,
        )


@dataclass(frozen=True, eq=False)
class Sooner:
    """What usual plans are made from, while a network runs by one that was there sooner; and why they take long."""

    choices: Sequence[DeviceChoice]
    why: str
    prepared: PreparedNetwork | None
    networks: OpenNetworks | None


def _state_backend(planner: Callable[[], Planner | None], device: str) -> Backend:
    """Return a backend for the state, with the options with which the planner plans now."""
    owner = planner()
    assert owner is not None
    return next(choice for choice in owner.choices if choice.device == device).open(owner.config)


def _narrowable(network: OptimizedNetwork) -> frozenset[str]:
    """Return the inputs and outputs that a network can take and give in fp16, though the model has fp32."""
    whole = network.config.precision is Precision.LOW and network.tail is None
    return narrowable(network) if whole else frozenset()
