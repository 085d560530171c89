"""Join a max pool to the convolution behind it, which takes the maximum as it loads."""

from __future__ import annotations

from dataclasses import replace

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op, convolves, sole_readers
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.fused.pooled import PooledConv, pooling_pays
from weft.ops.pool import MaxPool


def fuse_pools(graph: Graph, is_custom: IsCustom, caps: DeviceCaps, split_products: bool) -> Graph:
    """Return the graph with max pools joined to the convolution that is their only reader, if `pooling_pays`."""
    if not convolves(graph):
        return graph
    gone: set[str] = set()
    out = graph.copy()
    for k, node, pool in sole_readers(graph, graph.producers()):
        conv = base_op(node.op)
        if not isinstance(pool.op, MaxPool) or not isinstance(conv, Conv):
            continue
        if any(i and i not in graph.constants for i in base_inputs(node.op, node.inputs)[1:]):
            continue  # its kernel packs weights beforehand
        made = PooledConv(pool.op, conv)
        x, w, y = (graph.specs[name] for name in (pool.inputs[0], node.inputs[1], node.outputs[0]))
        if is_custom(pool.op) or is_custom(conv) or not pooling_pays(made, x, w.dims, y.dims, caps, split_products):
            continue
        op = replace(node.op, base=made) if isinstance(node.op, Fused) else made
        out.nodes[k] = replace(node, op=op, inputs=(pool.inputs[0], *node.inputs[1:]))
        gone.add(node.inputs[0])
    out.nodes = [node for node in out.nodes if node.outputs[0] not in gone]
    return out
