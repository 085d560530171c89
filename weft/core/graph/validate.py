"""Checks that a graph is well formed and that its specs match its ops, before anything is built from it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.core.graph.control_op import ControlOp
from weft.core.graph.graph import Graph, Node, inferred
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.widened import Widened
from weft.errors import ModelError, listing


def validate(graph: Graph) -> None:
    """Raise ModelError with everything that is wrong with a graph's names and order."""
    problems = graph_problems(graph)
    if problems:
        raise ModelError(
            f"graph {graph.name!r} is not well formed",
            why=listing(problems),
            fix="make each value once, before it is read, and give each node a name of its own",
        )


def graph_problems(graph: Graph) -> list[str]:
    """Return everything that is wrong with a graph's names and order, and with the graphs that its ops hold."""
    return _origins(graph) + _order(graph) + _misfits(graph)


class InferredSpecs:
    """Specs that nodes produce, kept while the same nodes read the same values: a pass changes few of them."""

    def __init__(self) -> None:
        self._known: dict[int, _Inferred] = {}

    def of(self, graph: Graph, node: Node) -> tuple[TensorSpec, ...]:
        """Return what `inferred` returns; ModelError as there."""
        read = (*graph.input_specs(node), *graph.input_constants(node))
        known = self._known.get(id(node))
        if known is None or len(known.read) != len(read) or not all(map(operator.is_, known.read, read)):
            known = self._known[id(node)] = _Inferred(node, read, inferred(graph, node))
        return known.specs


class _Inferred(NamedTuple):
    node: Node
    """Kept so that no other node gets its id."""
    read: Sequence[object]
    specs: tuple[TensorSpec, ...]


def wrong_specs(graph: Graph, known: InferredSpecs | None = None) -> list[str]:
    """Return each node that does not accept its inputs, and each value whose spec its node does not produce.

    The graph's nodes are in order; at least the nodes' inputs have specs of known sizes. What is `known` from earlier
    checks of a graph with the same nodes is not computed again.
    """
    problems, known = [], known or InferredSpecs()
    for node in graph.nodes:
        try:
            specs = known.of(graph, node)
        except ModelError as e:
            problems.append(e.short)
            continue
        for name, spec in zip(node.outputs, specs, strict=False):
            told = graph.specs.get(name)
            if name and told != spec:
                problems.append(f"{name!r} has the spec {told}, but node {node.name!r} ({node.op.type}) makes {spec}")
    return problems


def check_declared_types(graph: Graph) -> None:
    """Raise ModelError with every output whose type is not the declared one; the graph has all specs."""
    problems = [
        f"{name!r} is declared as {declared} and is {graph.specs[name]}"
        for name, declared in graph.declared.items()
        if declared.dtype not in (None, graph.specs[name].dtype)
    ]
    if problems:
        raise ModelError(
            "outputs of the model are not what it declares",
            why="; ".join(problems),
            fix="export the model again, or mend its declarations (onnx.shape_inference)",
        )


def misdeclared(graph: Graph) -> dict[str, str]:
    """Return a note on each output whose shape is not the declared one, by its name; the graph has all specs.

    It is no error: nothing is computed from the declaration, and files in use have that of the exporter's example.
    """
    return {
        name: f"output {name!r} is declared as {declared} and has the shape {list(graph.specs[name].dims)}"
        for name, declared in graph.declared.items()
        if not declared.fits(graph.specs[name].dims)
    }


def _origins(graph: Graph) -> list[str]:
    names = Counter(n.name for n in graph.nodes)
    problems = [f"{count} nodes are called {name!r}" for name, count in names.items() if count > 1]
    made = Counter([*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs if o)])
    problems += [f"value {name!r} is made {count} times" for name, count in made.items() if count > 1]
    given = [*graph.inputs, *graph.constants]
    problems += [f"{name!r} has no shape and type (Graph.specs)" for name in given if name not in graph.specs]
    for name, value in graph.constants.items():
        spec = graph.specs.get(name)
        if is_symbolic(value):
            if spec is not None and spec.shape != value.shape:
                problems.append(f"constant {name!r} has the shape {value.shape} and its spec says {spec}")
        elif not isinstance(value, (np.ndarray, Widened)):
            problems.append(f"constant {name!r} is a {type(value).__name__}, not an array (make it one: numpy.asarray)")
        elif spec is not None and (spec.shape != value.shape or spec.dtype.numpy != value.dtype):
            problems.append(f"constant {name!r} is {value.dtype}{list(value.shape)} and its spec says {spec}")
    return problems


def _order(graph: Graph) -> list[str]:
    known = {*graph.inputs, *graph.constants}
    later = {o for n in graph.nodes for o in n.outputs if o}
    problems = []
    for node in graph.nodes:
        for name in dict.fromkeys(i for i in node.inputs if i and i not in known):
            how = "which is made only later" if name in later else "which nothing makes"
            problems.append(f"node {node.name!r} ({node.op.type}) reads {name!r}, {how}")
        known.update(o for o in node.outputs if o)
    return problems + [f"nothing makes the output {name!r}" for name in graph.outputs if name not in known]


def _misfits(graph: Graph) -> list[str]:
    """Return the nodes whose graphs read or make another number of values than the nodes."""
    own = ((node, node.op) for node in graph.nodes if isinstance(node.op, ControlOp))
    found = ((node, op.misfit(len(node.inputs), len(node.outputs))) for node, op in own)
    return [f"node {node.name!r} ({node.op.type}): {why}" for node, why in found if why]
