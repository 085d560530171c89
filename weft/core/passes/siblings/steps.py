"""Compute the same steps of adjacent parts of a value once, of these parts together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import int_array, known
from weft.core.passes.manager import PassContext
from weft.core.passes.moves import RESHAPES, is_move, order_of, reshape
from weft.core.passes.parts import Interval, axis_of, interval_of, split
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader, reader_pass

ROUNDS = 4
"""A node that was replaced in a round blocks its readers until the next."""
MOST_PARTS = 8
"""Networks have fewer parts side by side that they treat alike; it bounds the search."""
MOST_READERS = 8
"""Networks have fewer readers of each such part; it bounds the search."""


@reader_pass(ATTENTION, rounds=ROUNDS)
def join_sibling_steps(reader: Reader, context: PassContext) -> None:
    """Compute the same steps of adjacent parts of a value once, of these parts together, and split the result.

    So it is with Q and K, which are parts of one product: their heads are rotated, or normalized, by scales that are
    stacked here if they differ, within the budget. Attention alone may read the results: it reads parts where they lie,
    and computes no step as it loads, as other kernels may. There are no more nodes than before.
    """
    budget = context.budget
    order = {node.name: k for k, node in enumerate(reader.graph.nodes)}
    for parts in _neighbours(reader.graph):
        while len(parts) > 1:
            steps = _longest(reader, order, parts)
            parts = parts[len(steps.parts) if steps else 1 :]
            if steps is None:
                continue
            nbytes = steps.stacked_bytes()
            if not context.allows(steps.computing[0][0].name, nbytes, "stacked scales"):
                continue
            began = budget.clock()
            _join(order, steps)
            budget.spend(nbytes, began)


# -- parts of one value ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taken:
    """A part of a value along an axis, and the node that takes it."""

    name: str
    maker: Node
    axis: int
    interval: Interval


def _neighbours(graph: Graph) -> Iterator[list[_Taken]]:
    """Return the parts of each value that lie side by side along one axis, in order, where these are few."""
    found: dict[tuple[str, int], list[_Taken]] = {}
    for node in graph.nodes:
        for name in node.outputs if node.op.type in ("Split", "Slice") and len(node.outputs) <= MOST_PARTS else ():
            sizes = zip(graph.specs[name].dims, graph.specs[node.inputs[0]].dims, strict=True) if name else ()
            axes = [axis for axis, (size, whole) in enumerate(sizes) if size != whole]
            interval = interval_of(graph, node, name, axes[0]) if len(axes) == 1 else None
            if interval is not None:
                found.setdefault((interval.value, axes[0]), []).append(_Taken(name, node, axes[0], interval))
    for parts in found.values():
        parts.sort(key=lambda each: each.interval.start)
        begin = 0
        for end in range(1, len(parts) + 1):
            if end == len(parts) or parts[end - 1].interval.stop != parts[end].interval.start:
                if end - begin <= MOST_PARTS:
                    yield parts[begin:end]
                begin = end


def _longest(reader: Reader, order: Mapping[str, int], parts: Sequence[_Taken]) -> _Steps | None:
    """Return the steps of as many parts as it pays for, from the first on; None if it does for no two."""
    best = None
    for end in range(2, len(parts) + 1):
        steps = _Steps(reader, order, parts[:end])
        if not steps.pay():
            break
        best = steps
    return best


# -- which steps they share --------------------------------------------------------------------------------------


def _is_free(node: Node) -> bool:
    """Tell whether a node only takes or moves elements: in front of what computes with them that costs nothing."""
    return is_move(node) or node.op.type in ("Slice", "Split")


def _find(rows: Rows, order: Mapping[str, int], parts: Row) -> list[tuple[Node, ...]]:
    """Return the nodes that do the same with parts, in order, and add the rows of what they make.

    Moves behind the last that computes are none of them.
    """
    reader, steps = rows.reader, list[tuple[Node, ...]]()
    ahead, seen, taken = list[int](), set[int](), set[str]()

    def reach(row: Row) -> None:
        rows.add(row)
        readers = [reader.readers(value) for value in row.values]
        for node in readers[0] if max(map(len, readers)) <= MOST_READERS else ():
            if (place := order[node.name]) not in seen:
                seen.add(place)
                heappush(ahead, place)

    def is_taken(node: Node) -> bool:
        return node.name in taken or node.name in reader.replaced

    reach(parts)
    while ahead:
        nodes = rows.alike(reader.graph.nodes[heappop(ahead)], is_taken)
        axis = rows.axis_behind(nodes) if nodes else None
        if axis is not None:
            steps.append(nodes)
            taken.update(each.name for each in nodes)
            for values in zip(*(each.outputs for each in nodes), strict=True):
                reach(Row(values, axis))
    wanted, kept = set[str](), list[tuple[Node, ...]]()
    for nodes in reversed(steps):
        if not _is_free(nodes[0]) or wanted.intersection(nodes[0].outputs):
            kept.append(nodes)
            wanted.update(nodes[0].inputs)
    return kept[::-1]


class _Steps:
    """The steps that parts share, and which nodes would go if each were done once."""

    def __init__(self, reader: Reader, order: Mapping[str, int], parts: Sequence[_Taken]) -> None:
        self.reader, self.parts, self.rows = reader, parts, Rows(reader)
        self.row = Row(tuple(each.name for each in parts), parts[0].axis)
        self.makers = {each.maker.name: each.maker for each in parts}
        """Of the parts, by name."""
        stay = not any(name in reader.replaced for name in self.makers)
        self.found = _find(self.rows, order, self.row) if stay else []
        """For each step the nodes that do the same, in the order of the parts."""
        self.computing = [nodes for nodes in self.found if not _is_free(nodes[0])]
        self.gone = self._find_gone()

    def pay(self) -> bool:
        """Tell whether steps that cost launches become one, attention alone reads them, and no node is added."""
        results = (value for nodes in self.computing for node in nodes for value in node.outputs)
        if not self.computing or not all(map(self._is_for_attention, results)):
            return False
        return len(self.found) + len(self.splits()) + (not self.are_all()) <= len(self.gone)

    def splits(self) -> set[str]:
        """Return the first value of each row that a step computes and that others read."""
        firsts = (first for nodes in self.computing for first in nodes[0].outputs)
        return {first for first in firsts if any(map(self._is_left, self.rows[first].values))}

    def are_all(self) -> bool:
        """Tell whether the parts are all of their value."""
        first, last = self.parts[0].interval, self.parts[-1].interval
        return first.start == 0 and bool(last.stop == self.reader.dims(first.value)[self.row.axis])

    def stacked_bytes(self) -> int:
        """Return how many bytes the stacked parameters take."""
        return sum(map(self.rows.stacked_bytes, self.computing))

    def _find_gone(self) -> set[str]:
        """Return the names of the nodes that go: those that compute, and those that only they read."""
        self.gone = {node.name for nodes in self.computing for node in nodes}
        for node in (*(node for nodes in reversed(self.found) for node in nodes), *self.makers.values()):
            if not any(value in self.reader.graph.outputs or self._is_left(value) for value in node.outputs):
                self.gone.add(node.name)
        return self.gone

    def _is_left(self, value: str) -> bool:
        """Tell whether a node that stays reads a value."""
        return any(node.name not in self.gone for node in self.reader.readers(value))

    def _is_for_attention(self, value: str) -> bool:
        """Tell whether nodes that go and attention alone read a value, moved or not."""
        ahead = [value]
        while ahead:
            each = ahead.pop()
            if each in self.reader.graph.outputs:
                return False
            left = (node for node in self.reader.readers(each) if node.name not in self.gone)
            others = [node for node in left if node.op.type != ATTENTION]
            if not all(map(is_move, others)):
                return False
            ahead += [node.outputs[0] for node in others]
        return True


# -- what becomes of them ----------------------------------------------------------------------------------------


def _join(order: Mapping[str, int], steps: _Steps) -> None:
    """Put each joint step in the place of the first of its nodes, with a split of what others read."""
    reader, rows, splits = steps.reader, steps.rows, steps.splits()
    joint, made = {steps.row.values[0]: steps.parts[0].interval.value}, dict[str, list[Node]]()
    places = [min((node.name for node in nodes), key=lambda name: order[name]) for nodes in steps.found]
    if not steps.are_all():
        joint[steps.row.values[0]] = _new_value(rows, steps.row)
        made[min(places, key=lambda name: order[name])] = [_slice(steps, joint[steps.row.values[0]])]
    for nodes, place in zip(steps.found, places, strict=True):
        results = [rows[each] for each in nodes[0].outputs]
        joint |= {row.values[0]: _new_value(rows, row) for row in results}
        new = made.setdefault(place, [])
        new.append(_joint_step(rows, nodes, joint))
        for row in results:
            if row.values[0] in splits:
                whole = joint[row.values[0]]
                new.append(split(reader, f"{whole}.parts", whole, row.values, row.axis))
    for node in (node for nodes in steps.found for node in nodes):
        reader.put(node, *made.get(node.name, ()), *([] if node.name in steps.gone else [node]))


def _new_value(rows: Rows, row: Row) -> str:
    """Return the name of a new value, in which those of a row lie."""
    return rows.reader.new_value(f"{row.values[0]}.joint", rows.joint_dims(row), row.values[0])


def _slice(steps: _Steps, output: str) -> Node:
    """Return the node that takes all of the parts."""
    first, last = steps.parts[0].interval, steps.parts[-1].interval
    bounds = {"start": first.start, "stop": last.stop, "axis": steps.row.axis}
    added = [steps.reader.add(f"{output}.{name}", int_array([number])) for name, number in bounds.items()]
    return Node(output, new_op("Slice"), (first.value, *added), (output,))


def _joint_step(rows: Rows, nodes: Sequence[Node], joint: Mapping[str, str]) -> Node:
    """Return the node that does for all parts what nodes do for each."""
    reader, names = rows.reader, nodes[0].inputs
    added = {k: reader.add(f"{names[k]}.stacked", array) for k, array in rows.stacked(nodes).items()}
    inputs = tuple(added.get(k, joint.get(name, name)) for k, name in enumerate(names))
    outputs = tuple(joint[each] for each in nodes[0].outputs)
    if nodes[0].op.type in RESHAPES:
        return reshape(reader.graph, reader.names, outputs[0], inputs[0], outputs[0])
    return Node(outputs[0], nodes[0].op, inputs, outputs)


# -- values that lie side by side -------------------------------------------------------------------------


NORMS = ("RMSNormalization", "LayerNormalization", "weft::L2Normalization")


@dataclass(frozen=True, slots=True)
class Row:
    """Values that lie side by side along an axis of a joint value; they have one shape but for that axis."""

    values: tuple[str, ...]
    axis: int


class Rows:
    """Rows of a graph's values, each known by its first value. Nodes that do the same come in the order of a row."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._rows: dict[str, Row] = {}
        self._members: set[str] = set()

    def add(self, row: Row) -> None:
        """Add a row, none of whose values is in another."""
        self._rows[row.values[0]] = row
        self._members.update(row.values)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def read_by(self, node: Node) -> Row:
        """Return the first row whose first value a node reads."""
        return next(self._rows[name] for name in node.inputs if name in self._rows)

    def joint_dims(self, row: Row) -> Shape:
        """Return the shape of the value in which those of a row lie."""
        dims = [self.reader.dims(each) for each in row.values]
        return (*dims[0][: row.axis], sum(each[row.axis] for each in dims), *dims[0][row.axis + 1 :])

    # -- which nodes do the same -----------------------------------------------------------------------------

    def alike(self, node: Node, is_taken: Callable[[Node], bool]) -> tuple[Node, ...]:
        """Return a node that reads first values, and those that do the same with the others; () if one does not."""
        found = [node]
        if is_taken(node):
            return ()
        for number, value in enumerate(self.read_by(node).values[1:], 1):
            others = (each for each in self.reader.readers(value) if each is not node and not is_taken(each))
            same = next((each for each in others if self._does_the_same(node, each, number)), None)
            if same is None:
                return ()
            found.append(same)
        return tuple(found)

    def _does_the_same(self, node: Node, other: Node, number: int) -> bool:
        """Tell whether a node does the same with value `number` of a row as another does with the first."""
        if node.op != other.op or len(node.inputs) != len(other.inputs) or "" in (*node.outputs, *other.outputs):
            return False
        for k, (one, two) in enumerate(zip(node.inputs, other.inputs, strict=True)):
            if k > 0 and node.op.type in RESHAPES:
                break  # the shapes of the results tell all
            if one in self._rows:
                same = self._rows[one].values[number] == two
            else:
                same = not self._members.intersection((one, two)) and self._fits(node, one, two)
            if not same:
                return False
        return True

    def _fits(self, node: Node, one: str, two: str) -> bool:
        """Tell whether operands beside a row are the same, or parameters of norms, which can be stacked."""
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

    # -- along which axis their results lie side by side -------------------------------------------------------

    def axis_behind(self, nodes: Sequence[Node]) -> int | None:
        """Return along which axis the results of nodes that do the same lie side by side; None if along none."""
        node, kind, graph = nodes[0], nodes[0].op.type, self.reader.graph
        row = self.read_by(node)
        if node.op.is_elementwise:
            return self._axis_of_elementwise(nodes)
        if kind == "Concat":
            every = all(name in self._rows for name in node.inputs)
            return row.axis if every and self._is_kept(node, row) else None
        if [name for name in node.inputs if name in self._rows] != [node.inputs[0]]:
            return None
        if kind in RESHAPES:
            return self._axis_of_reshaped(nodes)
        if kind == "Transpose":
            order = order_of(graph, node)
            return None if order is None else order.index(row.axis)
        fits = (
            (kind == "Slice" and self._takes_all_of_axis(node))
            or (kind == "Split" and self._is_kept(node, row))
            or (kind in NORMS and self._is_norm_inside(nodes))
        )
        return row.axis if fits else None

    def _is_kept(self, node: Node, row: Row) -> bool:
        """Tell whether a node works along an axis, and all rows that it reads lie along one other axis."""
        others = (self._rows[name] for name in node.inputs if name in self._rows)
        return all(each.axis == row.axis for each in others) and axis_of(node, self._rank(row)) != row.axis

    def _axis_of_elementwise(self, nodes: Sequence[Node]) -> int | None:
        node = nodes[0]
        read = [self._rows[name] for name in node.inputs if name in self._rows]
        from_end = {self._rank(row) - row.axis for row in read}
        shared = all(self._is_shared(nodes, k) for k in self._beside(node))
        if len(from_end) > 1 or not shared or node.op.type == "PRelu":  # the slopes of a PRelu need not broadcast
            return None
        return len(self.reader.dims(node.outputs[0])) - from_end.pop()

    def _axis_of_reshaped(self, nodes: Sequence[Node]) -> int | None:
        """Return the last axis in front of which there is as much as in front of that of the row."""
        row, shapes = self._rows[nodes[0].inputs[0]], [self.reader.dims(node.outputs[0]) for node in nodes]
        before = self.reader.dims(row.values[0])
        if 0 in before or len({len(shape) for shape in shapes}) > 1:
            return None
        for axis in reversed(range(len(shapes[0]))):
            others = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
            if others.count(others[0]) == len(others) and prod(shapes[0][:axis]) == prod(before[: row.axis]):
                return axis
        return None

    def _takes_all_of_axis(self, node: Node) -> bool:
        """Tell whether a Slice takes all of the axis of a row, of each value and of them together."""
        op: Any = node.op
        constants = [known(self.reader.graph.constants.get(name)) for name in node.inputs[1:]]
        if any(array is None for name, array in zip(node.inputs[1:], constants, strict=True) if name):
            return False
        row = self._rows[node.inputs[0]]
        shapes = [*map(self.reader.dims, row.values), self.joint_dims(row)]
        return all(op.spans(dims, constants)[row.axis] == (0, dims[row.axis], 1) for dims in shapes)

    def _is_norm_inside(self, nodes: Sequence[Node]) -> bool:
        """Tell whether norms do not go over the axis of a row, and have one parameter, or those that can be stacked."""
        node, row = nodes[0], self._rows[nodes[0].inputs[0]]
        inner = axis_of(node, self._rank(row))
        # Kernels read as many parameters as there are elements from the first axis along which these vary.
        stacks = prod(self.reader.dims(node.inputs[0])[row.axis + 1 : inner]) == 1
        constant = (stacks and self._constants(*(each.inputs[k] for each in nodes)) for k in self._differing(nodes))
        return len(node.outputs) == 1 and inner > row.axis and all(constant)

    # -- what they read beside rows ----------------------------------------------------------------------------

    def _is_shared(self, nodes: Sequence[Node], k: int) -> bool:
        """Tell whether nodes have one operand that is the same for all elements along the axis of their row."""
        row = self.read_by(nodes[0])
        from_end = self._rank(row) - row.axis
        first, *others = (node.inputs[k] for node in nodes)
        dims = self.reader.dims(first)
        return (len(dims) < from_end or dims[-from_end] == 1) and all(self._is_same(first, each) for each in others)

    def stacked_bytes(self, nodes: Sequence[Node]) -> int:
        """Return how many bytes the stacked parameters of norms take."""
        parts = (part for k in self._differing(nodes) for part in self._repeated(nodes, k))
        return sum(array.itemsize * prod(shape) for array, shape in parts)

    def stacked(self, nodes: Sequence[Node]) -> dict[int, Array]:
        """Return the parameters of norms that differ, by position: those of each value one after the other."""
        row = self.read_by(nodes[0])
        return {
            k: np.concatenate(
                [np.broadcast_to(array, shape) for array, shape in self._repeated(nodes, k)],
                axis=row.axis - self._rank(row),
            )
            for k in self._differing(nodes)
        }

    def _differing(self, nodes: Sequence[Node]) -> list[int]:
        """Return the positions of parameters that differ between norms."""
        norms = nodes[0].op.type in NORMS
        return [k for k in self._beside(nodes[0]) if norms and not self._is_shared(nodes, k)]

    def _repeated(self, nodes: Sequence[Node], k: int) -> list[tuple[Array, Shape]]:
        """Return parameters of norms at one position, and the shape to which each is repeated for its value."""
        row, repeated = self.read_by(nodes[0]), list[tuple[Array, Shape]]()
        from_end = self._rank(row) - row.axis
        arrays = self._constants(*(node.inputs[k] for node in nodes)) or ()
        for value, array in zip(row.values, arrays, strict=True):
            shape = [*(1,) * (from_end - array.ndim), *array.shape]
            shape[-from_end] = self.reader.dims(value)[row.axis]
            repeated.append((array, tuple(shape)))
        return repeated

    def _beside(self, node: Node) -> list[int]:
        """Return the positions of operands beside rows."""
        return [k for k, name in enumerate(node.inputs) if name and name not in self._rows]

    def _rank(self, row: Row) -> int:
        return len(self.reader.dims(row.values[0]))
