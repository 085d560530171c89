"""Normalize the channels of images as rows, which packed images are made of where channels are last."""

from __future__ import annotations

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.lowering.support import why_not
from weft.core.graph.described import described
from weft.core.graph.graph import Graph
from weft.core.passes.patterns import fuse_channel_norms
from weft.core.passes.patterns.norms import with_l2_norms_of_rows
from weft.core.passes.transposes import move_transposes_down
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import WantedLayout, find_gpu_op


def norm_rows(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with norms over channels as norms of rows, and what follows them computed on rows.

    The transposes around such a norm cost nothing where convolutions write and read images with the channels last. All
    parts stay if the device does not run a norm that would be made of them, or if one of them is custom.
    """
    makers = graph.producers()

    def is_image(value: str) -> bool:
        """Tell whether a value is computed element by element from what a kernel stores as an image."""
        node = makers.get(value)
        while node is not None and node.op.is_elementwise:
            dims = graph.specs[node.outputs[0]].dims
            node = next((makers.get(i) for i in node.inputs if i in makers and graph.specs[i].dims == dims), None)
        form = None if node is None else find_gpu_op(base_op(node.op))
        return form is not None and form.wanted_layout is WantedLayout.CHANNELS

    # In NCHW a 2-norm is one launch along any axis; the others are several.
    normed = with_l2_norms_of_rows(fuse_channel_norms(graph), is_image)
    if normed is graph:
        return graph
    before, after = ({node.name: node for node in each.nodes} for each in (graph, normed))
    if any(is_custom(node.op) for name, node in before.items() if after.get(name) != node):
        return graph
    made = [node for name, node in after.items() if before.get(name) != node]
    if any(is_custom(node.op) or why_not(*described(normed, node), node.op, caps) for node in made):
        return graph
    return move_transposes_down(normed)
