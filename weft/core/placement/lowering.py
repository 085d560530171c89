"""The last step of optimising: each backend lowers its parts, so that what is printed is what runs.

It needs the shapes of all values, and the capabilities of the device, which the backend object knows. It is done anew
where one of them may have changed: at each resize, and where an optimised network is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend
from weft.core.contract.error_context import blame, callback_of
from weft.core.contract.lowered import Lowered, difference
from weft.core.graph.graph import Graph
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.errors import BackendError


def lower_network(network: OptimizedNetwork, backends: Mapping[str, Backend]) -> OptimizedNetwork:
    """Return the network with its parts lowered by backend objects of their devices.

    Parts on the host, where debug nodes run, stay as they are if there is no backend object for it.
    If the network listed other launches before, as a file from another device does, a note says so.
    """
    parts = tuple(
        lower_part(part, backends[part.device]) if part.device in backends else part for part in network.parts
    )
    notes = [_note(before, now) for before, now in zip(network.parts, parts, strict=True)]
    return replace(network, parts=parts, notes=(*network.notes, *filter(None, notes)))


def lower_part(part: Part, backend: Backend) -> Part:
    """Return a part with what its backend makes of it; BackendError if that has other inputs or outputs."""
    if type(backend).lower is Backend.lower:
        return replace(part, lowered=None, told=None)
    graph, at = part.graph, f"{part.device}: {callback_of(backend, 'lower')}"
    with blame(part.device, "the backend failed in lower", callback=callback_of(backend, "lower")):
        made: object = backend.lower(graph.copy())
    lowered = Lowered(made) if isinstance(made, Graph) else made
    what, fix = "the graph that the backend runs, or a Lowered", "return the graph as it came"
    lowered = check_answers.of_kind(lowered, Lowered, at, what, fix)
    if (lowered.graph.inputs, lowered.graph.outputs) != (graph.inputs, graph.outputs):
        raise BackendError(
            "the backend lowered its part to one with other inputs and outputs",
            where=at,
            why=f"they were {graph.inputs} -> {graph.outputs} and are "
            f"{lowered.graph.inputs} -> {lowered.graph.outputs}",
        )
    return replace(part, lowered=lowered, told=None)


def _note(before: Part, now: Part) -> str:
    if before.listing is None or now.listing is None:
        return ""
    differs = difference(before.listing, now.listing)
    return f"{now.device} does not launch what the optimised network lists: {differs}" if differs else ""
