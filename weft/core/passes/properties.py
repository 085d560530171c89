"""Properties of graphs, which can be checked: passes require and ensure them.

A property that one pass alone ensures stands beside that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.core.graph.graph import Graph


@dataclass(frozen=True)
class Property:
    """A named condition on graphs, with a function that finds the nodes or values that break it."""

    name: str
    broken_by: Callable[[Graph], Iterable[str]]
    """Returns the names of the nodes or values for which it does not hold."""


def _without_shape(graph: Graph) -> list[str]:
    values = dict.fromkeys([*graph.inputs, *(v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v)])
    return [v for v in values if v not in graph.specs or not graph.specs[v].is_static]


SHAPES_INFERRED = Property("every value has a shape and a type", _without_shape)


def _unread(graph: Graph) -> list[str]:
    read = {i for n in graph.nodes for i in n.inputs} | set(graph.outputs)
    return [n.name for n in graph.nodes if n.outputs and not any(o in read for o in n.outputs)]


NO_DEAD_NODES = Property("no node whose results nobody reads", _unread)
