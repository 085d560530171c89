"""Compute element-wise nodes where a value that they read is stored, though others read it or it is reshaped first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.backends.gpu.lowering.fusion import join_steps
from weft.backends.gpu.lowering.layouts import IsCustom, base_op
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node, sort_nodes
from weft.core.graph.layout import Shape
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.moves import reshape as reshape_of
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import WantedLayout, find_gpu_op


def fuse_where_made(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with element-wise nodes computed where a value that they read is stored.

    If others read the value, too, the kernel stores both: the node is its second output, which costs neither a launch
    nor a load. If the value is reshaped first, the node is computed before that, and reshaped itself, as other values
    that it reads are if kernels store these as rows. Steps that are the only readers of a value have joined its maker
    already.
    """
    return _Joiner(graph, is_custom, caps).run()


def why_not_where_made(graph: Graph, maker: Node, node: Node, is_custom: IsCustom, caps: DeviceCaps) -> str:
    """Return why an element-wise `node` is not computed where `maker` stores a value that it reads."""
    joiner = _Joiner(graph, is_custom, caps)
    moved = joiner.before_reshape(maker, node)
    joiner.makers |= {each.outputs[0]: each for each in (moved.others if moved is not None else ())}
    found = joiner.joined(moved.maker, moved.node) if moved is not None else joiner.joined(maker, node)
    return found if isinstance(found, str) else "they were apart when steps were fused"


@dataclass(frozen=True)
class _Moved:
    """A node that reads what `maker` makes, in place of one that reads a reshape of it, and the reshape behind it."""

    maker: Node
    node: Node
    reshape: Node
    others: tuple[Node, ...]
    """Reshapes of other values that the node reads: they cost nothing, because kernels store these as rows."""


class _Joiner:
    def __init__(self, graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> None:
        self.graph, self.is_custom, self.caps = graph.copy(), is_custom, caps
        self.makers, self.readers, self.names = graph.producers(), graph.readers(), Names(graph)

    def run(self) -> Graph:
        given = self.graph.nodes
        for node in given:
            for maker in self._makers_of(node) if base_op(node.op).is_elementwise else ():
                if self._join(maker, node) or self._join_before_reshape(maker, node):
                    break
        nodes = {node.name: node for node in self.makers.values()}
        if nodes.keys() != {node.name for node in given}:
            order = [nodes.pop(node.name) for node in given if node.name in nodes]
            self.graph.nodes = sort_nodes([*order, *nodes.values()], {*self.graph.inputs, *self.graph.constants})
        return self.graph

    def joined(self, maker: Node, node: Node) -> Node | str:
        """Return one node in place of two, of which the second reads a result of the first; or why there is none."""
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
        if len(node.outputs) > 1:
            return f"{base_op(node.op).type} has {len(node.outputs)} results itself"
        assert isinstance(joined.op, Fused)
        return replace(joined, op=replace(joined.op, kept=tuple(kept.values())), outputs=(*node.outputs, *kept))

    def before_reshape(self, reshape: Node, node: Node) -> _Moved | None:
        """Return a node on what is reshaped, and its reshape, in place of a node that reads the reshaped value.

        None if `reshape` is none, or the node means something else before it.
        """
        form = None if self.is_custom(reshape.op) else find_gpu_op(reshape.op)
        if form is None or form.wanted_layout is not WantedLayout.ALIAS or len(reshape.outputs) != 1:
            return None
        (read,), source, specs = reshape.outputs, reshape.inputs[0], self.graph.specs
        maker, result = self.makers.get(source), node.outputs[0]
        dims, before = specs[read].dims, specs[source].dims
        values = [i for i in dict.fromkeys(node.inputs) if i and i != read]
        constants = [i for i in values if i in self.graph.constants and _is_alike(specs[i].dims, dims, before)]
        values = [i for i in values if i not in constants]
        if maker is None or specs[result].dims != dims or not all(self._is_in_rows(i, dims) for i in values):
            return None
        renamed, others = {read: source}, list[Node]()
        for i in values:
            renamed[i] = self.names.fresh(f"{i}.before")
            specs[renamed[i]] = TensorSpec(before, specs[i].dtype)
            same = replace(reshape, name=renamed[i], outputs=(renamed[i],))
            others.append(reshape_of(self.graph, same, i, self.names))
        name = self.names.fresh(f"{result}.before")
        specs[name] = TensorSpec(before, specs[result].dtype)
        inner = replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs), outputs=(name,))
        again = replace(
            reshape,
            name=self.names.fresh(f"{node.name}.reshape"),
            inputs=(name, *reshape.inputs[1:]),
            outputs=(result,),
        )
        return _Moved(maker, inner, again, tuple(others))

    def _is_in_rows(self, value: str, dims: Shape) -> bool:
        """Tell whether a value has this shape, and its kernel stores it as rows, never in blocks of channels."""
        maker = self.makers.get(value)
        form = None if maker is None or self.is_custom(maker.op) else find_gpu_op(base_op(maker.op))
        linear = form is not None and form.wanted_layout in (WantedLayout.LINEAR, WantedLayout.ALIAS)
        return linear and self.graph.specs[value].dims == dims

    def _join(self, maker: Node, node: Node) -> bool:
        """Replace two nodes by one, if they can be one."""
        joined = self.joined(maker, node)
        if isinstance(joined, str):
            return False
        for o in maker.outputs:
            del self.makers[o]
        self.makers |= dict.fromkeys(joined.outputs, joined)
        self._count(-1, *maker.inputs, *node.inputs)
        self._count(1, *joined.inputs)
        return True

    def _join_before_reshape(self, reshape: Node, node: Node) -> bool:
        """Compute a node that reads a reshaped value where that value is stored, if it can be."""
        moved = self.before_reshape(reshape, node) if len(node.outputs) == 1 else None
        if moved is None:
            return False
        (read,) = reshape.outputs
        last = self.readers[read] == node.inputs.count(read)
        self._count(1, *moved.node.inputs)
        self._count(-1, *(reshape.inputs if last else ()))
        self.makers |= {each.outputs[0]: each for each in moved.others}
        for each in moved.others:
            self._count(1, *each.inputs)
        if not self._join(moved.maker, moved.node):
            self._count(-1, *moved.node.inputs, *(i for each in moved.others for i in each.inputs))
            self._count(1, *(reshape.inputs if last else ()))
            for each in moved.others:
                del self.makers[each.outputs[0]], self.graph.constants[each.inputs[1]]
                del self.graph.specs[each.outputs[0]], self.graph.specs[each.inputs[1]]
            del self.graph.specs[moved.node.outputs[0]]
            return False
        if last:
            del self.makers[read]
        self._count(-1, *node.inputs)
        self._count(1, *moved.reshape.inputs)
        self.makers[node.outputs[0]] = moved.reshape
        return True

    def _count(self, by: int, *names: str) -> None:
        for name in names:
            self.readers[name] += by

    def _makers_of(self, node: Node) -> list[Node]:
        """Return the nodes that make the operands of a node, each once, those at the end of the network first."""
        found = {maker.name: maker for i in reversed(node.inputs) if (maker := self.makers.get(i)) is not None}
        return list(found.values())

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


def _is_alike(constant: Shape, dims: Shape, before: Shape) -> bool:
    """Tell whether a constant is broadcast to two shapes alike: it is a scalar, or these have its axes at their end."""
    first = next((a for a, d in enumerate(constant) if d != 1), len(constant))
    rank = len(constant) - first
    return rank == 0 or (rank <= len(before) and dims[-rank:] == before[-rank:])
