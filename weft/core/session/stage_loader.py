"""Planning and loading the stages that come after the first one; see `weft.core.session.rests`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.core.contract.backend import SameNodes
from weft.core.graph.graph import Graph
from weft.core.placement.assign import Assignment, Backends
from weft.core.placement.check_network import check_devices
from weft.core.placement.lower_network import lower_network
from weft.core.placement.optimized_network import LaterStage, OptimizedNetwork, Tail
from weft.core.placement.optimizer import OptimizerOptions, divide, optimize
from weft.core.placement.replan import until_taken
from weft.core.saved.network_file import key_of_graph, stage_key
from weft.core.session.executable import Executable
from weft.core.session.loader import Loader
from weft.core.session.pipeline import Progress
from weft.errors import ModelError


@dataclass(frozen=True)
class Ahead:
    """How a stage is planned before a run: nothing is known of values but their largest shapes."""

    unknown: frozenset[str]
    """The inputs of whose values nothing is known."""
    most_bytes: int
    """A stage whose values take more than this many bytes is planned but not loaded."""
    progress: Progress | None = None
    about: str = ""
    """When a run comes to the stage."""


class StageSource(Protocol):
    """Plans a stage, and loads it where that is wanted."""

    @property
    def options(self) -> OptimizerOptions:
        """Return what stages are planned with."""
        ...

    def load(self, graph: Graph, same_nodes: SameNodes, ahead: Ahead | None) -> Executable | None:
        """Return a stage that is ready to run; None, only `ahead`, if it was only looked at."""
        ...


class LoadedStages:
    """Loads stages for a session on its devices; debug nodes run on the device `host`.

    `tail` holds stages that were planned before, as in a saved network: those are loaded as they are.
    """

    def __init__(
        self, loader: Loader, devices: Sequence[str], host: str, options: OptimizerOptions,
        tail: Tail | None = None,
    ) -> None:
        self._loader, self._devices, self._host, self.options = loader, devices, host, options
        self._planned: Mapping[str, OptimizedNetwork] = {}
        if tail is not None:
            self._planned = {key: stage.network for stage in tail.stages if (key := stage_key(stage))}

    def load(self, graph: Graph, same_nodes: SameNodes, ahead: Ahead | None) -> Executable | None:
        """Plan and load one stage.

        None if it is planned ahead and not loaded: a host's backends compile nothing, or it takes too much memory.
        """
        loader = self._loader.beside(same_nodes, None if ahead is None else ahead.progress)

        def attempt(before: Assignment) -> Executable | None:
            backends = loader.asked(self._devices)
            compiles = not all(backend.host_memory for backend in backends.values())
            if ahead is not None and not compiles and self.options.fallback != "error":
                return None
            network = self._optimized(graph, backends, before)
            if ahead is not None and not _worth_loading(network, backends, ahead):
                return None
            return loader.load(network)

        try:
            return until_taken(attempt)
        except BaseException:
            loader.now.close()
            raise
        finally:
            loader.close_spare()

    def _optimized(self, graph: Graph, backends: Backends, before: Assignment) -> OptimizedNetwork:
        """Return the network of a stage: the one that was planned for it before, unless a backend refused it."""
        known = self._planned.get(key_of_graph(graph)) if self._planned and not before.refusals else None
        if known is None:
            return lower_network(divide(graph, backends, self.options, host=self._host, before=before), backends)
        given, read = _specs(graph, graph.inputs), _specs(known.graph, known.graph.inputs)
        made, wanted = _specs(known.graph, known.graph.outputs), _specs(graph, graph.outputs)
        if made != wanted or not set(read) <= set(given):  # a run takes the outputs in order, and gives inputs by name
            raise ModelError(
                f"a later stage of network {graph.name!r} does not fit its place",
                why=f"it makes {', '.join(made)} of {', '.join(read)}, "
                f"and a run needs {', '.join(wanted)} of {', '.join(given)}",
                fix="optimise the model again",
            )
        check_devices(known, backends)
        return lower_network(known, backends)


@dataclass(frozen=True)
class CollectedStages:
    """Plans stages for backends that are asked and load nothing, and collects them."""

    backends: Backends
    options: OptimizerOptions
    host: str
    found: dict[str, LaterStage]
    """Receives the stages, by their keys."""

    def load(self, graph: Graph, same_nodes: SameNodes, ahead: Ahead | None) -> Executable | None:
        """Plan a stage; return None."""
        key = key_of_graph(graph) or f"stage {len(self.found)}"  # an op with an attribute that no file holds
        if key not in self.found:
            network = optimize(graph, self.backends, self.options, host=self.host)
            self.found[key] = later_stage(graph, network, "" if ahead is None else ahead.about)
        return None


def later_stage(graph: Graph, network: OptimizedNetwork, when: str) -> LaterStage:
    """Return the record of a stage; `when` says when a run comes to it."""
    read = ", ".join(f"{i}: {graph.specs[i]}" for i in graph.inputs)
    return LaterStage(f"{when + ', ' if when else ''}for {read or 'no inputs'}", network, graph)


def _specs(graph: Graph, values: Iterable[str]) -> list[str]:
    return [f"{value!r}: {graph.specs[value]}" for value in values]


def _worth_loading(network: OptimizedNetwork, backends: Backends, ahead: Ahead) -> bool:
    """Tell whether a load ahead of a run saves that run compiling, and takes no more memory than it may."""
    compiles = any(not backends[part.device].host_memory for part in network.parts if part.device in backends)
    return compiles and total_bytes(network.graph) <= ahead.most_bytes


def total_bytes(graph: Graph) -> int:
    """Return the bytes that the values of a graph take without its constants."""
    specs = (spec for name, spec in graph.specs.items() if name not in graph.constants)
    return sum(spec.size * spec.dtype.itemsize for spec in specs if spec.is_static)
