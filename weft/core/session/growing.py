"""Sizes that grow from run to run, and those of a state: which plan for capacities a run has, and what that is fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from weft.core.contract.backend import MemoryMode
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.graph.tensor import OPEN_RANK, SequenceSpec
from weft.core.placement.capacity import NoCapacity
from weft.core.placement.open_network import OpenNetwork
from weft.core.session.arguments import hosted
from weft.core.session.capacities import Capacities, RoomyPlan, sizes_of
from weft.core.session.network_plan import NetworkPlan
from weft.core.session.planner import Planner
from weft.core.session.run import Run
from weft.errors import ConfigError

Prepare = Callable[[RoomyPlan, str], None]
"""Loads a plan for capacities, and why it is loaded."""


class Growth:
    """Plans the runs of one session for capacities, while sizes grow from run to run, or belong to a state.

    `planner` returns what plans now; None if the session is gone.
    """

    def __init__(self, planner: Callable[[], Planner | None]) -> None:
        self._planner = planner
        self._capacities: Capacities | None = None
        """None where each size is planned by itself."""

    def begin(self) -> None:
        """Plan for capacities from now on, where sizes are open and the session may keep weights on the host.

        ConfigError if it may not, and the network has a state.
        """
        planner = self._now
        graph, options, store = planner.graph, planner.options, planner.store
        plain = options.debug is None and not options.passes and OPEN_RANK not in graph.symbols()
        if planner.fixed is None and plain and planner.config.memory is not MemoryMode.LIMIT:
            pairs = {} if store is None else store.pairs
            find, kept = partial(_found_open, self._planner), partial(_kept, self._planner)  # no cycle with this
            self._capacities = Capacities(graph, planner.config.precision, options.limits, pairs, find, kept)
            return
        self._capacities = None
        if store is not None:
            instead = "" if graph.state else ", or leave state out and pass the values as inputs and outputs"
            raise ConfigError(
                "a state cannot be kept here",
                where=f"network {graph.name!r}",
                why="state does not go together with memory='limit', passes=, debug=, inputs of open rank or a saved "
                "network",
                fix=f"leave that out{instead}",  # a model's own state is not the caller's to leave out
            )

    def end(self) -> None:
        """Forget the network."""
        self._capacities = None

    @property
    def _now(self) -> Planner:
        planner = self._planner()
        assert planner is not None
        return planner

    # -- a state ---------------------------------------------------------------------------------------

    def load_for_state(self, run: Run, prepare: Prepare) -> None:
        """Load for the first run if all sizes but that of the state are known, and none follows from a value."""
        specs = {i: self._now.bound.specs[i] for i in run.asked.inputs}
        if not all(spec.is_static and not isinstance(spec, SequenceSpec) for spec in specs.values()):
            return
        try:
            self.feed_state(run, {i: np.zeros(spec.dims, spec.dtype.numpy) for i, spec in specs.items()}, prepare)
        except ConfigError:
            if self._capacities is None or not self._capacities.decide:
                raise

    def feed_state(self, run: Run, arrays: dict[str, Array], prepare: Prepare) -> dict[str, Array]:
        """Return what a network for capacities takes, which is loaded for the length that the state has now."""
        planner, store = self._now, self._now.store
        assert store is not None and self._capacities is not None
        plan = planner.now
        try:
            found = self._capacities.for_state(arrays, store.length)
        except NoCapacity as e:
            raise ConfigError(
                "the network cannot keep this state",
                where=f"network {planner.graph.name!r}",
                why=str(e),
                fix="leave state out, and pass the values as inputs and outputs",
            ) from e
        if found is not plan.roomy or not plan.executable.is_loaded or store.has_pending:
            store.check_fixed(found.network.graph, found.network.inputs)
            prepare(found, "a state has these rows")
            self._bind(arrays)
            store = self._now.store
            assert store is not None
        run.pads(arrays, self._capacities.numbers(found, arrays, store.length))
        fed = {i: arrays[i] for i in found.network.inputs if i in arrays}
        return found.network.feed(fed, run.numbers) | store.arrays

    # -- caches among the inputs -----------------------------------------------------------------------

    def feed(
        self, run: Run, given: dict[str, Any], halves: frozenset[str], values: Mapping[str, Array], prepare: Prepare
    ) -> dict[str, Any] | None:
        """Return what a network for capacities takes, if a cache among the inputs grows from run to run; else None.

        `halves` are the inputs for which float16 is given though the model has float32.
        """
        planner = self._now
        graph = planner.graph
        if self._capacities is None or planner.now.rest is not None:
            return None
        if any(isinstance(graph.specs[i], SequenceSpec) for i in graph.inputs):
            return None
        numbered = {f"{i}[0]": int(a.reshape(-1)[0]) for i, a in values.items() if a.size == 1}
        if len(numbered) < len(values):
            return None
        sizes = sizes_of(graph, given) | numbered
        plan = planner.now.roomy if planner.now.executable.is_loaded else None
        steady = self._capacities.note(sizes)
        numbers = None if plan is None else plan.numbers(sizes)
        if plan is None or numbers is None:
            plan = self._capacities.known(sizes)
            if plan is None and steady:
                plan = self._capacities.for_growth(given, numbered)
            numbers = None if plan is None else plan.numbers(sizes)
            if plan is None or numbers is None:
                return None
            prepare(plan, "a cache among the inputs grows from run to run")
            self._bind(given)
        arrays = hosted(given)
        arrays |= {i: arrays[i].astype(np.float32) for i in halves}
        run.pads(arrays, numbers)
        return plan.network.feed({i: arrays[i] for i in plan.network.inputs}, numbers)

    def _bind(self, arrays: Mapping[str, Any]) -> None:
        planner = self._now
        planner.bound = bind(planner.graph, {i: a.shape for i, a in arrays.items()})


def _found_open(planner: Callable[[], Planner | None], bound: Graph) -> OpenNetwork | None:
    """Return the graph prepared with open sizes, which hold for a bound one."""
    now = planner()
    if now is None:
        return None
    now.take_open()
    return None if now.open is None else now.open.found(bound)


def _kept(planner: Callable[[], Planner | None]) -> list[RoomyPlan]:
    """Return the plans for capacities that are kept, those used last first."""
    now = planner()
    return [] if now is None else [plan.roomy for plan in now.plans.all(NetworkPlan) if plan.roomy is not None]
