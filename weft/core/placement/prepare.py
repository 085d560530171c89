"""From a bound graph to the network that backends are asked about: folded, rewritten, stored as wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget, Limits
from weft.core.graph.validate import check_declared
from weft.core.passes import PASSES, AnyPass, PassContext, PassManager, PassRecord, arranged
from weft.core.passes.constants import fold_constants
from weft.core.passes.identities import remove_identities
from weft.core.passes.journal import Journal
from weft.core.passes.precision import LARGEST, magnitude, store_as_float16, store_as_float32


@dataclass(frozen=True)
class Network:
    """A network that is ready to be assigned, and what a user should know of how it was made."""

    graph: Graph
    notes: tuple[str, ...]
    passes: tuple[PassRecord, ...] = ()
    journal: Journal = field(default_factory=Journal)


def steps(precision: Precision, own: Sequence[AnyPass] = ()) -> list[AnyPass]:
    """Return the rewrites that a bound graph goes through before backends are asked, in order, a user's among them.

    Passes compute in fp32, whatever the model stores, so that folded weights are rounded once at most.
    """
    wide = (fold_constants, store_as_float32, *PASSES)
    narrow = (store_as_float16, remove_identities) if precision is Precision.LOW else ()
    return arranged((*wide, *narrow), own, fold_constants.name)


def prepare_network(
    bound: Graph, precision: Precision, limits: Limits | None = None, own: Sequence[AnyPass] = ()
) -> Network:
    """Return the network of a bound graph: after all `steps`, with what should be known of them."""
    budget = Budget(limits or Limits())
    budget.limits.check(bound)
    manager, graph, notes = PassManager(PassContext(budget), own), bound, list[str]()
    for k, step in enumerate(steps(precision, own)):
        before = graph
        graph = manager.run(graph, step)
        if k == 0:
            notes += check_declared(graph)
        if step is store_as_float32:
            notes += _casts(before, precision)
        elif step is store_as_float16:
            notes += _rounded(before, graph)
    return Network(graph, (*notes, *budget.notes()), tuple(manager.records), manager.journal)


def _casts(folded: Graph, precision: Precision) -> list[str]:
    """Return a note on casts to fp16 of the model's own that have no effect."""
    casts = [n.name for n in folded.nodes if n.op.attributes().get("to") is DType.FLOAT16]
    if not casts or precision is Precision.LOW:
        return []
    shown = ", ".join(casts[:5])
    return [f"{len(casts)} cast(s) to float16 keep float32 at precision {precision.name}: {shown}"]


def _rounded(wide: Graph, narrow: Graph) -> list[str]:
    """Return notes on constants that fp16 cannot hold."""
    most, least = float(np.finfo(np.float16).max), float(np.finfo(np.float16).smallest_subnormal) / 2
    clamped, lost = [], []
    for name, value in wide.constants.items():
        half = narrow.constants.get(name)
        if value.dtype != np.float32 or not value.size or half is None or half.dtype != np.float16:
            continue
        bits = magnitude(half)
        if bits.max() >= LARGEST and np.any(np.isfinite(value) & (np.abs(value) > most)):
            clamped.append(name)
        if np.count_nonzero(bits) < np.count_nonzero(value):
            lost.append(name)
    notes = []
    if clamped:
        notes.append(f"values beyond {most:g} were set to it in float16 constants: {', '.join(clamped[:5])}")
    if lost:
        notes.append(f"values below {least:.1g} became zero in float16 constants: {', '.join(lost[:5])}")
    return notes
