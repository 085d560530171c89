"""ONNX models to start from, and changes to their fields."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from scripts.fuzz.mutate import NUMBERS, REALS
from weft.core.graph.layout import Array
from weft_conformance.cases.table import all_cases, build_model

TEXTS = (
    *(
        "",
        "x",
        "y",
        "w",
        "a",
        "axis",
        "pads",
        "local",
        "ai.onnx",
        "SAME_UPPER",
        "../secret",
        "\u2028",
        "n" * 5000,
    ),
    *(
        "linear",
        "cubic",
        "reflect",
        "edge",
        "half_pixel",
        "align_corners",
        "floor",
        "constant",
        "NOTSET",
        "VALID",
    ),
)
OPS = (
    *(
        "Relu",
        "Add",
        "Conv",
        "MaxPool",
        "AveragePool",
        "Reshape",
        "Concat",
        "Slice",
        "Split",
        "Pad",
        "Gather",
        "f",
    ),
    *(
        "Resize",
        "Transpose",
        "Softmax",
        "Gemm",
        "MatMul",
        "Constant",
        "ConstantOfShape",
        "Expand",
        "Tile",
        "Cast",
    ),
    *(
        "ReduceMean",
        "Squeeze",
        "Unsqueeze",
        "If",
        "Loop",
        "Clip",
        "TopK",
        "Upsample",
        "Range",
        "OneHot",
        "Shape",
    ),
    *("BatchNormalization", "ConvTranspose", "Einsum", "ScatterND", "Where"),
)
IMAGE = {"x": ("n", 3, 8, 8)}
OPSETS = (9, 11, 13, 16, 18, 21)


def _model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str] = ("y",),
    constants: dict[str, Array] | None = None,
    opset: int = 17,
) -> ModelProto:
    """Return a model with an image x as input and outputs of unknown shapes."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in IMAGE.items()]
    made = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    for value in made:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    weights = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "case", inputs, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _node(op_type: str, inputs: str = "x", outputs: str = "y", **attributes: object) -> NodeProto:
    """Return a node; spaces separate names, and `_` stands for a missing input."""
    read, made = (["" if name == "_" else name for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(op_type, read, made, **attributes)  # type: ignore[arg-type]


def convolution() -> ModelProto:
    """Return a model with windows and lists of numbers."""
    nodes = [
        _node("Conv", "x w", "a", pads=[1, 1, 1, 1], strides=[1, 2], dilations=[1, 1], group=1),
        _node("MaxPool", "a", "b i", kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_UPPER", ceil_mode=1),
        _node("Reshape", "b s", "c"),
        _node("Softmax", "c", "y", axis=-1),
    ]
    weights = np.linspace(-1, 1, 4 * 27, dtype=np.float32).reshape(4, 3, 3, 3)
    return _model(nodes, constants={"w": weights, "s": np.array([0, -1])})


def classifier() -> ModelProto:
    """Return a model with ONNX's flags of pools, reductions, norms and products."""
    nodes = [
        _node("BatchNormalization", "x s b s s", "a", epsilon=1e-5, momentum=0.9, training_mode=0),
        _node("AveragePool", "a", "c", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1),
        _node("MaxPool", "c", "d", kernel_shape=[2, 2], storage_order=0, ceil_mode=0),
        _node("ReduceMean", "d", "e", axes=[2, 3], keepdims=0),
        _node("Gemm", "e w", "g", transA=0, transB=1, alpha=0.5, beta=1.0),
        _node("ReduceSum", "g r", "h", keepdims=1, noop_with_empty_axes=0),
        _node("Sub", "g h", "y"),
    ]
    ones = np.linspace(0.5, 1, 3, dtype=np.float32)
    weights = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    return _model(nodes, constants={"s": ones, "b": ones, "w": weights, "r": np.array([1])})


def old() -> ModelProto:
    """Return a model whose nodes must all be converted from an old opset."""
    nodes = [
        _node("Pad", "x", "a", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=1.0),
        _node("Slice", "a", "b", starts=[0, 1], ends=[2, 4], axes=[1, 2]),
        _node("Upsample", "b", "c", scales=[1.0, 1.0, 2.0, 2.0]),
        _node("Split", "c", "d e", axis=1, split=[1, 1]),
        _node("Concat", "d e", "f", axis=2),
        _node("ReduceMean", "f", "g", axes=[2, 3]),
        _node("Clip", "g", "y", min=0.0, max=1.0),
    ]
    return _model(nodes, opset=7)


def shapes() -> ModelProto:
    """Return a model whose shapes are computed from constants."""
    nodes = [
        _node("Shape", "x", "s"),
        _node("Gather", "s i", "g", axis=0),
        _node("Constant", "", "v", value=helper.make_tensor("v", TensorProto.INT64, [2], [2, 3])),
        _node("ConstantOfShape", "v", "z", value=helper.make_tensor("z", TensorProto.FLOAT, [1], [2.0])),
        _node("Transpose", "z", "t", perm=[1, 0]),
        _node("Expand", "t e", "q"),
        _node("Unsqueeze", "q u", "p"),
        _node("Resize", "p _ r", "y", mode="linear"),
        _node("Cast", "g", "k", to=TensorProto.FLOAT16),
    ]
    constants = {"i": np.array([1]), "e": np.array([3, 2]), "u": np.array([0, 1])}
    constants["r"] = np.array([1, 1, 2, 2], np.float32)
    made = _model(nodes, ("y", "k"), constants)
    made.graph.output[1].type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def functions() -> ModelProto:
    """Return a model that calls a function with an attribute."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [_node("Gemm", "a a", "t", transB=1, alpha=0.5), _node("Relu", "t", "b")]
    body[0].attribute.add(name="beta", ref_attr_name="beta", type=1)
    function = helper.make_function("local", "f", ["a"], ["b"], body, imports, ["beta"])
    called = _node("f", "x", "y", domain="local", beta=0.5)
    graph = helper.make_graph(
        [called],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 2))],
    )
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def defaults() -> ModelProto:
    """Return a model whose functions have defaults, hand attributes on, and are of an older opset."""
    inner = helper.make_function(
        "local", "g", ["a"], ["b"], [_node("LeakyRelu", "a", "b")], [helper.make_opsetid("", 13)]
    )
    inner.node[0].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    inner.attribute_proto.append(helper.make_attribute("slope", 0.25))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [_node("g", "a", "t", domain="local"), _node("Softmax", "t", "u"), _node("g", "u", "b", domain="local")]
    body[0].attribute.add(name="slope", ref_attr_name="outer", type=1)
    body[1].attribute.add(name="axis", ref_attr_name="axis", type=2)
    outer = helper.make_function("local", "f", ["a"], ["b"], body, imports, ["outer"])
    outer.attribute_proto.append(helper.make_attribute("axis", 0))
    calls = [_node("f", "x", "v", domain="local", outer=0.5), _node("f", "v", "y", domain="local")]
    made = _model(calls)
    return helper.make_model(made.graph, functions=[outer, inner], opset_imports=imports, ir_version=10)


def call_functions(model: ModelProto, draw: random.Random) -> None:
    """Move nodes into functions of their own, some in a branch, some in a function that another one calls."""
    model.ir_version = max(model.ir_version, 10)
    if all(each.domain != "local" for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid("local", 1))
    for number, node in enumerate(model.graph.node):
        if node.domain == "local" or any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute):
            continue
        if draw.random() < 0.8:
            _move(model, node, f"moved{number}", draw)
            if draw.random() < 0.4:
                _move(model, node, f"outer{number}", draw)


def _move(model: ModelProto, node: NodeProto, name: str, draw: random.Random) -> None:
    """Make a node a call of a new function that has it; the function takes some of its attributes, some by default."""
    body, handed, required, defaults = NodeProto(), [], [], []
    body.CopyFrom(node)
    for place, attribute in enumerate(node.attribute):
        how = draw.randrange(4)
        if how == 0:  # stays in the body
            continue
        own = body.attribute[place]
        own.Clear()
        own.name, own.type, own.ref_attr_name = attribute.name, attribute.type, attribute.name
        if how == 1:  # the caller says it, and nobody else
            required.append(attribute.name)
        else:
            defaults.append(attribute if how == 2 or attribute.type != attribute.INT else _int(attribute.name, draw))
        if how != 2:  # a default that the caller needs not say
            handed.append(attribute)
    reads, makes = ([n for n in dict.fromkeys(names) if n] for names in (node.input, node.output))
    nodes = [body]
    if draw.random() < 0.25:
        made = [helper.make_value_info(n, onnx.TypeProto()) for n in makes]
        branch = helper.make_graph([body], "branch", [], made)
        other = helper.make_graph([_node("Identity", f"of_{n}", n) for n in makes], "other", [], made)
        truth = helper.make_tensor("truth", TensorProto.BOOL, [], [True])
        renamed = NodeProto()
        renamed.CopyFrom(body)
        renamed.output[:] = [n and f"of_{n}" for n in body.output]
        nodes = [
            _node("Constant", "", "if_truth", value=truth),
            renamed,
            helper.make_node("If", ["if_truth"], makes, then_branch=branch, else_branch=other),
        ]
    function = helper.make_function("local", name, reads, makes, nodes, list(model.opset_import), required)
    function.attribute_proto.extend(defaults)
    model.functions.append(function)
    given = [onnx.AttributeProto.FromString(each.SerializeToString()) for each in handed]
    node.Clear()
    node.op_type, node.domain = name, "local"
    node.input.extend(reads)
    node.output.extend(makes)
    node.attribute.extend(given)


def _int(name: str, draw: random.Random) -> onnx.AttributeProto:
    return helper.make_attribute(name, draw.choice((0, 1, 3)))


def lie(model: ModelProto, draw: random.Random) -> None:
    """Change what a model declares, which ONNX Runtime runs with a warning, or leaves open."""
    graph = model.graph
    for value in (*graph.output, *graph.value_info):
        held = value.type.tensor_type
        if draw.random() < 0.5:
            del held.shape.dim[:]
            for _ in range(draw.randrange(6)):
                held.shape.dim.add(dim_value=draw.choice((-1, 0, 1, 3, 7)))
    made = [output for node in graph.node for output in node.output if output]
    if made and draw.random() < 0.5:
        graph.value_info.append(helper.make_tensor_value_info(draw.choice(made), TensorProto.FLOAT, [7, -1]))
    for value in graph.input:
        held = value.type.tensor_type
        action = draw.randrange(4)
        if action == 0:
            held.ClearField("shape")
        elif action == 1 and held.shape.dim:
            draw.choice(held.shape.dim).dim_value = -1


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 6e-8, 1.1754944e-38)
"""Not the largest floats: their sums overflow in one order and not in the other."""


def special(value: Array, draw: random.Random) -> Array:
    """Return an array of floats with a few values of IEEE 754 that are no ordinary numbers."""
    out = value.copy()
    for _ in range(min(draw.randint(1, 4), out.size)):
        with np.errstate(over="ignore"):
            out.reshape(-1)[draw.randrange(out.size)] = draw.choice(SPECIAL)
    return out


@cache
def networks() -> list[ModelProto]:
    """Return models with several nodes."""
    return [convolution(), classifier(), old(), shapes(), functions(), defaults()]


@cache
def single_ops() -> list[ModelProto]:
    """Return models of one node, for every row of the op table that ONNX can express, in several opsets."""
    made = []
    for number, row in enumerate(all_cases()):
        if sum(i.size if (i := a) is not None else 0 for a in row.arrays()) < 20_000:
            made.append(build_model(row, min(OPSETS[number % len(OPSETS)], onnx.defs.onnx_opset_version())))
    return made


def draw_model(draw: random.Random) -> ModelProto:
    """Return a copy of a good model."""
    model = ModelProto()
    model.CopyFrom(draw.choice(networks() if draw.random() < 0.4 else single_ops()))
    return model


def places(message: Message) -> Iterator[tuple[Message, str]]:
    """Yield every field that is set, with its message; leaves out documentation."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        for described, value in current.ListFields():
            yield current, described.name
            if described.type == described.TYPE_MESSAGE:
                waiting += [value] if isinstance(value, Message) else list(value)


def change_fields(model: ModelProto, draw: random.Random) -> None:
    """Change a few fields of a model to other values."""
    for _ in range(draw.randint(1, 4)):
        parent, name = draw.choice(list(places(model)))
        field = parent.DESCRIPTOR.fields_by_name[name]
        value = getattr(parent, name)
        if hasattr(value, "append") or hasattr(value, "add"):
            _change_list(value, field.type == field.TYPE_MESSAGE, draw)
        elif field.type == field.TYPE_MESSAGE:
            parent.ClearField(name)
        elif field.type == field.TYPE_ENUM:
            setattr(parent, name, draw.choice(list(field.enum_type.values_by_number)))
        else:
            with suppress(ValueError):  # the field is too narrow for the number
                setattr(parent, name, _other(value, name, draw))


def _change_list(values: object, of_messages: bool, draw: random.Random) -> None:
    items = list(values)  # type: ignore[call-overload]
    action = draw.randrange(4)
    if not items or action == 0:
        del values[:]  # type: ignore[attr-defined]
    elif action == 1:
        del values[draw.randrange(len(items))]  # type: ignore[attr-defined]
    elif action == 2 or of_messages:
        values.extend([draw.choice(items)] * draw.choice((1, 2, 40)))  # type: ignore[attr-defined]
    else:
        place = draw.randrange(len(items))
        with suppress(ValueError):  # the field is too narrow for the number
            values[place] = _other(items[place], "", draw)  # type: ignore[index]


def _other(value: object, name: str, draw: random.Random) -> object:
    if isinstance(value, str):
        return draw.choice(OPS if name == "op_type" else TEXTS)
    if isinstance(value, bytes):
        return draw.choice(
            (b"", value[:-1], value * 2, b"\xff" * len(value), b"SAME_LOWER", draw.randbytes(8))
        )
    if isinstance(value, float):
        return draw.choice(REALS)
    return draw.choice(NUMBERS[:10] if name in ("data_type", "elem_type") else NUMBERS)
