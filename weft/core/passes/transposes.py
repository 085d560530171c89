"""Turn transposes that move nothing into reshapes, and move transposes up to others that cancel or absorb them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Shape
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import Order, compose, is_identity, keeps_elements, order_of, reshape, transpose
from weft.core.passes.properties import Property
from weft.core.passes.reordered import MOVABLE, Reordered, is_layout, reordered


def _moves_nothing(graph: Graph, node: Node) -> bool:
    order = order_of(graph, node)
    return order is not None and keeps_elements(graph.specs[node.inputs[0]].dims, order)


NO_FREE_TRANSPOSES = Property(
    "no transpose that only moves axes of size 1",
    lambda graph: [n.name for n in graph.nodes if _moves_nothing(graph, n)],
)


@graph_pass(ensures=(NO_FREE_TRANSPOSES,))
def transposes_as_reshapes(graph: Graph, context: PassContext) -> Graph:
    """Replace each Transpose that only moves axes of size 1 by a Reshape.

    A Reshape need not copy, and it squashes with other reshapes.
    """
    if not NO_FREE_TRANSPOSES.broken_by(graph):
        return graph
    out, names = graph.copy(), Names(graph)
    out.nodes = []
    for node in graph.nodes:
        if _moves_nothing(graph, node):
            node = reshape(out, names, node.name, node.inputs[0], node.outputs[0])
        out.nodes.append(node)
    return out


ROUNDS = 16
"""Most rounds: one is enough for real networks."""
TRANSPOSED = "transposed constants"


@graph_pass(rounds=ROUNDS)
def move_transposes_up(graph: Graph, context: PassContext) -> Graph:
    """Move transposes up through element-wise nodes to transposes that cancel or absorb them.

    A transpose T moves up if it reads a region of element-wise nodes such that: all have one shape; only T and the
    region read them; and all their operands come from transposes, or are scalars or constants. Each of these transposes
    above must have no other readers, or be the inverse of T. T is then removed, each transpose above absorbs it or is
    removed as well, and constants are transposed here, within the budget. The region computes the same in another
    order. So each move removes at least one node and adds none. T stays if that would make real transposes of more
    transposes than before: those that only move axes of size 1 are free.
    """
    if not any(n.op.type == "Transpose" for n in graph.nodes):
        return graph
    moves = _Moves(graph, context)
    return moves.graph if moves.found() else graph


@graph_pass(rounds=ROUNDS)
def move_transposes_down(graph: Graph, context: PassContext) -> Graph:
    """Compute nodes of equally transposed values before the transpose.

    All operands of an element-wise node must be outputs of transposes of one order, or scalars or constants, which are
    transposed here, within the budget. At least one transpose must have no other reader. So a stream of values to which
    transposed ones are added, as in ConvNeXt, is kept in their order: there are no more transposes than before, and
    element-wise nodes are next to what makes their operands.

    Where the order only moves channels to the end or back, an operand may also be of few elements, so that its
    transpose is a reshape, and nodes that are told axes (`reordered`) are computed before the transpose as well: files
    of TensorFlow have channels last, and convolutions between transposes.
    """
    if not any(node.op.type == "Transpose" for node in graph.nodes):
        return graph
    down = _Down(graph, context)
    for node in graph.nodes:
        down.take(node)
    down.out.nodes = down.nodes
    return without_dead_nodes(down.out) if down.has_moved else graph


class _Down:
    """A graph whose nodes come one after the other, and move above transposes of what they read."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.out, self.context, self.names = graph.copy(), context, Names(graph)
        self.makers, self.readers = graph.producers(), graph.readers()
        self.nodes: list[Node] = []
        self.has_moved = False
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self.users.setdefault(value, []).append(node)

    def take(self, node: Node) -> None:
        """Add a node, above as many transposes as it can be computed before."""
        behind: list[Node] = []
        while (moved := self._moved(node)) is not None:
            node, below = moved
            behind += below
            self.has_moved = True
        self.nodes += [node, *reversed(behind)]

    def _moved(self, node: Node) -> tuple[Node, list[Node]] | None:
        """Return the node before the transposes of its operands, and the transpose behind it; None if it stays."""
        form = Reordered(node.op, len(node.inputs))
        if node.op.is_elementwise:
            order = self._common_order(node, node.inputs)
        else:
            order = self._common_order(node, node.inputs if node.op.type == "Concat" else node.inputs[:1])
            if order is None or not is_layout(order):
                return None
        if order is None:
            return None
        back = tuple(order.index(axis) for axis in range(len(order)))
        if not node.op.is_elementwise:
            found = reordered(self.out, self.names, node, back)
            if found is None:
                return None
            form = found
        operands = node.inputs[: form.operands]
        nbytes = sum(self.out.constants[i].nbytes for i in operands if i in self.out.constants)
        if not self.context.allows(node.name, nbytes, TRANSPOSED):
            return None
        began = self.context.budget.clock()
        inputs = tuple(self._before(i, order, back) for i in operands)
        for old, new in zip(operands, inputs, strict=True):
            if old in self.makers:
                self.readers[old] -= 1
                self.readers[new] += self.readers[old] > 0
        self.context.budget.spend(nbytes, began)
        if form.is_in_order:
            return replace(node, op=form.op, inputs=(*inputs, *form.parameters)), []
        output = node.outputs[0]
        before, spec = self.names.fresh(f"{output}.before"), self.out.specs[output]
        self.out.specs[before] = TensorSpec(tuple(spec.dims[axis] for axis in back), spec.dtype)
        below = transpose(self.names.fresh(f"{node.name}.transpose"), before, order, output)
        self.makers[output] = below
        self.readers[before] = 1
        return replace(node, op=form.op, inputs=(*inputs, *form.parameters), outputs=(before,)), [below]

    def _before(self, value: str, order: Order, back: Order) -> str:
        """Return an operand as it is before the transpose of an order."""
        graph, maker = self.out, self.makers.get(value)
        if maker is not None and order_of(graph, maker) == order:
            return maker.inputs[0]
        if not value or value in graph.constants:
            return _transposed(graph, value, back, self.names)
        spec = graph.specs[value]
        if spec.size == 1:
            return value
        name = self.names.fresh(f"{value}.reshaped")
        graph.specs[name] = TensorSpec(tuple(spec.dims[axis] for axis in back), spec.dtype)
        self.nodes.append(reshape(graph, self.names, name, value, name))
        self.readers[name] = 1
        return name

    def _common_order(self, node: Node, operands: Sequence[str]) -> Order | None:
        """Return the order of all transposes that make operands of a node, if it can be computed before them."""
        graph = self.out
        if len(node.outputs) != 1:
            return None
        values = {i for i in operands if i and i not in graph.constants}
        orders: dict[str, Order | None] = {}
        for value in values:
            maker = self.makers.get(value)
            orders[value] = order_of(graph, maker) if maker is not None else None
        known = {order for order in orders.values() if order is not None}
        if len(known) != 1 or any(is_symbolic(graph.constants[i]) for i in operands if i in graph.constants):
            return None
        (order,) = known
        dims = graph.specs[node.outputs[0]].dims
        for value in values:
            spec = graph.specs[value]
            if orders[value] is None and not (is_layout(order) and _is_free(spec.dims, order)):
                return None
            if node.op.is_elementwise and orders[value] is not None and spec.dims != dims:
                return None
        moved = [value for value in values if orders[value] is not None]
        if any(self.readers[value] == operands.count(value) for value in moved):
            return order
        # What else reads them may move as well, and then nothing reads them any more.
        others = [reader for value in moved for reader in self.users.get(value, ())]
        return order if is_layout(order) and all(map(self._may_move, others)) else None

    def _may_move(self, node: Node) -> bool:
        """Tell whether a node is of a kind that is computed before transposes."""
        op = node.op
        return len(node.outputs) == 1 and (op.is_elementwise or op.type in MOVABLE)


def _is_free(dims: Shape, order: Order) -> bool:
    """Tell whether a value of these sizes has its elements in one order before and behind a transpose."""
    return len(dims) == len(order) and keeps_elements(dims, tuple(order.index(axis) for axis in range(len(order))))


def _transposed(graph: Graph, value: str, order: Order, names: Names) -> str:
    """Return the name of a constant operand with its axes in another order; scalars and missing operands stay."""
    if not value or graph.specs[value].size == 1:
        return value
    array = graph.constants[value]
    full = array.reshape(*(1,) * (len(order) - array.ndim), *array.shape).transpose(order)
    name = names.fresh(f"{value}.transposed")
    graph.constants[name] = np.array(full, order="C")
    graph.specs[name] = TensorSpec(full.shape, graph.specs[value].dtype)
    return name


class _Moves:
    """A graph while its transposes move up, with the current producers and readers of its values."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.context = context
        self.graph = graph.copy()
        self.names = Names(graph)
        self.makers = graph.producers()
        self.readers = graph.readers()
        self._now: dict[str, Node | None] = {}
        """The replacement of a node, by its name; None if it was removed."""

    def found(self) -> bool:
        """Move the transposes that can be moved, and tell whether there were any.

        The last transpose goes first: the transposes that absorb it come later and can themselves still move up.
        """
        for original in reversed(self.graph.nodes):
            node = self._now.get(original.name, original)
            if node is None or node.op.type != "Transpose":
                continue
            region = _Region(node, _order(self.graph, node), self.graph.specs[node.inputs[0]].dims)
            if not (_fill(self, region) and _is_closed(self, region)):
                continue
            if self.context.allows(node.name, region.nbytes, TRANSPOSED):
                began = self.context.budget.clock()
                region.rewrite(self)
                self.context.budget.spend(region.nbytes, began)
        nodes = (self._now.get(n.name, n) for n in self.graph.nodes)
        self.graph.nodes = [n for n in nodes if n is not None]
        return bool(self._now)

    def replace(self, old: Node, new: Node | None) -> None:
        """Replace a node by another, or remove it."""
        self._now[old.name] = new
        self.readers.subtract(i for i in old.inputs if i)
        for o in old.outputs:
            if self.makers.get(o) is old:
                del self.makers[o]
        if new is not None:
            self.readers.update(i for i in new.inputs if i)
            self.makers.update((o, new) for o in new.outputs if o)


@dataclass(eq=False)
class _Region:
    """Element-wise nodes between a transpose and those above it; `reads` counts the readers inside the region."""

    last: Node
    order: Order
    dims: Shape
    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: dict[str, Node] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    """Bytes of the constants that must be transposed."""

    def rewrite(self, moves: _Moves) -> None:
        """Remove the transpose below the region from the graph."""
        graph, names = moves.graph, moves.names
        renamed = {self.last.inputs[0]: self.last.outputs[0]}
        replaced: list[tuple[Node, Node | None]] = [(self.last, None)]
        for value, leaf in self.leaves.items():
            order = compose(_order(graph, leaf), self.order)
            if is_identity(order):
                renamed[value] = leaf.inputs[0]
                if moves.readers[value] == self.reads[value]:
                    replaced.append((leaf, None))
            else:
                renamed[value] = self._fresh(graph, value, names)
                replaced.append((leaf, transpose(leaf.name, leaf.inputs[0], order, renamed[value])))
        for value in self.nodes:
            if value not in renamed:
                renamed[value] = self._fresh(graph, value, names)
        for node in self.nodes.values():
            inputs = tuple(renamed.get(i) or _transposed(graph, i, self.order, names) for i in node.inputs)
            replaced.append((node, replace(node, inputs=inputs, outputs=(renamed[node.outputs[0]],))))
        for old, new in replaced:
            moves.replace(old, new)

    def _fresh(self, graph: Graph, value: str, names: Names) -> str:
        """Return a new name for a value that is transposed from now on."""
        name = names.fresh(f"{value}.transposed")
        shape = tuple(self.dims[axis] for axis in self.order)
        graph.specs[name] = TensorSpec(shape, graph.specs[value].dtype)
        return name


def _fill(moves: _Moves, region: _Region) -> bool:
    """Collect the nodes and the transposes above the region's transpose; False if there is anything else above.

    A node joins once all its readers are in the region, so that no node is in two regions.
    """
    graph, readers = moves.graph, moves.readers
    first = region.last.inputs[0]
    region.reads[first] = 1
    stack, seen = [first], {first}
    while stack:
        value = stack.pop()
        node = moves.makers.get(value)
        if node is not None and node.op.type == "Transpose":
            region.leaves[value] = node
            continue
        if node is None or not node.op.is_elementwise or len(node.outputs) != 1:
            return False
        if region.reads[value] < readers[value] or value in region.nodes:
            continue
        region.nodes[value] = node
        for operand in filter(None, node.inputs):
            if operand in graph.constants:
                region.nbytes += graph.constants[operand].nbytes
                continue
            spec = graph.specs[operand]
            if spec.dims == region.dims:
                region.reads[operand] += 1
                seen.add(operand)
                if operand not in region.leaves:
                    stack.append(operand)
            elif spec.size != 1:
                return False
    return bool(region.nodes and region.leaves) and len(seen) == len(region.nodes) + len(region.leaves)


def _is_closed(moves: _Moves, region: _Region) -> bool:
    """Tell whether no other node reads what would change, and the graph has no more real transposes than before."""
    before, after = 1 - keeps_elements(region.dims, region.order), 0
    for value, leaf in region.leaves.items():
        dims, first = moves.graph.specs[leaf.inputs[0]].dims, _order(moves.graph, leaf)
        both = compose(first, region.order)
        alone = moves.readers[value] == region.reads[value]
        if not alone and not is_identity(both):
            return False
        before += alone and not keeps_elements(dims, first)
        after += not keeps_elements(dims, both)
    return after <= before


def _order(graph: Graph, node: Node) -> Order:
    order = order_of(graph, node)
    assert order is not None
    return order
