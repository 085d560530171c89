"""From a bound graph to the network that backends are asked about: folded, rewritten, stored as wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.core.backend import Precision
from weft.core.dtypes import DType
from weft.core.graph import Graph
from weft.core.optimize import record_passes
from weft.core.optimize.constants import fold_constants
from weft.core.optimize.identities import remove_identities
from weft.core.optimize.precision import set_storage
from weft.core.optimized import PassRecord


@dataclass(frozen=True)
class Network:
    """A network that is ready to be assigned, and what a user should know of how it was made."""

    graph: Graph
    notes: tuple[str, ...]
    passes: tuple[PassRecord, ...] = ()


def prepare_network(bound: Graph, precision: Precision) -> Network:
    """Return the network of a bound graph.

    Passes compute in fp32, whatever the model stores, so that folded weights are rounded once at most.
    """
    folded = fold_constants(bound)
    wide, passes = record_passes(set_storage(folded, DType.FLOAT32))
    notes = []
    if precision is not Precision.LOW:
        casts = [n.name for n in folded.nodes if n.op.attributes().get("to") is DType.FLOAT16]
        if casts:
            notes.append(
                f"{len(casts)} cast(s) to float16 keep float32 at precision {precision.name}: {', '.join(casts[:5])}"
            )
        return Network(wide, tuple(notes), passes)
    low = remove_identities(set_storage(wide, DType.FLOAT16))
    last = PassRecord("set_storage", len(wide.nodes), len(low.nodes))
    return Network(low, (*notes, *_rounded(wide)), (*passes, last))


def _rounded(wide: Graph) -> list[str]:
    """Return notes on constants that fp16 cannot hold."""
    most, least = float(np.finfo(np.float16).max), float(np.finfo(np.float16).smallest_subnormal) / 2
    clamped, lost = [], []
    for name, value in wide.constants.items():
        if value.dtype != np.float32:
            continue
        size = np.abs(value)
        if np.any(np.isfinite(size) & (size > most)):
            clamped.append(name)
        if np.any((size > 0) & (size < least)):
            lost.append(name)
    notes = []
    if clamped:
        notes.append(f"values beyond {most:g} were set to it in float16 constants: {', '.join(clamped[:5])}")
    if lost:
        notes.append(f"values below {least:.1g} became zero in float16 constants: {', '.join(lost[:5])}")
    return notes
