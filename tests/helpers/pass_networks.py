"""For each pass random networks that have what it rewrites, and what is nearly that."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from tests.helpers.attention_forms import attention_forms
from tests.helpers.attention_of_images import forms
from tests.helpers.choices import choice_networks
from tests.helpers.nets import Net
from tests.helpers.norms import (
    group_deviations,
    group_norms,
    l2_norms,
    layer_norms,
    rms_norms,
    sum_norms,
)
from tests.helpers.parallel_convolutions import convolution_sums
from tests.helpers.quantised import quantised_networks
from tests.helpers.random_casts import cast_chains
from tests.helpers.random_constants import constant_networks
from tests.helpers.random_decoders import decoder_layers, rotations
from tests.helpers.random_folds import PADS, fold_networks
from tests.helpers.random_moves import TURNS, move_networks
from tests.helpers.random_nets import networks
from tests.helpers.random_parts import (
    biased_scores,
    expands,
    joined_parts,
    partial_sums,
    scattered_boxes,
    stacked_sums,
    undone_reshapes,
)
from tests.helpers.rotary import negated_networks
from tests.helpers.transformers import transformers
from tests.helpers.unrolled_loops import recurrences, unrolled_loops
from weft.core.graph.graph import Graph
from weft.core.passes import PASSES, AnyPass, run_passes, with_members
from weft.core.passes.constants import fold_constants

Networks = st.SearchStrategy[Graph]

ALONE: Mapping[str, AnyPass] = {each.name: each for item in PASSES for each in with_members(item)}
"""All passes, groups, and members of groups, by their names."""

ENCODERS = ("encoder", "joint", "residual")

GENERAL: Networks = st.one_of(move_networks(), fold_networks(), networks(), choice_networks())
"""Networks of all kinds, for every pass."""


@st.composite
def _images(draw: st.DrawFn) -> Graph:
    """Draw an attention over the pixels of an image."""
    net, form = Net(), draw(forms())
    return net.finish(form.add(net, net.input("x", form.batch, form.channels, *form.image)))


def _before(name: str, drawn: Networks) -> Networks:
    """Return networks as the passes before the first one of a name leave them."""
    places = [k for k, item in enumerate(PASSES) if name in (each.name for each in with_members(item))]
    return drawn.map(lambda graph: run_passes(graph, PASSES[: places[0]]))


OWN: Mapping[str, Networks] = {
    "fold_constants": constant_networks(),
    "remove_dead_nodes": st.one_of(networks(), transformers()),
    "read_through_casts": cast_chains(),
    "concat_scattered_slices": scattered_boxes(),
    "settle_steps": st.one_of(recurrences(), unrolled_loops()),
    "join_recurrences": recurrences(),
    "stack_steps": unrolled_loops(),
    "add_stacked_parts": stacked_sums(),
    "remove_identities": networks(),
    "fold_batch_norm": fold_networks(),
    "fuse_compare_select": choice_networks(),
    "settle_moves": st.one_of(move_networks(), negated_networks(), undone_reshapes()),
    "carry_quantisation": quantised_networks(),
    "fold_negations": negated_networks(),
    "squash_moves": move_networks(),
    "move_transposes_up": move_networks(6, TURNS),
    "transposes_as_reshapes": move_networks(),
    "join_parts": joined_parts(),
    "pad_partial_sums": partial_sums(),
    "add_biases_first": biased_scores(),
    "undo_reshapes": undone_reshapes(),
    "move_transposes_down": move_networks(6, TURNS),
    "sink_transposes": move_networks(8, TURNS),
    "fuse_gelu": transformers(("gelu", "tanh", "residual")),
    "fuse_group_norm": group_norms(),
    "fuse_group_deviation": group_deviations(),
    "broadcast_expands": expands(),
    "fuse_layer_norm": st.one_of(layer_norms(), transformers()),
    "fuse_rms_norm": st.one_of(rms_norms(), layer_norms()),
    "fuse_l2_norm": l2_norms(),
    "fuse_sum_norm": sum_norms(),
    "fuse_attention": st.one_of(attention_forms(), transformers(), _images()),
    "share_keys": _before("share_keys", transformers(("shared", "shared", "encoder"))),
    "attend_in_place": _before("attend_in_place", transformers(ENCODERS)),
    "join_projections": _before("join_projections", transformers(ENCODERS)),
    "join_sibling_products": st.one_of(decoder_layers(), rotations()),
    "join_sibling_steps": _before("join_sibling_steps", rotations()),
    "settle_convolutions": st.one_of(fold_networks(), convolution_sums()),
    "fold_pads": fold_networks(3, PADS),
    "join_parallel_convolutions": convolution_sums(),
}
"""By the name of a pass networks of its own."""


def given_to(each: AnyPass, graph: Graph) -> Graph:
    """Return what a pass is run on: a graph whose constants are folded, but for the pass that folds them."""
    return graph if each is fold_constants else fold_constants(graph)
