"""Prefetch a model: another thread reads and prepares it while its devices are being opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from typing import ParamSpec, TypeVar

from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.graph.validate import validate
from weft.core.passes import AnyPass
from weft.core.placement.open_network import TRIES, OpenNetworks
from weft.core.placement.prepare import PreparedNetwork
from weft.core.session.arguments import take_shapes

MOST_NODES_AT_ONCE = 8
"""Up to how many nodes a graph is prepared at once: that takes less time than to start a thread."""
Given = ParamSpec("Given")
Result = TypeVar("Result")


class AtOnce(Executor):
    """Runs each step when it is submitted, in the thread that submits it."""

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Return the result of a step that has ended; what ends the program is raised here."""
        done: Future[Result] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Prefetch:
    """The work of one thread on a model: read it, bind it to shapes, prepare the network.

    `own` are the user's passes. `resizes` says whether other shapes may follow. `thread` has one worker, so the steps
    run in order. Errors of reading, validating and binding are raised when the result is asked for.
    """

    def __init__(
        self,
        thread: Executor,
        read: Callable[[], Graph],
        shapes: Mapping[str, Shape] | None,
        precision: Precision,
        limits: Limits,
        own: Sequence[AnyPass] = (),
        *,
        resizes: bool = True,
    ) -> None:
        self._graph = thread.submit(read)
        self._bound = thread.submit(_bind, self._graph, shapes)
        self._open = thread.submit(
            lambda: OpenNetworks(self._graph.result(), precision, limits, own, tries=TRIES if resizes else 0)
        )
        self._network: Future[PreparedNetwork | None] | None = thread.submit(_prepare, self._bound, self._open)

    def graph(self) -> Graph:
        """Wait for the graph and return it."""
        return self._graph.result()

    def bound(self) -> Graph:
        """Wait for the validated graph and return it, bound to the given shapes."""
        return self._bound.result()

    def open_networks(self) -> OpenNetworks:
        """Wait for the network and return what prepares it, with what it kept of this preparation."""
        if self._network is not None:
            wait([self._network])
        return self._open.result()

    def take(self) -> PreparedNetwork | None:
        """Wait for the prepared network and return it; None if it was taken before, or could not be made.

        Only the caller holds it then: in memory mode LIMIT its weights must be freed once the devices have them.
        """
        network, self._network = self._network, None
        return None if network is None else network.result()


def _bind(graph: Future[Graph], shapes: Mapping[str, Shape] | None) -> Graph:
    read = graph.result()
    validate(read)
    return bind(read, take_shapes(shapes or {}))


def _prepare(bound: Future[Graph], networks: Future[OpenNetworks]) -> PreparedNetwork | None:
    with suppress(Exception):  # the session prepares the network itself, and raises the error
        graph = bound.result()
        return None if graph.symbols() else networks.result().prepare(graph)
    return None
