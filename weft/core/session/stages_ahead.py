"""What a load can know of later stages: they are planned as if each run counted the most rows that there can be.

Nothing is computed. Values stand for their shapes, and where a stage needs a value, this way ends: but an `If` has two
branches, and both are planned. The graphs of loops are planned for the shapes of their first iteration.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.core.graph.control_op import ControlOp, Value
from weft.core.graph.layout import Array
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.placement.stage_split import Corner
from weft.core.session.stage_runner import Ahead, Rest, Rows, StageRunner, Unforeseen, lasting_captures
from weft.errors import UnsupportedOps, WeftError

LEAST_ROOM = 64 << 20
"""Bytes that a later stage may always take before a run, however little the first stage takes."""
log = logging.getLogger("weft.session")


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
class _Place:
    """A rest, and what a run would know when it comes to it."""

    rest: Rest
    known: Mapping[str, Value]
    rows: Rows
    values: frozenset[str] = frozenset()
    """The known ones whose values are known, too."""
    certain: bool = True
    """Whether each run comes here."""


def prepare(runner: StageRunner, rest: Rest, known: Mapping[str, Value], rows: Rows, ahead: Ahead) -> None:
    """Plan and load what follows a first stage, as far as it can be foreseen.

    UnsupportedOps if no device may run a node that each run comes to, whatever it counts. Other errors are left to the
    run, which may count less than there can be.
    """
    waiting = [_Place(rest, known, rows)]
    while waiting:
        place = waiting.pop()
        try:
            waiting += _following(runner, place, ahead)
        except UnsupportedOps:
            if place.certain and _refused_for_one_row(runner, place, ahead):
                raise
        except WeftError as e:
            log.info("a later stage of %r is planned when a run comes to it: %s", place.rest.graph.name, e)


def _following(runner: StageRunner, place: _Place, ahead: Ahead) -> list[_Place]:
    """Plan the next stage, and return the places where a run may go on."""
    rest, constants = place.rest, place.rest.graph.constants
    if not rest.graph.nodes:
        return []
    known = {name: value for name, value in place.known.items() if name in rest.graph.inputs}
    own = [node for node in rest.own if all(i in known or i in constants for i in node.inputs if i)]
    own = [node for node in own if isinstance(node.op, ControlOp)]
    if own:  # the session runs these first, and what they make has no shape before
        found = []
        for node in own:
            assert isinstance(node.op, ControlOp)
            given = [(known[i] if i in known else constants[i]) if i else None for i in node.inputs]
            lasting = lasting_captures(node, node.op, constants)
            for graph, inputs in node.op.first_runs(given):
                body, values = runner.body(graph, inputs, captures=node.op.captures, lasting=lasting)
                found.append(_Place(body, values, {}, certain=place.certain))
        return found
    rows = dict(place.rows)
    try:
        plan, counted = runner.planned(rest, known, rows, replace(ahead, unknown=frozenset(known) - place.values))
    except Unforeseen as e:
        return _branches(place, e.names)
    if plan.rest is None:
        return []
    after: dict[str, Value] = dict(known)
    runner.take(plan, counted, largest(plan.specs, plan.corners), after, rows)
    return [replace(place, rest=plan.rest, known=after, rows=rows)]


def _branches(place: _Place, names: frozenset[str]) -> list[_Place]:
    """Return the same place for either value of a condition; none if other values are needed."""
    (name, *more) = sorted(names)
    value = place.known[name]
    if more or not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size != 1:
        return []
    values = place.values | {name}
    ways = ({**place.known, name: np.full(value.shape, way)} for way in (False, True))
    return [replace(place, known=known, values=values, certain=False) for known in ways]


def _refused_for_one_row(runner: StageRunner, place: _Place, ahead: Ahead) -> bool:
    """Tell whether a stage is refused, too, if all that is counted is one."""
    known = {
        name: value[(slice(None),) * place.rows[name][1] + (slice(1),)]
        if name in place.rows and isinstance(value, np.ndarray)
        else value
        for name, value in place.known.items()
    }
    try:
        _following(runner, replace(place, known=known), replace(ahead, most_bytes=-1))
    except UnsupportedOps:
        return True
    except WeftError:
        return False
    return False
