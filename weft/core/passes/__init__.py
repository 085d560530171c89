"""Backend-independent rewrites: `PASSES` lists them in order; each can be found by name and run alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature

from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget
from weft.core.passes.batch_norm import fold_batch_norm
from weft.core.passes.constants import fold_constants
from weft.core.passes.dead import remove_dead_nodes
from weft.core.passes.identities import remove_identities
from weft.core.passes.moves_fixpoint import settle_moves
from weft.core.passes.pads import fold_pads
from weft.core.passes.patterns import (
    attend_in_place,
    fuse_attention,
    fuse_gelu,
    fuse_layer_norm,
    join_projections,
)
from weft.core.passes.squash import squash_moves
from weft.core.passes.transposes import move_transposes_up, transposes_as_reshapes
from weft.errors import ConfigError

Rewrite = Callable[[Graph], Graph]


@dataclass(frozen=True)
class Pass:
    """A rewrite and its name; it expects a bound graph with all specs (`infer_shapes`) and keeps it so."""

    name: str
    rewrite: Rewrite

    def __call__(self, graph: Graph) -> Graph:
        """Return the rewritten graph; the given one stays as it is."""
        return self.rewrite(graph)

    def within(self, budget: Budget) -> Pass:
        """Return the pass as it computes constants within a budget, if it computes any."""
        takes = "budget" in signature(self.rewrite).parameters
        rewrite: Callable[..., Graph] = self.rewrite
        return Pass(self.name, partial(rewrite, budget=budget)) if takes else self

    @property
    def description(self) -> str:
        """Return in one line what the rewrite does."""
        of_partial = getattr(self.rewrite, "func", self.rewrite)
        return (of_partial.__doc__ or "").strip().partition("\n")[0]


PASSES: tuple[Pass, ...] = tuple(
    Pass(each.__name__, each)
    for each in (
        fold_constants,
        # Early, too: a reader whose result nobody wants must not keep the passes below from folding.
        remove_dead_nodes,
        remove_identities,
        squash_moves,
        move_transposes_up,
        transposes_as_reshapes,
        settle_moves,
        fuse_gelu,
        fuse_layer_norm,
        fuse_attention,
        attend_in_place,
        join_projections,
        # Once the moves between them are gone, pads and batch norms are next to what they fold into.
        fold_pads,
        fold_batch_norm,
        remove_dead_nodes,
    )
)
"""The standard passes. Run on their own result they change nothing."""


def find_pass(name: str) -> Pass:
    """Return the standard pass of that name; ConfigError, with the names there are, if there is none."""
    for each in PASSES:
        if each.name == name:
            return each
    names = ", ".join(dict.fromkeys(p.name for p in PASSES))
    raise ConfigError(f"there is no pass {name!r}", fix=f"choose one of {names}")


def run_passes(graph: Graph, passes: Sequence[Rewrite] = PASSES) -> Graph:
    """Return the graph after the given passes, in order."""
    for each in passes:
        graph = each(graph)
    return graph
