"""Find linear recurrences among their steps, as exporters unroll a loop over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.op import new_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.parts import Select, select_of


@graph_pass()
def join_recurrences(graph: Graph, context: PassContext) -> Graph:
    """Replace the steps of a linear recurrence by one op: each adds a term to the state before, times a factor.

    The factors are the indices of an axis of one value, in order and all of them, and the terms are those of another
    value of the same shape. Each state then is an index of the op's result, which others read where it is.
    """
    found = list(_recurrences(graph))
    if not found:
        return graph
    out, names = graph.copy(), Names(graph)
    first = {each.steps[0].name: each for each in found}
    places = {node.name: (each, at) for each in found for at, node in enumerate(each.steps)}
    whole, indices, nodes = dict[int, str](), dict[int, str](), list[Node]()
    for node in graph.nodes:
        if node.name in first:
            each = first[node.name]
            name = names.fresh(f"{node.name}.recurrence")
            op = new_op("weft::LinearRecurrence", axis=each.axis)
            nodes.append(Node(name, op, (each.factors, each.terms, each.start), (name,)))
            infer_node(out, nodes[-1])
            whole[id(each)] = name
        if node.name not in places:
            nodes.append(node)
            continue
        each, at = places[node.name]
        if at not in indices:
            indices[at] = names.fresh(f"index.{at}")
            out.constants[indices[at]] = np.asarray(at, np.int64)
            out.specs[indices[at]] = TensorSpec((), DType.INT64)
        nodes.append(Node(node.name, new_op("Gather", axis=each.axis), (whole[id(each)], indices[at]), node.outputs))
    out.nodes = nodes
    return without_dead_nodes(out)


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """The values and the axis of a recurrence, and the nodes that make its states, in order."""

    factors: str
    terms: str
    axis: int
    start: str
    steps: list[Node]


def _recurrences(graph: Graph) -> Iterator[_Recurrence]:
    """Find the recurrences that have a step for each index of their axis."""
    makers, states = graph.producers(), dict[str, _Recurrence]()
    for node in graph.nodes:
        if node.op.type != "Add":
            continue
        for factor, term, before in _steps(graph, makers, node):
            last = states.get(before)
            if factor.index == 0:
                states[node.outputs[0]] = _Recurrence(factor.value, term.value, factor.axis, before, [node])
            elif (
                last is not None
                and (last.factors, last.terms, last.axis) == (factor.value, term.value, factor.axis)
                and len(last.steps) == factor.index
                and last.steps[-1].outputs[0] == before
            ):
                last.steps.append(node)
                states[node.outputs[0]] = last
            else:
                continue
            break
    for each in {id(each): each for each in states.values()}.values():
        if 1 < len(each.steps) == graph.specs[each.factors].dims[each.axis]:
            yield each


def _steps(graph: Graph, makers: Mapping[str, Node], node: Node) -> Iterator[tuple[Select, Select, str]]:
    """Yield each way to read a sum as a step: the factor, the term, and the state before."""
    spec = graph.specs[node.outputs[0]]
    for product, added in (node.inputs, node.inputs[::-1]):
        maker, term = makers.get(product), select_of(graph, makers, added)
        if term is None or maker is None or maker.op.type != "Mul" or not spec.dtype.is_float:
            continue
        for scaled, before in (maker.inputs, maker.inputs[::-1]):
            factor = select_of(graph, makers, scaled)
            if factor is None or (factor.axis, factor.index) != (term.axis, term.index):
                continue
            whole = graph.specs[factor.value] == graph.specs[term.value]
            if whole and graph.specs[before] == graph.specs[scaled] == graph.specs[added] == spec:
                yield factor, term, before
