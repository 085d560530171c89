"""Replaces ops that Weft lacks, and that ONNX defines by other ops, by ONNX's definitions (function bodies).

A body may depend on the node's attributes, its inputs and their types. ONNX keeps a body at the opset for which it was
written, so its nodes are read as of that opset, whatever the model's is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import tau
from typing import Any

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.defs import SchemaError, get_schema
from onnx.shape_inference import InferenceError, infer_shapes

from weft.core.graph.limits import Limits
from weft.core.graph.op import find_op
from weft.frontends.onnx.importers import RENAMED
from weft.frontends.onnx.instances import Expanded, Instances, copied, subgraphs, walk
from weft.frontends.onnx.reading import domain_of

PREVIEW = "ai.onnx.preview"
"""The domain of what ONNX may yet change."""
WINDOWS: dict[str, tuple[float, float, float]] = {
    "HannWindow": (0.5, 0.5, 0),
    "HammingWindow": (25 / 46, 21 / 46, 0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""The terms A0, A1 and A2 of windows, all digits of them: their bodies have them, and compute, in float32."""


def expand_bodies(done: Expanded, limits: Limits, label: str) -> Expanded:
    """Return the model with nodes that Weft lacks an op for replaced by ONNX's bodies, where ONNX has one.

    Raise ModelError if that makes more nodes than `limits` allow.
    """
    done = Expanded(done.model, done.opset, dict(done.older))
    while any(_schema(node, done.opset_of(node)) for node in walk(done.model.graph.node)):
        step = _Step(done)
        nodes = step.expand(done.model.graph.node)
        if not step.bodies:
            break
        total = sum(1 for _ in walk(nodes))
        if total > limits.nodes:
            raise limits.exceeded("nodes", total, "the model, its ops taken apart,", label)
        done.model = done.with_nodes(nodes)
    return done


class _Step:
    """Replaces nodes of a model by their bodies, once: the bodies may hold further nodes to replace."""

    def __init__(self, done: Expanded) -> None:
        self._done = done
        self._types = _types(done.model)
        self._instances = Instances(done)
        self.bodies = 0

    def expand(self, nodes: Iterable[NodeProto]) -> list[NodeProto]:
        """Return the nodes; bodies replace nodes that Weft has no op for, in subgraphs too."""
        out: list[NodeProto] = []
        for node in nodes:
            opset = self._done.opset_of(node)
            schema = _schema(node, opset)
            body = schema and _body(schema, node, opset, self._types)
            if schema and body:
                self.bodies += 1
                attributes = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.name}
                attributes |= {a.name: a for a in node.attribute}
                out += self._instances.of(body, node, attributes, body.opset_import[0].version)
                continue
            if any(_schema(inner, self._done.opset_of(inner)) for inner in walk([node])):
                node = copied(node)
                for graph in subgraphs(node):
                    inside = self.expand(graph.node)
                    del graph.node[:]
                    graph.node.extend(inside)
            out.append(node)
        return out


def _schema(node: NodeProto, opset: int) -> Any:
    """Return the schema of a node of ONNX's own domains that Weft has no op for and that has a body."""
    domain = domain_of(node.domain)
    known = RENAMED.get(node.op_type, node.op_type) if not domain else f"{domain}::{node.op_type}"
    if domain not in ("", PREVIEW) or find_op(known):
        return None
    try:
        # onnx's stubs do not have what a schema says of bodies; its preview has one version.
        schema: Any = get_schema(node.op_type, PREVIEW) if domain else get_schema(node.op_type, opset, "")
    except SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _body(schema: Any, node: NodeProto, opset: int, types: Mapping[str, bytes]) -> FunctionProto | None:
    """Return the body of a node of that opset, None if ONNX has none for its attributes and types."""
    call, given = node.SerializeToString(), [types.get(name, b"") for name in node.input]
    # ONNX gives a body as of a later opset than its own only if no op in it has changed since. In its preview, bodies
    # count by the version of that domain, and their nodes are of the model's opset.
    preview = bool(schema.domain)
    for version in (schema.since_version,) if preview else (opset, schema.since_version):
        if schema.has_function:
            found = schema.get_function_with_opset_version(version)
        else:
            found = schema.get_context_dependent_function_with_opset_version(version, call, given)
        if found:
            body: FunctionProto = FunctionProto.FromString(found)
            del body.opset_import[:]
            body.opset_import.append(helper.make_opsetid("", opset if preview else version))
            if any(a.name == "output_datatype" and a.i == TensorProto.DOUBLE for a in node.attribute):
                _compute_in_double(body)
            return body
    return None


def _compute_in_double(body: FunctionProto) -> None:
    """Make the body of a window compute in float64, for which its own constants and conversions are too short."""
    if body.name not in WINDOWS:
        return
    exact = dict(zip(("A0", "A1", "A2"), WINDOWS[body.name], strict=True)) | {"Tau": tau}
    for node in body.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                short = numpy_helper.to_array(attribute.t).astype(np.float64)
                value = np.asarray(exact.get(node.output[0], short), np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(value))


def _types(model: ModelProto) -> dict[str, bytes]:
    """Return the types of the values, as far as ONNX can tell them, serialized."""
    graph = model.graph
    # What the file says of values may be wrong, and then ONNX tells nothing. It counts for those that ONNX cannot know.
    foreign = {o for node in walk(graph.node) if domain_of(node.domain) for o in node.output}
    named = {value.name for value in graph.input}
    sparse = ((s.values.name, s.values.data_type, s.dims) for s in graph.sparse_initializer)
    weights = [
        helper.make_tensor_value_info(name, dtype, dims)
        for name, dtype, dims in (*((t.name, t.data_type, t.dims) for t in graph.initializer), *sparse)
        if name not in named
    ]
    # Pass the weights as inputs: these have types but no values to copy.
    light = GraphProto(
        name=graph.name,
        node=graph.node,
        input=[*graph.input, *weights],
        output=[ValueInfoProto(name=output.name) for output in graph.output],
        value_info=[value for value in graph.value_info if value.name in foreign],
    )
    skeleton = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=light)
    with suppress(InferenceError):  # a node does not fit its schema; it is refused later with a reason
        skeleton = infer_shapes(skeleton)
    found: dict[str, bytes] = {}
    graphs = [skeleton.graph, *(g for node in walk(skeleton.graph.node) for g in subgraphs(node))]
    for inner in graphs:
        for value in (*inner.input, *inner.value_info, *inner.output):
            if value.type.WhichOneof("value"):
                found[value.name] = value.type.SerializeToString()
    return found
