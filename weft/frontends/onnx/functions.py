"""Model-local functions: their calls are expanded, after a check that this ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from onnx import FunctionProto, ModelProto, NodeProto, OperatorSetIdProto

from weft.core.graph.limits import Limits
from weft.errors import ModelError, listing
from weft.frontends.onnx.files import LARGEST_FILE
from weft.frontends.onnx.instances import Expanded, Instances, copied, subgraphs, walk
from weft.frontends.onnx.reading import NEWEST_OPSET, OLDEST_OPSET, Source, domain_of
from weft.frontends.wording import quote

DEEPEST_CALLS = 64

Key = tuple[str, str, str]


def expand(source: Source, limits: Limits) -> Expanded:
    """Return the model with every call of a model-local function replaced by the function's nodes."""
    expanded = Expanded(source.proto, source.opset)
    if source.proto.functions:
        _check(source.proto, source.label, limits)
        expanded.model = _Calls(expanded, source.label).expand()
    return expanded


class _Calls:
    """Replaces the calls of one model by the nodes of their functions."""

    def __init__(self, expanded: Expanded, label: str) -> None:
        self._expanded, self._label = expanded, label
        self._functions = {_key_of(function): function for function in expanded.model.functions}
        self._instances = Instances(expanded)
        self._domains = {domain_of(entry.domain) for entry in expanded.model.opset_import}

    def expand(self) -> ModelProto:
        """Return the model without calls and functions; it imports what its functions import as well."""
        made = self._expanded.with_nodes(self._nodes(self._expanded.model.graph.node))
        for function in self._functions.values():
            for entry in function.opset_import:
                if domain_of(entry.domain) not in self._domains:
                    self._domains.add(domain_of(entry.domain))
                    made.opset_import.append(entry)
        return made

    def _nodes(self, nodes: Iterable[NodeProto]) -> list[NodeProto]:
        out: list[NodeProto] = []
        for node in nodes:
            function = self._functions.get(_key(node))
            if function is not None:
                out += self._nodes(self._called(function, node))
                continue
            if any(_key(inner) in self._functions for inner in walk([node])):
                node = copied(node)
                for graph in subgraphs(node):
                    inside = self._nodes(graph.node)
                    del graph.node[:]
                    graph.node.extend(inside)
            out.append(node)
        return out

    def _called(self, function: FunctionProto, call: NodeProto) -> Iterable[NodeProto]:
        """Return the nodes of a call; what it does not give has the function's default."""
        opset = _opset(function.opset_import)
        problems = [
            f"it has {len(given)} {what}, the function {len(taken)}"
            for what, given, taken in (
                ("inputs", call.input, function.input),
                ("outputs", call.output, function.output),
            )
            if len(given) > len(taken)
        ]
        if opset is not None and not OLDEST_OPSET <= opset <= NEWEST_OPSET:
            problems.append(f"the function is of ONNX opset {opset}; {OLDEST_OPSET} to {NEWEST_OPSET} are supported")
        if problems:
            raise ModelError(
                f"a call of the model's function {quote('.'.join(_key(call)[:2]))} cannot be expanded",
                where=f"{self._label}, node {quote(call.name or call.op_type)}",
                why=listing(problems),
                fix="export the model again, without functions",
            )
        attributes = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
        return self._instances.of(function, call, attributes, self._expanded.opset if opset is None else opset)


def _check(model: ModelProto, label: str, limits: Limits) -> None:
    """Raise ModelError if the calls form a cycle, or expand to too many nodes, bytes or levels."""
    twice = [problem for function in model.functions for problem in _twice(function)]
    if twice:
        raise ModelError(
            "names in the model's functions are given twice",
            where=label,
            why=listing(twice),
            fix="export the model again",
        )
    bodies: dict[Key, list[NodeProto]] = {}
    for function in model.functions:
        key = _key_of(function)
        if key in bodies:
            raise ModelError(
                "two functions of the model have one name",
                where=label,
                why=quote(".".join(key[:2])),
                fix="export the model again",
            )
        bodies[key] = list(walk(function.node))
    calls = {key: [_key(node) for node in nodes if _key(node) in bodies] for key, nodes in bodies.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as e:
        names = listing([quote(".".join(key[:2])) for key in e.args[1]], " -> ")
        raise ModelError(
            "the model's functions call each other without end",
            where=label,
            why=names,
            fix="export the model without functions",
        ) from e
    size: dict[Key, int] = {}
    nbytes: dict[Key, int] = {}
    held = {_key_of(f): sum(n.ByteSize() for n in (*f.node, *f.attribute_proto)) for f in model.functions}
    depth: dict[Key, int] = {}
    for key in order:
        size[key] = len(bodies[key]) - len(calls[key]) + sum(size[callee] for callee in calls[key])
        nbytes[key] = held[key] + sum(nbytes[callee] for callee in calls[key])
        depth[key] = 1 + max((depth[callee] for callee in calls[key]), default=0)
    total = sum(size.get(_key(node), 1) for node in walk(model.graph.node))
    whole = "the model, its functions expanded,"
    if total > limits.nodes:
        raise limits.exceeded("nodes", total, whole, label)
    expanded = sum(nbytes.get(_key(node), 0) for node in walk(model.graph.node))
    if expanded > limits.constant_bytes:
        raise limits.exceeded("constant_bytes", expanded, whole, label)
    deepest = max(depth.values())
    if expanded > LARGEST_FILE or deepest > DEEPEST_CALLS:
        raise ModelError(
            "the model's functions expand to too much",
            where=label,
            why=f"{expanded:,} bytes, {deepest} levels; at most {LARGEST_FILE:,} and {DEEPEST_CALLS} are possible",
            fix="export the model without functions, with its large constants as initialisers",
        )


def _twice(function: FunctionProto) -> Iterable[str]:
    """Return the names that a function has twice for its inputs, outputs, attributes or values."""
    made = [*function.input, *(o for node in function.node for o in node.output if o)]
    attributes = [*function.attribute, *(a.name for a in function.attribute_proto)]
    kinds = {"output": function.output, "attribute": attributes, "origin of a value": made}
    for kind, names in kinds.items():
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{quote(name)} is there {count} times as {kind} of {quote(function.name)}"
    for node in function.node:
        for name, count in Counter(a.name for a in node.attribute).items():
            if count > 1:
                yield f"attribute {quote(name)} is there {count} times in a node {quote(node.op_type)}"


def _opset(imports: Iterable[OperatorSetIdProto]) -> int | None:
    return next((entry.version for entry in imports if domain_of(entry.domain) == ""), None)


def _key(node: NodeProto) -> Key:
    return (domain_of(node.domain), node.op_type, node.overload)


def _key_of(function: FunctionProto) -> Key:
    return (domain_of(function.domain), function.name, function.overload)
