"""Which backend runs which node, and the reasons of those that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.core.backend import Backend
from weft.core.blame import at_node, blame
from weft.core.graph import Graph, Node
from weft.core.layout import Layout
from weft.core.tensor import Tensor
from weft.errors import BackendError, UnsupportedOps


@dataclass
class Assignment:
    """The device of every node, and for each node the reasons of the preferred devices that refused it."""

    device: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, dict[str, str]] = field(default_factory=dict)


def describe(graph: Graph, name: str) -> Tensor:
    """Return a tensor without memory that describes a value, for questions of support."""
    spec = graph.specs[name]
    layout = graph.layouts.get(name, Layout.NCHW)
    return Tensor(name, spec.dims, spec.dtype, layout, constant=graph.constants.get(name))


def described(graph: Graph, node: Node) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return the described inputs and outputs of a node."""
    inputs = [describe(graph, i) if i else None for i in node.inputs]
    return inputs, [describe(graph, o) for o in node.outputs if o]


def assign(
    graph: Graph, backends: Mapping[str, Backend], refused: Mapping[tuple[str, str], str] | None = None
) -> Assignment:
    """Give each node to the first backend, in order, that supports it.

    `refused` holds reasons that came up later, by (node, device). Nodes that nobody takes raise
    UnsupportedOps, all of them, each with every backend's reason.
    """
    result = Assignment()
    problems: list[str] = []
    for node in graph.nodes:
        inputs, outputs = described(graph, node)
        reasons: dict[str, str] = {}
        for device, backend in backends.items():
            with blame(at_node(node, device), "the backend could not say whether it takes a node"):
                why = (refused or {}).get((node.name, device)) or backend.why_not(inputs, outputs, node.op)
            if why is None:
                result.device[node.name] = device
                break
            if not why.strip():
                raise BackendError(f"{device} refused {node.name!r} ({node.op.type}) with an empty reason")
            reasons[device] = why
        else:
            problems.append(f"{node.name!r} ({node.op.type}): " + "; ".join(f"{d}: {w}" for d, w in reasons.items()))
        if reasons:
            result.refusals[node.name] = reasons
    if problems:
        raise UnsupportedOps(
            f"{len(problems)} node(s) run on none of {', '.join(backends)}",
            tuple(problems),
            fix='add "cpu" to the devices, or register an implementation',
        )
    return result


@dataclass
class Part:
    """Consecutive nodes of one device, as a graph of its own."""

    device: str
    graph: Graph


def split(graph: Graph, device: Mapping[str, str]) -> list[Part]:
    """Return the graph as parts, each the longest run of consecutive nodes of one device."""
    runs: list[tuple[str, list[Node]]] = []
    for node in graph.nodes:
        if not runs or runs[-1][0] != device[node.name]:
            runs.append((device[node.name], []))
        runs[-1][1].append(node)
    return [Part(where, _subgraph(graph, f"{graph.name}.{k}", nodes)) for k, (where, nodes) in enumerate(runs)]


def _subgraph(graph: Graph, name: str, nodes: Sequence[Node]) -> Graph:
    made = {o for n in nodes for o in n.outputs if o}
    read = dict.fromkeys(i for n in nodes for i in n.inputs if i)
    names = {n.name for n in nodes}
    outside = {i for n in graph.nodes if n.name not in names for i in n.inputs} | set(graph.outputs)
    constants = {i: graph.constants[i] for i in read if i in graph.constants}
    inputs = [i for i in read if i not in made and i not in constants]
    part = Graph(name, inputs, [o for n in nodes for o in n.outputs if o in outside], list(nodes))
    part.constants = constants
    part.specs = {v: graph.specs[v] for v in [*read, *made]}
    return part
