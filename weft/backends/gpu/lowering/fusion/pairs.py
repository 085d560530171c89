"""Join a convolution of single pixels to the small convolution before it: one kernel computes both."""

from __future__ import annotations

from dataclasses import replace

from weft.backends.gpu.lowering.fusion.epilogues import bound_buffers, moved_operands
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op, convolves, sole_readers
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph
from weft.core.graph.op import Op
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.fused.pair import ConvPair, pairing_pays


def fuse_pairs(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with convolutions of single pixels joined to the one before them, where only they read that."""
    if not convolves(graph):
        return graph
    makers, out = graph.producers(), graph.copy()
    gone: set[str] = set()
    for k, node, maker in sole_readers(graph, makers):
        first, second = base_op(maker.op), base_op(node.op)
        if not isinstance(first, Conv) or not isinstance(second, Conv):
            continue
        if maker.name in gone or is_custom(first) or is_custom(second):
            continue
        before, (_, *more) = base_inputs(maker.op, maker.inputs), base_inputs(node.op, node.inputs)
        scalars = maker.inputs[len(before) :]
        if any(i and i not in graph.constants for i in (*before[1:], *more, *scalars)):
            continue
        x, w, v = (graph.specs[i].dims for i in (before[0], before[1], more[0]))
        same = graph.specs[node.inputs[0]].dtype is graph.specs[before[0]].dtype
        small = all(graph.specs[i].size == 1 for i in scalars if i)
        own_inputs = sum(map(bool, (*before, *more)))  # buffers, also where they have one element
        bound = own_inputs + bound_buffers(graph, node.inputs[1 + len(more) :], node.outputs)
        if not same or not small or bound > caps.max_buffers or not pairing_pays(first, second, x, w, v, caps):
            continue
        arity, own = len(before) + len(more), node.op.steps if isinstance(node.op, Fused) else ()
        between = maker.op.steps if isinstance(maker.op, Fused) else ()
        steps = tuple(moved_operands(step, len(more)) for step in between)
        made: Op = ConvPair(first, len(before), steps, second, len(more))
        if own:
            by = arity + len(scalars) - 1 - len(more)
            made = Fused(made, arity + len(scalars), tuple(moved_operands(step, by) for step in own))
        inputs = (*before, *more, *scalars, *node.inputs[1 + len(more) :])
        out.nodes[k] = makers[node.outputs[0]] = replace(node, op=made, inputs=inputs)
        gone.add(maker.name)
    out.nodes = [node for node in out.nodes if node.name not in gone]
    return out
