"""From a network in the making to a graph: names its values, and reports all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, sort_nodes
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError, listed
from weft.frontends.builder.layers import OpLayer
from weft.frontends.builder.slots import OutputSlot

if TYPE_CHECKING:
    from weft.frontends.builder.network import Network


def near(name: str, known: Iterable[str]) -> str:
    """Return ": did you mean ...?" with the known names that resemble a wrong one; "" if none does."""
    by_lower = {k.lower(): k for k in known}
    found = [by_lower[k] for k in difflib.get_close_matches(str(name).lower(), by_lower)]
    return f": did you mean {' or '.join(map(repr, found))}?" if found else ""


def to_graph(net: Network) -> Graph:
    """Return the graph of a network; ModelError lists all that is wrong with it."""
    problems = [
        f"input {s.index}{_label(layer, s.index)} of {layer.name!r} ({layer.op.type}) is not connected"
        for layer in net.layers.values()
        for s in layer.required()
    ]
    lost = [name for name, slot in net.outputs.items() if slot is None]
    problems += [f"output {name!r} shows nothing: its layer was removed" for name in lost]
    if not net.outputs:
        problems.append("it has no outputs: add_output says what is to be computed")
    graph = _graph(net)
    try:
        graph.nodes = sort_nodes(graph.nodes, {*graph.inputs, *graph.constants})
    except ModelError as e:
        problems.append(e.short)
    problems += net.inference().problems
    if problems:
        raise ModelError(
            f"network {net.name!r} is not complete: {len(problems)} problem(s)",
            why="\n    ".join(("", *listed(problems))),
            fix="mend these, then load the network again",
        )
    return graph


def describe(net: Network) -> str:
    """Return the network as text: a line for each layer, with what it reads and what is known of its outputs."""
    lines = [f"network {net.name}"]
    lines += [f"  input  {name}: {layer.spec}" for name, layer in net.inputs.items()]
    for layer in net.layers.values():
        sources = ", ".join("-" if s.source is None else _short(s.source) for s in layer.inputs)
        specs = ", ".join(str(s.spec or "?") for s in layer.outputs)
        lines.append(f"  {layer.name} = {layer.op}({sources})  -> {specs}")
    return "\n".join(lines + [f"  output {n}: {'-' if s is None else _short(s)}" for n, s in net.outputs.items()])


def _short(slot: OutputSlot) -> str:
    return slot.layer.name if slot.index == 0 else f"{slot.layer.name}.{slot.index}"


def _label(layer: OpLayer, index: int) -> str:
    label = layer.signature.label(index)
    return f" ({label})" if label else ""


def _graph(net: Network) -> Graph:
    names, copies = _names(net)
    graph = Graph(net.name, list(net.inputs), list(net.outputs))
    graph.specs = {name: layer.spec for name, layer in net.inputs.items()}
    for name, constant in net.constants.items():
        graph.constants[name] = constant.value
        graph.specs[name] = TensorSpec(constant.value.shape, DType.of(constant.value.dtype))
    graph.nodes = [_node(layer, names) for layer in net.layers.values()]
    graph.nodes += _copies(copies, names, {node.name for node in graph.nodes})
    graph.state = {i: o for i, o in net.state.items() if i in net.inputs and o in net.outputs}
    graph.initial = {i: value for i, value in net.initial.items() if i in graph.state}
    return graph


def _copies(copies: dict[str, OutputSlot], names: dict[OutputSlot, str], taken: set[str]) -> list[Node]:
    """Return the Identity nodes that give a value another name."""
    from weft.ops.shape import Identity  # late: it imports all ops

    return [
        Node(_fresh(f"{name}.copy", taken), Identity(), (names[slot],), (name,)) for name, slot in copies.items()
    ]


def _node(layer: OpLayer, names: dict[OutputSlot, str]) -> Node:
    inputs = ["" if s.source is None else names[s.source] for s in layer.inputs]
    while inputs and not inputs[-1]:
        inputs.pop()
    slots = layer.outputs
    count = max((s.index + 1 for s in slots if s.value_name or s.is_read), default=1)
    return Node(layer.name, layer.completed_op, tuple(inputs), tuple(names[s] for s in slots[:count]))


def _names(net: Network) -> tuple[dict[OutputSlot, str], dict[str, OutputSlot]]:
    """Return a name for each slot's value, and the outputs that must be copies: their slots have other names."""
    names = {layer.outputs[0]: name for name, layer in (*net.inputs.items(), *net.constants.items())}
    shown = {name: slot for name, slot in net.outputs.items() if slot is not None}
    # Where a slot is shown under several names, its own comes first.
    for name, slot in sorted(shown.items(), key=lambda entry: entry[1].value_name != entry[0]):
        names.setdefault(slot, name)
    copies = {name: slot for name, slot in shown.items() if names[slot] != name}
    taken = {*names.values(), *copies}
    slots = [slot for layer in net.layers.values() for slot in layer.outputs if slot not in names]
    for slot in sorted(slots, key=lambda s: not s.value_name):
        if slot.value_name == "" and not slot.is_read:
            names[slot] = ""
            continue
        names[slot] = _fresh(slot.value_name or _short(slot), taken)
        taken.add(names[slot])
    return names, copies


def _fresh(base: str, taken: set[str]) -> str:
    name, k = base, 0
    while name in taken:
        k += 1
        name = f"{base}.{k}"
    return name
