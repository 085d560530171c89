"""A model that another thread reads and makes ready while its devices are being opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress

from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.graph.validate import validate
from weft.core.passes import AnyPass
from weft.core.placement.prepare import Network, prepare_network
from weft.core.session.arguments import take_shapes


class Ahead:
    """What one thread makes of a model: its graph, the graph bound to shapes, the network; each step is done once.

    `own` are passes of the user's. `thread` has one worker, which takes the steps in order. Errors of reading,
    validating and binding are raised to whoever asks for the result.
    """

    def __init__(
        self,
        thread: Executor,
        read: Callable[[], Graph],
        shapes: Mapping[str, Shape] | None,
        precision: Precision,
        limits: Limits,
        own: Sequence[AnyPass] = (),
    ) -> None:
        self._graph = thread.submit(read)
        self._bound = thread.submit(_bind, self._graph, shapes)
        self._network: Future[Network | None] | None = thread.submit(_prepare, self._bound, precision, limits, own)

    def graph(self) -> Graph:
        """Return the graph, waiting for it."""
        return self._graph.result()

    def bound(self) -> Graph:
        """Return the validated graph with the shapes, of which some may be open still, waiting for it."""
        return self._bound.result()

    def take(self) -> Network | None:
        """Return the network, waiting for it; None if it was taken, or could not be made ahead.

        Nobody else holds it then: in memory mode LIMIT its weights must go when the devices have them.
        """
        network, self._network = self._network, None
        return None if network is None else network.result()


def _bind(graph: Future[Graph], shapes: Mapping[str, Shape] | None) -> Graph:
    read = graph.result()
    validate(read)
    return bind(read, take_shapes(shapes or {}))


def _prepare(bound: Future[Graph], precision: Precision, limits: Limits, own: Sequence[AnyPass]) -> Network | None:
    with suppress(Exception):  # a session prepares the network without it, and meets the error where it is told
        graph = bound.result()
        return None if graph.symbols() else prepare_network(graph, precision, limits, own)
    return None
