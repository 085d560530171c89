"""A graph of which nodes are replaced one after the other, with the makers, readers and depths of its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.core.graph.graph import Graph, Names, Node, sort_nodes


@dataclass(frozen=True)
class Change:
    """Nodes in the place of others. Deciding on a change touches no graph; `ChangingGraph.apply` makes it."""

    gone: tuple[Node, ...]
    made: tuple[Node, ...]
    """The new nodes, each behind those that make what it reads."""
    known: Graph
    """The specs and constants of the values that the new nodes read and make."""


class ChangingGraph:
    """A copy of a graph for a pass that looks at its nodes in order and makes changes on the way.

    A depth is a bound: more than those of all values that the maker reads. So a search for what a value is computed
    from can stop early. Depths are known of the nodes that were reached.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph.copy(), Names(graph)
        self.makers, self.readers = graph.producers(), graph.readers()
        self._depth: dict[str, int] = {}
        self._made_of: dict[str, list[str]] = {}
        """Of each value one result of each node that reads it, and of some that did."""
        for node in graph.nodes:
            self._note_reads(node)

    def reach(self, node: Node) -> None:
        """Note how deep the results of a node are, and what follows from them of the nodes that were reached."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            depth = 1 + max((self._depth.get(i, 0) for i in each.inputs if i), default=0)
            lower = [o for o in each.outputs if self._depth.get(o, -1) < depth]
            self._depth.update(dict.fromkeys(lower, depth))
            made = (r for o in lower for r in self._made_of.get(o, ()) if r in self._depth)
            waiting += (self.makers[r] for r in made if r in self.makers)

    def makers_of(self, node: Node) -> list[Node]:
        """Return the nodes that make the operands of a node that was reached, each once, the deepest first."""
        names = sorted({i for i in node.inputs if i in self.makers}, key=lambda i: (-self._depth[i], i))
        return list({maker.name: maker for i in names if (maker := self.makers[i])}.values())

    def follows(self, names: Iterable[str], node: Node) -> bool:
        """Tell whether any of the values is computed from what a node makes, or made by it."""
        least = min(self._depth[o] for o in node.outputs)
        seen, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name in node.outputs:
                return True
            if name not in seen and self._depth.get(name, 0) > least and name in self.makers:
                seen.add(name)
                waiting += (i for i in self.makers[name].inputs if i)
        return False

    def apply(self, change: Change) -> None:
        """Replace nodes; the new ones count as reached."""
        self.graph.specs |= change.known.specs
        self.graph.constants |= change.known.constants
        made = {o: node for node in change.made for o in node.outputs}
        for node in change.gone:
            self.readers.subtract(node.inputs)
            for o in (o for o in node.outputs if o not in made):
                del self.makers[o]
                self.graph.specs.pop(o, None)
        self.makers |= made
        for node in change.made:
            self.readers.update(node.inputs)
            self._note_reads(node)
            self.reach(node)

    def finished(self) -> Graph:
        """Return the graph as it is now, its nodes in the order that they had where that is one still."""
        nodes = {node.name: node for node in self.makers.values()}
        given = [node.name for node in self.graph.nodes]
        if nodes.keys() != set(given):
            order = [nodes.pop(name) for name in given if name in nodes]
            self.graph.nodes = sort_nodes([*order, *nodes.values()], {*self.graph.inputs, *self.graph.constants})
        return self.graph

    def _note_reads(self, node: Node) -> None:
        for name in dict.fromkeys(node.inputs):
            self._made_of.setdefault(name, []).append(next((o for o in node.outputs if o), ""))


def known_of(graph: Graph, *nodes: Node) -> Graph:
    """Return a graph without nodes that has the specs and constants of what these nodes read and make."""
    names = dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.outputs) if name)
    known = Graph(graph.name, [], [], specs={name: graph.specs[name] for name in names})
    known.constants = {name: graph.constants[name] for name in names if name in graph.constants}
    return known
