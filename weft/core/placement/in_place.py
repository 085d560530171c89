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


def why_apart(graph: Graph) -> dict[str, str]:
    """Return why outputs cannot lie in the memory of their inputs (`Graph.aliases`), a sentence each, by output."""
    if not graph.aliases:
        return {}
    makers, readers = graph.producers(), graph.readers()
    found = {o: _why_apart(graph, makers.get(o), readers[i], o, i) for o, i in graph.aliases.items()}
    return {output: why for output, why in found.items() if why}


def _why_apart(graph: Graph, maker: Node | None, readers: int, output: str, source: str) -> str:
    if source not in graph.inputs:
        return f"{source!r} is no input"
    if output not in graph.outputs or maker is None:
        return f"no node makes an output {output!r}"
    if not writes(maker, output, source):
        return f"{maker.op.type} {maker.name!r}, which makes {output!r}, does not write it into {source!r}"
    if graph.specs[output] != graph.specs[source]:
        return f"{output!r} is {graph.specs[output]} and {source!r} is {graph.specs[source]}"
    if any(graph.layouts.get(name, Layout.NCHW) is not Layout.NCHW for name in (output, source)):
        return f"{source!r} does not lie as NCHW"
    return f"more than {maker.op.type} {maker.name!r} reads {source!r}" if readers > 1 else ""


def stored(graph: Graph) -> dict[str, tuple[str, str]]:
    """Return the pairs as the network stores them, by output: behind casts between floats that stand at its edges."""
    if not graph.aliases:
        return {}
    makers, readers, pairs = graph.producers(), graph.readers(), dict[str, tuple[str, str]]()
    for output, source in graph.aliases.items():
        behind, before = makers.get(output), next((node for node in graph.nodes if source in node.inputs), None)
        if behind is not None and before is not None and _casts(graph, behind) and _casts(graph, before):
            made, given = behind.inputs[0], before.outputs[0]
            if readers[source] == 1 and made not in graph.outputs:
                pairs[output] = made, given
                continue
        pairs[output] = output, source
    return pairs


def _casts(graph: Graph, node: Node) -> bool:
    names = (node.inputs[0], node.outputs[0]) if node.op.type == "Cast" else ()
    return bool(names) and all(graph.specs[name].dtype.is_float for name in names)


def writes(node: Node, output: str, source: str) -> bool:
    """Tell whether a node writes the one value into the other."""
    in_place = isinstance(node.op, WritingOp) and node.op.in_place
    return in_place and node.outputs[0] == output and node.inputs[0] == source


def without_casts(graph: Graph, backends: Mapping[str, Backend]) -> Graph:
    """Return the graph with pairs in the type that the network stores inside, if a backend keeps state.

    The casts between floats go that stand behind the input and before the output.
    """
    if not graph.aliases or not any(map(keeps_state, backends.values())):
        return graph
    makers, readers, names = graph.producers(), graph.readers(), dict[str, str]()
    for output, (made, given) in stored(graph).items():
        if made in names:
            continue  # it is cast to two outputs
        if made != output and made in makers and writes(makers[made], made, given) and readers[given] == 1:
            names |= {made: output, given: graph.aliases[output]}
    if not names:
        return graph

    def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(value, value) for value in values)

    out, casts = graph.copy(), {*names.items(), *((edge, inner) for inner, edge in names.items())}
    kept = (node for node in graph.nodes if (*node.inputs[:1], *node.outputs[:1]) not in casts)
    out.nodes = [replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs)) for node in kept]
    for inner, edge in names.items():
        out.specs[edge] = out.specs.pop(inner)
    return out


def settle(graph: Graph, device: Mapping[str, str], backends: Mapping[str, Backend]) -> list[str]:
    """Take out the pairs that cannot share memory, or whose device does not keep state; return a note on each."""
    apart, makers, notes = why_apart(graph), graph.producers(), list[str]()
    for output, source in [*graph.aliases.items()]:
        why = apart.get(output, "")
        if not why:
            where = device[makers[output].name]
            why = "" if where in backends and keeps_state(backends[where]) else f"{where} does not keep state"
        if why:
            del graph.aliases[output]
            notes.append(f"{output!r} is copied to {source!r} after each run: {why}")
    return notes
