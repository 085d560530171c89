"""Find norms over the channels of images among their parts, for devices that read an image as rows of channels."""

from __future__ import annotations

from weft.core.graph.graph import Graph
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.layer_norm import with_layer_norms
from weft.core.passes.patterns.quotients import over_channels
from weft.core.passes.patterns.rms_norm import with_rms_norms


@graph_pass()
def fuse_channel_norms(graph: Graph, context: PassContext) -> Graph:
    """Replace layer norms and RMS norms over the channels of images by norms of rows of channels, between transposes.

    No standard pass: a device that has to run the transposes takes longer for them than for the parts.
    """
    # Layer norms first: they divide by a root mean square, too, that of x less its mean.
    return with_rms_norms(with_layer_norms(graph, over_channels), over_channels)
