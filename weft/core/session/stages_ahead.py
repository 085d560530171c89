"""What a load can know of later stages: they are planned as if each run counted the most rows that there can be.

Nothing is computed. Values stand for their shapes, and where a stage needs a value, this way ends: but an `If` has two
branches, and both are planned. The graphs of loops are planned for the shapes of their first iteration, and what comes
after a loop if that tells the shapes of its results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.core.contract.error_context import at_node, blame
from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.placement.assign import Backends
from weft.core.placement.lower_network import lower_network
from weft.core.placement.optimized_network import LaterStage, OptimizedNetwork, Tail
from weft.core.placement.optimizer import OptimizerOptions, divide_first
from weft.core.placement.prepare import PreparedNetwork
from weft.core.placement.replan import until_taken
from weft.core.placement.stage_split import Corner
from weft.core.session.loader import Loader
from weft.core.session.open_devices import OpenDevices
from weft.core.session.pipeline import Progress
from weft.core.session.plans import Plans
from weft.core.session.rests import Rest, Rests, Rows, Unforeseen, corners_of, lasting_captures
from weft.core.session.stage_loader import Ahead, CollectedStages, total_bytes
from weft.errors import UnsupportedOps, WeftError, brief

LEAST_ROOM = 64 << 20
"""Bytes that a later stage may always take before a run, however little the first stage takes."""
MOST_STATES = 1 << 9
"""How many states of a run are looked at before a run: many branches make many ways."""
Say = Callable[[str], None]
"""Receives what cannot be foreseen, and why."""
log = logging.getLogger("weft.session")


def optimize_stages(
    bound: Graph, backends: Backends, options: OptimizerOptions, *, host: str = "cpu:0",
    prepared: PreparedNetwork | None = None,
) -> OptimizedNetwork:
    """Return the network of a graph whose input shapes are all known, with all stages that can be foreseen.

    `backends` are asked in order. It raises what `weft.core.placement.optimizer.optimize` raises.
    """
    first = until_taken(
        lambda before: lower_network(
            divide_first(bound, backends, options, host=host, before=before, prepared=prepared), backends
        )
    )
    if first.tail is None:
        return first
    found, unforeseen = dict[str, LaterStage](), dict[str, None]()
    rests = Rests(CollectedStages(backends, options, host, found), Plans(Loader(OpenDevices([], options.config))))
    foresee(rests, first.tail, first.graph, lambda text: unforeseen.update({text: None}))
    tail = replace(first.tail, stages=tuple(found.values()), unforeseen=tuple(unforeseen))
    return replace(first, tail=tail)


def foresee(
    rests: Rests, tail: Tail, first: Graph, say: Say | None = None, progress: Progress | None = None
) -> None:
    """Plan, and perhaps load, what follows a first stage, each with not much more memory than that one takes.

    UnsupportedOps if no device may run a node that each run comes to, whatever it counts. Other errors are left to the
    run, which may count less than there can be.
    """
    made = largest({o: first.specs[o] for o in first.outputs}, tail.corners)
    rows: Rows = {}
    known: dict[str, Value] = {**largest(tail.inputs), **made}
    known |= corners_of(tail.corners, made, rows)
    ahead = Ahead(frozenset(), max(LEAST_ROOM, total_bytes(first)), progress)
    _Foresight(rests, ahead, say or _log).to_the_end(_RunState(rests.rest(tail.rest), known, rows))


def _log(text: str) -> None:
    log.info("a later stage is planned when a run comes to it: %s", text)


def some(spec: TensorSpec) -> Array:
    """Return an array of that spec that takes no memory; its values mean nothing."""
    return np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)


def largest(specs: Mapping[str, TensorSpec], corners: Mapping[str, Corner] | None = None) -> dict[str, Array]:
    """Return such an array for each tensor of known shape; the sizes of corners are those of the room for them."""
    made = {n: some(s) for n, s in specs.items() if s.is_static and not isinstance(s, SequenceSpec)}
    for corner in (corners or {}).values():
        sizes = made[corner.sizes] = made[corner.sizes].copy()
        sizes[corner.begin : corner.begin + corner.rank] = specs[corner.room].dims
    return made


@dataclass(frozen=True)
class _RunState:
    """What may remain of a network in a run, and what the run would know by then."""

    rest: Rest
    known: Mapping[str, Value]
    rows: Rows
    values: frozenset[str] = frozenset()
    """The names in `known` whose values are right, not only their shapes."""
    certain: bool = True
    """Whether each run comes to this state."""
    way: tuple[str, ...] = ()
    """The branches and loops that lead to it."""

    @property
    def key(self) -> Hashable:
        """Return a key that states share if a run goes on alike from them."""
        read = [i for i in (*self.rest.graph.inputs, *self.rest.graph.outputs) if i in self.known]
        forms = tuple((i, _form(self.known[i]), self.rows.get(i)) for i in read)
        told = tuple((i, _bytes(self.known[i])) for i in sorted(self.values) if i in read)
        return id(self.rest), forms, told, self.certain


class _Foresight:
    """Walks through what may follow a stage."""

    def __init__(self, rests: Rests, ahead: Ahead, say: Say) -> None:
        self._rests, self._ahead, self._say = rests, ahead, say
        self._seen: dict[Hashable, Mapping[str, Value] | None] = {}
        self._left = MOST_STATES

    def to_the_end(self, state: _RunState) -> Mapping[str, Value] | None:
        """Plan what follows a state, and return values of the shapes of the graph's outputs; None if they are open."""
        seen = list[Hashable]()
        found: Mapping[str, Value] | None = None
        while state.key not in self._seen:
            seen.append(state.key)
            self._seen[state.key] = None
            constants = state.rest.graph.constants
            if not state.rest.graph.nodes:
                values = {**constants, **state.known}
                found = {o: values[o] for o in state.rest.graph.outputs if o in values}
                break
            following = self._checked(state)
            if len(following) != 1:
                ends = [self.to_the_end(each) for each in following]
                found = ends[0] if ends and _alike(ends) else None
                break
            (state,) = following
        else:
            found = self._seen[state.key]
        self._seen.update(dict.fromkeys(seen, found))
        outputs = state.rest.graph.outputs
        return found if found is not None and all(o in found for o in outputs) else None

    def _checked(self, state: _RunState) -> Sequence[_RunState]:
        """Return where a run may go on; nothing where that cannot be foreseen."""
        self._left -= 1
        if self._left < 0:
            self._open(state, f"there are more than {MOST_STATES} ways through the network")
            return []
        try:
            return self._following(state)
        except UnsupportedOps as e:
            if state.certain and self._refused_for_one_row(state):
                raise
            self._open(state, str(e.what), e.problems[0])
        except WeftError as e:
            self._open(state, e.what, e.why)
        return []

    def _open(self, state: _RunState, *why: str) -> None:
        first = state.rest.graph.nodes[0]
        where = "".join(f"{step}, " for step in state.way)
        nodes = f"{len(state.rest.graph.nodes)} node(s) from {first.name!r} ({first.op.type}) on"
        self._say(f"{where}{nodes}: {brief(': '.join(filter(None, why)))}")

    def _following(self, state: _RunState) -> Sequence[_RunState]:
        """Plan the next stage, or the graphs that the session's own ops hold, and return the states after it."""
        rest = state.rest
        known = {n: v for n, v in state.known.items() if n in rest.graph.inputs or n in rest.graph.outputs}
        own = rest.own(known)
        if own:  # the session runs these first
            return self._after_own(replace(state, known=known), own)
        rows = dict(state.rows)
        ahead = replace(self._ahead, unknown=frozenset(known) - state.values, about=", ".join(state.way))
        try:
            plan, counted = self._rests.planned(rest, known, rows, ahead)
        except Unforeseen as e:
            return self._branches(state, e.names)
        after = {**known, **plan.values(largest(plan.specs, plan.corners), counted, rows)}
        end = plan.rest or self._rests.rest(Graph(rest.graph.name, [], list(rest.graph.outputs)))
        return [replace(state, rest=end, known=after, rows=rows)]

    def _after_own(self, state: _RunState, own: Sequence[Node]) -> Sequence[_RunState]:
        """Plan the graphs of the session's own nodes; return the state after them if their results are foreseen."""
        known, constants, unknown = dict(state.known), state.rest.graph.constants, dict[str, str]()
        for node in own:
            op, given = node.op, [state.rest.read(i, known) for i in node.inputs]
            if not isinstance(op, ControlOp):  # an Identity of a sequence
                known[node.outputs[0]] = given[0]
                continue
            lasting, ends = lasting_captures(node, op, constants), []
            with blame(at_node(node, "the session"), "a node's graphs could not be foreseen"):
                first = op.first_runs(given)
            for graph, inputs in first:
                body, values = self._rests.body(graph, inputs, captures=op.captures, lasting=lasting)
                way = (*state.way, f"in {op.type} {node.name!r}")
                end = self.to_the_end(_RunState(body, values, {}, certain=state.certain, way=way))
                ends.append(None if end is None else [end[o] for o in graph.outputs])
            told = [constants.get(i) if i else None for i in node.inputs]
            with blame(at_node(node, "the session"), "a node's results could not be foreseen"):
                results = op.foreseen(given, told, ends)
            for k, name in enumerate(node.outputs):
                value = results[k] if k < len(results) else None
                if value is not None:
                    known[name] = value
                elif name:
                    unknown[name] = f"{op.type} {node.name!r}"
        left = self._rests.left(state.rest, frozenset(node.name for node in own))
        missing = {maker for name, maker in unknown.items() if name in left.graph.inputs}
        if missing:
            self._open(replace(state, rest=left), f"the shape of what {', '.join(sorted(missing))} makes is open")
            return []
        return [replace(state, rest=left, known=known)]

    def _branches(self, state: _RunState, names: frozenset[str]) -> Sequence[_RunState]:
        """Return the same state for either value of a condition; none if other values are needed."""
        (name, *more) = sorted(names)
        value = state.known[name]
        if more or not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size != 1:
            self._open(state, f"shapes follow from the value(s) of {', '.join(map(repr, sorted(names)))}")
            return []
        return [
            replace(
                state,
                known={**state.known, name: np.full(value.shape, way)},
                values=state.values | {name},
                certain=False,
                way=(*state.way, f"where {name!r} is {str(way).lower()}"),
            )
            for way in (False, True)
        ]

    def _refused_for_one_row(self, state: _RunState) -> bool:
        """Tell whether a stage is refused, too, if all that is counted is one."""
        known = {
            name: value[(slice(None),) * state.rows[name][1] + (slice(1),)]
            if name in state.rows and isinstance(value, np.ndarray)
            else value
            for name, value in state.known.items()
        }
        try:
            foresight = _Foresight(self._rests, replace(self._ahead, most_bytes=-1), _ignore)
            foresight._following(replace(state, known=known))
        except UnsupportedOps:
            return True
        except WeftError:
            return False
        return False


def _ignore(text: str) -> None:
    """Say nothing."""


def _form(value: Value) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return None if value is None else tuple(map(_form, value))


def _bytes(value: Value) -> Hashable:
    return value.tobytes() if isinstance(value, np.ndarray) else None


def _alike(ends: Sequence[Mapping[str, Value] | None]) -> bool:
    """Tell whether ways end with values of the same names and shapes."""
    forms = [None if end is None else {name: _form(value) for name, value in end.items()} for end in ends]
    return forms[0] is not None and all(each == forms[0] for each in forms)
