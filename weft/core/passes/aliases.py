"""Values that a rewrite found equal: the node that makes one is removed, and its readers read the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.core.graph.graph import Graph, Node


class Aliases:
    """Collects pairs of equal values. Inputs, constants and outputs of the graph keep their names."""

    def __init__(self, graph: Graph) -> None:
        self._outputs = set(graph.outputs)
        self._fixed = {*graph.inputs, *graph.constants, *graph.outputs}
        self._source: dict[str, str] = {}
        self._renamed: dict[str, str] = {}

    def root(self, value: str) -> str:
        """Return the value that replaces this one, or the value itself."""
        return self._source.get(value, value)

    def read(self, node: Node) -> Node:
        """Return the node with replaced values among its inputs exchanged."""
        if self._source.keys().isdisjoint(node.inputs):
            return node
        return replace(node, inputs=tuple(map(self.root, node.inputs)))

    def join(self, target: str, source: str) -> bool:
        """Replace `target` by `source`; return False and do nothing if both names must stay.

        If `target` is an output of the graph, the node that makes `source` will write it under that name.
        """
        root = self.root(source)
        if target in self._outputs:
            if root in self._fixed or root in self._renamed:
                return False
            self._renamed[root] = target
        self._source[target] = root
        return True

    def finish(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes with the final names of their inputs and outputs."""
        return [self._final(node) for node in nodes]

    def _final(self, node: Node) -> Node:
        if not self._renamed:
            return self.read(node)
        inputs = tuple(self._renamed.get(self.root(i), self.root(i)) for i in node.inputs)
        outputs = tuple(self._renamed.get(o, o) for o in node.outputs)
        same = (inputs, outputs) == (node.inputs, node.outputs)
        return node if same else replace(node, inputs=inputs, outputs=outputs)
