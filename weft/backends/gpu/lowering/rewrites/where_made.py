"""Compute element-wise nodes where a value that they read is stored, though others read it or it is reshaped first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from weft.backends.gpu.lowering.fusion.epilogues import join_steps
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.lowering.rewrites.before_reshape import Joinable, before_reshape, is_reshape
from weft.backends.gpu.lowering.rewrites.changing_graph import Change, ChangingGraph, known_of
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node
from weft.kernels.device_caps import DeviceCaps

MOST_SECOND_OUTPUTS = 2
"""Most second outputs of a kernel: each takes registers until the store."""


def fuse_where_made(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with element-wise nodes computed where a value that they read is stored.

    If others read the value, too, it is a second output of the kernel, which stores it beside what the node makes: that
    costs neither a launch nor a load. If the value is reshaped first, the node is computed before that, and reshaped
    itself, as other values that it reads are if kernels store these as rows. Steps that are the only readers of a value
    have joined its maker already.
    """
    changing = ChangingGraph(graph)
    for node in graph.nodes:
        changing.reach(node)
        for maker in changing.makers_of(node) if base_op(node.op).is_elementwise else ():
            change = compute_where_made(changing, maker, node, is_custom, caps)
            if not isinstance(change, str):
                changing.apply(change)
                break
    return changing.finished()


def compute_where_made(
    graph: ChangingGraph, maker: Node, node: Node, is_custom: IsCustom, caps: DeviceCaps
) -> Change | str:
    """Return the change after which an element-wise node is computed where `maker` stores a value that it reads.

    If `maker` is a reshape, the node is computed where what is reshaped is stored. Return why there is no such change
    if one kernel cannot make both.
    """
    pair: Joinable | str
    if is_reshape(maker, is_custom):
        pair = before_reshape(graph, maker, node, is_custom)
    else:
        also_read = tuple(i for i in node.inputs if i and i not in maker.outputs)
        pair = Joinable(maker, node, also_read, gone=(node,), known=known_of(graph.graph, maker, node))
    if isinstance(pair, str):
        return pair
    joined = _joined(graph, pair, is_custom, caps)
    if isinstance(joined, str):
        return joined
    made = (*pair.before, joined, *pair.after)
    return Change((pair.maker, *pair.gone), made, pair.known)


def _joined(graph: ChangingGraph, pair: Joinable, is_custom: IsCustom, caps: DeviceCaps) -> Node | str:
    """Return the one node that computes what the maker and the node of a pair make; or why there is none."""
    maker, node = pair.maker, pair.node
    op = maker.op if isinstance(maker.op, Fused) else Fused(maker.op, len(maker.inputs), ())
    if len(maker.outputs) != 1 + len(op.second_outputs) or "" in maker.outputs:
        return f"{base_op(maker.op).type} may have several results of its own"
    values = dict(zip(maker.outputs, (len(op.steps), *op.second_outputs), strict=True))
    reads = Counter(i for each in pair.gone for i in each.inputs)
    seconds = {o: k for o, k in values.items() if graph.readers[o] > reads[o]}
    if len(seconds) > MOST_SECOND_OUTPUTS:
        return f"a kernel stores at most {MOST_SECOND_OUTPUTS} second outputs"
    base = replace(maker, op=op, outputs=maker.outputs[:1])
    most = caps.max_buffers - len(seconds)
    joined = join_steps(pair.known, graph.names, base, node, values, is_custom, most)
    if isinstance(joined, str):
        return joined
    if graph.follows(pair.also_read, maker):
        return "it also reads what is computed from that"
    if len(node.outputs) > 1:
        return f"the kernel of {base_op(node.op).type} stores {len(node.outputs)} values already"
    assert isinstance(joined.op, Fused)
    stores_both = replace(joined.op, second_outputs=tuple(seconds.values()))
    return replace(joined, op=stores_both, outputs=(*node.outputs, *seconds))
