"""Model-local functions: their calls are expanded, after a check that this ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx.inliner import inline_local_functions

from weft.core.graph.limits import Limits
from weft.errors import ModelError, listing
from weft.frontends.onnx.bodies import walk
from weft.frontends.onnx.files import LARGEST_FILE
from weft.frontends.onnx.reading import Source, domain_of
from weft.frontends.onnx.wording import quote

DEEPEST_CALLS = 64

Key = tuple[str, str, str]


def expand(source: Source, limits: Limits) -> ModelProto:
    """Return the model with every call of a model-local function replaced by the function's nodes."""
    model = source.proto
    if not model.functions:
        return model
    _check(model, source.label, limits)
    skeleton = _without_weights(model)
    # A function may be of another opset than the model; onnx can lift its nodes while it inlines them.
    convert = any(_opset(function.opset_import) not in (None, source.opset) for function in model.functions)
    try:
        inlined = inline_local_functions(skeleton, convert_version=convert)
    except Exception as e:  # the inliner is C++ and does not document what it raises
        raise ModelError(
            "the model's functions cannot be expanded",
            where=source.label,
            why=str(e)[:500],
            fix="export the model without functions",
        ) from e
    out = ModelProto(ir_version=model.ir_version, opset_import=inlined.opset_import)
    out.graph.CopyFrom(inlined.graph)
    del out.graph.initializer[:]
    out.graph.initializer.extend(model.graph.initializer)
    return out


def _without_weights(model: ModelProto) -> ModelProto:
    # The inliner takes and returns the graph as bytes, and needs only the names of the weights.
    graph = GraphProto(
        name=model.graph.name,
        node=model.graph.node,
        input=model.graph.input,
        output=model.graph.output,
        sparse_initializer=model.graph.sparse_initializer,
        initializer=[
            TensorProto(name=t.name, data_type=t.data_type, dims=[0]) for t in model.graph.initializer
        ],
    )
    return ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )


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
        key = (domain_of(function.domain), function.name, function.overload)
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
    held = {(domain_of(f.domain), f.name, f.overload): sum(n.ByteSize() for n in f.node) for f in model.functions}
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
