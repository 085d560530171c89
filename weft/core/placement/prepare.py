"""Prepare a bound graph for assignment: run the passes, and store values in the types of the precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget, Limits
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.validate import check_declared_types
from weft.core.graph.widened import Widened
from weft.core.host.derived_arrays import derived_arrays
from weft.core.host.garbage import without_collections
from weft.core.host.shared_arrays import shared_arrays
from weft.core.host.threads import in_threads
from weft.core.passes import PASSES, AnyPass, PassContext, PassManager, PassRecord, arranged
from weft.core.passes.constants import fold_constants
from weft.core.passes.identities import remove_identities
from weft.core.passes.journal import Journal
from weft.core.passes.precision import LARGEST, magnitude, store_as_float16, store_as_float32
from weft.core.placement.stage_split import Stage, is_staged, split
from weft.errors import ModelError, ValueNeeded


@dataclass(frozen=True)
class PreparedNetwork:
    """A network that is ready to be assigned, with notes for the user and the records of its passes."""

    graph: Graph
    notes: tuple[str, ...]
    passes: tuple[PassRecord, ...] = ()
    journal: Journal = field(default_factory=Journal)


def steps(precision: Precision, own: Sequence[AnyPass] = ()) -> list[AnyPass]:
    """Return the passes that run on a bound graph before it is assigned, in order, a user's among them.

    They compute in fp32 whatever the model stores, so that folded weights are rounded at most once.
    """
    wide = (fold_constants, store_as_float32, *PASSES)
    narrow = (store_as_float16, remove_identities) if precision is Precision.LOW else ()
    return arranged((*wide, *narrow), own, fold_constants.name)


def pass_context(precision: Precision, budget: Budget) -> PassContext:
    """Return what the passes get that prepare a network for a precision."""
    return PassContext(budget, stored=DType.FLOAT16 if precision is Precision.LOW else DType.FLOAT32)


@without_collections()
def prepare_network(
    bound: Graph, precision: Precision, limits: Limits | None = None, own: Sequence[AnyPass] = ()
) -> PreparedNetwork:
    """Return the network of a bound graph after all `steps`."""
    budget = Budget(limits or Limits())
    budget.limits.check(bound)
    if is_staged(bound):
        stage = split(bound, Budget(budget.limits))
        if stage.rest is not None:
            raise _needs_a_run(bound, stage)
        bound = stage.graph
    manager, graph, notes = PassManager(pass_context(precision, budget), own), bound, list[str]()
    for k, step in enumerate(steps(precision, own)):
        before = graph
        graph = manager.run(graph, step)
        if k == 0:
            check_declared_types(graph)
        if step is store_as_float32 and precision is Precision.LOW:
            notes += _casts(before)
        elif step is store_as_float16:
            notes += _rounded(before, graph)
            notes += _overflowed(before)
    _share_weights(graph, bound)
    return PreparedNetwork(graph, (*notes, *budget.notes()), tuple(manager.records), manager.journal)


def _share_weights(graph: Graph, given: Graph) -> None:
    """Let the arrays that passes made be those of other sessions, where their bytes are the same."""
    own = {id(value) for value in given.constants.values()}
    for name, value in graph.constants.items():
        if id(value) not in own and not is_symbolic(value) and value.flags.owndata:
            graph.constants[name] = shared_arrays.share(value)


def _needs_a_run(bound: Graph, stage: Stage) -> ValueNeeded:
    """Return the error for a network in which some shapes do not follow from the shapes of its inputs."""
    sized = next((n for n in bound.nodes if not stage.corners.keys().isdisjoint(n.outputs)), None)
    first = stage.reason or ModelError("a shape follows from a value that only a run tells")
    return ValueNeeded(
        "not all shapes of the network are known before a run",
        where=f"node {sized.name!r} ({sized.op.type})" if sized is not None else first.where,
        why="the size of its result follows from values" if sized is not None else first.what,
        fix="use weft.load, which plans it in stages",
    )


def _casts(folded: Graph) -> list[str]:
    """Return a note on casts to bfloat16 of the model's own, which have no effect at precision LOW."""
    casts = [n.name for n in folded.nodes if n.op.attributes().get("to") is DType.BFLOAT16 and not n.op.keeps_types]
    kept = f"{len(casts)} cast(s) to bfloat16 keep float16 at precision LOW"
    return [f"{kept}: {', '.join(casts[:5])}"] if casts else []


def _overflowed(wide: Graph) -> list[str]:
    """Return a note on the values that a run found to be beyond fp16."""
    names = sorted(wide.overflowing & wide.specs.keys() - wide.constants.keys())
    kept = f"{len(names)} value(s) are float32 because they overflowed float16 in a run"
    return [f"{kept}: {', '.join(names[:5])}"] if names else []


def _may_round(value: Array, half: Array | None) -> bool:
    """Tell whether numbers of a constant may be others in fp16. Elements that follow from sizes get no note."""
    if half is None or isinstance(value, Widened) or is_symbolic(value):
        return False
    if value.dtype != np.float32 or not value.size or half.dtype != np.float16:
        return False
    widened = derived_arrays.find(DType.FLOAT32, [half])
    return widened is None or widened[0] is not value


def _rounded(wide: Graph, narrow: Graph) -> list[str]:
    """Return notes on constants that fp16 cannot hold."""
    most, least = float(np.finfo(np.float16).max), float(np.finfo(np.float16).smallest_subnormal) / 2

    def changes(name: str) -> tuple[bool, bool]:
        """Tell whether numbers became smaller, and whether some became zero."""
        value, half = wide.constants[name], narrow.constants[name]
        bits = magnitude(half)
        smaller = bits.max() >= LARGEST and np.any(np.isfinite(half) & (np.abs(value) > most))
        return bool(smaller), bool(np.count_nonzero(bits) < np.count_nonzero(value))

    names = [name for name, value in wide.constants.items() if _may_round(value, narrow.constants.get(name))]
    found = dict(zip(names, in_threads(changes, names, sum(wide.constants[n].nbytes for n in names)), strict=True))
    clamped, lost = ([name for name in names if found[name][k]] for k in range(2))
    notes = []
    if clamped:
        notes.append(f"values beyond {most:g} were set to it in float16 constants: {', '.join(clamped[:5])}")
    if lost:
        notes.append(f"values below {least:.1g} became zero in float16 constants: {', '.join(lost[:5])}")
    return notes
