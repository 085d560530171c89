"""Compute the same steps of adjacent parts of a value once, of these parts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import int_array
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, is_move, reshape
from weft.core.passes.parts import Interval, interval_of, split
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader
from weft.core.passes.siblings.rows import Row, Rows

ROUNDS = 4
"""A node that was replaced in a round blocks its readers until the next."""
MOST_PARTS = 8
"""Networks have fewer parts side by side that they treat alike; it bounds the search."""
MOST_READERS = 8
"""Networks have fewer readers of each such part; it bounds the search."""


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
    return reader.finish()


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
