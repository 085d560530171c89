"""Compute element-wise nodes where a value that they read is stored, though others read it or it is reshaped first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.backends.gpu.lowering.fusion import join_steps
from weft.backends.gpu.lowering.layouts import IsCustom, base_op
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node, depths, sort_nodes
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
    return Joiner(graph, is_custom, caps).run()


MOST_KEPT = 2
"""Most values before the last that a kernel stores: each takes registers until the store."""


@dataclass(frozen=True)
class _Moved:
    """A node that reads what `maker` makes, in place of one that reads a reshape of it, and the reshape behind it."""

    maker: Node
    node: Node
    reshape: Node
    others: tuple[Node, ...]
    """Reshapes of other values that the node reads: they cost nothing, because kernels store these as rows."""


class Joiner:
    """Joins element-wise nodes of a graph to the nodes that make what they read."""

    def __init__(self, graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> None:
        self.graph, self.is_custom, self.caps = graph.copy(), is_custom, caps
        self.makers, self.readers, self.names = graph.producers(), graph.readers(), Names(graph)
        self.depth: dict[str, int] = {}
        """Of each value that the nodes so far make: more than that of every value that its maker reads."""
        self.read_for: dict[str, list[str]] = {}
        """What is made of a value: results of the nodes that read it, and of some that did."""
        for node in graph.nodes:
            self._note_reader(node)

    def run(self) -> Graph:
        """Return the graph with all nodes joined that can be."""
        given = self.graph.nodes
        for node in given:
            self._deepen(node)
            for maker in self._makers_of(node) if base_op(node.op).is_elementwise else ():
                if self._join(maker, node) or self._join_before_reshape(maker, node):
                    break
        nodes = {node.name: node for node in self.makers.values()}
        if nodes.keys() != {node.name for node in given}:
            order = [nodes.pop(node.name) for node in given if node.name in nodes]
            self.graph.nodes = sort_nodes([*order, *nodes.values()], {*self.graph.inputs, *self.graph.constants})
        return self.graph

    def why_not(self, maker: Node, node: Node) -> str:
        """Return why an element-wise `node` is not computed where `maker` stores a value that it reads."""
        self.depth = self.depth or depths(self.graph)
        moved = self._before_reshape(maker, node) if self._is_reshape(maker) else None
        if isinstance(moved, str):
            return moved
        for each in moved.others if moved is not None else ():
            self._place(each)
        found = self._joined(maker, node) if moved is None else self._joined(moved.maker, moved.node)
        return found if isinstance(found, str) else "they were apart when steps were fused"

    def _joined(self, maker: Node, node: Node) -> Node | str:
        """Return one node in place of two, of which the second reads a result of the first; or why there is none."""
        op = maker.op if isinstance(maker.op, Fused) else Fused(maker.op, len(maker.inputs), ())
        if len(maker.outputs) != 1 + len(op.kept) or "" in maker.outputs:
            return f"{base_op(maker.op).type} may have several results of its own"
        values = dict(zip(maker.outputs, (len(op.steps), *op.kept), strict=True))
        kept = {o: k for o, k in values.items() if self.readers[o] > node.inputs.count(o)}
        if len(kept) > MOST_KEPT:
            return f"a kernel stores at most {MOST_KEPT} values besides its last"
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

    def _is_reshape(self, node: Node) -> bool:
        form = None if self.is_custom(node.op) else find_gpu_op(node.op)
        return form is not None and form.wanted_layout is WantedLayout.ALIAS and len(node.outputs) == 1

    def _before_reshape(self, reshape: Node, node: Node) -> _Moved | str:
        """Return a node on what is reshaped, and its reshape, in place of a node that reads the reshaped value.

        Return why there is none if the node would mean something else before the reshape.
        """
        (read,), source, specs = reshape.outputs, reshape.inputs[0], self.graph.specs
        maker, result = self.makers.get(source), node.outputs[0]
        dims, before = specs[read].dims, specs[source].dims
        if maker is None:
            return f"{source!r}, which {reshape.op.type} reshapes, is an input of this part of the network"
        if specs[result].dims != dims:
            return f"its result is {specs[result]}, and what it reads is {specs[read]}"
        values = []
        for name in (i for i in dict.fromkeys(node.inputs) if i and i != read):
            if name in self.graph.constants and _is_alike(specs[name].dims, dims, before):
                continue
            if not self._is_in_rows(name, dims):
                return f"it also reads {name!r}, which does not fit {source!r}, of which that is a {reshape.op.type}"
            values.append(name)
        renamed, others = {read: source}, list[Node]()
        for name in values:
            renamed[name] = self.names.fresh(f"{name}.before")
            specs[renamed[name]] = TensorSpec(before, specs[name].dtype)
            same = replace(reshape, name=renamed[name], outputs=(renamed[name],))
            others.append(reshape_of(self.graph, same, name, self.names))
        made = self.names.fresh(f"{result}.before")
        specs[made] = TensorSpec(before, specs[result].dtype)
        inner = replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs), outputs=(made,))
        named = self.names.fresh(f"{node.name}.reshape")
        again = replace(reshape, name=named, inputs=(made, *reshape.inputs[1:]), outputs=(result,))
        return _Moved(maker, inner, again, tuple(others))

    def _is_in_rows(self, value: str, dims: Shape) -> bool:
        """Tell whether a value has this shape, and its kernel stores it as rows, never in blocks of channels."""
        maker = self.makers.get(value)
        form = None if maker is None or self.is_custom(maker.op) else find_gpu_op(base_op(maker.op))
        linear = form is not None and form.wanted_layout in (WantedLayout.LINEAR, WantedLayout.ALIAS)
        return linear and self.graph.specs[value].dims == dims

    def _join(self, maker: Node, node: Node) -> bool:
        """Replace two nodes by one, if they can be one."""
        joined = self._joined(maker, node)
        if isinstance(joined, str):
            return False
        for o in maker.outputs:
            del self.makers[o]
        self._place(joined)
        self._count(-1, *maker.inputs, *node.inputs)
        self._count(1, *joined.inputs)
        return True

    def _join_before_reshape(self, reshape: Node, node: Node) -> bool:
        """Compute a node that reads a reshaped value where that value is stored, if it can be."""
        if len(node.outputs) != 1 or not self._is_reshape(reshape):
            return False
        moved = self._before_reshape(reshape, node)
        if isinstance(moved, str):
            return False
        (read,) = reshape.outputs
        last = self.readers[read] == node.inputs.count(read)
        for each in moved.others:
            self._place(each)
            self._count(1, *each.inputs)
        self._count(1, *moved.node.inputs)
        self._count(-1, *(reshape.inputs if last else ()))
        if not self._join(moved.maker, moved.node):
            self._count(-1, *moved.node.inputs)
            self._count(1, *(reshape.inputs if last else ()))
            for each in moved.others:
                self._count(-1, *each.inputs)
                del self.makers[each.outputs[0]], self.graph.constants[each.inputs[1]]
                del self.graph.specs[each.outputs[0]], self.graph.specs[each.inputs[1]]
            del self.graph.specs[moved.node.outputs[0]]
            return False
        if last:
            del self.makers[read]
        self._count(-1, *node.inputs)
        self._count(1, *moved.reshape.inputs)
        self._place(moved.reshape)
        return True

    def _place(self, node: Node) -> None:
        """Take in a new node."""
        self.makers |= dict.fromkeys(node.outputs, node)
        self._note_reader(node)
        self._deepen(node)

    def _deepen(self, node: Node) -> None:
        """Note how deep a node is, and with it the nodes so far that follow from it."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            depth = 1 + max((self.depth.get(i, 0) for i in each.inputs if i), default=0)
            lower = [o for o in each.outputs if self.depth.get(o, -1) < depth]
            self.depth.update(dict.fromkeys(lower, depth))
            made = (r for o in lower for r in self.read_for.get(o, ()) if r in self.depth)
            waiting += (self.makers[r] for r in made if r in self.makers)

    def _note_reader(self, node: Node) -> None:
        for name in dict.fromkeys(node.inputs):
            self.read_for.setdefault(name, []).append(next((o for o in node.outputs if o), ""))

    def _count(self, by: int, *names: str) -> None:
        for name in names:
            self.readers[name] += by

    def _makers_of(self, node: Node) -> list[Node]:
        """Return the nodes that make the operands of a node, each once, the deepest first."""
        names = sorted({i for i in node.inputs if i in self.makers}, key=lambda i: (-self.depth[i], i))
        return list({maker.name: maker for i in names if (maker := self.makers[i])}.values())

    def _follows(self, names: list[str], node: Node) -> bool:
        """Tell whether any of the values is computed from what a node makes; what is no deeper than that is not."""
        least = min(self.depth[o] for o in node.outputs)
        seen, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name in node.outputs:
                return True
            if name not in seen and self.depth.get(name, 0) > least and name in self.makers:
                seen.add(name)
                waiting += (i for i in self.makers[name].inputs if i)
        return False


def _is_alike(constant: Shape, dims: Shape, before: Shape) -> bool:
    """Tell whether a constant is broadcast to two shapes alike: it is a scalar, or these have its axes at their end."""
    first = next((a for a, d in enumerate(constant) if d != 1), len(constant))
    rank = len(constant) - first
    return len(constant) <= len(before) and (rank == 0 or dims[-rank:] == before[-rank:])
