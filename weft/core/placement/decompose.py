"""Take ops apart that a device refuses, if it runs all of their parts; and those of which a part keeps state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.core.graph.composite import Body, Composite, Decomposition, decomposition_of
from weft.core.graph.graph import Graph, Names, Node
from weft.core.passes.journal import Journal
from weft.core.placement.assign import Backends, why_not
from weft.core.placement.hints import Hints
from weft.core.placement.in_place import keeps_state, stored, writes


def decompose_refused(
    graph: Graph,
    backends: Backends,
    hints: Mapping[str, str] | Hints | None = None,
    journal: Journal | None = None,
) -> tuple[Graph, list[str]]:
    """Return the graph with some ops replaced by their parts, and a note on each.

    A node is taken apart if its device (that of its hint, else the first) refuses the op and takes every part. If not,
    it stays, and the next devices are asked. So is a node whose output may lie in an input (`Graph.aliases`) if a part
    of it writes the one into the other. A node's hint passes to its parts; the `journal` receives the changes.
    """
    out, notes, names, hints = graph.copy(), list[str](), Names(graph), Hints.of(hints)
    reasons: dict[str, str] = {}
    read, pairs = graph.readers(), dict(stored(graph).values())
    out.nodes = []
    for node in graph.nodes:
        device = hints.device(node.name) or next(iter(backends))
        backend = backends[device]
        reason = why_not(graph, node, device, backend) if decomposition_of(node.op) is not None else None
        state = {o: pairs[o] for o in node.outputs if o in pairs and keeps_state(backend)}
        if reason is None and not (state and decomposition_of(node.op) is not None):
            out.nodes.append(node)
            continue
        added: list[str] = []
        shared = replace(node, op=node.op.sharing()) if state and isinstance(node.op, Composite) else node
        nodes = _parts(out, shared, names, lambda part: why_not(out, part, device, backend) is None, added)  # noqa: B023
        why = f"{device} refuses {node.op.type} and takes its parts: {reason}"
        if reason is None and nodes is not None:
            written = [o for part in nodes for o in part.outputs[:1] if o in state and writes(part, o, state[o])]
            nodes = nodes if written else None
            why = reason = f"a part of it writes {', '.join(map(repr, written))} in place"
        if nodes is not None:
            nodes = _live(nodes, {o for o in node.outputs if read[o]})
            out.nodes += nodes
            reasons[node.name] = why
            hints.carry(node.name, [n.name for n in nodes])
            notes.append(f"{node.name!r} ({node.op.type}) runs in {len(nodes)} parts: {device}: {reason}")
        else:
            for name in added:
                out.specs.pop(name, None)
                out.constants.pop(name, None)
            out.nodes.append(node)
    if notes and journal is not None:
        purpose = "Take ops apart that a device refuses, if it runs all of their parts."
        journal.note("decompose_refused", graph.nodes, out.nodes, out.outputs, purpose=purpose, reasons=reasons)
    return out, notes


def _parts(
    graph: Graph, node: Node, names: Names, takes: Callable[[Node], bool], added: list[str]
) -> list[Node] | None:
    """Return the parts of a node, which the device takes, or None; parts that it refuses are taken apart again."""
    decompose = decomposition_of(node.op)
    if decompose is None:
        return None
    whole: list[Node] = []
    for part in _decomposed(graph, node, decompose, names, added):
        inner = [part] if takes(part) else _parts(graph, part, names, takes, added)
        if inner is None:
            return None
        whole += inner
    return whole or None


def _live(nodes: list[Node], wanted: set[str]) -> list[Node]:
    """Return the nodes that make something that is read."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _decomposed(graph: Graph, node: Node, decompose: Decomposition, names: Names, added: list[str]) -> list[Node]:
    """Return the parts that make the outputs of a node, none if it stays whole; `added` gets the values they bring."""
    make = Body(graph, node.name, names)
    specs = [graph.specs[o] for o in node.outputs if o]
    if len(specs) == len(node.outputs) and not any(spec.size for spec in specs):
        results: Sequence[str] = [make.zeros(spec.dtype, *spec.dims) for spec in specs]
    else:
        results = decompose(node.op, make, node)
    added += make.added
    return make.finish(results[: len(node.outputs)], node.outputs) if results else []
