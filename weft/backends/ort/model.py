"""From graphs to ONNX models, and from these to sessions of ONNX Runtime.

A model holds small constants, such as axes, and names for large ones: a session reads the arrays that Weft has. So a
model takes kilobytes, however large the weights are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import SequenceSpec, Tensor, TensorSpec
from weft.core.host.parallel_copy import cores
from weft.errors import DeviceError

MOST_INTEGERS, MOST_FLOATS = 64, 8
"""Up to how many elements a constant lies in the model: axes, pads and limits, but no weights."""


class NotConvertible(Exception):
    """There is no ONNX model of a graph; the message is the reason."""


def is_small(value: Array) -> bool:
    """Tell whether a constant lies in the model itself."""
    return value.size <= (MOST_INTEGERS if value.dtype.kind in "iub" else MOST_FLOATS)


def weight_name(place: int) -> str:
    """Return what the model calls the large constant of this place among them."""
    return f"weft_weight_{place}"


def to_model(graph: Graph, weights: Sequence[str] = (), *, sizes: bool = True) -> bytes:
    """Return a graph as an ONNX model, its inputs and outputs in order; raise NotConvertible.

    `weights` are the constants of which it holds names alone: see `open_session`. A constant that the graph names as an
    input is one of the model, too. Without `sizes`, inputs and outputs have ranks alone.
    """
    called = {name: weight_name(place) for place, name in enumerate(weights)}
    nodes = [made for node in graph.nodes for made in _nodes(node, graph, called)]
    held = [name for name in graph.constants if name not in called and name not in graph.inputs]
    constants = [numpy_helper.from_array(np.asarray(graph.constants[name]), name) for name in held]
    constants += [_elsewhere(called[name], graph.constants[name]) for name in weights]
    inputs = [_declared(graph, name, sizes) for name in graph.inputs]
    outputs = [_declared(graph, name, sizes) for name in graph.outputs]
    made = helper.make_graph(nodes, graph.name or "subgraph", inputs, outputs, constants)
    imports = [helper.make_opsetid("", newest_opset())]
    version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    model = helper.make_model(made, opset_imports=imports, ir_version=version)
    try:
        serialized: bytes = model.SerializeToString(deterministic=True)
    except ValueError as e:  # protobuf ends at 2 GiB
        raise NotConvertible(f"there is no ONNX model of its nodes: {e}") from e
    return serialized


def _elsewhere(name: str, value: Array) -> onnx.TensorProto:
    """Return a constant whose elements are given to the session."""
    made = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(value.dtype), dims=value.shape)
    made.data_location = onnx.TensorProto.EXTERNAL
    made.external_data.add(key="location", value=name)
    return made


def _declared(graph: Graph, name: str, sizes: bool) -> onnx.ValueInfoProto:
    spec = graph.specs[name]
    if isinstance(spec, SequenceSpec):
        raise NotConvertible(f"{name!r} is a sequence")
    dims = spec.dims if sizes else [None] * len(spec.dims)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype.numpy), dims)


def _nodes(node: Node, graph: Graph, called: dict[str, str]) -> list[onnx.NodeProto]:
    """Return the node, or what gives its results where ONNX Runtime's own op does not."""
    made, y = _node(node, graph, called), node.outputs[0]
    if node.op.type != "MaxPool" or len(made.output) > 1 or not graph.specs[y].dtype.is_float:
        return [made]
    # It passes over some NaN, and has the least number for -inf. So what kinds of numbers there are is pooled as well.
    made.output[0] = graph.fresh_name(f"{node.name}.number")
    of_kinds, steps = onnx.NodeProto(), [made]
    of_kinds.CopyFrom(made)

    def add(op: str, *inputs: str | float, **attributes: Any) -> str:
        names = []
        for each in inputs:
            if not isinstance(each, str):
                value = numpy_helper.from_array(np.array(each, graph.specs[y].dtype.numpy))
                names.append(f"{made.output[0]}.{len(steps)}")
                steps.append(helper.make_node("Constant", [], [names[-1]], value=value))
            else:
                names.append(each)
        steps.append(helper.make_node(op, names, [f"{made.output[0]}.{len(steps)}"], **attributes))
        return str(steps[-1].output[0])

    x, kind = made.input[0], helper.np_dtype_to_tensor_dtype(graph.specs[y].dtype.numpy)
    is_more = add("Cast", add("Greater", x, -np.inf), to=kind)
    of_kinds.input[0] = add("Where", add("IsNaN", x), 2.0, is_more)
    of_kinds.output[0] = of_kinds.name = f"{made.output[0]}.kinds"
    steps.append(of_kinds)
    number = add("Where", add("Less", of_kinds.output[0], 0.5), -np.inf, made.output[0])
    add("Where", add("Greater", of_kinds.output[0], 1.5), np.nan, number)
    steps[-1].output[0] = y
    return steps


def _node(node: Node, graph: Graph, called: dict[str, str]) -> onnx.NodeProto:
    try:
        schema = onnx.defs.get_schema(node.op.type, newest_opset())
    except onnx.defs.SchemaError:
        raise NotConvertible(f"ONNX has no op {node.op.type} in opset {newest_opset()}") from None
    attributes, outputs = _attributes(node.op, schema), _outputs(node, graph)
    if node.op.type == "Split" and not any(node.inputs[1:]):
        attributes["num_outputs"] = len(outputs)  # before opset 18, a count of the outputs said it
    inputs = [called.get(name, name) for name in node.inputs]
    return helper.make_node(node.op.type, inputs, outputs, node.name, **attributes)


def _outputs(node: Node, graph: Graph) -> list[str]:
    """Return a name for each output that the op makes: Weft leaves out the last ones if nothing reads them.

    To ONNX, a Split with fewer outputs is another Split.
    """
    made = len(node.op.infer(graph.input_specs(node), graph.input_constants(node)))
    unread = (graph.fresh_name(f"{node.name}.unread{k}") for k in range(len(node.outputs), made))
    return [*node.outputs, *unread]


def _attributes(op: Op, schema: onnx.defs.OpSchema) -> dict[str, Any]:
    """Return the fields of an op as ONNX attributes: they have the names and the defaults of ONNX."""
    values = op.attributes()
    if op.type == "ConstantOfShape":
        dtype = values["dtype"]
        assert isinstance(dtype, DType)
        return {"value": numpy_helper.from_array(np.array([values["value"]], dtype.numpy))}
    defaults = {f.name: f.default for f in fields(op)}
    out = {}
    for name, value in values.items():
        known = schema.attributes.get(name)
        if value == defaults[name] and not (known and known.required):
            continue
        if known:
            out[name] = _attribute(op, value)
        elif name != "outputs":  # how many outputs there are, the node says as well
            opset = newest_opset()
            raise NotConvertible(f"{op.type} has no attribute {name} in opset {opset}; here it is {value}")
    return out


def _attribute(op: Op, value: Any) -> Any:
    if isinstance(value, DType):
        return helper.np_dtype_to_tensor_dtype(value.numpy)
    if isinstance(value, Graph):
        raise NotConvertible(f"{op.type} holds a graph, whose nodes Weft runs")
    return list(value) if isinstance(value, tuple) else value


def single(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op, *, feeds: bool = False
) -> tuple[Graph, list[str]]:
    """Return the graph of one node, and the names of its large constants, which with `feeds` are inputs of it."""
    given = {f"x{k}": t for k, t in enumerate(inputs) if t is not None}
    made = {f"y{k}": t for k, t in enumerate(outputs)}
    names = tuple(f"x{k}" if t is not None else "" for k, t in enumerate(inputs))
    graph = Graph("node", [], list(made), [Node("node", op, names, tuple(made))])
    graph.specs = {name: TensorSpec(t.shape, t.dtype) for name, t in (given | made).items()}
    graph.constants = {name: t.constant for name, t in given.items() if t.constant is not None}
    large = [name for name, value in graph.constants.items() if not is_small(value)]
    graph.inputs = [name for name, t in given.items() if t.constant is None or (feeds and name in large)]
    return graph, [] if feeds else large


# -- sessions ------------------------------------------------------------------------------------------------


def open_session(model: bytes, weights: Iterable[Array] = (), threads: int = 0, *, thrifty: bool = False) -> Any:
    """Return an InferenceSession on the CPU that logs nothing; 0 `threads` are as many as there are cores.

    `weights` are the arrays of the model's large constants, in order, which must live as long as the session.
    A `thrifty` one keeps no second copy of weights, and frees what it does not use.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or cores()
    # Its threads wait for the next node by spinning, but not for the next run: other devices need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if thrifty:
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(weight)) for weight in weights]
    if values:
        options.add_external_initializers([weight_name(place) for place in range(len(values))], values)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.weft_weights = values  # it reads them without a copy
    return session


def said(error: Exception) -> str:
    """Return what an error of ONNX Runtime says, as a reason."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return "ONNX Runtime: " + re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)


@lru_cache(4096)
def why_not_run(model: bytes) -> str | None:
    """Return ONNX Runtime's own reason for not taking a model of one node, or None."""
    try:
        open_session(model, threads=1)  # one that is not run needs no threads
    except Exception as e:
        return said(e)
    return None


@cache
def newest_opset() -> int:
    """Return the newest opset that both onnx and ONNX Runtime know."""
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    shown = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    for version in range(onnx.defs.onnx_opset_version(), 0, -1):
        imports = [helper.make_opsetid("", version)]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [value], [shown])
        ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        if why_not_run(model.SerializeToString()) is None:
            return version
    raise DeviceError("ONNX Runtime loads no model at all", fix="install another version of onnxruntime")
