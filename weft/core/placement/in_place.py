"""Outputs that lie in the memory of inputs (`Graph.aliases`): which pairs can, and why the others cannot.

The state of a network is an input whose next value is an output. If one node writes the output into the input, and
nothing else reads the input, both are one piece of memory that stays on the device from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.contract.backend import Backend
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Layout
from weft.core.graph.op import WritingOp


def keeps_state(backend: Backend) -> bool:
    """Tell whether a backend's class itself says that it keeps state: a subclass does not inherit it."""
    return bool(vars(type(backend)).get("keeps_state", False))


def why_apart(graph: Graph, output: str, source: str) -> str:
    """Return why an output cannot lie in the memory of an input, as a sentence, or ""."""
    if source not in graph.inputs:
        return f"{source!r} is no input"
    maker = _maker(graph, output)
    if output not in graph.outputs or maker is None:
        return f"no node makes an output {output!r}"
    if not _writes(maker) or maker.inputs[0] != source:
        return f"{maker.op.type} {maker.name!r}, which makes {output!r}, does not write it into {source!r}"
    if graph.specs[output] != graph.specs[source]:
        return f"{output!r} is {graph.specs[output]} and {source!r} is {graph.specs[source]}"
    if any(graph.layouts.get(name, Layout.NCHW) is not Layout.NCHW for name in (output, source)):
        return f"{source!r} does not lie as NCHW"
    if graph.readers()[source] > 1:
        return f"more than {maker.op.type} {maker.name!r} reads {source!r}"
    return ""


def without_casts(graph: Graph, backends: Mapping[str, Backend]) -> Graph:
    """Return the graph with pairs in the type that the network stores inside, if a backend keeps state.

    The casts between floats go that stand behind the input and before the output.
    """
    if not graph.aliases or not any(map(keeps_state, backends.values())):
        return graph
    out = graph.copy()
    for output, source in graph.aliases.items():
        _uncast(out, output, source)
    return out


def _uncast(graph: Graph, output: str, source: str) -> None:
    makers, readers = graph.producers(), graph.readers()
    behind, before = makers.get(output), [node for node in graph.nodes if source in node.inputs]
    if behind is None or behind.op.type != "Cast" or readers[source] != 1 or before[0].op.type != "Cast":
        return
    given, made = before[0].outputs[0], behind.inputs[0]
    writer, specs = makers.get(made), graph.specs
    if writer is None or not _writes(writer) or writer.inputs[0] != given or readers[given] != 1:
        return
    if made in graph.outputs or not all(specs[name].dtype.is_float for name in (source, given, made, output)):
        return
    names = {given: source, made: output}

    def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(value, value) for value in values)

    kept = (node for node in graph.nodes if node is not before[0] and node is not behind)
    graph.nodes = [replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs)) for node in kept]
    for inner, edge in names.items():
        specs[edge] = specs.pop(inner)


def settle(graph: Graph, device: Mapping[str, str], backends: Mapping[str, Backend]) -> list[str]:
    """Take out the pairs that cannot share memory, or whose device does not keep state; return a note on each."""
    notes = []
    for output, source in [*graph.aliases.items()]:
        why = why_apart(graph, output, source)
        maker = _maker(graph, output)
        if not why and maker is not None:
            where = device[maker.name]
            why = "" if where in backends and keeps_state(backends[where]) else f"{where} does not keep state"
        if why:
            del graph.aliases[output]
            notes.append(f"{output!r} is copied to {source!r} after each run: {why}")
    return notes


def _maker(graph: Graph, output: str) -> Node | None:
    return next((node for node in graph.nodes if output in node.outputs), None)


def _writes(node: Node) -> bool:
    return isinstance(node.op, WritingOp) and node.op.in_place
