"""The passes that rewrite transposes and reshapes make work for each other: run them until there is none."""

from __future__ import annotations

from weft.core.graph import Graph
from weft.core.optimize.identities import remove_identities
from weft.core.optimize.squash import squash_moves
from weft.core.optimize.transposes import move_transposes_up, transposes_as_reshapes

ROUNDS = 16
"""How often at most; one round settles all but contrived networks, two settle most of those."""


def settle_moves(graph: Graph) -> Graph:
    """Return the graph after squashing, moving up and turning to reshapes until none of them changes it."""
    for _ in range(ROUNDS):
        before = graph.nodes
        for rewrite in (squash_moves, move_transposes_up, transposes_as_reshapes, squash_moves, remove_identities):
            graph = rewrite(graph)
        if graph.nodes == before:
            break
    return graph
