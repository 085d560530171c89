"""The model that a command reads."""

from __future__ import annotations

from pathlib import Path

from weft.cli.console import working
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Limits
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.front_ends import ReadOptions, front_ends
from weft.errors import ConfigError


def is_optimized(path: Path) -> bool:
    """Tell whether a file holds a network that was optimised; ModelError if no front end reads it."""
    return front_ends.choose(path).optimized


def read_model(path: Path, limits: Limits, signature: str | None = None) -> Graph:
    """Return the network of a file, or of one of its signatures, within limits; ConfigError for a saved network."""
    if is_optimized(path):
        raise ConfigError(
            f"{path.name} is a saved network, and this command takes a model",
            where=str(path),
            why="it was rewritten and divided over its devices already",
            fix=f"name the model that it was made from; `weft run {path}` runs it as it is",
        )
    with working(f"reading {path.name}"):
        graph = front_ends.read(path, ReadOptions(limits, signature=signature))
    assert isinstance(graph, Graph)  # what `read` of a front end for models returns
    return graph


def read_optimized(path: Path) -> OptimizedNetwork:
    """Return the network in a file of one that was optimised."""
    network = front_ends.read(path)
    assert isinstance(network, OptimizedNetwork)  # what `read` of such a front end returns
    return network


def stateless(graph: Graph) -> Graph:
    """Return a network whose own state is ordinary inputs and outputs, so that all its runs are alike."""
    out = graph.copy()
    out.state, out.initial = {}, {}
    return out
