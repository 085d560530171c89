"""Find norms over the channels of images among their parts, for devices that read an image as rows of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.graph.graph import Graph
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.layer_norm import with_layer_norms
from weft.core.passes.patterns.quotients import over_channels, put_norm
from weft.core.passes.patterns.rms_norm import with_rms_norms
from weft.core.passes.reader import Reader


@graph_pass()
def fuse_channel_norms(graph: Graph, context: PassContext) -> Graph:
    """Replace layer norms and RMS norms over the channels of images by norms of rows of channels, between transposes.

    No standard pass: a device that has to run the transposes takes longer for them than for the parts.
    """
    # Layer norms first: they divide by a root mean square, too, that of x less its mean.
    return with_rms_norms(with_layer_norms(graph, over_channels), over_channels)


def with_l2_norms_of_rows(graph: Graph, wanted: Callable[[str], bool]) -> Graph:
    """Return the graph with 2-norms of rows of channels in place of those of channels of wanted values."""
    reader = Reader(graph)
    for node in reader.nodes("weft::L2Normalization"):
        op: Any = node.op
        x = node.inputs[0]
        axes = (op.axis % len(reader.dims(x)),)
        if over_channels(axes, len(reader.dims(x))) and wanted(x):
            put_norm(reader, node, op.type, x, axes, {"least": op.least})
    return reader.finish()
