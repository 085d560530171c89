"""Squash several transposes or reshapes into one."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Names, Node
from weft.core.passes.aliases import Aliases
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import (
    Order,
    changes_nothing,
    compose,
    is_identity,
    is_move,
    keeps_elements,
    order_of,
    reshape,
    transpose,
)
from weft.core.passes.properties import Property


def _in_a_row(graph: Graph) -> list[str]:
    moves = {n.outputs[0]: n for n in graph.nodes if is_move(n)}
    return [n.name for n in moves.values() if (first := moves.get(n.inputs[0])) and _as_one(graph, first, n)]


def _as_one(graph: Graph, first: Node, second: Node) -> bool:
    """Tell whether one move can replace two in a row."""
    orders = [order_of(graph, n) for n in (first, second)]
    pairs = zip((first, second), orders, strict=True)
    return None not in orders or all(keeps_elements(graph.specs[n.inputs[0]].dims, o) for n, o in pairs)


NO_MOVES_IN_A_ROW = Property("no two transposes or reshapes in a row that one can replace", _in_a_row)


@graph_pass(ensures=(NO_MOVES_IN_A_ROW,))
def squash_moves(graph: Graph, context: PassContext) -> Graph:
    """Squash consecutive, inverse and equal transposes and reshapes.

    Two transposes in a row become one, and so do two reshapes (Reshape, Flatten, Squeeze, Unsqueeze, and transposes
    that only move axes of size 1). Transposes that cancel but for axes of size one that come or go between them become
    one reshape. A move that changes nothing is removed, and so is the later of two equal moves of
    one value. A move stays if other nodes read it, or if it makes an output of the graph.
    """
    if not any(map(is_move, graph.nodes)):
        return graph
    out, names = graph.copy(), Names(graph)
    aliases = Aliases(graph)
    made: dict[str, Node] = {}
    moves: dict[str, list[tuple[object, str]]] = {}
    """By source, what each move of it makes. Sizes are compared, because open ones have no hash."""
    bypassed: set[str] = set()
    nodes = []
    for each in graph.nodes:
        node = aliases.read(each)
        if is_move(node):
            target = node.outputs[0]
            node = _shorten(out, node, made, bypassed, names)
            form, known = _form(out, node), moves.setdefault(node.inputs[0], [])
            equal = node.inputs[0] if changes_nothing(out, node) else next((t for f, t in known if f == form), None)
            if equal is not None and aliases.join(target, equal):
                continue
            made[target] = node
            known.append((form, target))
        nodes.append(node)
    out.nodes = _without_unread(aliases.finish(nodes), bypassed, graph.outputs)
    return out


def _shorten(graph: Graph, node: Node, made: dict[str, Node], bypassed: set[str], names: Names) -> Node:
    """Return one move that replaces the node and as many moves before it as possible."""
    undone = _undone(graph, node, made)
    if undone:
        bypassed.update(move.outputs[0] for move in undone)
        return reshape(graph, names, node.name, undone[-1].inputs[0], node.outputs[0])
    source, order = node.inputs[0], order_of(graph, node)
    while (before := made.get(source)) is not None:
        dims, first = graph.specs[before.inputs[0]].dims, order_of(graph, before)
        if first is not None and order is not None:
            order = compose(first, order)
        elif keeps_elements(dims, first) and keeps_elements(graph.specs[source].dims, order):
            order = None
        else:
            break
        bypassed.add(source)
        source = before.inputs[0]
    if source == node.inputs[0]:
        return node
    if order is None:
        return reshape(graph, names, node.name, source, node.outputs[0])
    return transpose(node.name, source, order, node.outputs[0])


def _undone(graph: Graph, node: Node, made: dict[str, Node]) -> list[Node]:
    """Return the moves above a node, the last one first, which with it only add and drop axes of size one; or []."""
    above, undone = list[Node](), list[Node]()
    before = made.get(node.inputs[0])
    order = None if before is None else _real_order(graph, node)
    while order is not None and before is not None:
        above.append(before)
        first = _real_order(graph, before)
        order = None if first is None else compose(first, order)
        if order is not None and is_identity(order) and len(above) > 1:
            undone = list(above)
        before = made.get(before.inputs[0])
    return undone


def _real_order(graph: Graph, move: Node) -> Order | None:
    """Return how a move orders the axes that are not of size one; None for a reshape that changes them.

    Open sizes count as others than one: to ask for their size of the moment would bind the network to it.
    """
    before, after = ([d for d in graph.specs[v].dims if not _is_one(d)] for v in (move.inputs[0], move.outputs[0]))
    order = order_of(graph, move)
    if order is None:
        return tuple(range(len(before))) if before == after else None
    real = [axis for axis, size in enumerate(graph.specs[move.inputs[0]].dims) if not _is_one(size)]
    return tuple(real.index(axis) for axis in order if axis in real)


def _is_one(size: int) -> bool:
    return type(size) is int and size == 1


def _form(graph: Graph, node: Node) -> object:
    """Return what equal moves of one source share: the shape or the order."""
    order = order_of(graph, node)
    if keeps_elements(graph.specs[node.inputs[0]].dims, order):
        return "shape", graph.specs[node.outputs[0]].dims
    return "order", order


def _without_unread(nodes: list[Node], bypassed: set[str], outputs: list[str]) -> list[Node]:
    """Return the nodes without the bypassed moves that no node reads any more."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if is_move(node) and node.outputs[0] in bypassed and node.outputs[0] not in read:
            continue
        kept.append(node)
        read.update(node.inputs)
    return kept[::-1]
