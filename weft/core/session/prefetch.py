"""A network that another thread makes ready while its devices are being opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
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
    """What `prepare_ahead` makes of a graph, begun before there is a session; it is taken once.

    Taken, it is held by nobody else: in memory mode LIMIT its weights must go when the devices have them.
    """

    def __init__(self, network: Future[Network | None]) -> None:
        self._network: Future[Network | None] | None = network

    def take(self) -> Network | None:
        """Return the network, waiting for it; None if it was taken, or could not be made ahead."""
        network, self._network = self._network, None
        return None if network is None else network.result()


def prepare_ahead(
    graph_of: Callable[[], Graph], shapes: Mapping[str, Shape] | None, precision: Precision, limits: Limits,
    own: Sequence[AnyPass] = (),
) -> Network | None:
    """Return the network of a graph with these shapes; None where some are open, or something is wrong with it."""
    with suppress(Exception):  # a session does the same steps without it, and meets the error where it is told
        graph = graph_of()
        validate(graph)
        bound = bind(graph, take_shapes(shapes or {}))
        return None if bound.symbols() else prepare_network(bound, precision, limits, own)
    return None
