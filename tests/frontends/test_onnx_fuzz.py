"""Fuzzers of the ONNX front end: whatever a file holds, it loads or a WeftError says why not.

Both are bounded and draw the same examples in every run. `fuzz_model` and `fuzz_bytes` are pure functions
of a seed, so that an example that fails can be kept as a test.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from tests.frontends.onnx_models import make_model, node
from weft.core.graph import bind, infer_shapes
from weft.errors import WeftError
from weft.frontends.onnx import load

SECONDS_FOR_ONE = 5.0
MEGABYTES_FOR_ALL = 400
BOUNDED = settings(
    derandomize=True, max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

NUMBERS = (0, 1, -1, 2, 3, 7, 13, 255, 2**20, 2**31 - 1, -(2**31), 2**32 + 5, 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
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


IMAGE = {"x": (TensorProto.FLOAT, ("n", 3, 8, 8))}


def convolution() -> ModelProto:
    """Return a model with windows and lists of numbers."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], strides=[1, 2], dilations=[1, 1], group=1),
        node("MaxPool", "a", "b i", kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_UPPER", ceil_mode=1),
        node("Reshape", "b s", "c"),
        node("Softmax", "c", "y", axis=-1),
    ]
    constants = {"w": np.ones((4, 3, 3, 3), np.float32), "s": np.array([0, -1])}
    return make_model(nodes, IMAGE, constants=constants)


def old() -> ModelProto:
    """Return a model whose nodes are all lifted from an old form."""
    nodes = [
        node("Pad", "x", "a", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=1.0),
        node("Slice", "a", "b", starts=[0, 1], ends=[2, 4], axes=[1, 2]),
        node("Upsample", "b", "c", scales=[1.0, 1.0, 2.0, 2.0]),
        node("Split", "c", "d e", axis=1, split=[1, 1]),
        node("Concat", "d e", "f", axis=2),
        node("ReduceMean", "f", "g", axes=[2, 3]),
        node("Clip", "g", "y", min=0.0, max=1.0),
    ]
    return make_model(nodes, IMAGE, opset=7)


def shapes() -> ModelProto:
    """Return a model whose shapes come out of constants."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i", "g", axis=0),
        node("Constant", "", "v", value=helper.make_tensor("v", TensorProto.INT64, [2], [2, 3])),
        node("ConstantOfShape", "v", "z", value=helper.make_tensor("z", TensorProto.FLOAT, [1], [2.0])),
        node("Transpose", "z", "t", perm=[1, 0]),
        node("Expand", "t e", "q"),
        node("Unsqueeze", "q u", "p"),
        node("Resize", "p _ r", "y", mode="linear"),
        node("Cast", "g", "k", to=TensorProto.FLOAT16),
    ]
    constants = {"i": np.array([1]), "e": np.array([3, 2]), "u": np.array([0, 1])}
    constants["r"] = np.array([1, 1, 2, 2], np.float32)
    return make_model(nodes, IMAGE, ("y", "k"), constants)


def functions() -> ModelProto:
    """Return a model with a function that is called with an attribute."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [node("Gemm", "a a", "t", transB=1, alpha=0.5), node("Relu", "t", "b")]
    body[0].attribute.add(name="beta", ref_attr_name="beta", type=1)
    function = helper.make_function("local", "f", ["a"], ["b"], body, imports, ["beta"])
    called = node("f", "x", "y", domain="local", beta=0.5)
    return make_model([called], functions=[function], opset_imports=imports)


SEEDS = [convolution(), old(), shapes(), functions()]


def places(message: Message) -> Iterator[tuple[Message, str]]:
    """Return every field that is set, with its message; documentation is left out."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        for described, value in current.ListFields():
            yield current, described.name
            if described.type == described.TYPE_MESSAGE:
                waiting += [value] if isinstance(value, Message) else list(value)


def fuzz_model(seed: int) -> ModelProto:
    """Return a model in which a few fields have other values."""
    draw = random.Random(seed)
    model = ModelProto()
    model.CopyFrom(draw.choice(SEEDS))
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
            setattr(parent, name, _other(value, name, draw))
    return model


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
        with suppress(ValueError):  # a number that the field is too narrow for
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
    return draw.choice(NUMBERS[:8] if name in ("data_type", "elem_type") else NUMBERS)


def fuzz_bytes(seed: int) -> bytes:
    """Return the bytes of a model with a few of them changed, put in, taken out or cut off."""
    draw = random.Random(seed)
    data = bytearray(draw.choice(SEEDS).SerializeToString())
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place, length = draw.randrange(len(data) or 1), draw.choice((1, 1, 2, 8))
        action = draw.randrange(9)
        if action == 0:
            del data[place : place + length]
        elif action < 3:
            data[place:place] = draw.randbytes(length)
        elif action < 6 and data:
            data[place] ^= 1 << draw.randrange(8)
        elif action < 8:
            data[place : place + length] = draw.choice((b"\xff", b"\0", b"\x80")) * length
        else:
            data = data[: max(place, 1)]
    return bytes(data)


def examine(model: ModelProto | bytes) -> bool:
    """Load, bind and infer shapes; tell whether that works. Anything but a WeftError is a failure."""
    start = time.process_time()
    try:
        graph = load(model)
        shapes = {
            name: tuple(2 if isinstance(d, str) else d for d in graph.specs[name].shape)
            for name in graph.inputs
        }
        infer_shapes(bind(graph, shapes))
        str(graph)
    except WeftError as e:
        assert e.what
        return False
    finally:
        assert time.process_time() - start < SECONDS_FOR_ONE
    return True


def peak() -> float:
    """Return the most memory that this process has had so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_the_seeds_are_good_models() -> None:
    assert all(examine(model) for model in SEEDS)


def test_models_with_changed_fields_load_or_are_refused() -> None:
    before, seen = peak(), {True: 0, False: 0}

    @BOUNDED
    @given(st.integers(0, 2**32))
    def one(seed: int) -> None:
        for k in range(10):
            seen[examine(fuzz_model(seed * 10 + k))] += 1

    one()
    assert peak() - before < MEGABYTES_FOR_ALL
    assert min(seen.values()) > sum(seen.values()) // 20, f"the fuzzer makes too much of one kind: {seen}"


def test_changed_bytes_load_or_are_refused() -> None:
    before, seen = peak(), {True: 0, False: 0}

    @BOUNDED
    @given(st.integers(0, 2**32))
    def one(seed: int) -> None:
        for k in range(10):
            seen[examine(fuzz_bytes(seed * 10 + k))] += 1

    one()
    assert peak() - before < MEGABYTES_FOR_ALL
    assert min(seen.values()) > sum(seen.values()) // 50, f"the fuzzer makes too much of one kind: {seen}"
