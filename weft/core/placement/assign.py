"""Assign nodes to backends, and record why the others refuse them (A2, A3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend
from weft.core.contract.error_context import at_node, blame, callback_of
from weft.core.graph.described import described
from weft.core.graph.graph import Graph, Node
from weft.core.placement.hints import Hints
from weft.errors import Problem, Refusal, UnsupportedOps

Backends = Mapping[str, Backend]
"""A backend object to ask for each device, in the user's order of preference."""


@dataclass
class Assignment:
    """The device of every node, and why the devices before it in the order of preference do not run it."""

    device: dict[str, str] = field(default_factory=dict)
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    """By (node, device)."""

    def copy(self) -> Assignment:
        """Return one that changes by itself."""
        return Assignment(dict(self.device), dict(self.refusals))

    def refuse(self, node: Node, device: str, reason: str) -> None:
        """Record a refusal; the device is not asked for this node again."""
        self.refusals[node.name, device] = Refusal(node.name, node.op.type, device, reason)


def assign(
    graph: Graph,
    backends: Backends,
    hints: Mapping[str, str] | Hints | None = None,
    *,
    before: Assignment | None = None,
) -> Assignment:
    """Assign each node to the first backend, in order, that supports it; a hint puts its device first.

    `hints` are devices by node name or pattern ("block3/*"). `before` holds refusals that came up earlier; it is
    changed and returned. UnsupportedOps names all nodes that no backend takes, each with every backend's reason.
    """
    result, hints = before or Assignment(), Hints.of(hints)
    left = [node for node in graph.nodes if not assign_node(graph, node, backends, hints, result)]
    if left:
        raise unsupported(left, backends, result)
    _move_casts(graph, backends, hints, result)
    return result


def assign_node(graph: Graph, node: Node, backends: Backends, hints: Hints, result: Assignment) -> bool:
    """Assign one node, unless every backend refuses it now or did before; return whether one takes it."""
    hint = hints.device(node.name)
    order = [d for d in (hint, *(d for d in backends if d != hint)) if d is not None]
    taker = next((d for d in order if _supports(graph, node, d, backends[d], result)), None)
    if taker is None:
        result.device.pop(node.name, None)
        return False
    result.device[node.name] = taker
    return True


def unsupported(nodes: Sequence[Node], backends: Backends, result: Assignment) -> UnsupportedOps:
    """Return the error for nodes that no backend takes, with every backend's reason and what to do next."""
    reasons = {n.name: [f"{d}: {result.refusals[n.name, d].reason}" for d in backends] for n in nodes}
    problems = [Problem(n.name, f" ({n.op.type}): {'; '.join(reasons[n.name])}") for n in nodes]
    if any(b.info.id == "cpu" for b in backends.values()):
        fix = "name a device that takes them; what a backend compiled runs on that backend alone"
    else:
        fix = 'allow the CPU: fallback="cpu"'
    return UnsupportedOps(
        f"{len(problems)} node(s) run on none of {', '.join(backends)}",
        problems,
        fix=fix,
        refusals=tuple(result.refusals.values()),
    )


def _supports(graph: Graph, node: Node, device: str, backend: Backend, result: Assignment) -> bool:
    """Ask a backend, and note its reason."""
    if (node.name, device) in result.refusals:
        return False
    reason = why_not(graph, node, device, backend)
    if reason is not None:
        result.refuse(node, device, reason)
    return reason is None


def why_not(graph: Graph, node: Node, device: str, backend: Backend) -> str | None:
    """Return why a backend refuses a node, or None if it takes it; BackendError for any other answer."""
    inputs, outputs = described(graph, node)
    try:
        answer = backend.why_not(inputs, outputs, node.op)
        if answer is None:
            return None
        return check_answers.reason(answer, f"{at_node(node, device)}: {callback_of(backend, 'why_not')}")
    except Exception:
        what, callback = "the backend could not say whether it takes a node", callback_of(backend, "why_not")
        with blame(at_node(node, device), what, callback=callback):
            raise


def _move_casts(graph: Graph, backends: Backends, hints: Hints, result: Assignment) -> None:
    """Move the casts that precision LOW adds at inputs and outputs to the device of their neighbours.

    On another device they would cost parts and copies.
    """
    makers, readers = graph.producers(), graph.readers()
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    reading: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for i in dict.fromkeys(node.inputs):
            reading.setdefault(i, []).append(node)
    for node in graph.nodes:
        if node.op.type != "Cast" or hints.device(node.name) is not None:
            continue
        value, made = node.inputs[0], node.outputs[0]
        near: list[Node] = []
        if value in inputs:
            near = reading.get(made, [])
        elif made in outputs and readers[made] == 1 and value in makers:
            near = [makers[value]]
        devices = {result.device[n.name] for n in near}
        if len(devices) == 1 and result.device[node.name] not in devices:
            (there,) = devices
            known = (node.name, there) in result.refusals
            if not known and why_not(graph, node, there, backends[there]) is None:
                result.device[node.name] = there
