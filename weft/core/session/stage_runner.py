"""Running a network in stages, where a shape follows from a value that only a run tells.

The session plans and loads the first stage as it does any network. This module runs the rest: it reads the sizes that a
stage made, runs the session's own ops (loops, sequences), splits off the next stage
(`weft.core.placement.stage_split.split`), plans, loads and runs it. A loaded stage is one of the session's plans, by
the shapes, and the few values, that it was planned for.

What can be foreseen of later stages is planned and loaded before the first run (`weft.core.session.stages_ahead`), for
the most rows that there can be. A size class that comes up for the first time is computed there, and gets a plan of its
own when it comes up again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from weft.core.contract.backend import SameNodes
from weft.core.contract.error_context import at_node, blame
from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import LaterStage
from weft.core.placement.rows import padded, row_axes, size_class
from weft.core.placement.stage_split import Corner, Stage, chosen, split, without
from weft.core.session.executable import Executable
from weft.core.session.overflow import OverflowWatch
from weft.core.session.pipeline import Pipeline
from weft.core.session.plans import Plan, Plans
from weft.core.session.report import Report
from weft.core.session.stage_loader import Ahead, StageSource, later_stage
from weft.errors import ExecutionError, ModelError

log = logging.getLogger("weft.session")

MOST_MIXES = 32
"""For how many input shapes a session remembers that a stage mixes rows."""
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
    most: dict[Hashable, _Most] = field(default_factory=dict)
    """Plans for the most rows, made before the first run, by the keys of `mixes`."""
    same_nodes: SameNodes = field(default_factory=SameNodes)
    """Tells backends that plans for several sizes run the same nodes."""
    left: dict[frozenset[str], Rest] = field(default_factory=dict)
    """The rest that remains once some of the session's own nodes have run, by their names."""

    @cached_property
    def own(self) -> list[Node]:
        """The nodes that the session runs itself, some of them only if their input is no tensor."""
        return [node for node in self.graph.nodes if _may_be_own(node, self.graph.constants)]


@dataclass(eq=False)
class _Most:
    """The number of rows that a stage was planned for ahead, and the size classes that it has served."""

    size: int
    served: set[int] = field(default_factory=set)


Rows = dict[str, tuple[str, int]]
"""Values with a row for each thing that a run counted: the name of the count, and the axis of the rows."""


@dataclass(frozen=True)
class Counted:
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


@dataclass(eq=False, kw_only=True)
class ReadyStage(Plan):
    """The plan of a stage."""

    loads_again: ClassVar[bool] = False
    runs: bool
    """Whether it has something to run; not if no node of it is left, or if it was only looked at ahead."""
    graph: Graph
    """The stage before it was optimised."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    corners: Mapping[str, Corner]
    rest: Rest | None
    size: int = 0
    """The number of rows that it is planned for if it serves any number up to that, else 0."""
    rows: Mapping[str, int | None] = field(default_factory=dict)
    """The axis of the rows of each output, if `size` is set."""
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    """The specs of the outputs."""


class Unforeseen(Exception):
    """A stage that is planned ahead needs values that only a run tells."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        super().__init__(", ".join(sorted(names)))


class StageRunner:
    """Runs what comes after the first stage of one session, by plans that it keeps among the session's."""

    def __init__(self, loader: StageSource, plans: Plans) -> None:
        self._loader, self._plans = loader, plans
        self._rests: OrderedDict[Hashable, Rest] = OrderedDict()
        self._bodies: OrderedDict[Hashable, _Body] = OrderedDict()
        self._used: dict[Executable, Report] = {}
        self._own: dict[str, str] = {}
        self.watch: OverflowWatch | None = None
        """Sees what the stages of the run store."""
        self._overflowing: frozenset[str] = frozenset()

    def plan_again(self, overflowing: frozenset[str]) -> None:
        """Have the stages to come keep these values float32; the session has forgotten its plans."""
        self._overflowing = overflowing

    # -- running ---------------------------------------------------------------------------------------

    def begin(self, first: Plan) -> None:
        """Begin a run with the plan of the first stage: forget which stages the last one used; see `reports`."""
        self._plans.run += 1
        first.run = self._plans.run
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
            return self.left(rest, frozenset(done))
        plan, counted = self.planned(rest, known, rows)
        if plan.runs:
            arrays: dict[str, Array] = {i: known[i] for i in plan.inputs}  # type: ignore[misc]  # a stage's are tensors
            if counted:
                arrays |= {i: padded(arrays[i], a, plan.size) for i, a in counted.axes.items() if i in arrays}
            plan.executable.start(arrays, first=False, watch=self.watch)
            made = dict(zip(plan.outputs, plan.executable.finish([None] * len(plan.outputs)), strict=True))
            self.take(plan, counted, made, known, rows)
            assert plan.executable.report is not None
            self._used[plan.executable] = plan.executable.report
        return plan.rest

    def take(
        self,
        plan: ReadyStage,
        counted: Counted | None,
        made: dict[str, Array],
        known: dict[str, Value],
        rows: Rows,
    ) -> None:
        """Add what a stage made to what is known: the rows that count, and the corners."""
        for name, axis in plan.rows.items() if counted else ():
            if axis is not None and counted is not None:
                made[name] = made[name][(slice(None),) * axis + (slice(counted.count),)]
                rows[name] = (counted.symbol, axis)
        known.update(made)
        known.update(self.corners(plan.corners, made, rows))

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
                if len(results) < len(node.outputs):
                    what = f"node {node.name!r} ({node.op.type}) names more outputs than it makes"
                    why = f"it names {len(node.outputs)} and makes {len(results)}"
                    raise ModelError(what, why=why, fix="mend the model, or export it anew")
                known.update((o, v) for o, v in zip(node.outputs, results, strict=False) if o)
                done.append(node.name)
        return done

    def _execute(self, node: Node, given: list[Value], constants: Mapping[str, Array]) -> Sequence[Value]:
        self._own[node.name] = node.op.type
        if not isinstance(node.op, ControlOp):
            return given  # an Identity of a sequence
        lasting = lasting_captures(node, node.op, constants)
        with blame(at_node(node, "the session"), f"{node.op.type} failed"):
            return node.op.execute(given, partial(self._run_body, captures=node.op.captures, lasting=lasting))

    def _run_body(
        self, body: Graph, inputs: Sequence[Value], *, captures: int, lasting: Collection[int]
    ) -> list[Value]:
        """Run a graph that an op holds.

        Its last `captures` inputs come from outside. Those whose id is in `lasting` are the same in every run, so they
        become constants, which devices keep.
        """
        return self.finish(*self.body(body, inputs, captures=captures, lasting=lasting))

    def body(
        self, body: Graph, inputs: Sequence[Value], *, captures: int, lasting: Collection[int]
    ) -> tuple[Rest, dict[str, Value]]:
        """Return the rest that a graph which an op holds is, and the values of its inputs that are no constants.

        ModelError if it has another number of inputs.
        """
        if len(inputs) != len(body.inputs):
            what = f"graph {body.name!r} has {len(body.inputs)} inputs and gets {len(inputs)}"
            raise ModelError(what, fix="export the model again")
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
        return held.rest, {n: value for n, value in zip(body.inputs, inputs, strict=True) if n not in constants}

    # -- planning --------------------------------------------------------------------------------------

    def rest(self, graph: Graph) -> Rest:
        """Return the `Rest` of a graph. Equal graphs share one, so that its plans are used again."""
        held = tuple((name, _fingerprint(value)) for name, value in sorted(graph.constants.items()))
        nodes = tuple((n.name, id(n.op), n.inputs, n.outputs) for n in graph.nodes)
        told = (tuple(graph.declared.items()), graph.wide)
        key = (nodes, tuple(graph.inputs), tuple(graph.outputs), held, told)
        found = self._rests.setdefault(key, Rest(graph))  # it holds what the key has by id
        _keep(self._rests, key, MOST_RESTS)
        return found

    def left(self, rest: Rest, done: frozenset[str]) -> Rest:
        """Return what is left of a rest when the nodes of these names have run."""
        if done not in rest.left:
            rest.left[done] = self.rest(without(rest.graph, done))
        return rest.left[done]

    def planned(
        self, rest: Rest, known: Mapping[str, Value], rows: Rows, ahead: Ahead | None = None
    ) -> tuple[ReadyStage, Counted | None]:
        """Return the plan of the next stage, and what its rows count if it serves more than one count.

        ModelError if a node cannot be planned, UnsupportedOps if no device takes it. Unforeseen, only `ahead`, if that
        depends on values.
        """
        counted = _counted(rest.graph, known, rows)
        plan = counted and self._padded_plan(rest, known, counted, ahead)
        return (plan, counted) if plan else (self._plan(rest, known, ahead), None)

    def _padded_plan(
        self, rest: Rest, known: Mapping[str, Value], counted: Counted, ahead: Ahead | None
    ) -> ReadyStage | None:
        """Return a plan for all counts of this size class; None if rows depend on each other."""
        graph, axes, size = rest.graph, counted.axes, size_class(counted.count)
        tensors = {i: value for i in graph.inputs if isinstance(value := known.get(i), np.ndarray)}
        if rest.wanted & tensors.keys():
            return None
        others = tuple((i, a.shape, a.dtype) for i, a in tensors.items() if i not in axes)
        rowed = tuple((i, axis, _row_shape(tensors[i], axis), tensors[i].dtype) for i, axis in axes.items())
        if (others, rowed) in rest.mixes:
            return None
        key, most = (rest, others, rowed, size), rest.most.get((others, rowed))
        found = self._ready(key)
        if found is None and most is not None and size < most.size and size not in most.served:
            most.served.add(size)
            found = self._ready((rest, others, rowed, most.size))
        if found is not None:
            return found
        limits = self._loader.options.limits
        try:
            stage, longer = (split(_with_rows(graph, tensors, axes, n), Budget(limits)) for n in (size, size + 1))
        except ModelError:
            # A Split into given parts, say, fits no other count. If it does not fit this one, `_plan` raises.
            rows = None
        else:
            rows = None if stage.wanted & tensors.keys() or not stage.graph.nodes else row_axes(stage, longer, size)
        if rows is None:
            rest.mixes[others, rowed] = None
            _keep(rest.mixes, (others, rowed), MOST_MIXES)
            return None
        plan = self._made(key, rest, stage, ahead, size, rows)
        if ahead is not None and plan.runs:
            rest.most[others, rowed] = _Most(size)
        return plan

    def _ready(self, key: Hashable) -> ReadyStage | None:
        """Return the plan of a key, unless what was loaded for it was closed because another load had failed."""
        plan = self._plans.find(ReadyStage, key)
        return None if plan is None or (plan.runs and not plan.executable.is_loaded) else plan

    def _plan(self, rest: Rest, known: Mapping[str, Value], ahead: Ahead | None) -> ReadyStage:
        graph = rest.graph
        tensors = {i: value for i in graph.inputs if isinstance(value := known.get(i), np.ndarray)}
        while True:
            fixed = {name: tensors[name] for name in sorted(rest.wanted) if name in tensors}
            if ahead is not None and ahead.unknown & fixed.keys():
                raise Unforeseen(ahead.unknown & fixed.keys())
            shapes = tuple((i, a.shape, a.dtype) for i, a in tensors.items())
            key = (rest, shapes, tuple((name, a.tobytes()) for name, a in fixed.items()))
            found = self._ready(key)
            if found is not None:
                return found
            bound = graph.copy()
            bound.inputs = [i for i in graph.inputs if i not in fixed]
            bound.constants |= fixed
            bound.specs |= {name: _spec(value) for name, value in tensors.items()}
            stage = split(bound, Budget(self._loader.options.limits))
            more = {name for name in stage.wanted if name in tensors} - rest.wanted
            if more:
                rest.wanted |= more
                continue
            left = None if stage.rest is None else {n.name for n in stage.rest.nodes}
            if not stage.graph.nodes and left == {n.name for n in graph.nodes}:
                raise stage.reason or ModelError(
                    "the network cannot go on", why=f"{len(graph.nodes)} nodes wait for each other"
                )
            return self._made(key, rest, stage, ahead)

    def _made(
        self,
        key: Hashable,
        rest: Rest,
        stage: Stage,
        ahead: Ahead | None,
        size: int = 0,
        rows: Mapping[str, int | None] | None = None,
    ) -> ReadyStage:
        """Return the plan of a stage, loaded and kept; ahead, it may be neither."""
        graph, following = stage.graph, None if stage.rest is None else self.rest(stage.rest)
        graph.overflowing = self._overflowing
        self._plans.make_room()
        loaded = self._loader.load(graph, rest.same_nodes, ahead) if graph.nodes or graph.outputs else None
        plan = ReadyStage(
            key, "a run came to it" if ahead is None else "a run may come to it", loaded or Executable(),
            runs=loaded is not None, graph=graph, inputs=tuple(graph.inputs), outputs=tuple(graph.outputs),
            corners=stage.corners, rest=following, size=size, rows=rows or {},
            specs={o: graph.specs[o] for o in graph.outputs},
        )
        if loaded is not None or ahead is None:
            self._plans.keep(plan)
        return plan

    # -- what was done ---------------------------------------------------------------------------------

    @property
    def reports(self) -> list[Report]:
        """Return the reports of the stages that the last run used, in order."""
        return list(self._used.values())

    @property
    def own(self) -> Mapping[str, str]:
        """Return the nodes that the last run left to no device, by name, with their op types."""
        return dict(self._own)

    @property
    def stages(self) -> list[LaterStage]:
        """Return the stages that are loaded, in the order in which they were used last."""
        held = [(plan.graph, plan.executable.network) for plan in self._plans.all(ReadyStage)]
        return [later_stage(graph, network, "") for graph, network in reversed(held) if network is not None]

    @property
    def pipelines(self) -> list[Pipeline]:
        """Return the pipelines of the stages that are loaded."""
        return [p for plan in reversed([*self._plans.all(ReadyStage)]) for p in plan.executable.pipelines]

    def close(self) -> None:
        """Forget the network; the session frees what was loaded."""
        self._rests, self._bodies = OrderedDict(), OrderedDict()


def lasting_captures(node: Node, op: ControlOp, constants: Mapping[str, Array]) -> set[int]:
    """Return the ids of the constants that the graphs of an op read from outside: they are the same in every run."""
    return {id(constants[i]) for i in node.inputs[len(node.inputs) - op.captures :] if i in constants}


def _may_be_own(node: Node, constants: Mapping[str, Array]) -> bool:
    if isinstance(node.op, ControlOp):
        values = [constants.get(i) if i else None for i in node.inputs]
        return node.op.needs() is None and chosen(node, node.op, values) is None
    return node.op.type == "Identity" and bool(node.inputs)


def _keep(held: OrderedDict[Hashable, Any], key: Hashable, most: int) -> None:
    """Mark an entry as used, and drop the least recently used ones."""
    held.move_to_end(key)
    while len(held) > most:
        held.popitem(last=False)


def _counted(graph: Graph, known: Mapping[str, Value], rows: Rows) -> Counted | None:
    """Return which inputs of a stage have rows, if all count the same thing and there is at least one row."""
    having = {i: rows[i] for i in graph.inputs if i in rows and isinstance(known.get(i), np.ndarray)}
    counts = {(symbol, known[i].shape[axis]) for i, (symbol, axis) in having.items()}  # type: ignore[union-attr]
    if len(counts) != 1:
        return None
    ((symbol, count),) = counts
    return Counted(symbol, count, {i: axis for i, (_, axis) in having.items()}) if count else None


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
