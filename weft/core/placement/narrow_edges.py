"""Take inputs and give outputs in fp16 where the network stores them so inside: at precision LOW.

A network keeps the types of its model at its edges, with casts behind the inputs and before the outputs. Where a caller
has fp16 arrays, these casts go, and half of the bytes travel: neither the host nor the device converts anything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op
from weft.core.placement.optimized_network import OptimizedNetwork, Part


def narrowable(network: OptimizedNetwork) -> frozenset[str]:
    """Return the fp32 inputs that the network reads only as fp16, and the fp32 outputs that it makes of fp16."""
    graph, graphs = network.graph, [network.graph, *(part.graph for part in network.parts)]
    edges = {v for v in (*graph.inputs, *graph.outputs) if graph.specs[v].dtype is DType.FLOAT32}
    edges -= {*graph.constants} | ({*graph.inputs} & {*graph.outputs})
    for each in graphs:
        edges -= _not_only_cast(each, edges)
    return frozenset(edges)


def with_narrow_edges(network: OptimizedNetwork, names: Collection[str]) -> OptimizedNetwork:
    """Return the network with these inputs and outputs in fp16; they are `narrowable`. It is to be lowered anew."""
    if not names:
        return network
    graphs = [network.graph, *(part.graph for part in network.parts)]
    lasting = {v for g in graphs for v in (*g.inputs, *g.outputs, *g.constants)}
    parts = tuple(
        part if {*part.graph.inputs, *part.graph.outputs}.isdisjoint(names)
        else Part(part.device, _narrowed(part.graph, names, lasting))
        for part in network.parts
    )
    return replace(network, graph=_narrowed(network.graph, names, lasting), parts=parts)


def _not_only_cast(graph: Graph, edges: set[str]) -> set[str]:
    """Return the edges that something else than a cast touches; some may not belong to this graph."""
    inputs, wrong = edges.intersection(graph.inputs), set[str]()
    for node in graph.nodes:
        for edge in node.inputs:
            if edge in edges and not (
                edge in inputs and _casts_to_half(node.op) and node.inputs[0] == edge not in node.inputs[1:]
            ):
                wrong.add(edge)
    made = edges - inputs - wrong
    for node in graph.nodes:
        if not made.isdisjoint(node.outputs) and _without_last_cast(graph, node) is None:
            wrong |= made.intersection(node.outputs)
    return wrong


def _casts_to_half(op: Op) -> bool:
    return _casts_to(op.base if isinstance(op, Fused) else op, DType.FLOAT16)


def _casts_to(op: Op, dtype: DType) -> bool:
    return op.type == "Cast" and op.attributes().get("to") is dtype


def _without_last_cast(graph: Graph, node: Node) -> Op | None:
    """Return the op of a node that casts from fp16 to fp32 at its end, with the cast undone; None for other nodes."""
    op = node.op
    if _casts_to(op, DType.FLOAT32):
        is_half = graph.specs[node.inputs[0]].dtype is DType.FLOAT16
        return replace(op, to=DType.FLOAT16) if is_half else None  # type: ignore[call-arg]
    if not isinstance(op, Fused) or not _casts_to(op.steps[-1].op, DType.FLOAT32):
        return None
    steps = op.steps[:-1]
    if op.steps[-1].operands != (RUNNING,) or (not steps and op.arity != len(node.inputs)):
        return None
    bare = replace(op, steps=steps) if steps else op.base
    made = bare.inferred(graph.input_specs(node), graph.input_constants(node))
    return bare if made[0].dtype is DType.FLOAT16 else None


def _narrowed(graph: Graph, names: Collection[str], lasting: Collection[str]) -> Graph:
    """Return a graph with edges in fp16. A cast goes with the value on its other side, unless that is `lasting`."""
    out, renamed, nodes = graph.copy(), dict[str, str](), list[Node]()
    for node in graph.nodes:
        if node.op.type == "Cast":
            source, made = node.inputs[0], node.outputs[0]
            if source in names and made not in lasting:
                renamed[made] = source
                continue
            if made in names and source not in lasting and source not in renamed:
                renamed[source] = made
                continue
        if any(made in names for made in node.outputs):
            bare = _without_last_cast(graph, node)
            assert bare is not None
            node = replace(node, op=bare)
        nodes.append(node)
    for name in {*names} & out.specs.keys():
        out.specs[name] = replace(out.specs[name], dtype=DType.FLOAT16)
    for gone in renamed:
        del out.specs[gone]
    out.nodes = [_renamed(node, renamed) for node in nodes]
    return out


def _renamed(node: Node, names: dict[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(v, v) for v in values) for values in (node.inputs, node.outputs))
    return (
        node
        if (inputs, outputs) == (node.inputs, node.outputs)
        else replace(node, inputs=inputs, outputs=outputs)
    )
