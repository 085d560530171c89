"""Fuse element-wise nodes into the node before them; run by a backend on its own part of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.core.graph.fused_op import RUNNING, Fused, Step, earlier
from weft.core.graph.graph import Graph, Node, depths

CanFuse = Callable[[Graph, Node, Node, frozenset[int]], bool]
"""Tells whether the step node (third) may be fused into the base node (second), which makes its operands there."""

MOST_STEPS = 32
"""Most steps of a fused node: real networks have no longer chains, and the kernel of one would compile for minutes."""

Group = tuple[list[Node], Node]
"""Nodes of a graph, in its order, and the `Fused` node that replaces the last of them."""


@dataclass(frozen=True)
class _Group:
    """A base and its steps, in the order in which they run, and the node that does the work of all."""

    members: tuple[Node, ...]
    fused: Node

    @property
    def values(self) -> dict[str, int]:
        """Return the values that the members make: the base makes number 0, step k number k + 1."""
        return {o: number for number, node in enumerate(self.members) for o in node.outputs if o}


def fuse_groups(graph: Graph, can_fuse: CanFuse) -> list[Group]:
    """Return the groups of a base and its element-wise steps, each with the `Fused` node that replaces it.

    A step, or a group of nothing but steps, joins the group whose result it reads if nothing else reads that, and
    `can_fuse` agrees; its other operands become inputs of the fused node. So x * sigmoid(x) joins the node that makes
    x: of what it reads twice it is the only reader. Steps that make another operand of a group join it likewise.
    Groups share no node; they come in the order of their last nodes.
    """
    return _Fuser(graph, can_fuse).run()


def fuse_epilogues(graph: Graph, can_fuse: CanFuse) -> Graph:
    """Return the graph with each of its `fuse_groups` as one node, at the position of the group's last node."""
    out = graph.copy()
    groups = fuse_groups(graph, can_fuse)
    last = {group[-1].name: fused for group, fused in groups}
    gone = {n.name for group, _ in groups for n in group[:-1]}
    out.nodes = [last.get(n.name, n) for n in graph.nodes if n.name not in gone]
    return out


class _Fuser:
    def __init__(self, graph: Graph, can_fuse: CanFuse) -> None:
        self.graph, self.can_fuse = graph, can_fuse
        self.readers, self.depth = graph.readers(), depths(graph)
        self.order = {node.name: k for k, node in enumerate(graph.nodes)}
        self.groups: dict[str, _Group] = {}
        """The groups so far, by the outputs of their nodes that are still to be seen."""

    def run(self) -> list[Group]:
        for node in self.graph.nodes:
            group: _Group | None = _Group((node,), node)
            while group is not None:
                last, group = group, self._join(group) or self._take_in(group)
            self.groups |= {o: last for o in last.fused.outputs if o}
        found = [(sorted(g.members, key=lambda n: self.order[n.name]), g.fused) for g in self._distinct()]
        return [group for group in found if len(group[0]) > 1]

    def _distinct(self) -> list[_Group]:
        """Return the groups in the order of their last nodes."""
        groups = {id(g): g for g in self.groups.values()}.values()
        return sorted(groups, key=lambda g: max(self.order[n.name] for n in g.members))

    def _join(self, group: _Group) -> _Group | None:
        """Return the group together with one whose result it reads, or None if there is none that it may join.

        The deepest producer goes first: the other producers can then run beside its predecessors.
        """
        if not group.members[0].op.is_elementwise:
            return None
        made = [name for name in dict.fromkeys(group.fused.inputs) if name in self.groups]
        for value in sorted(made, key=lambda v: (-self.depth[v], -self._begin(v))):
            base = self.groups[value]
            if not self._is_only_reader(group, value) or len([o for o in base.fused.outputs if o]) != 1:
                continue
            whole = self._joined(base, group.members)
            if whole is not None:
                del self.groups[value]
                return whole
        return None

    def _take_in(self, group: _Group) -> _Group | None:
        """Return the group together with the steps that make an operand of its steps alone, or None if there are none.

        They become its first steps: what they read does not depend on the group, whose values only the group reads.
        """
        first, *rest = group.members
        for value in dict.fromkeys(group.fused.inputs):
            steps = self.groups.get(value)
            if steps is None or value in first.inputs or not self._is_only_reader(group, value):
                continue
            if not steps.members[0].op.is_elementwise:
                continue
            whole = self._joined(_Group((first,), first), [*steps.members, *rest])
            if whole is not None:
                del self.groups[value]
                return whole
        return None

    def _is_only_reader(self, group: _Group, value: str) -> bool:
        return self.readers[value] == group.fused.inputs.count(value)

    def _begin(self, value: str) -> int:
        return max(self.order[n.name] for n in self.groups[value].members)

    def _joined(self, base: _Group, steps: Sequence[Node]) -> _Group | None:
        if len(base.members) - 1 + len(steps) > MOST_STEPS:
            return None
        for step in steps:
            values = base.values
            inside = frozenset(k for k, name in enumerate(step.inputs) if name in values)
            if not self.can_fuse(self.graph, base.fused, step, inside):
                return None
            base = _Group((*base.members, step), merge(base.fused, step, values))
        return base


def merge(base: Node, step: Node, values: Mapping[str, int]) -> Node:
    """Return one node that computes `base`, then `step`; `values` numbers what the base's op and its steps make."""
    op = base.op if isinstance(base.op, Fused) else Fused(base.op, len(base.inputs), ())
    inputs = list(base.inputs)
    operands = []
    for name in step.inputs:
        if name in values:
            operands.append(RUNNING if values[name] == len(op.steps) else earlier(values[name]))
        else:
            operands.append(len(inputs))
            inputs.append(name)
    steps = (*op.steps, Step(step.op, tuple(operands)))
    return Node(base.name, replace(op, steps=steps), tuple(inputs), step.outputs)
