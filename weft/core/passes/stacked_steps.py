"""Compute at once what is done to each index of an axis, as exporters unroll a loop."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from weft.core.graph.composite import Body
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.symbolic import has_open_size, known
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, order_of
from weft.core.passes.parts import axis_of, select_of

FEW = 16
"""Constants of up to so many elements are the same operand if they are equal, larger ones if they have one name."""


@graph_pass()
def stack_steps(graph: Graph, context: PassContext) -> Graph:
    """Compute by one product, and what belongs to it, what the steps of a loop compute of each index of an axis.

    The steps take all indices of an axis of a value, or of several, and do the same to each: matrix products, moves and
    element-wise ops, beside operands that all steps share. Then the axis is one of the product's batch. What others
    read of a step is an index of the result; a Concat of all steps is a move of it. Steps without a product stay.
    """
    rows = _Search(graph).rows()
    return without_dead_nodes(_Stacker(graph, rows).run()) if rows else graph


@dataclass(slots=True, eq=False)
class _Row:
    """The nodes that make a value each, an index of an axis of one value. Of those that are read that is `whole`."""

    nodes: list[Node]
    sources: dict[int, _Row] = field(default_factory=dict)
    """What the nodes read of other rows, by the position of the operand."""
    whole: str = ""
    axis: int = 0

    def values(self) -> list[str]:
        return [node.outputs[0] for node in self.nodes]


class _Search:
    """Finds rows of steps, from the indices of values on."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers = graph, graph.producers()
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self.readers.setdefault(value, []).append(node)
        self.places: dict[str, tuple[_Row, int]] = {}
        """By value, the row that has it, and at which step."""

    def rows(self) -> list[_Row]:
        """Return the rows that have to do with a product, each behind those that it reads."""
        found, made = deque(self._indices()), list[_Row]()
        groups, counts = dict[tuple[object, ...], dict[int, Node]](), Counter[tuple[object, ...]]()
        seen: set[tuple[object, ...]] = set()
        while found:
            for node in self._readers_of(found.popleft()):
                read = None if node.outputs[0] in self.places else self._read(node)
                if read is None or (node.name, read[0]) in seen:
                    continue
                # A node that reads two rows is seen with one, and then with both.
                key, step, sources = read
                seen.add((node.name, key))
                # Nodes that do the same in one step are in groups of their own.
                group = groups.setdefault((counts[key, step], *key), {})
                counts[key, step] += 1
                if node.op != next(iter(group.values()), node).op:
                    continue
                group[step] = node
                if len(group) == len(next(iter(sources.values())).nodes):
                    row = self._add(_Row([group[k] for k in range(len(group))], sources))
                    made.append(row)
                    found.append(row)
        return _with_products(made)

    def _add(self, row: _Row) -> _Row:
        self.places |= {value: (row, step) for step, value in enumerate(row.values())}
        return row

    def _readers_of(self, row: _Row) -> Iterator[Node]:
        for value in row.values():
            yield from self.readers.get(value, ())

    def _indices(self) -> Iterator[_Row]:
        """Yield a row for each axis of a value of which all indices are taken."""
        taken: dict[tuple[str, int], dict[int, Node]] = {}
        for node in self.graph.nodes:
            if node.op.type not in ("Gather", "Squeeze"):
                continue
            if (found := select_of(self.graph, self.makers, node.outputs[0])) is not None:
                taken.setdefault((found.value, found.axis), {}).setdefault(found.index, node)
        for (value, axis), nodes in taken.items():
            if 1 < len(nodes) == self.graph.specs[value].dims[axis]:
                yield self._add(_Row([nodes[k] for k in range(len(nodes))], whole=value, axis=axis))

    def _read(self, node: Node) -> tuple[tuple[object, ...], int, dict[int, _Row]] | None:
        """Return what all steps share of a node, its step, and the rows that it reads; None if it cannot be stacked."""
        places = {k: self.places[name] for k, name in enumerate(node.inputs) if name in self.places}
        rows, steps = [row for row, _ in places.values()], {step for _, step in places.values()}
        if len(steps) != 1 or len({len(row.nodes) for row in rows}) != 1 or not _stacks(self.graph, node, [*places]):
            return None
        shared = [id(places[k][0]) if k in places else self._operand(node, k) for k in range(len(node.inputs))]
        dims = self.graph.specs[node.outputs[0]].dims
        return (node.op.type, repr(node.op), dims, *shared), steps.pop(), {k: row for k, (row, _) in places.items()}

    def _operand(self, node: Node, position: int) -> object:
        """Return what is equal for operands that are the same: that of a reshape is told by the shape of its result."""
        name = node.inputs[position]
        value = known(self.graph.constants.get(name))
        if node.op.type in RESHAPES:
            return None
        return name if value is None or value.size > FEW else (value.dtype.str, value.shape, value.tobytes())


def _stacks(graph: Graph, node: Node, places: list[int]) -> bool:
    """Tell whether a node that reads steps at these places can do with all of them what it does with one."""
    specs = [graph.specs[name] for name in node.inputs if name]
    if len(node.outputs) != 1 or any(has_open_size(s.dims) for s in (*specs, graph.specs[node.outputs[0]])):
        return False
    ranks = [len(spec.dims) for spec in specs]
    if node.op.type == "MatMul":
        return min(ranks) > 1 and all(ranks[k] == max(ranks) for k in places)
    if node.op.is_elementwise and len(specs) == len(node.inputs):
        return max(ranks) == len(graph.specs[node.outputs[0]].dims)
    index = known(graph.constants.get(node.inputs[1])) if node.op.type == "Gather" else None
    return places == [0] and (node.op.type in (*RESHAPES, "Transpose") or (index is not None and not index.ndim))


def _with_products(rows: list[_Row]) -> list[_Row]:
    """Return, in order, the rows of products, those that they depend on, and those that depend on them."""
    wanted: set[int] = set()
    for row in rows:
        if row.nodes[0].op.type == "MatMul" or any(id(source) in wanted for source in row.sources.values()):
            wanted.add(id(row))
    for row in reversed(rows):
        if id(row) in wanted:
            wanted.update(id(source) for source in row.sources.values())
    return [row for row in rows if id(row) in wanted]


class _Stacker:
    """Puts one node in the place of each row."""

    def __init__(self, graph: Graph, rows: list[_Row]) -> None:
        self.given, self.out, self.names = graph, graph.copy(), Names(graph)
        self.places = {node.name: (row, step) for row in rows for step, node in enumerate(row.nodes)}
        self.steps = {value: (row, step) for row in rows for step, value in enumerate(row.values())}
        self.stacked: dict[int, str] = {}
        """By the id of a row, its values as one, of which the steps are the first axis."""

    def run(self) -> Graph:
        """Return the graph with the rows as single nodes."""
        nodes = list[Node]()
        for node in self.given.nodes:
            make = Body(self.out, node.name, self.names)
            if node.name in self.places:
                row, step = self.places[node.name]
                if id(row) not in self.stacked:
                    self.stacked[id(row)] = self._stack(make, row, node)
                    nodes += make.nodes
                    make = Body(self.out, node.name, self.names)
                at = make.constant(np.asarray(step, np.int64))
                nodes += make.finish([make.add("Gather", self.stacked[id(row)], at, axis=0)], node.outputs)
            elif (whole := self._joined(node)) is not None:
                nodes += make.finish([self._in_order(make, whole, node)], node.outputs)
            else:
                nodes.append(node)
        self.out.nodes = nodes
        return self.out

    def _stack(self, make: Body, row: _Row, node: Node) -> str:
        """Add what all nodes of a row do, and return the result."""
        count, dims = len(row.nodes), self.given.specs[node.outputs[0]].dims
        sources = {k: self._front(make, source) for k, source in row.sources.items()}
        if node.op.type in RESHAPES:
            return make.reshape(sources[0], count, *dims)
        if node.op.type == "Transpose":
            order = order_of(self.given, node) or ()
            return make.add("Transpose", sources[0], perm=(0, *(axis + 1 for axis in order)))
        if node.op.type == "Gather":
            axis = axis_of(node, len(self.given.specs[node.inputs[0]].dims))
            return make.add("Gather", sources[0], node.inputs[1], axis=axis + 1)
        for k, source in sources.items():  # a value of fewer axes is broadcast along the first ones, but for the steps
            own = make.dims(source)[1:]
            sources[k] = make.reshape(source, count, *(1 for _ in dims[len(own) :]), *own)
        inputs = tuple(sources.get(k, name) for k, name in enumerate(node.inputs))
        name = self.names.fresh(f"{node.name}.steps")
        make.nodes.append(Node(name, node.op, inputs, (name,)))
        infer_node(self.out, make.nodes[-1])
        return name

    def _front(self, make: Body, row: _Row) -> str:
        """Return the values of a row as one, with the steps in front."""
        if id(row) not in self.stacked:
            rest = [axis for axis in range(len(make.dims(row.whole))) if axis != row.axis]
            turned = make.add("Transpose", row.whole, perm=(row.axis, *rest)) if row.axis else row.whole
            self.stacked[id(row)] = turned
        return self.stacked[id(row)]

    def _joined(self, node: Node) -> _Row | None:
        """Return the row whose values a node joins, all of them in order."""
        row, step = self.steps.get(node.inputs[0], (None, 0)) if node.op.type == "Concat" else (None, 0)
        return row if row is not None and not step and list(node.inputs) == row.values() else None

    def _in_order(self, make: Body, row: _Row, node: Node) -> str:
        """Add what moves the steps of a row to the axis along which a Concat joins them."""
        dims = self.given.specs[node.outputs[0]].dims
        axis = axis_of(node, len(dims))
        whole, before, behind = self.stacked[id(row)], range(1, axis + 1), range(axis + 1, len(dims) + 1)
        return make.reshape(make.add("Transpose", whole, perm=(*before, 0, *behind)) if axis else whole, *dims)
