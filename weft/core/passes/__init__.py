"""Backend-independent rewrites: `PASSES` lists them in order; each can be found by name and run alone."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.graph.graph import Graph
from weft.core.passes.batch_norm import BATCH_NORMS_FOLDED, fold_batch_norm
from weft.core.passes.biases import add_biases_first
from weft.core.passes.casts import read_through_casts
from weft.core.passes.constants import fold_constants
from weft.core.passes.dead import remove_dead_nodes
from weft.core.passes.expands import broadcast_expands
from weft.core.passes.identities import NO_IDENTITIES, remove_identities
from weft.core.passes.join_parts import join_parts
from weft.core.passes.manager import (
    AnyPass,
    Pass,
    PassContext,
    PassGroup,
    PassManager,
    PassRecord,
    arranged,
    graph_pass,
    with_members,
)
from weft.core.passes.negations import fold_negations
from weft.core.passes.pads import PADS_FOLDED, fold_pads
from weft.core.passes.partial_sums import pad_partial_sums
from weft.core.passes.patterns import (
    attend_in_place,
    fuse_attention,
    fuse_compare_select,
    fuse_gelu,
    fuse_group_deviation,
    fuse_group_norm,
    fuse_l2_norm,
    fuse_layer_norm,
    fuse_rms_norm,
    fuse_sum_norm,
    share_keys,
)
from weft.core.passes.properties import Property
from weft.core.passes.quantisation import carry_quantisation
from weft.core.passes.recurrences import join_recurrences
from weft.core.passes.scattered_slices import concat_scattered_slices
from weft.core.passes.siblings import (
    PARALLEL_CONVOLUTIONS_JOINED,
    join_parallel_convolutions,
    join_projections,
    join_sibling_products,
    join_sibling_steps,
)
from weft.core.passes.squash import NO_MOVES_IN_A_ROW, squash_moves
from weft.core.passes.stacked_steps import stack_steps
from weft.core.passes.stacked_sums import add_stacked_parts
from weft.core.passes.transposes import (
    NO_FREE_TRANSPOSES,
    move_transposes_down,
    move_transposes_up,
    transposes_as_reshapes,
)
from weft.core.passes.undo_reshapes import undo_reshapes
from weft.errors import ConfigError

__all__ = [
    "PASSES", "AnyPass", "Pass", "PassContext", "PassGroup", "PassManager", "PassRecord", "Property",
    "arranged", "find_pass", "graph_pass", "run_passes", "with_members",
]

SETTLE_MOVES = PassGroup(
    "settle_moves",
    "Squash transposes and reshapes, move them up and turn them to reshapes until there is nothing left to do.",
    # A Neg that goes lets two moves meet, and moves that go let a Neg meet a Concat. Transposes that became reshapes
    # meet others.
    (fold_negations, squash_moves, move_transposes_up, transposes_as_reshapes, squash_moves, remove_identities),
    rounds=16,  # one round is enough for real networks, two for most contrived ones
    ensures=(NO_MOVES_IN_A_ROW, NO_FREE_TRANSPOSES, NO_IDENTITIES),
)

SINK_TRANSPOSES = PassGroup(
    "sink_transposes",
    "Compute element-wise nodes before transposes, and settle all moves, until there is nothing left to do.",
    # Two transposes that became one leave a value one reader less, and then what reads it may go before its transpose.
    (move_transposes_down, *SETTLE_MOVES.members),
    rounds=16,  # two rounds are enough for most contrived networks
    ensures=SETTLE_MOVES.ensures,
)

SETTLE_CONVOLUTIONS = PassGroup(
    "settle_convolutions",
    "Fold what is around convolutions into them and join those of the same image until there is nothing left to do.",
    # What was next to several convolutions or to their sum, a pad or a batch norm, is next to one once they are joined;
    # and what a batch norm was between may then be joined, too.
    (fold_pads, fold_batch_norm, join_parallel_convolutions),
    rounds=16,  # two rounds are enough for real networks
    ensures=(PADS_FOLDED, BATCH_NORMS_FOLDED, PARALLEL_CONVOLUTIONS_JOINED),
)

SETTLE_STEPS = PassGroup(
    "settle_steps",
    "Compute at once what a loop over an axis was unrolled to, until there is nothing left to do.",
    # The states of a recurrence are what the steps of a product read, and a product makes what a recurrence reads.
    (join_recurrences, stack_steps),
    rounds=16,  # two rounds are enough for real networks
)

PASSES: tuple[AnyPass, ...] = (
    fold_constants,
    # Early as well: a dead node that reads a value would keep the passes below from folding it.
    remove_dead_nodes,
    # What pairs of nodes did is element-wise then, and fuses.
    carry_quantisation,
    read_through_casts,
    concat_scattered_slices,
    SETTLE_STEPS,
    add_stacked_parts,
    remove_identities,
    # Early: what is left around it are moves, which then meet, and patterns find the product.
    fold_batch_norm,
    # Moves are made around the one op: around a comparison and a Where they need not agree.
    fuse_compare_select,
    SETTLE_MOVES,
    join_parts,
    pad_partial_sums,
    add_biases_first,
    undo_reshapes,
    SINK_TRANSPOSES,
    # Once more: a comparison may have been moved.
    fuse_compare_select,
    fuse_gelu,
    fuse_group_norm,
    fuse_group_deviation,
    # Behind what is found by an Expand.
    broadcast_expands,
    fuse_layer_norm,
    # Behind layer norms: they divide by a root mean square, too, that of x less its mean.
    fuse_rms_norm,
    fuse_l2_norm,
    fuse_sum_norm,
    fuse_attention,
    share_keys,
    attend_in_place,
    join_projections,
    join_sibling_products,
    join_sibling_steps,
    # An attention reads what is before a reshape, which may have one reader left; operands may have been moved as
    # others already are.
    undo_reshapes,
    squash_moves,
    # Once the moves between them are gone, pads are next to what they fold into.
    SETTLE_CONVOLUTIONS,
    remove_dead_nodes,
)
"""The standard passes. Run on their own result they change nothing."""


def run_passes(graph: Graph, passes: Iterable[AnyPass] = PASSES, context: PassContext | None = None) -> Graph:
    """Return the graph after the given passes, in order; `PassManager` keeps what they did, too."""
    manager = PassManager(context or PassContext())
    for each in passes:
        graph = manager.run(graph, each)
    return graph


def find_pass(name: str) -> AnyPass:
    """Return the standard pass or group of that name, also a member of a group; ConfigError lists all names."""
    known = {each.name: each for item in PASSES for each in with_members(item)}
    if name in known:
        return known[name]
    names = ", ".join(known)
    raise ConfigError(f"there is no pass {name!r}", fix=f"choose one of {names}")
