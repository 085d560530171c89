"""Puts the nodes of functions in the place of their calls, under names of their own: for `functions` and `bodies`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


@dataclass
class Expanded:
    """A model after nodes of functions replaced nodes, and the opsets of those that are not of the model's."""

    model: ModelProto
    opset: int
    older: dict[tuple[str, str], int] = field(default_factory=dict)
    """The opsets of nodes that differ from the model's."""

    def opset_of(self, node: NodeProto) -> int:
        """Return the opset that a node of ONNX's own domain is of."""
        return self.older.get(_mark(node), self.opset) if self.older else self.opset

    def set_opset(self, node: NodeProto, opset: int) -> None:
        """Note the opset of a node, and of those in the graphs that it holds."""
        if opset != self.opset:
            self.older.update((_mark(inner), opset) for inner in walk([node]))

    def with_nodes(self, nodes: Iterable[NodeProto]) -> ModelProto:
        """Return the model with these nodes in its graph, and without functions."""
        old = self.model.graph
        graph = GraphProto(name=old.name, node=nodes, input=old.input, output=old.output, value_info=old.value_info)
        graph.initializer.extend(old.initializer)
        graph.sparse_initializer.extend(old.sparse_initializer)
        return ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import, graph=graph)


def _mark(node: NodeProto) -> tuple[str, str]:
    """Return what tells a node from the others: graphs side by side may repeat the names of values."""
    return node.name, next((output for output in node.output if output), "")


def walk(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Return the nodes and those in their subgraphs, however deep."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            for graph in subgraphs(node):
                waiting.append(graph.node)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Return the graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


class Instances:
    """Makes instances of functions for the calls of one model; each value in them gets a name that is not taken."""

    def __init__(self, expanded: Expanded) -> None:
        self._expanded = expanded
        graph = expanded.model.graph
        graphs = [graph, *(inner for node in walk(graph.node) for inner in subgraphs(node))]
        self._taken = {name: 0 for each in graphs for name in _names(each)}

    def of(
        self, function: FunctionProto, call: NodeProto, attributes: Mapping[str, AttributeProto], opset: int
    ) -> Iterator[NodeProto]:
        """Return the nodes of a function of that opset with the values of a call.

        `attributes` are those of the call and, for those not given, their defaults. An attribute in the function that
        refers to none of them is left out: then the default of the node's own op counts.
        """
        given = (*call.input, *[""] * (len(function.input) - len(call.input)))
        names = dict(zip(function.input, given, strict=False)) | {"": ""}
        results = dict(zip(function.output, call.output, strict=False))
        twice = [(inner, outer) for inner, outer in results.items() if inner in names and outer]
        names |= {inner: outer for inner, outer in results.items() if outer and inner not in names}
        whole = call.name or call.op_type
        for part in function.node:
            made = self._renamed(part, names, attributes)
            made.name = f"{whole}/{part.name or part.op_type}"
            self._expanded.set_opset(made, opset)
            yield made
        for inner, outer in twice:  # it gives back an input as it is
            yield NodeProto(name=f"{whole}/Identity", op_type="Identity", input=[names[inner]], output=[outer])

    def _renamed(
        self, node: NodeProto, names: dict[str, str], attributes: Mapping[str, AttributeProto]
    ) -> NodeProto:
        made = copied(node)
        made.input[:] = [self._name(name, names) for name in node.input]
        made.output[:] = [self._name(name, names) for name in node.output]
        del made.attribute[:]
        for attribute in node.attribute:
            if not attribute.ref_attr_name or attribute.ref_attr_name in attributes:
                value = made.attribute.add()
                value.CopyFrom(attributes.get(attribute.ref_attr_name, attribute))
                value.name = attribute.name
        for graph in subgraphs(made):
            inside = [self._renamed(part, names, attributes) for part in graph.node]
            del graph.node[:]
            graph.node.extend(inside)
            for value_ in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                value_.name = self._name(value_.name, names)
            for sparse in graph.sparse_initializer:
                sparse.values.name = self._name(sparse.values.name, names)
        return made

    def _name(self, name: str, names: dict[str, str]) -> str:
        if name not in names:
            fresh = name
            while fresh in self._taken:
                self._taken[name] = number = self._taken.setdefault(name, 0) + 1
                fresh = f"{name}.{number}"
            self._taken[fresh] = 0
            names[name] = fresh
        return names[name]


def copied(node: NodeProto) -> NodeProto:
    """Return a copy of a node."""
    made = NodeProto()
    made.CopyFrom(node)
    return made


def _names(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from node.output
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
