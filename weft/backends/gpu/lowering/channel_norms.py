"""Normalize the channels of images as rows, which packed images are made of where channels are last."""

from __future__ import annotations

from weft.backends.gpu.lowering.layouts import IsCustom
from weft.backends.gpu.lowering.support import why_not
from weft.core.graph.described import described
from weft.core.graph.graph import Graph
from weft.core.passes.patterns import fuse_channel_norms
from weft.core.passes.transposes import move_transposes_down
from weft.kernels.device_caps import DeviceCaps


def norm_rows(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with norms over channels as norms of rows, and what follows them computed on rows.

    The transposes around such a norm cost nothing where convolutions write and read images with the channels last. All
    parts stay if the device does not run a norm that would be made of them, or if one of them is custom.
    """
    normed = fuse_channel_norms(graph)
    if normed is graph:
        return graph
    before, after = ({node.name: node for node in each.nodes} for each in (graph, normed))
    if any(is_custom(node.op) for name, node in before.items() if after.get(name) != node):
        return graph
    made = [node for name, node in after.items() if before.get(name) != node]
    if any(is_custom(node.op) or why_not(*described(normed, node), node.op, caps) for node in made):
        return graph
    return move_transposes_down(normed)
