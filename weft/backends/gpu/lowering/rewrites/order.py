"""The rewrites by which a GPU turns its part of a network into nodes that are launches, in the order in which they run.

`OptimizeSubgraph` runs `OF_PARTS`: what they make is checked and saved as the network's own nodes. `lower` runs
`OF_LAYOUTS` whenever shapes are known: what they make depends on sizes and on the device. They are no passes of
`weft.core.passes`: those know no device, and declare properties of graphs that every backend gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.backends.gpu.lowering.fusion.gates import fuse_gates
from weft.backends.gpu.lowering.fusion.pairs import fuse_pairs
from weft.backends.gpu.lowering.fusion.pools import fuse_pools
from weft.backends.gpu.lowering.fusion.prologues import fuse_prologues
from weft.backends.gpu.lowering.layout.flatten_in_place import flatten_in_place
from weft.backends.gpu.lowering.layout.layouts import assign_layouts, base_inputs, base_op
from weft.backends.gpu.lowering.layout.norm_rows import norm_rows
from weft.backends.gpu.lowering.layout.sum_rows import sum_rows
from weft.backends.gpu.lowering.rewrites.apply_to_parts import apply_to_parts
from weft.backends.gpu.lowering.rewrites.merge_convolutions import merge_where_faster
from weft.backends.gpu.lowering.rewrites.scale_norms import scale_norms
from weft.backends.gpu.lowering.rewrites.store_quantised import store_quantised
from weft.backends.gpu.lowering.rewrites.take_steps_apart import take_steps_apart
from weft.backends.gpu.lowering.rewrites.where_made import fuse_where_made
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.graph import Graph, Node
from weft.core.passes.journal import changed_nodes
from weft.core.passes.manager import PassContext
from weft.core.passes.quantisation import carry_quantisation
from weft.kernels.gpu_op import find_gpu_op


def _where_fusing(target: Target) -> bool:
    return target.fusing


def _where_mapping(target: Target) -> bool:
    return target.fusing and target.maps_indices


def _laid_out(graph: Graph, target: Target) -> Graph:
    """Return the graph with a layout for each value."""

    def planar(graph: Graph, node: Node) -> bool:
        form = find_gpu_op(node.op)
        inputs, output = base_inputs(node.op, graph.input_specs(node)), graph.specs[node.outputs[0]]
        base, splits = base_op(node.op), target.split_products
        return form is not None and form.reads_planar(base, inputs, output, target.caps, splits)

    return assign_layouts(graph, target.is_custom, target.layout_of(graph), planar, target.caps.without)


@dataclass(frozen=True)
class Rewrite:
    """One rewrite of a part for a target."""

    name: str
    """Its name in journals."""
    purpose: str
    apply: Callable[[Graph, Target], Graph]
    """Returns a new graph, or the given one if there is nothing to rewrite."""
    applies: Callable[[Target], bool] = _where_fusing
    """Tells whether it is for a target at all."""

    def __str__(self) -> str:
        return f"{self.name} ({self.purpose})"


OF_PARTS = (
    Rewrite(
        "carry_quantisation", "Compute pairs of QuantizeLinear and DequantizeLinear, of ops taken apart too, as a step",
        lambda graph, to: carry_quantisation.rewrite(graph, PassContext()),
    ),
    Rewrite(
        "scale_norms", "Write batch norms that are left as a factor and a shift of each channel",
        lambda graph, to: scale_norms(graph, to.is_custom),
    ),
    Rewrite(
        "norm_rows", "Normalize over the channels of images as over rows of channels",
        lambda graph, to: norm_rows(graph, to.is_custom, to.caps), _where_mapping,
    ),
    Rewrite(
        "sum_rows", "Compute steps of images on the rows of channels that a product makes",
        lambda graph, to: sum_rows(graph, to.is_custom), _where_mapping,
    ),
    Rewrite(
        "flatten_in_place", "Put the weights of a product in the order in which an image lies that is flattened for it",
        lambda graph, to: flatten_in_place(graph, to.is_custom, to.layout_of(graph)), _where_mapping,
    ),
)
"""Those of `OptimizeSubgraph`, which fuses element-wise steps into the nodes before them afterwards."""
OF_LAYOUTS = (
    Rewrite(
        "take_steps_apart", "Compute each step as a node of its own, where the device's compiler rewrites steps",
        lambda graph, to: take_steps_apart(graph), lambda to: not to.steps_are_right,
    ),
    Rewrite(
        "merge_convolutions", "Compute convolutions of one image as one",
        lambda graph, to: merge_where_faster(graph, to.is_custom, to.device),
        lambda to: to.fusing and not to.thrifty,
    ),
    Rewrite(
        "fuse_pools", "Compute small max pools where they are read",
        lambda graph, to: fuse_pools(graph, to.is_custom, to.caps, to.split_products),
    ),
    Rewrite(
        "fuse_pairs", "Compute two convolutions of single pixels as one",
        lambda graph, to: fuse_pairs(graph, to.is_custom, to.caps),
    ),
    Rewrite(
        "fuse_prologues", "Apply cheap steps as a convolution loads",
        lambda graph, to: fuse_prologues(graph, to.is_custom, to.caps, to.split_products),
    ),
    Rewrite(
        "fuse_where_made", "Compute steps where a value that others read too, or that is reshaped first, is stored",
        lambda graph, to: fuse_where_made(graph, to.is_custom, to.caps),
    ),
    Rewrite(
        "fuse_gates", "Compute two products and the gate that makes one value of them as one",
        lambda graph, to: fuse_gates(graph, to.is_custom, to.caps, to.split_products),
    ),
    Rewrite(
        "apply_to_parts", "Compute steps on the parts of a concat that would be copied to be joined",
        lambda graph, to: apply_to_parts(graph, to.is_custom), _where_mapping,
    ),
    Rewrite(
        "assign_layouts", "Store each value as its kernels want it, and convert where neighbours differ",
        _laid_out, lambda to: True,
    ),
    Rewrite(
        "store_quantised", "Store values that were rounded to integers as those",
        lambda graph, to: store_quantised(graph, to.is_custom, to.caps),
    ),
)
"""Those of `lower`, behind which moves are folded into loads and stores (`fold_moves`)."""


FUSE_EPILOGUES = "fuse_epilogues (Compute element-wise nodes as the node before them stores)"
"""What `OptimizeSubgraph` does last, as the backend says which nodes may be fused."""


def explain(reasons: dict[str, str], what: str, before: Iterable[Node], after: Iterable[Node]) -> None:
    """Add a rewrite to the reasons of the nodes that it made, changed or removed."""
    for name in changed_nodes(list(before), list(after)):
        reasons[name] = f"{reasons[name]}, {what}" if name in reasons else what


def rewritten(
    graph: Graph, target: Target, rewrites: Iterable[Rewrite], note: Callable[[Rewrite, Graph, Graph], None]
) -> Graph:
    """Return a part after those rewrites that are for the target; `note` gets each with the graphs around it."""
    for each in rewrites:
        if each.applies(target):
            before, graph = graph, each.apply(graph, target)
            if graph is not before:
                note(each, before, graph)
    return graph
