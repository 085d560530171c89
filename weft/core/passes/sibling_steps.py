"""Compute the same steps of adjacent parts of a value once, of these parts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import int_array, known
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, is_move, order_of, reshape
from weft.core.passes.parts import Part, axis_of, part_of
from weft.core.passes.patterns.reading import Reader, make

ATTENTION = "weft::Attention"
NORMS = ("RMSNormalization", "LayerNormalization")
ROUNDS = 4
"""A node that one round replaced keeps others that read it as they are, until the next."""


@graph_pass(rounds=ROUNDS)
def join_sibling_steps(graph: Graph, context: PassContext) -> Graph:
    """Compute the same steps of adjacent parts of a value once, of these parts together, and split the result.

    So it is with Q and K, which are parts of one product: their heads are rotated, or normalized, by scales that are
    stacked here if they differ, within the budget. Attention alone may read the results: it reads parts where they lie,
    and computes no step as it loads, as other kernels may. There are no more nodes than before.
    """
    if not Reader.has(graph, ATTENTION):
        return graph
    reader, budget = Reader(graph), context.budget
    order = {node.name: k for k, node in enumerate(graph.nodes)}
    for parts in _neighbours(graph):
        first = 0
        while first + 1 < len(parts):
            best, end = None, first + 2
            while end <= len(parts) and (found := _Siblings(reader, order, parts[first:end])).pay():
                best, end = found, end + 1
            if best is not None and budget.allows((), nbytes := best.stacked_bytes()):
                began = budget.clock()
                best.join()
                budget.spend(nbytes, began)
            first = max(end - 1, first + 1)
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Taken:
    """A part of a value along an axis, and the node that takes it."""

    name: str
    maker: Node
    axis: int
    part: Part


def _neighbours(graph: Graph) -> Iterator[list[_Taken]]:
    """Return the parts of each value that lie side by side along one axis, in order."""
    found: dict[tuple[str, int], list[_Taken]] = {}
    for node in graph.nodes:
        for name in node.outputs if node.op.type in ("Split", "Slice") else ():
            sizes = zip(graph.specs[name].dims, graph.specs[node.inputs[0]].dims, strict=True) if name else ()
            axes = [axis for axis, (size, whole) in enumerate(sizes) if size != whole]
            part = part_of(graph, node, name, axes[0]) if len(axes) == 1 else None
            if part is not None:
                found.setdefault((part.value, axes[0]), []).append(_Taken(name, node, axes[0], part))
    for parts in found.values():
        parts.sort(key=lambda each: each.part.start)
        begin = 0
        for end in range(1, len(parts) + 1):
            if end == len(parts) or parts[end - 1].part.stop != parts[end].part.start:
                yield parts[begin:end]
                begin = end


def _is_free(node: Node) -> bool:
    """Tell whether a node only takes or moves elements: in front of what computes with them that costs nothing."""
    return is_move(node) or node.op.type in ("Slice", "Split")


@dataclass(frozen=True, slots=True)
class _Row:
    """Values that lie side by side along an axis of a joint value; they have one shape but for that axis."""

    values: tuple[str, ...]
    axis: int


class _Siblings:
    """Parts that lie side by side, and the nodes that do the same with each of them."""

    def __init__(self, reader: Reader, order: Mapping[str, int], parts: Sequence[_Taken]) -> None:
        self.reader, self.order, self.parts = reader, order, parts
        self.rows: dict[str, _Row] = {}
        """By their first value."""
        self.members: set[str] = set()
        """The values of all rows."""
        self.used = {*reader.replaced}
        """The names of nodes that are replaced, here or elsewhere."""
        self.steps: list[tuple[Node, ...]] = []
        """The nodes that do the same, in order."""
        if not any(each.maker.name in self.used for each in parts):
            self._find(_Row(tuple(each.name for each in parts), parts[0].axis))
        self.gone = self._find_gone()

    def pay(self) -> bool:
        """Tell whether steps that cost launches become one, attention alone reads them, and no node is added."""
        computing = [node for nodes in self.steps if not _is_free(nodes[0]) for node in nodes]
        if not computing or not all(self._is_for_attention(o) for node in computing for o in node.outputs):
            return False
        return len(self.steps) + len(self._splits()) + (not self._are_all()) <= len(self.gone)

    # -- which nodes do the same -----------------------------------------------------------------------------

    def _find(self, row: _Row) -> None:
        """Find the steps; moves behind the last that computes are none."""
        ahead, seen = list[int](), set[int]()

        def reach(row: _Row) -> None:
            self.rows[row.values[0]] = row
            self.members.update(row.values)
            for node in self.reader.readers(row.values[0]):
                if (place := self.order[node.name]) not in seen:
                    seen.add(place)
                    heappush(ahead, place)

        reach(row)
        while ahead:
            nodes = self._alike(self.reader.graph.nodes[heappop(ahead)])
            axis = self._axis_behind(nodes) if nodes else None
            if axis is not None:
                self.steps.append(nodes)
                self.used |= {node.name for node in nodes}
                for values in zip(*(node.outputs for node in nodes), strict=True):
                    reach(_Row(values, axis))
        wanted, kept = set[str](), list[tuple[Node, ...]]()
        for nodes in reversed(self.steps):
            if not _is_free(nodes[0]) or wanted.intersection(nodes[0].outputs):
                kept.append(nodes)
                wanted.update(nodes[0].inputs)
        self.steps = kept[::-1]

    def _alike(self, node: Node) -> tuple[Node, ...]:
        """Return a node that reads the first part, and those that do the same with the others; () if one does not."""
        found, row = [node], self.rows[next(i for i in node.inputs if i in self.rows)]
        for number, value in enumerate(row.values[1:], 1):
            others = (each for each in self.reader.readers(value) if each.name not in self.used)
            found += next(([each] for each in others if self._does_the_same(node, each, number)), [])
        return tuple(found) if len(found) == len(row.values) and node.name not in self.used else ()

    def _does_the_same(self, node: Node, other: Node, number: int) -> bool:
        """Tell whether a node does the same with part `number` as another does with the first."""
        if node.op != other.op or len(node.inputs) != len(other.inputs) or "" in (*node.outputs, *other.outputs):
            return False
        for k, (one, two) in enumerate(zip(node.inputs, other.inputs, strict=True)):
            if k > 0 and node.op.type in RESHAPES:
                break  # the shapes of the results tell all
            if one in self.rows:
                same = self.rows[one].values[number] == two
            else:
                same = not self.members.intersection((one, two)) and self._fits(node, one, two)
            if not same:
                return False
        return True

    def _fits(self, node: Node, one: str, two: str) -> bool:
        """Tell whether operands beside parts are the same, or parameters of norms, which can be stacked."""
        return self._is_same(one, two) or (node.op.type in NORMS and self._constants(one, two) is not None)

    def _is_same(self, one: str, two: str) -> bool:
        """Tell whether operands are one value, or constants of the same bits."""
        held = None if one == two else self._constants(one, two)
        return one == two or (held is not None and held[0].tobytes() == held[1].tobytes())

    def _constants(self, *names: str) -> list[Array] | None:
        """Return constants of one type and shape; None if these values are none."""
        held = [known(self.reader.graph.constants.get(name)) for name in names]
        found = [array for array in held if array is not None]
        alike = len(found) == len(held) and len({self.reader.graph.specs[name] for name in names}) == 1
        return found if alike else None

    # -- where their results lie -----------------------------------------------------------------------------

    def _axis_behind(self, nodes: Sequence[Node]) -> int | None:
        """Return along which axis results of nodes lie side by side if what the nodes read does; None if along none."""
        node, kind = nodes[0], nodes[0].op.type
        read = [self.rows[i] for i in node.inputs if i in self.rows]
        rank, axis = len(self.reader.dims(read[0].values[0])), read[0].axis
        if not (node.op.is_elementwise or kind == "Concat" or [i in self.rows for i in node.inputs].index(True) == 0):
            return None
        if kind in RESHAPES:
            return self._axis_of_reshaped(nodes)
        if kind == "Transpose":
            order = order_of(self.reader.graph, node)
            return None if order is None else order.index(axis)
        if kind == "Slice":
            return axis if self._takes_all_of(node, axis) else None
        if any(row.axis - len(self.reader.dims(row.values[0])) != axis - rank for row in read):
            return None
        if kind in ("Split", "Concat"):
            every = kind == "Split" or len(read) == len(node.inputs)
            return axis if every and axis_of(node, rank) != axis else None
        beside = [k for k, name in enumerate(node.inputs) if name and name not in self.rows]
        if kind in NORMS:
            inner = axis_of(node, rank)
            # Kernels read as many parameters as there are elements from the first axis along which these vary.
            stacks = prod(self.reader.dims(node.inputs[0])[axis + 1 : inner]) == 1
            fits = [self._is_shared(nodes, k) or (stacks and self._constants(*_operands(nodes, k))) for k in beside]
            return axis if all(fits) and len(node.outputs) == 1 and inner > axis else None
        # The slopes of a PRelu need not broadcast.
        if not node.op.is_elementwise or kind == "PRelu" or not all(self._is_shared(nodes, k) for k in beside):
            return None
        return len(self.reader.dims(node.outputs[0])) - rank + axis

    def _axis_of_reshaped(self, nodes: Sequence[Node]) -> int | None:
        """Return the last axis in front of which there is as much as in front of that of the parts."""
        row, shapes = self.rows[nodes[0].inputs[0]], [self.reader.dims(node.outputs[0]) for node in nodes]
        before = self.reader.dims(row.values[0])
        if 0 in before or len({len(shape) for shape in shapes}) > 1:
            return None
        for axis in reversed(range(len(shapes[0]))):
            others = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
            if others.count(others[0]) == len(others) and prod(shapes[0][:axis]) == prod(before[: row.axis]):
                return axis
        return None

    def _takes_all_of(self, node: Node, axis: int) -> bool:
        """Tell whether a Slice takes all of an axis, of the parts and of them together."""
        op: Any = node.op
        constants = [known(self.reader.graph.constants.get(name)) for name in node.inputs[1:]]
        if any(array is None for name, array in zip(node.inputs[1:], constants, strict=True) if name):
            return False
        row = self.rows[node.inputs[0]]
        shapes = [*map(self.reader.dims, row.values), self._joint_dims(row)]
        return all(op.spans(dims, constants)[axis] == (0, dims[axis], 1) for dims in shapes)

    def _is_shared(self, nodes: Sequence[Node], k: int) -> bool:
        """Tell whether nodes have one operand that is the same for all elements along the axis of their parts."""
        row = next(self.rows[i] for i in nodes[0].inputs if i in self.rows)
        from_end = len(self.reader.dims(row.values[0])) - row.axis
        first, *others = _operands(nodes, k)
        dims = self.reader.dims(first)
        return (len(dims) < from_end or dims[-from_end] == 1) and all(self._is_same(first, each) for each in others)

    def _joint_dims(self, row: _Row) -> Shape:
        dims = [self.reader.dims(each) for each in row.values]
        return (*dims[0][: row.axis], sum(each[row.axis] for each in dims), *dims[0][row.axis + 1 :])

    # -- what becomes of them --------------------------------------------------------------------------------

    def _find_gone(self) -> set[str]:
        """Return the names of the nodes that go: those that compute, and those that only they read."""
        gone = {node.name for nodes in self.steps if not _is_free(nodes[0]) for node in nodes}
        steps = (node for nodes in reversed(self.steps) for node in nodes)
        for node in (*steps, *{each.maker.name: each.maker for each in self.parts}.values()):
            if not any(o in self.reader.graph.outputs or self._is_left(o, gone) for o in node.outputs):
                gone.add(node.name)
        return gone

    def _is_left(self, value: str, gone: set[str]) -> bool:
        """Tell whether a node that stays reads a value."""
        return any(node.name not in gone for node in self.reader.readers(value))

    def _is_for_attention(self, value: str) -> bool:
        """Tell whether nodes that go and attention alone read a value, moved or not."""
        if value in self.reader.graph.outputs:
            return False
        left = (node for node in self.reader.readers(value) if node.name not in self.gone)
        others = (node for node in left if node.op.type != ATTENTION)
        return all(is_move(node) and self._is_for_attention(node.outputs[0]) for node in others)

    def _splits(self) -> set[str]:
        """Return the first value of each row that a step computes and that others read."""
        computed = (nodes[0].outputs for nodes in self.steps if not _is_free(nodes[0]))
        firsts = (first for outputs in computed for first in outputs)
        return {first for first in firsts if any(self._is_left(each, self.gone) for each in self.rows[first].values)}

    def _are_all(self) -> bool:
        """Tell whether the parts are all of their value."""
        first, last = self.parts[0].part, self.parts[-1].part
        return first.start == 0 and bool(last.stop == self.reader.dims(first.value)[self.parts[0].axis])

    def stacked_bytes(self) -> int:
        """Return how many bytes stacked parameters take."""
        return sum(array.nbytes for nodes in self.steps for array in self._stacked(nodes).values())

    def _stacked(self, nodes: Sequence[Node]) -> dict[int, Array]:
        """Return the parameters of norms, by position, which differ between parts: one after the other."""
        if nodes[0].op.type not in NORMS:
            return {}
        row, stacked = self.rows[nodes[0].inputs[0]], dict[int, Array]()
        from_end = len(self.reader.dims(row.values[0])) - row.axis
        for k, name in enumerate(nodes[0].inputs):
            if not name or k == 0 or self._is_shared(nodes, k):
                continue
            arrays = list[Array]()
            for value, array in zip(row.values, self._constants(*_operands(nodes, k)) or (), strict=True):
                shape = [*(1,) * (from_end - array.ndim), *array.shape]
                shape[-from_end] = self.reader.dims(value)[row.axis]
                arrays.append(np.broadcast_to(array, shape))
            stacked[k] = np.concatenate(arrays, axis=-from_end)
        return stacked

    def join(self) -> None:
        """Put each joint step in the place of the first of its nodes, with a split of what others read."""
        first, splits = self.parts[0], self._splits()
        joint, made = {first.name: first.part.value}, dict[str, list[Node]]()
        roots = [min(nodes, key=lambda node: self.order[node.name]) for nodes in self.steps]
        if not self._are_all():
            earliest = min(roots, key=lambda node: self.order[node.name])
            joint[first.name] = self._new(self.rows[first.name])
            made[earliest.name] = [self._slice(joint[first.name])]
        for nodes, root in zip(self.steps, roots, strict=True):
            rows = [self.rows[each] for each in nodes[0].outputs]
            joint |= {row.values[0]: self._new(row) for row in rows}
            new = [self._joined(nodes, joint), *(self._split(row, joint) for row in rows if row.values[0] in splits)]
            made[root.name] = [*made.get(root.name, ()), *new]
        for node in (node for nodes in self.steps for node in nodes):
            self.reader.put(node, *made.get(node.name, ()), *([] if node.name in self.gone else [node]))

    def _new(self, row: _Row) -> str:
        """Return the name of a new value, that of which a row is made."""
        name = self.reader.names.fresh(f"{row.values[0]}.joint")
        self.reader.graph.specs[name] = TensorSpec(self._joint_dims(row), self.reader.graph.specs[row.values[0]].dtype)
        return name

    def _slice(self, output: str) -> Node:
        """Return the node that takes all of the parts."""
        first, last = self.parts[0], self.parts[-1]
        bounds = {"start": first.part.start, "stop": last.part.stop, "axis": first.axis}
        added = (self.reader.add(f"{output}.{name}", int_array([number])) for name, number in bounds.items())
        return Node(output, make("Slice"), (first.part.value, *added), (output,))

    def _joined(self, nodes: Sequence[Node], joint: Mapping[str, str]) -> Node:
        """Return the node that does for all parts what nodes do for each."""
        names, stacked = nodes[0].inputs, self._stacked(nodes)
        added = {k: self.reader.add(f"{names[k]}.stacked", array) for k, array in stacked.items()}
        inputs = tuple(added.get(k, joint.get(name, name)) for k, name in enumerate(names))
        outputs = tuple(joint[each] for each in nodes[0].outputs)
        node = Node(outputs[0], nodes[0].op, inputs, outputs)
        return reshape(self.reader.graph, node, inputs[0], self.reader.names) if node.op.type in RESHAPES else node

    def _split(self, row: _Row, joint: Mapping[str, str]) -> Node:
        """Return the node that splits the value of which a row is made."""
        name = self.reader.names.fresh(f"{joint[row.values[0]]}.parts")
        sizes = self.reader.add(f"{name}.sizes", int_array([self.reader.dims(each)[row.axis] for each in row.values]))
        split = make("Split", axis=row.axis, outputs=len(row.values))
        return Node(name, split, (joint[row.values[0]], sizes), row.values)


def _operands(nodes: Sequence[Node], k: int) -> list[str]:
    """Return what nodes read at one position."""
    return [node.inputs[k] for node in nodes]
