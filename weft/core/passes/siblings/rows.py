"""Values that lie side by side in another one, what nodes do alike with each, and how the results lie side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import known
from weft.core.passes.moves import RESHAPES, order_of
from weft.core.passes.parts import axis_of
from weft.core.passes.reader import Reader

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
