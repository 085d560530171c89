"""The last step of optimising: each backend lowers its parts, so what is printed is what runs.

Lowering depends on all shapes and on the device's capabilities. So it runs again whenever one of them may have changed:
at each resize, and when an optimised network is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.contract import check_answers
from weft.core.contract.backend import Backend
from weft.core.contract.engine import Engine
from weft.core.contract.error_context import blame, callback_of
from weft.core.contract.lowered import Lowered, difference
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.core.graph.validate import graph_problems, misdeclared
from weft.core.placement.optimized_network import OptimizedNetwork, Part
from weft.errors import BackendError, listing


def lower_network(network: OptimizedNetwork, backends: Mapping[str, Backend]) -> OptimizedNetwork:
    """Return the network with each part lowered by a backend of its device.

    A part whose device has no backend here stays as it is: debug nodes on the host. A note is added if the network was
    lowered to other launches before, and one for each output whose declared shape is wrong.
    """
    parts = tuple(
        lower_part(part, backends[part.device]) if part.device in backends else part for part in network.parts
    )
    notes = [_note(before, now) for before, now in zip(network.parts, parts, strict=True)]
    steps = [step for part in parts if part.lowered is not None for step in part.lowered.steps]
    journal = network.journal.lowered(steps)
    told = dict.fromkeys((*network.notes, *misdeclared(network.graph).values(), *filter(None, notes)))
    return replace(network, parts=parts, notes=tuple(told), journal=journal)


def lower_part(part: Part, backend: Backend) -> Part:
    """Return a part with its lowered graph; BackendError if that graph cannot run in its place.

    PlanAgain if the backend has learned meanwhile that its device can do less.
    """
    if not isinstance(backend, Engine) or type(backend).lower is Engine.lower:
        return replace(part, lowered=None)
    graph, at = part.graph, f"{part.device}: {callback_of(backend, 'lower')}"
    with blame(part.device, "the backend failed in lower", callback=callback_of(backend, "lower")):
        made: object = backend.lower(graph.copy())
    lowered = check_answers.optional(made, Lowered, at, "a Lowered")
    if lowered is None:
        return replace(part, lowered=None)
    problems = _other_interface(graph, lowered.graph) or [*graph_problems(lowered.graph), *_unknown_names(lowered)]
    if problems:
        raise BackendError(
            "the backend lowered its part to a graph that cannot run in its place",
            where=at,
            why=listing(problems),
            fix="keep the part's inputs and outputs as they are; a value needs a spec, and is made before it is read",
        )
    return replace(part, lowered=lowered)


def _other_interface(part: Graph, lowered: Graph) -> list[str]:
    """Return how inputs and outputs differ; other parts and copies rely on their names, specs and layouts."""
    if (lowered.inputs, lowered.outputs) != (part.inputs, part.outputs):
        return [
            f"its inputs and outputs were {part.inputs} -> {part.outputs} and are "
            f"{lowered.inputs} -> {lowered.outputs}"
        ]
    problems = []
    for name in dict.fromkeys([*part.inputs, *part.outputs]):
        was, now = (f"{g.specs.get(name)} {g.layouts.get(name, Layout.NCHW).value}" for g in (part, lowered))
        if was != now:
            problems.append(f"{name!r} was {was} and is {now}")
    added = lowered.aliases.items() - part.aliases.items()
    return problems + [f"{output!r} lies in {source!r}, and did not" for output, source in sorted(added)]


def _unknown_names(lowered: Lowered) -> list[str]:
    """Return the values without a spec, and the names in layouts, views and launches that the graph does not have."""
    graph = lowered.graph
    values = {*graph.inputs, *graph.constants, *(o for node in graph.nodes for o in node.outputs)}
    nodes = {node.name for node in graph.nodes}
    problems = [f"{name!r} has no shape and type (Graph.specs)" for name in values - graph.specs.keys() if name]
    problems += [f"a layout names {name!r}, which is no value" for name in graph.layouts.keys() - values]
    views = {*lowered.views, *(view.root for view in lowered.views.values())}
    problems += [f"a view names {name!r}, which is no value" for name in views - values]
    launches = dict.fromkeys(launch.node for launch in lowered.launches if launch.node not in nodes)
    return sorted(problems) + [f"a launch names {name!r}, which is no node" for name in launches]


def _note(before: Part, now: Part) -> str:
    if before.listing is None or now.listing is None:
        return ""
    differs = difference(before.listing, now.listing)
    return f"{now.device} does not launch what the optimised network lists: {differs}" if differs else ""
