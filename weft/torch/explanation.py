"""`weft.torch.explain`: where a model's graph breaks, what Weft runs of it, where, and why not the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from weft.errors import grouped
from weft.torch.dynamo import Compiled, backend, heard
from weft.torch.options import Options


@dataclass(frozen=True)
class GraphPart:
    """One graph of Dynamo: how many nodes it has, how many each device runs, and the nodes left to PyTorch."""

    nodes: int
    nodes_by_device: Mapping[str, int]
    """Weft's nodes after its rewrites, which join many."""
    refused: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False
    """Whether the network of an earlier graph serves it."""


@dataclass(frozen=True)
class Explanation:
    """What became of a model. Print it."""

    graphs: tuple[GraphPart, ...]
    breaks: Mapping[str, int]
    """Why a graph ends and another begins, each with its number."""

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s), {sum(self.breaks.values())} graph break(s)"]
        for number, graph in enumerate(self.graphs):
            places = ", ".join(f"{d}: {n}" for d, n in graph.nodes_by_device.items()) or "nothing on Weft"
            lines.append(f"graph {number}: {graph.nodes} nodes of PyTorch; nodes that Weft made of them: {places}")
            lines += [f"  to PyTorch: {each}" for each in grouped(graph.refused.values())]
        lines += [f"break ({count}): {reason}" for reason, count in self.breaks.items()]
        return "\n".join(lines)


def explain(
    model: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Explanation:
    """Return what `torch.compile(model, backend="weft", options=options)` makes of a call, which it does once."""
    Options.of(options, "weft.torch.explain")
    with heard() as made, torch.no_grad():
        # A backend of its own, so that nothing that was compiled before serves the call.
        torch.compile(model, backend=partial(backend, options=options))(*args, **kwargs)
        parts = tuple(map(_part, made))
    return Explanation(parts, Counter(graph.end for graph in made if graph.end))


def _part(made: Compiled) -> GraphPart:
    devices: Counter[str] = Counter()
    for runner in made.runners:
        for session in runner.sessions:
            devices.update(session.report.nodes_by_device)
    return GraphPart(made.nodes, dict(devices), {n: str(p) for n, p in made.refused.items()}, made.reused)
