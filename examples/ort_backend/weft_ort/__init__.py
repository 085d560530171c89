"""ONNX Runtime as a backend of Weft: whole subgraphs become one node that holds an ONNX model.

The package announces `OrtCreator` by an entry point in the group `weft.backends`; see pyproject.toml. The
payload of a pre-compiled node is bytes, so that networks with such nodes can be saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import weft
from weft import DType, Execution, Graph, Node, Op, PreCompiled, Tensor, TensorSpec
from weft.extend import DeviceError, HostBackend, precompiled

__version__ = "0.1.0"
Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]

LARGEST = 2**31 - 2**20
"""Bytes of weights in one model: protobuf ends at 2 GiB."""
SMALL = 64
"""Constants of so many elements, such as axes and pads, are shown to ONNX Runtime when it is asked about a node."""


class NotConvertible(Exception):
    """There is no ONNX model of this; the message is the reason."""


# -- from Weft to ONNX ---------------------------------------------------------------------------------------


def to_model(graph: Graph) -> bytes:
    """Return a graph as an ONNX model, its inputs and outputs in order; raise NotConvertible.

    A constant that the graph names as an input is one in the model, too.
    """
    given = {name: value for name, value in graph.constants.items() if name not in graph.inputs}
    size = sum(value.nbytes for value in given.values())
    if size > LARGEST:
        raise NotConvertible(f"its weights take {size:,} bytes, and an ONNX model holds {LARGEST:,}")
    nodes = [_node(node, graph) for node in graph.nodes]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()]
    inputs = [_declared(graph, name) for name in graph.inputs]
    outputs = [_declared(graph, name) for name in graph.outputs]
    made = helper.make_graph(nodes, graph.name or "subgraph", inputs, outputs, weights)
    imports = [helper.make_opsetid("", newest_opset())]
    version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    model = helper.make_model(made, opset_imports=imports, ir_version=version)
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def _declared(graph: Graph, name: str) -> onnx.ValueInfoProto:
    spec = graph.specs[name]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype.numpy), spec.dims)


def _node(node: Node, graph: Graph) -> onnx.NodeProto:
    try:
        schema = onnx.defs.get_schema(node.op.type, newest_opset())
    except onnx.defs.SchemaError:
        raise NotConvertible(f"ONNX has no op {node.op.type} in opset {newest_opset()}") from None
    attributes, outputs = _attributes(node.op, schema), _outputs(node, graph)
    if node.op.type == "Split" and not any(node.inputs[1:]):
        attributes["num_outputs"] = len(outputs)  # before opset 18, a count of the outputs said it
    return helper.make_node(node.op.type, node.inputs, outputs, node.name, **attributes)


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
            out[name] = _attribute(value)
        elif name != "outputs":  # how many outputs there are, the node says as well
            opset = newest_opset()
            raise NotConvertible(f"{op.type} has no attribute {name} in opset {opset}; here it is {value}")
    return out


def _attribute(value: Any) -> Any:
    if isinstance(value, DType):
        return helper.np_dtype_to_tensor_dtype(value.numpy)
    return list(value) if isinstance(value, tuple) else value


def single(inputs: Inputs, outputs: Outputs, op: Op, largest: float) -> Graph:
    """Return the graph of one node; constants of more elements than `largest` are inputs of it, too."""
    given = {f"x{k}": t for k, t in enumerate(inputs) if t is not None}
    made = {f"y{k}": t for k, t in enumerate(outputs)}
    names = tuple(f"x{k}" if t is not None else "" for k, t in enumerate(inputs))
    graph = Graph("node", [], list(made), [Node("node", op, names, tuple(made))])
    graph.specs = {name: TensorSpec(t.shape, t.dtype) for name, t in (given | made).items()}
    graph.constants = {name: t.constant for name, t in given.items() if t.constant is not None}
    graph.inputs = [name for name, t in given.items() if t.constant is None or t.constant.size > largest]
    return graph


# -- ONNX Runtime --------------------------------------------------------------------------------------------


def open_session(model: bytes, threads: int = 0) -> Any:
    """Return an InferenceSession on the CPU that logs nothing; 0 threads are as many as there are cores."""
    import onnxruntime  # late, so that `import weft` does not wait for it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def why_not_run(model: bytes) -> str | None:
    """Return ONNX Runtime's own reason for not taking a model, or None."""
    try:
        open_session(model, threads=1)  # one that is not run needs no pool
    except Exception as e:
        line = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        return "ONNX Runtime: " + re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)
    return None


why_not_run_one = lru_cache(4096)(why_not_run)
"""The same for models of one node without weights, which are small: subgraphs would be kept with theirs."""


@cache
def newest_opset() -> int:
    """Return the newest opset that both onnx and ONNX Runtime know."""
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    for version in range(onnx.defs.onnx_opset_version(), 0, -1):
        imports = [helper.make_opsetid("", version)]
        shown = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [value], [shown])
        ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        if why_not_run(model.SerializeToString()) is None:
            return version
    raise DeviceError("ONNX Runtime loads no model at all", fix="install another version of onnxruntime")


IN_DOUBT = {
    "ArgMax": "what is largest beside NaN",
    "ArgMin": "what is smallest beside NaN",
    "Hardmax": "what is largest beside NaN",
    "DeformConv": "what places outside of a picture with infinite pixels are worth",
    "MaxUnpool": "where a given output shape puts the values",
}
"""Ops whose results differ for some values or shapes."""
NARROW = ("bfloat16", "float8", "float4", "int4", "uint4", "int2", "uint2")
"""What the names of types begin with that numpy knows by ml_dtypes only."""


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another one as numpy has it."""
    return all(size in (1, most) for size, most in zip(reversed(shape), reversed(whole), strict=False))


def _reflects_too_far(inputs: Inputs) -> bool:
    """Tell whether a Pad has a side as long as its axis, or may have one."""
    x, pads = inputs[:2]
    axes = inputs[3] if len(inputs) > 3 else None
    if x is None or pads is None or pads.constant is None:
        return True
    sizes = list(x.shape)
    if axes is not None:
        if axes.constant is None:
            return True
        sizes = [x.shape[axis] for axis in axes.constant.tolist()]
    return any(side >= size for side, size in zip(pads.constant.tolist(), 2 * sizes, strict=False))


def why_not_right(inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
    """Return what ONNX Runtime takes, and then fails to run or computes otherwise than ONNX says.

    `weft conformance ort` found these.
    """
    values = op.attributes()
    for kind in (t.dtype.value for t in (*inputs, *outputs) if t is not None):
        if kind.startswith(NARROW):
            return f"ONNX Runtime takes no arrays of {kind} from numpy"
    if op.type == "Mod" and outputs[0].dtype.is_float and not values["fmod"]:
        return "ONNX Runtime has no Mod of floats with fmod=0"
    if op.type in ("LSTM", "GRU") and outputs[0].dtype is DType.FLOAT64:
        return f"ONNX Runtime loads {op.type} of float64, and does not run it"
    if op.type in ("LSTM", "GRU") and 0 in outputs[0].shape:
        return f"ONNX Runtime ends the process in {op.type} of nothing"
    if op.type in ("Attention", "GroupNormalization", "LinearAttention") and 0 in outputs[0].shape:
        return f"ONNX Runtime does not reshape nothing in {op.type}"
    if op.type.startswith("Scatter") and values["reduction"] != "none" and outputs[0].dtype is DType.FLOAT16:
        return f"ONNX Runtime has no {op.type} of float16 with a reduction"
    dilations = values.get("dilations")
    if isinstance(dilations, tuple) and any(d > 1 for d in dilations) and "SAME" in str(values.get("auto_pad")):
        return "ONNX Runtime has no dilated windows with auto_pad SAME_UPPER or SAME_LOWER"
    if op.type == "ReduceMean" and 0 in (inputs[0].shape if inputs[0] else ()):
        return "ONNX Runtime says that the mean of nothing is 0, and ONNX that it is no number"
    if op.type in IN_DOUBT:
        return f"ONNX Runtime and ONNX differ in {op.type}: {IN_DOUBT[op.type]}"
    if op.type in ("Pow", "ReduceSum") and any(t is not None and t.dtype is DType.INT64 for t in inputs[:2]):
        return f"ONNX Runtime computes {op.type} of large numbers of int64 otherwise than ONNX"
    if op.type == "Resize" and not outputs[0].dtype.is_float:
        return "ONNX Runtime resizes integers otherwise than ONNX, or not at all"
    if op.type == "Resize" and inputs[0] is not None and inputs[0].shape[:2] != outputs[0].shape[:2]:
        return "ONNX Runtime does not interpolate between images or channels"
    if op.type == "Pad" and values["mode"] == "reflect" and _reflects_too_far(inputs):
        return "ONNX Runtime reflects an axis once, so that a pad is shorter than the axis"
    if op.type == "Gelu" and outputs[0].dtype is DType.FLOAT64:
        return "ONNX Runtime computes Gelu of float64 no better than in float32"
    if op.type == "DFT" and values["inverse"] and values["onesided"]:
        return "ONNX Runtime computes a onesided inverse DFT otherwise than ONNX"
    if op.type == "PRelu" and inputs[1] is not None and not _fits(inputs[1].shape, outputs[0].shape):
        return "ONNX Runtime aligns the slope of PRelu with the last axis alone"
    if op.type in ("Max", "Min") and outputs[0].dtype is DType.INT64:
        return "ONNX Runtime does not tell large numbers of int64 apart in Max and Min"
    if values.get("coordinate_transformation_mode") == "half_pixel_symmetric" and values["mode"] == "nearest":
        return "ONNX Runtime picks other neighbours for half_pixel_symmetric than ONNX says"
    return None


EXPONENTIALS = frozenset(
    "Celu Elu LogSoftmax Mish ReduceLogSumExp Selu Sigmoid Softmax Softplus Swish Tanh".split()
)
"""Ops of one input whose textbook formula overflows at large numbers, although the result does not."""


def why_not_at_large_numbers(inputs: Inputs, op: Op) -> str | None:
    """Return what ONNX Runtime computes of numbers near 1000 and -1000, if that is not what ONNX says.

    Where a version has no kernel for an op in the model's opset, it computes the formula that ONNX gives in its
    place, which may overflow. No table of versions says where, so a small model is run, once for each op and type.
    """
    x, *others = inputs
    if op.type not in EXPONENTIALS or x is None or not x.dtype.is_float:
        return None
    axes = [t.constant for t in others if t is not None and t.constant is not None]
    return _at_large_numbers(op, x.dtype, len(x.shape), tuple(axes[0].tolist()) if axes else None)


@lru_cache(1024)
def _at_large_numbers(op: Op, dtype: DType, rank: int, axes: tuple[int, ...] | None) -> str | None:
    # Rows of large and of small numbers, and of both, along every axis.
    x = np.resize(np.array([1000, 1001, -1000], dtype.numpy), (3,) * rank)
    inputs = [Tensor("x", x.shape, dtype)]
    if axes is not None:
        constant = np.array(axes, np.int64)
        inputs.append(Tensor("axes", constant.shape, DType.INT64, constant=constant))
    with np.errstate(all="ignore"):
        expected = np.asarray(op.reference(x, *(t.constant for t in inputs[1:])))
    session = open_session(to_model(single(inputs, [Tensor("y", expected.shape, dtype)], op, SMALL)), threads=1)
    (result,) = session.run(None, {"x0": x})
    wrong = ~np.isclose(result, expected, rtol=0.01, atol=0.01, equal_nan=True)
    if not wrong.any():
        return None
    one = f"it gives {result[wrong][0]} for {expected[wrong][0]}"
    return f"ONNX Runtime's {op.type} of {dtype.value} is wrong for large numbers: {one}"


# -- the backend ---------------------------------------------------------------------------------------------


class OrtBackend(HostBackend):
    """ONNX Runtime as one part of a network sees it; tensors are numpy arrays."""

    copies_constants = False

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        """Ask ONNX Runtime about a model of this node alone."""
        if isinstance(op, PreCompiled):
            return None if op.backend == self.info.id else f"{op.backend} compiled it for itself"
        try:
            model = to_model(single(inputs, outputs, op, SMALL))
        except NotConvertible as e:
            return str(e)
        known = why_not_right(inputs, outputs, op) or why_not_run_one(model)
        return known or why_not_at_large_numbers(inputs, op)

    def notes(self) -> Sequence[str]:
        """Return what is not as the configuration asks."""
        low = self.info.config.precision is weft.Precision.LOW
        wider = ["inside of a subgraph, values may keep more digits than float16 has"] if low else []
        return [*super().notes(), *wider]

    def OptimizeSubgraph(self, view: weft.SubgraphView) -> weft.OptimizationViews:
        """Put one node with an ONNX model in the place of the whole view."""
        views = weft.OptimizationViews()
        try:
            model = to_model(view.graph)
            why = why_not_run(model)
        except NotConvertible as e:
            why = str(e)
        if why is not None:
            views.fail(view, why)
            return views
        views.substitute(view, precompiled(view, self.info.id, model))
        return views

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution:
        """Return what runs the model of a pre-compiled node, or of a node that was left as it is."""
        if isinstance(op, PreCompiled):
            assert isinstance(op.payload, bytes)
            return Subgraph(inputs, op.payload)
        return Subgraph(inputs, to_model(single(inputs, outputs, op, float("inf"))))


class Subgraph(Execution):
    """Runs an ONNX model; its inputs are those of the node that are not constant."""

    def __init__(self, inputs: Inputs, model: bytes) -> None:
        self.session = open_session(model)
        names = [value.name for value in self.session.get_inputs()]
        fed = [k for k, t in enumerate(inputs) if t is not None and t.constant is None]
        self.inputs = list(zip(names, fed, strict=True))

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Prepare nothing: another shape comes as another model."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Run the model and copy its results."""
        given = [(name, inputs[k]) for name, k in self.inputs]
        results = self.session.run(None, {name: t.memory for name, t in given if t is not None})
        for tensor, result in zip(outputs, results, strict=True):
            np.copyto(tensor.memory, result)


class OrtCreator(weft.BackendCreator):
    """One device: ONNX Runtime on the CPU."""

    id = "ort"
    version = __version__
    api_version = (1, 0)

    def absent(self) -> str | None:
        """Return what is missing, or None."""
        missing = find_spec("onnxruntime") is None
        return "the Python package onnxruntime is missing: pip install onnxruntime" if missing else None

    def devices(self) -> list[weft.DeviceInfo]:
        """Return the one device, with the version of the library."""
        from importlib.metadata import version

        driver = f"onnxruntime {version('onnxruntime')}"
        return [weft.DeviceInfo("ort", 0, "ONNX Runtime", driver, software=True)]

    def onCreate(self, info: weft.BackendInfo) -> OrtBackend:
        """Return a backend for one part of a network."""
        return OrtBackend(info)
