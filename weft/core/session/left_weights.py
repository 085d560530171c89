"""Weights that a session leaves to its devices: it drops the host's copy, and reads the file again for a new shape."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.host.shared_arrays import SHARED_FROM
from weft.core.host.threads import in_threads
from weft.errors import ModelError


class LeftWeights:
    """Drops and takes back the weights of a session's graphs; without `reread`, which reads the file, it does nothing.

    Weights in the graphs that ops hold stay.
    """

    def __init__(self, reread: Callable[[], Graph] | None) -> None:
        self._reread = reread
        self._dropped: frozenset[str] = frozenset()
        self._content: object = None
        """What tells the graph from others, each number of it; None before the first weights are dropped."""

    def left(self, graph: Graph, bound: Graph) -> tuple[Graph, Graph]:
        """Return a graph and its bound form without weights, which the devices have by now."""
        if self._reread is None:
            return graph, bound
        if self._content is None:
            self._content = _content(graph)
        large = {name for name, value in graph.constants.items() if value.nbytes >= SHARED_FROM}
        self._dropped = frozenset(large.difference(graph.outputs))
        return self._bare(graph), self._bare(bound)

    def _bare(self, graph: Graph) -> Graph:
        bare = graph.copy()
        bare.constants = {name: value for name, value in graph.constants.items() if name not in self._dropped}
        return bare

    def taken(self, graph: Graph, bound: Graph) -> tuple[Graph, Graph]:
        """Return a graph and its bound form with the weights; ModelError if the file holds another model by now."""
        if self._reread is None or not self._dropped:
            return graph, bound
        read = self._reread()
        if _content(read) != self._content:
            raise ModelError(
                "the model's file has changed",
                where=f"network {graph.name!r}",
                why="in memory mode LIMIT a session reads it again for another shape",
                fix="load the model again, or use memory='normal'",
            )
        self._dropped = frozenset()
        return read, bind(read, {i: bound.specs[i].dims for i in bound.inputs if bound.specs[i].is_static})


def _content(graph: Graph) -> object:
    """Return what two graphs share that compute the same: all that they hold, arrays by a digest of their bytes."""
    held = {name: value for name, value in graph.constants.items() if isinstance(value, np.ndarray)}
    digests = in_threads(_digest, list(held.values()), sum(value.nbytes for value in held.values()))
    given = [(i, graph.specs.get(i)) for i in graph.inputs]
    nodes = [(str(node), [_part(each) for each in node.op.attributes().values()]) for node in graph.nodes]
    return given, list(graph.outputs), nodes, dict(zip(held, digests, strict=True))


def _part(value: object) -> object:
    """Return what `_content` has of an attribute, where that is more than its text tells."""
    if isinstance(value, Graph):
        return _content(value)
    return _digest(value) if isinstance(value, np.ndarray) else None


def _digest(value: Array) -> tuple[object, ...]:
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return value.dtype, value.shape, hashlib.blake2b(data.data, digest_size=16).digest()
