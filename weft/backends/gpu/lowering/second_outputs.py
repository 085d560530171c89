"""Second outputs: a kernel that stores a value which several nodes read also computes those that are element-wise."""

from __future__ import annotations

from dataclasses import replace

from weft.backends.gpu.lowering.fusion import join_steps
from weft.backends.gpu.lowering.layouts import IsCustom, base_op
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node, sort_nodes
from weft.kernels.device_caps import DeviceCaps


def fuse_second_outputs(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with element-wise nodes computed where a value that they share with other readers is stored.

    The kernel stores that value, too, so the node costs neither a launch nor a load of it. Steps that are the only
    readers of a value have joined its maker already.
    """
    return _Joiner(graph, is_custom, caps).run()


def why_not_where_made(graph: Graph, maker: Node, node: Node, is_custom: IsCustom, caps: DeviceCaps) -> str:
    """Return why an element-wise `node` is not computed where `maker` stores a value that it reads."""
    found = _Joiner(graph, is_custom, caps).joined(maker, node)
    return found if isinstance(found, str) else "they were apart when steps were fused"


class _Joiner:
    def __init__(self, graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> None:
        self.graph, self.is_custom, self.caps = graph.copy(), is_custom, caps
        self.makers, self.readers, self.names = graph.producers(), graph.readers(), Names(graph)

    def run(self) -> Graph:
        moved = False
        for node in self.graph.nodes:
            for maker in self._makers_of(node) if base_op(node.op).is_elementwise else ():
                joined = self.joined(maker, node)
                if isinstance(joined, Node):
                    self._replace(maker, node, joined)
                    moved = True
                    break
        if moved:
            nodes = {node.name: node for node in self.makers.values()}
            known = {*self.graph.inputs, *self.graph.constants}
            order = [nodes.pop(node.name) for node in self.graph.nodes if node.name in nodes]
            self.graph.nodes = sort_nodes(order, known)
        return self.graph

    def joined(self, maker: Node, node: Node) -> Node | str:
        """Return one node in place of two, of which the second reads a result of the first; or why there is none."""
        if len(node.outputs) != 1:
            return f"{base_op(node.op).type} has {len(node.outputs)} results itself"
        op = maker.op if isinstance(maker.op, Fused) else Fused(maker.op, len(maker.inputs), ())
        if len(maker.outputs) != 1 + len(op.kept) or "" in maker.outputs:
            return f"{base_op(maker.op).type} may have several results of its own"
        values = dict(zip(maker.outputs, (len(op.steps), *op.kept), strict=True))
        kept = {o: k for o, k in values.items() if self.readers[o] > node.inputs.count(o)}
        base = replace(maker, op=op, outputs=maker.outputs[:1])
        most = self.caps.max_buffers - len(kept)
        joined = join_steps(self.graph, self.names, base, node, values, self.is_custom, most)
        if isinstance(joined, str):
            return joined
        if self._follows([i for i in node.inputs if i and i not in values], maker):
            return "it also reads what is computed from that"
        assert isinstance(joined.op, Fused)
        return replace(joined, op=replace(joined.op, kept=tuple(kept.values())), outputs=(*node.outputs, *kept))

    def _makers_of(self, node: Node) -> list[Node]:
        """Return the nodes that make the operands of a node, each once, those at the end of the network first."""
        found = {maker.name: maker for i in reversed(node.inputs) if (maker := self.makers.get(i)) is not None}
        return list(found.values())

    def _replace(self, maker: Node, node: Node, joined: Node) -> None:
        for o in maker.outputs:
            del self.makers[o]
        self.makers |= dict.fromkeys(joined.outputs, joined)
        for name in (*maker.inputs, *node.inputs):
            self.readers[name] -= 1
        for name in joined.inputs:
            self.readers[name] += 1

    def _follows(self, names: list[str], node: Node) -> bool:
        """Tell whether any of the values is computed from what a node makes."""
        seen, waiting = set[str](), list(names)
        while waiting:
            maker = self.makers.get(waiting.pop())
            if maker is None or maker.name in seen:
                continue
            if maker.name == node.name:
                return True
            seen.add(maker.name)
            waiting += maker.inputs
        return False
