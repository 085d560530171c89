"""Running a network in stages, where a shape follows from a value that only a run tells.

The session plans and loads the first stage as it does any network. This module runs the rest: it reads the sizes that a
stage made, runs the session's own ops (loops, sequences), splits off the next stage
(`weft.core.placement.stage_split.split`), plans, loads and runs it. A loaded stage is kept by the shapes, and the few
values, that it was planned for; the least recently used are closed first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from weft.core.contract.error_context import at_node, blame, do_all
from weft.core.contract.profile import Profile
from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.assign import Assignment
from weft.core.placement.optimizer import OptimizerOptions, optimize
from weft.core.placement.rows import padded, row_axes, size_class
from weft.core.placement.stage_split import Corner, split, without
from weft.core.registry.backend_registry import DeviceChoice
from weft.core.session.loaded_network import LoadedNetwork, forget
from weft.core.session.pipeline import NodeRefused
from weft.core.session.refused import note_refusal
from weft.core.session.report import Report
from weft.errors import ExecutionError, ModelError

log = logging.getLogger("weft.session")

KEPT = 32
"""How many loaded stages a session keeps."""
MOST_RESTS = 1 << 10
MOST_BODIES = 1 << 8
"""How many rests, and bodies of ops with the constants that they capture, a session keeps."""
BYTES_COMPARED = 1 << 10
"""Constants up to this size are compared by their bytes to find equal rests; larger ones by identity."""


@dataclass(eq=False)
class Rest:
    """What waits after a stage: a graph whose inputs have no specs before a run."""

    graph: Graph
    wanted: set[str] = field(default_factory=set)
    """Inputs whose values decide shapes; a stage is planned for given values."""
    mixes: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    """Input shapes without the number of rows, and the axes of the rows, for which a stage mixes rows: the last few."""
    left: dict[frozenset[str], Rest] = field(default_factory=dict)
    """The rest that remains once some of the session's own nodes have run, by their names."""

    @cached_property
    def own(self) -> list[Node]:
        """The nodes that the session runs itself, some of them only if their input is no tensor."""
        return [node for node in self.graph.nodes if _may_be_own(node, self.graph.constants)]


Rows = dict[str, tuple[str, int]]
"""Values with a row for each thing that a run counted: the name of the count, and the axis of the rows."""


@dataclass(frozen=True)
class _Counted:
    """Inputs of a stage that have rows of one count."""

    symbol: str
    count: int
    axes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class _Body:
    """A graph that an op holds, ready to run. It keeps the objects alive whose ids are in its key."""

    graph: Graph
    constants: Mapping[str, Array]
    rest: Rest


@dataclass(eq=False)
class _Plan:
    """A stage that is ready to run; without a network if no node of it is left."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    corners: Mapping[str, Corner]
    rest: Rest | None
    network: LoadedNetwork | None
    size: int = 0
    """The number of rows that it is planned for if it serves any number up to that, else 0."""
    rows: Mapping[str, int | None] = field(default_factory=dict)
    """The axis of the rows of each output, if `size` is set."""


class StageRunner:
    """Runs what comes after the first stage of one session; owns the networks that it loads for it."""

    def __init__(
        self,
        choices: Sequence[DeviceChoice],
        host: DeviceChoice | None,
        options: OptimizerOptions,
        profile: Profile | None,
    ) -> None:
        self._choices, self._options, self._profile = list(choices), options, profile
        self._every = [*([host] if host else []), *choices]
        self._host = host.device if host else choices[-1].device
        self._plans: OrderedDict[Hashable, _Plan] = OrderedDict()
        self._rests: OrderedDict[Hashable, Rest] = OrderedDict()
        self._bodies: OrderedDict[Hashable, _Body] = OrderedDict()
        self._used: dict[int, Report] = {}
        self._own: dict[str, str] = {}

    # -- running ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget which networks the last run used; see `reports`."""
        self._used, self._own = {}, {}

    def finish(self, rest: Rest, known: dict[str, Value], rows: Rows | None = None) -> list[Value]:
        """Return the outputs of the whole network, given the values computed so far, and which of them have rows."""
        outputs, left, rows = rest.graph.outputs, rest, {} if rows is None else rows
        while True:
            known.update((o, left.graph.constants[o]) for o in outputs if o in left.graph.constants)
            needed = {*left.graph.inputs, *outputs}
            known = {name: value for name, value in known.items() if name in needed}
            if not left.graph.nodes:
                return [known[o] for o in outputs]
            following = self._advance(left, known, rows)
            if following is None:
                return [known[o] for o in outputs]
            left = following

    def _advance(self, rest: Rest, known: dict[str, Value], rows: Rows) -> Rest | None:
        """Run what the session runs itself, or else one stage, and return what is left."""
        done = self._run_own(rest, known)
        if done:
            names = frozenset(done)
            if names not in rest.left:
                rest.left[names] = self.rest(without(rest.graph, names))
            return rest.left[names]
        counted = _counted(rest.graph, known, rows)
        plan = counted and self._padded_plan(rest, known, counted)
        if not plan:
            plan, counted = self._plan(rest, known), None
        if plan.network is not None:
            arrays: dict[str, Array] = {i: known[i] for i in plan.inputs}  # type: ignore[misc]  # a stage's are tensors
            if counted:
                arrays |= {i: padded(arrays[i], a, plan.size) for i, a in counted.axes.items() if i in arrays}
            plan.network.start(arrays, first=False)
            made = dict(zip(plan.outputs, plan.network.finish([None] * len(plan.outputs)), strict=True))
            for name, axis in plan.rows.items() if counted else ():
                if axis is not None and counted is not None:
                    made[name] = made[name][(slice(None),) * axis + (slice(counted.count),)]
                    rows[name] = (counted.symbol, axis)
            known.update(made)
            known.update(self.corners(plan.corners, made, rows))
            self._note(plan.network)
        return plan.rest

    def corners(self, corners: Mapping[str, Corner], made: Mapping[str, Array], rows: Rows) -> dict[str, Value]:
        """Return the values that are corners of what a stage made, and note which have rows."""
        rows.update((name, (c.sizes, c.axis)) for name, c in corners.items() if c.axis is not None)
        return {name: corner.of(made) for name, corner in corners.items()}

    def _run_own(self, rest: Rest, known: dict[str, Value]) -> list[str]:
        """Run the nodes that are the session's own and have their inputs; return their names."""
        done, constants = list[str](), rest.graph.constants
        for node in rest.own:
            if not all(i in known or i in constants for i in node.inputs if i):
                continue
            given: list[Value] = [(known[i] if i in known else constants[i]) if i else None for i in node.inputs]
            if isinstance(node.op, ControlOp) or not isinstance(given[0], np.ndarray):
                results = self._execute(node, given, constants)
                known.update((o, v) for o, v in zip(node.outputs, results, strict=False) if o)
                done.append(node.name)
        return done

    def _execute(self, node: Node, given: list[Value], constants: Mapping[str, Array]) -> Sequence[Value]:
        self._own[node.name] = node.op.type
        if not isinstance(node.op, ControlOp):
            return given  # an Identity of a sequence
        captured = len(node.inputs) - node.op.captures
        lasting = {id(constants[i]) for i in node.inputs[captured:] if i in constants}
        with blame(at_node(node, "the session"), f"{node.op.type} failed"):
            return node.op.execute(given, partial(self._run_body, captures=node.op.captures, lasting=lasting))

    def _run_body(
        self, body: Graph, inputs: Sequence[Value], *, captures: int, lasting: Collection[int]
    ) -> list[Value]:
        """Run a graph that an op holds.

        Its last `captures` inputs come from outside. Those whose id is in `lasting` are the same in every run, so they
        become constants, which devices keep.
        """
        outer = list(zip(body.inputs, inputs, strict=True))[len(body.inputs) - captures :]
        constants = {name: v for name, v in outer if isinstance(v, np.ndarray) and id(v) in lasting}
        key = (id(body), *((name, _fingerprint(value)) for name, value in constants.items()))
        if key not in self._bodies:
            graph = body.copy()
            graph.inputs = [i for i in body.inputs if i not in constants]
            graph.constants |= constants
            graph.specs |= {name: _spec(value) for name, value in constants.items()}
            self._bodies[key] = _Body(body, constants, self.rest(graph))
        held = self._bodies[key]
        _keep(self._bodies, key, MOST_BODIES)
        known = {name: value for name, value in zip(body.inputs, inputs, strict=True) if name not in constants}
        return self.finish(held.rest, known)

    # -- planning --------------------------------------------------------------------------------------

    def rest(self, graph: Graph) -> Rest:
        """Return the `Rest` of a graph. Equal graphs share one, so that its plans are used again."""
        held = tuple((name, _fingerprint(value)) for name, value in sorted(graph.constants.items()))
        key = (tuple((n.name, id(n.op)) for n in graph.nodes), tuple(graph.inputs), tuple(graph.outputs), held)
        found = self._rests.setdefault(key, Rest(graph))  # it holds what the key has by id
        _keep(self._rests, key, MOST_RESTS)
        return found

    def _padded_plan(self, rest: Rest, known: Mapping[str, Value], counted: _Counted) -> _Plan | None:
        """Return a plan for all counts of this size class; None if rows depend on each other."""
        graph, axes, size = rest.graph, counted.axes, size_class(counted.count)
        tensors = {i: value for i in graph.inputs if isinstance(value := known.get(i), np.ndarray)}
        if rest.wanted & tensors.keys():
            return None
        others = tuple((i, a.shape, a.dtype) for i, a in tensors.items() if i not in axes)
        rowed = tuple((i, axis, _row_shape(tensors[i], axis), tensors[i].dtype) for i, axis in axes.items())
        if (others, rowed) in rest.mixes:
            return None
        key = (rest, others, rowed, size)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        limits = self._options.limits
        try:
            stage, longer = (split(_with_rows(graph, tensors, axes, n), Budget(limits)) for n in (size, size + 1))
        except ModelError:
            # A Split into given parts, say, fits no other count. If it does not fit this one, `_plan` raises.
            rows = None
        else:
            rows = None if stage.wanted & tensors.keys() or not stage.graph.nodes else row_axes(stage, longer, size)
        if rows is None:
            rest.mixes[others, rowed] = None
            _keep(rest.mixes, (others, rowed), KEPT)
            return None
        made, later = stage.graph, stage.rest
        following = None if later is None else self.rest(later)
        plan = _Plan(tuple(made.inputs), tuple(made.outputs), {}, following, self._load(made), size, rows)
        self._plans[key] = plan
        self._evict()
        return plan

    def _plan(self, rest: Rest, known: Mapping[str, Value]) -> _Plan:
        graph = rest.graph
        tensors = {i: value for i in graph.inputs if isinstance(value := known.get(i), np.ndarray)}
        while True:
            fixed = {name: tensors[name] for name in sorted(rest.wanted) if name in tensors}
            shapes = tuple((i, a.shape, a.dtype) for i, a in tensors.items())
            key = (rest, shapes, tuple((name, a.tobytes()) for name, a in fixed.items()))
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
            bound = graph.copy()
            bound.inputs = [i for i in graph.inputs if i not in fixed]
            bound.constants |= fixed
            bound.specs |= {name: _spec(value) for name, value in tensors.items()}
            stage = split(bound, Budget(self._options.limits))
            more = {name for name in stage.wanted if name in tensors} - rest.wanted
            if more:
                rest.wanted |= more
                continue
            left = None if stage.rest is None else {n.name for n in stage.rest.nodes}
            if not stage.graph.nodes and left == {n.name for n in graph.nodes}:
                raise stage.reason or ModelError(
                    "the network cannot go on", why=f"{len(graph.nodes)} nodes wait for each other"
                )
            following = None if stage.rest is None else self.rest(stage.rest)
            network = self._load(stage.graph) if stage.graph.nodes or stage.graph.outputs else None
            plan = _Plan(tuple(stage.graph.inputs), tuple(stage.graph.outputs), stage.corners, following, network)
            self._plans[key] = plan
            self._evict()
            return plan

    def _load(self, graph: Graph) -> LoadedNetwork:
        """Plan and load one stage; repeat that while a backend refuses nodes that it had taken."""
        loaded = LoadedNetwork(self._every, self._options.config, profile=self._profile)
        before = Assignment()
        try:
            while True:
                backends = {c.device: loaded.ask(c.device) for c in self._choices}
                network = optimize(graph, backends, self._options, host=self._host, before=before)
                try:
                    loaded.load(network)
                except NodeRefused as e:
                    note_refusal(e, before)
                    continue
                return loaded
        except BaseException:
            loaded.close_unheard()
            raise

    def _evict(self) -> None:
        while len(self._plans) > KEPT:
            _, plan = self._plans.popitem(last=False)
            if plan.network is not None:
                self._used.pop(id(plan.network), None)
                plan.network.close_unheard()

    # -- what was done ---------------------------------------------------------------------------------

    def _note(self, network: LoadedNetwork) -> None:
        if network.report is not None:
            self._used[id(network)] = network.report

    @property
    def reports(self) -> list[Report]:
        """Return the reports of the stages that the last run used, in order."""
        return list(self._used.values())

    @property
    def own(self) -> Mapping[str, str]:
        """Return the nodes that the last run left to no device, by name, with their op types."""
        return dict(self._own)

    def forget(self) -> None:
        """Leave what was loaded to the next session to close: this one was dropped without a close."""
        for plan in self._plans.values():
            if plan.network is not None:
                forget(plan.network)

    def close(self) -> None:
        """Free what was loaded."""
        plans, self._plans = list(self._plans.values()), OrderedDict()
        self._rests, self._bodies = OrderedDict(), OrderedDict()
        do_all(plan.network.close_unheard for plan in plans if plan.network is not None)


def _may_be_own(node: Node, constants: Mapping[str, Array]) -> bool:
    if isinstance(node.op, ControlOp):
        values = [constants.get(i) if i else None for i in node.inputs]
        return node.op.needs() is None and node.op.chosen(values) is None
    return node.op.type == "Identity" and bool(node.inputs)


def _keep(held: OrderedDict[Hashable, Any], key: Hashable, most: int) -> None:
    """Mark an entry as used, and drop the least recently used ones."""
    held.move_to_end(key)
    while len(held) > most:
        held.popitem(last=False)


def _counted(graph: Graph, known: Mapping[str, Value], rows: Rows) -> _Counted | None:
    """Return which inputs of a stage have rows, if all count the same thing and there is at least one row."""
    having = {i: rows[i] for i in graph.inputs if i in rows and isinstance(known.get(i), np.ndarray)}
    counts = {(symbol, known[i].shape[axis]) for i, (symbol, axis) in having.items()}  # type: ignore[union-attr]
    if len(counts) != 1:
        return None
    ((symbol, count),) = counts
    return _Counted(symbol, count, {i: axis for i, (_, axis) in having.items()}) if count else None


def _row_shape(array: Array, axis: int) -> tuple[int, ...]:
    return (*array.shape[:axis], *array.shape[axis + 1 :])


def _with_rows(graph: Graph, tensors: Mapping[str, Array], axes: Mapping[str, int], size: int) -> Graph:
    """Return a graph whose inputs have the shapes of arrays, but for a number of rows."""
    bound = graph.copy()
    for name, value in tensors.items():
        shape = list(value.shape)
        if name in axes:
            shape[axes[name]] = size
        bound.specs[name] = TensorSpec(tuple(shape), DType.of(value.dtype))
    return bound


def _spec(value: Array) -> TensorSpec:
    return TensorSpec(value.shape, DType.of(value.dtype))


def _fingerprint(value: Array) -> Hashable:
    small = value.nbytes <= BYTES_COMPARED
    return (value.dtype, value.shape, value.tobytes() if small else id(value))


def tensor(name: str, value: Value) -> Array:
    """Return an output as an array; ExecutionError for a sequence or an empty optional."""
    if isinstance(value, np.ndarray):
        return value
    kind = "an optional that holds nothing" if value is None else f"a sequence of {len(value)}"
    fix = "have the network give tensors: ConcatFromSequence, SequenceAt"
    raise ExecutionError(f"output {name!r} is {kind}", fix=fix)
