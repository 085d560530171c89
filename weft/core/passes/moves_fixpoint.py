"""The passes that rewrite transposes and reshapes make work for each other: run them until there is none."""

from __future__ import annotations

from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget
from weft.core.passes.identities import remove_identities
from weft.core.passes.squash import squash_moves
from weft.core.passes.transposes import move_transposes_up, transposes_as_reshapes

ROUNDS = 16
"""How often at most; one round settles all but contrived networks, two settle most of those."""


def settle_moves(graph: Graph, budget: Budget | None = None) -> Graph:
    """Return the graph after squashing, moving up and turning to reshapes until none of them changes it."""
    for _ in range(ROUNDS):
        before = graph.nodes
        graph = transposes_as_reshapes(move_transposes_up(squash_moves(graph), budget))
        graph = remove_identities(squash_moves(graph))
        if graph.nodes == before:
            break
    return graph
