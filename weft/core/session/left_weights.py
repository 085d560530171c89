"""Weights that a session leaves to its devices: it drops the host's copy, and reads the file again for a new shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.host.shared_arrays import SHARED_FROM, sample_key
from weft.errors import ModelError

Fingerprints = Mapping[str, tuple[object, ...]]


class LeftWeights:
    """Drops and takes back the weights of a session's graphs; without `reread`, which reads the file, it does nothing.

    Weights in the graphs that ops hold stay.
    """

    def __init__(self, reread: Callable[[], Graph] | None) -> None:
        self._reread = reread
        self._dropped: Fingerprints = {}
        """What tells the weights that were dropped from others, by their names."""

    def left(self, graph: Graph, bound: Graph) -> tuple[Graph, Graph]:
        """Return a graph and its bound form without weights, which the devices have by now."""
        if self._reread is None:
            return graph, bound
        outputs = set(graph.outputs)
        self._dropped = {
            name: _fingerprint(value)
            for name, value in graph.constants.items()
            if value.nbytes >= SHARED_FROM and name not in outputs
        }
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
        known = {name: _fingerprint(value) for name, value in read.constants.items() if name in self._dropped}
        if known != self._dropped or [str(n) for n in read.nodes] != [str(n) for n in graph.nodes]:
            raise ModelError(
                "the model's file has changed",
                where=f"network {graph.name!r}",
                why="in memory mode LIMIT a session reads it again for another shape",
                fix="load the model again, or use memory='normal'",
            )
        self._dropped = {}
        return read, bind(read, {i: bound.specs[i].dims for i in bound.inputs if bound.specs[i].is_static})


def _fingerprint(value: Array) -> tuple[object, ...]:
    return value.dtype, value.shape, sample_key(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
