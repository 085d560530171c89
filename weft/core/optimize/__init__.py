"""Backend-independent rewrites. Each pass is a function `Graph -> Graph`; `PASSES` lists them in order."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.graph import Graph
from weft.core.optimize.batch_norm import fold_batch_norm
from weft.core.optimize.constants import fold_constants
from weft.core.optimize.dead import remove_dead_nodes
from weft.core.optimize.identities import remove_identities
from weft.core.optimize.pads import fold_pads

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (fold_constants, remove_identities, fold_pads, fold_batch_norm, remove_dead_nodes)
"""The standard passes; they expect a bound graph with all specs (`infer_shapes`) and keep it so."""


def run_passes(graph: Graph, passes: tuple[Pass, ...] = PASSES) -> Graph:
    """Return the graph after the given passes, in order."""
    for p in passes:
        graph = p(graph)
    return graph
