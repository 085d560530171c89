"""From a bound graph to the network that backends are asked about: folded, rewritten, stored as wanted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget, Limits
from weft.core.graph.validate import check_declared
from weft.core.passes import PASSES, Pass
from weft.core.passes.constants import fold_constants
from weft.core.passes.identities import remove_identities
from weft.core.passes.precision import LARGEST, magnitude, set_storage
from weft.core.placement.optimized_network import PassRecord


@dataclass(frozen=True)
class Network:
    """A network that is ready to be assigned, and what a user should know of how it was made."""

    graph: Graph
    notes: tuple[str, ...]
    passes: tuple[PassRecord, ...] = ()


def steps(precision: Precision) -> tuple[Pass, ...]:
    """Return the rewrites that a bound graph goes through before backends are asked, in order.

    Passes compute in fp32, whatever the model stores, so that folded weights are rounded once at most.
    """
    widen = Pass("set_storage", partial(set_storage, dtype=DType.FLOAT32))
    wide = (Pass("fold_constants", fold_constants), widen, *PASSES)
    if precision is not Precision.LOW:
        return wide
    narrow = Pass("set_storage", partial(set_storage, dtype=DType.FLOAT16))
    return (*wide, narrow, Pass("remove_identities", remove_identities))


def prepare_network(bound: Graph, precision: Precision, limits: Limits | None = None) -> Network:
    """Return the network of a bound graph: after all `steps`, with what should be known of them."""
    budget = Budget(limits or Limits())
    budget.limits.check(bound)
    graph, records, notes = bound, [], list[str]()
    for k, step in enumerate(steps(precision)):
        before = graph
        graph = step.within(budget)(graph)
        records.append(PassRecord(step.name, len(before.nodes), len(graph.nodes)))
        if k == 0:
            notes += check_declared(graph)
        if step.name == "set_storage":
            notes += _casts(before, precision) if k == 1 else _rounded(before, graph)
    return Network(graph, (*notes, *budget.notes()), tuple(records))


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
