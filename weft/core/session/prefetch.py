"""Prefetch a model: another thread reads and prepares it while its devices are being opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Generic, ParamSpec, TypeAlias, TypeVar

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
_End: TypeAlias = "tuple[Result | None, Exception | None, TracebackType | None, float]"
"""How a step ended: with a result, or an error and its traceback; and the seconds that it took."""


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


class _Step(Generic[Result]):
    """A step of a thread's work, for whoever needs its result.

    An error is raised as it came out of the step, without the frames of the executor or of others who asked before.
    """

    def __init__(self, thread: Executor, work: Callable[[], Result]) -> None:
        self._done: Future[_End[Result]] = thread.submit(_ended, work)

    @property
    def seconds(self) -> float:
        """Wait for the end of the step and return how long it took."""
        return self._done.result()[3]

    def wait(self) -> None:
        """Wait for the end of the step, whether it failed or not."""
        self._done.result()

    def result(self) -> Result:
        """Wait for the result and return it, or raise the step's error."""
        result, error, trace, _ = self._done.result()
        if error is not None:
            raise error.with_traceback(trace)
        return result  # type: ignore[return-value]  # a result where there is no error


def _ended(work: Callable[[], Result]) -> _End[Result]:
    begun = perf_counter()
    try:
        return work(), None, None, perf_counter() - begun
    except Exception as e:
        return None, e, e.__traceback__, perf_counter() - begun


class Prefetch:
    """The work of one thread on a model: read it, bind it to shapes, prepare the network.

    `own` are the user's passes. `resizes` says whether other shapes may follow. `thread` has one worker, so the steps
    run in order. Errors of reading, validating and binding are raised when the result is asked for.
    """

    def __init__(
        self, thread: Executor, read: Callable[[], Graph], shapes: Mapping[str, Shape] | None,
        precision: Precision, limits: Limits, own: Sequence[AnyPass] = (), *, resizes: bool = True,
    ) -> None:
        graph = self._graph = _Step(thread, read)
        bound = self._bound = _Step(thread, lambda: _bind(graph, shapes))
        networks = self._open = _Step(
            thread, lambda: OpenNetworks(graph.result(), precision, limits, own, tries=TRIES if resizes else 0)
        )
        self._network: _Step[PreparedNetwork | None] | None = _Step(thread, lambda: _prepare(bound, networks))

    @property
    def seconds(self) -> float:
        """Wait for the graph and its check, and return how long both took."""
        return self._graph.seconds + self._bound.seconds

    def graph(self) -> Graph:
        """Wait for the graph and return it."""
        return self._graph.result()

    def bound(self) -> Graph:
        """Wait for the validated graph and return it, bound to the given shapes."""
        return self._bound.result()

    def open_networks(self) -> OpenNetworks:
        """Wait for the network and return what prepares it, with what it kept of this preparation."""
        if self._network is not None:
            self._network.wait()
        return self._open.result()

    def take(self) -> PreparedNetwork | None:
        """Wait for the prepared network and return it; None if it was taken before, or could not be made.

        Only the caller holds it then: in memory mode LIMIT its weights must be freed once the devices have them.
        """
        network, self._network = self._network, None
        return None if network is None else network.result()


def _bind(graph: _Step[Graph], shapes: Mapping[str, Shape] | None) -> Graph:
    read = graph.result()
    validate(read)
    return bind(read, take_shapes(shapes or {}))


def _prepare(bound: _Step[Graph], networks: _Step[OpenNetworks]) -> PreparedNetwork | None:
    with suppress(Exception):  # the session prepares the network itself, and raises the error
        graph = bound.result()
        return None if graph.symbols() else networks.result().prepare(graph)
    return None
