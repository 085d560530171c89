"""What waits for values of a run: planning and loading it once the values are there.

A rest is a graph whose inputs have no specs before a run. `Rests` splits off what can be planned for the values at hand
(`weft.core.placement.stage_split.split`), plans and loads it: that stage is one of the session's plans, by the shapes,
and the few values, that it was planned for. `weft.core.session.run` runs it.

What can be foreseen of later stages is planned and loaded before the first run (`weft.core.session.stages_ahead`), for
the most rows that there can be. A size class that comes up for the first time is computed there, and gets a plan of its
own when it comes up again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from weft.core.contract.backend import SameNodes
from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import LaterStage
from weft.core.placement.rows import row_axes, size_class
from weft.core.placement.stage_split import Corner, Stage, chosen, split, without
from weft.core.session.executable import Executable
from weft.core.session.pipeline import Pipeline
from weft.core.session.plans import Plan, Plans
from weft.core.session.stage_loader import Ahead, StageSource, later_stage
from weft.errors import ModelError

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
    def _own(self) -> list[Node]:
        """The nodes that no device runs, some of them only if their input is no tensor."""
        return [node for node in self.graph.nodes if _may_be_own(node, self.graph.constants)]

    def own(self, known: Mapping[str, Value]) -> list[Node]:
        """Return the nodes that no device runs and whose inputs are known."""
        constants = self.graph.constants
        return [
            node for node in self._own
            if all(i in known or i in constants for i in node.inputs if i)
            and (isinstance(node.op, ControlOp) or not isinstance(self.read(node.inputs[0], known), np.ndarray))
        ]

    def read(self, name: str, known: Mapping[str, Value]) -> Value:
        """Return a value that a node reads, or a constant; None for an input that the node lacks."""
        return (known[name] if name in known else self.graph.constants[name]) if name else None


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
class StagePlan(Plan):
    """The plan of a stage that is not the first."""

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

    def values(self, made: Mapping[str, Array], counted: Counted | None, rows: Rows) -> dict[str, Value]:
        """Return what a run knows by what the stage made: the rows that count, and the corners; note their rows."""
        known = dict(made)
        for name, axis in self.rows.items() if counted else ():
            if axis is not None and counted is not None:
                known[name] = made[name][(slice(None),) * axis + (slice(counted.count),)]
                rows[name] = (counted.symbol, axis)
        return {**known, **corners_of(self.corners, known, rows)}


class Unforeseen(Exception):
    """A stage that is planned ahead needs values that only a run tells."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        super().__init__(", ".join(sorted(names)))


class Rests:
    """What may wait for values in the runs of one session, with plans that it keeps among the session's."""

    def __init__(self, loader: StageSource, plans: Plans) -> None:
        self._loader, self._plans = loader, plans
        self._rests: OrderedDict[Hashable, Rest] = OrderedDict()
        self._bodies: OrderedDict[Hashable, _Body] = OrderedDict()
        self._overflowing: frozenset[str] = frozenset()

    def plan_again(self, overflowing: frozenset[str]) -> None:
        """Have the stages to come keep these values float32; the session has forgotten its plans."""
        self._overflowing = overflowing

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
    ) -> tuple[StagePlan, Counted | None]:
        """Return the plan of the next stage, and what its rows count if it serves more than one count.

        ModelError if a node cannot be planned, UnsupportedOps if no device takes it. Unforeseen, only `ahead`, if that
        depends on values.
        """
        counted = _counted(rest.graph, known, rows)
        plan = counted and self._padded_plan(rest, known, counted, ahead)
        return (plan, counted) if plan else (self._plan(rest, known, ahead), None)

    def _padded_plan(
        self, rest: Rest, known: Mapping[str, Value], counted: Counted, ahead: Ahead | None
    ) -> StagePlan | None:
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

    def _ready(self, key: Hashable) -> StagePlan | None:
        """Return the plan of a key, unless what was loaded for it was closed because another load had failed."""
        plan = self._plans.find(StagePlan, key)
        return None if plan is None or (plan.runs and not plan.executable.is_loaded) else plan

    def _plan(self, rest: Rest, known: Mapping[str, Value], ahead: Ahead | None) -> StagePlan:
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
        self, key: Hashable, rest: Rest, stage: Stage, ahead: Ahead | None, size: int = 0,
        rows: Mapping[str, int | None] | None = None,
    ) -> StagePlan:
        """Return the plan of a stage, loaded and kept; ahead, it may be neither."""
        graph, following = stage.graph, None if stage.rest is None else self.rest(stage.rest)
        graph.overflowing = self._overflowing
        self._plans.make_room()
        loaded = self._loader.load(graph, rest.same_nodes, ahead) if graph.nodes or graph.outputs else None
        plan = StagePlan(
            key, "a run came to it" if ahead is None else "a run may come to it", loaded or Executable(),
            runs=loaded is not None, graph=graph, inputs=tuple(graph.inputs), outputs=tuple(graph.outputs),
            corners=stage.corners, rest=following, size=size, rows=rows or {},
            specs={o: graph.specs[o] for o in graph.outputs},
        )
        if loaded is not None or ahead is None:
            self._plans.keep(plan)
        return plan

    # -- what is loaded ---------------------------------------------------------------------------------

    @property
    def stages(self) -> list[LaterStage]:
        """Return the stages that are loaded, in the order in which they were used last."""
        held = [(plan.graph, plan.executable.network) for plan in self._plans.all(StagePlan)]
        return [later_stage(graph, network, "") for graph, network in reversed(held) if network is not None]

    @property
    def pipelines(self) -> list[Pipeline]:
        """Return the pipelines of the stages that are loaded."""
        return [p for plan in reversed([*self._plans.all(StagePlan)]) for p in plan.executable.pipelines]

    def close(self) -> None:
        """Forget the network; the session frees what was loaded."""
        self._rests, self._bodies = OrderedDict(), OrderedDict()


def corners_of(corners: Mapping[str, Corner], made: Mapping[str, Array], rows: Rows) -> dict[str, Value]:
    """Return the values that are corners of what a stage made, and note which have rows."""
    rows.update((name, (c.sizes, c.axis)) for name, c in corners.items() if c.axis is not None)
    return {name: corner.of(made) for name, corner in corners.items()}


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
