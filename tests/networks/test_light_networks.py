"""The nine light networks of the onnx package: reference outputs, then random weights against ONNX Runtime.

The files have weights of one value each, so that their outputs hardly depend on the arithmetic. They are
therefore run a second time with random weights. Both runs are one test, because kernels are compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import weft
from weft.core.graph.layout import Array

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
DEVICES = ("cpu", "opencl", "vulkan")
TOLERANCE = {"densenet121": 2e-3}
"""What onnx's own test of the network allows, relative; 1e-3 for the others."""
NETWORKS = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
LARGE = ("bvlc_alexnet", "zfnet512", "vgg19")
"""Networks with weights of more than 128 MiB, which is the range of a buffer on llvmpipe."""


def dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(d.dim_value or 1 for d in value.type.tensor_type.shape.dim)


def model(name: str) -> onnx.ModelProto:
    return onnx.load(FOLDER / f"light_{name}.onnx")


def ramp(proto: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs that onnx's runner feeds to a light network: a ramp from 0 to 1."""
    constants = {i.name for i in proto.graph.initializer}
    shapes = {i.name: dims(i) for i in proto.graph.input if i.name not in constants}
    return {n: (np.arange(prod(s)).reshape(s) / prod(s)).astype(np.float32) for n, s in shapes.items()}


def reference(name: str) -> Array:
    tensor = TensorProto()
    tensor.ParseFromString((FOLDER / f"light_{name}_output_0.pb").read_bytes())
    return numpy_helper.to_array(tensor)


def readers(graph: onnx.GraphProto) -> dict[str, tuple[onnx.NodeProto, int]]:
    """Return a node that reads each value, and as which of its inputs."""
    return {name: (node, k) for node in graph.node for k, name in enumerate(node.input)}


def weights(node: onnx.NodeProto, position: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return random numbers for an input of a node that keep the values in the network of order one."""
    if node.op_type == "BatchNormalization" and position in (1, 4):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if node.op_type in ("Conv", "Gemm", "MatMul") and position == 1:
        fan_in = prod(shape[1:]) if node.op_type == "Conv" else max(shape)
        return (rng.standard_normal(shape, np.float32) * np.float32((2 / fan_in) ** 0.5)).astype(np.float32)
    return (rng.standard_normal(shape, np.float32) * np.float32(0.1)).astype(np.float32)


def drop_softmax(nodes: list[onnx.NodeProto]) -> None:
    """Let the node before a last Softmax make the output."""
    if nodes[-1].op_type == "Softmax":
        softmax = nodes.pop()
        nodes[-1].output[0] = softmax.output[0]


def logits_model(name: str) -> bytes:
    """Return the network as it is, up to its Softmax."""
    proto = model(name)
    nodes = list(proto.graph.node)
    drop_softmax(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    content: bytes = proto.SerializeToString()
    return content


@cache
def random_model(name: str) -> bytes:
    """Return the network up to its Softmax, with random weights for those that ConstantOfShape nodes make."""
    proto, rng = model(name), np.random.default_rng(3)
    graph = proto.graph
    read = readers(graph)
    shapes = {i.name: tuple(numpy_helper.to_array(i).tolist()) for i in graph.initializer if i.dims}
    kept, made = [], []
    for node in graph.node:
        user = read.get(node.output[0])
        if node.op_type == "ConstantOfShape" and user is not None:
            made.append(numpy_helper.from_array(weights(*user, shapes[node.input[0]], rng), node.output[0]))
        else:
            kept.append(node)
    drop_softmax(kept)
    used = {i for node in kept for i in node.input}
    made += [i for i in graph.initializer if i.name in used]
    inputs = [i for i in graph.input if i.name in used]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend(made)
    graph.input.extend(inputs)
    content: bytes = proto.SerializeToString()
    return content


@cache
def expected(name: str) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(random_model(name), options, ["CPUExecutionProvider"])
    result: Array = session.run(None, ramp(model(name)))[0]
    return result


@pytest.fixture(autouse=True, scope="module")
def forget() -> Iterator[None]:
    """Drop the models at the end: some are large."""
    yield
    random_model.cache_clear()


def assert_on(session: weft.Session, device: str) -> None:
    assert set(session.report.nodes_by_device) == {device}, session.report.refusals


QUICK = {("squeezenet", device) for device in DEVICES}
QUICK |= {("shufflenet", "cpu"), ("shufflenet", "opencl"), ("bvlc_alexnet", "cpu")}
"""What takes little time, and has all ops and a large network; llvmpipe takes up to a minute for each of the others."""


def _runs() -> list[Any]:
    """Return the networks and devices, those long that take much time."""
    every = ((name, device) for device in DEVICES for name in (*NETWORKS, *LARGE))
    return [pytest.param(*e, marks=[pytest.mark.long] * (e not in QUICK)) for e in every]


@pytest.mark.usefixtures("sizes_are_pushed")
@pytest.mark.parametrize(("name", "device"), _runs())
def test_a_light_network_runs_whole_on_every_device(device: str, name: str) -> None:
    with weft.load(FOLDER / f"light_{name}.onnx", device=device, fallback="error") as session:
        assert_on(session, device)
        (y,) = session.run(ramp(model(name)))
    want = reference(name)
    if device == "cpu" and np.ptp(want) == 0:
        # All logits are equal but for rounding. A BLAS that adds columns in different orders tells them apart,
        # and the softmax of large logits makes a winner of that: here the logits themselves are compared.
        with weft.load(logits_model(name), device=device) as session:
            (logits,) = session.run(ramp(model(name)))
        np.testing.assert_allclose(logits, logits.flat[0], rtol=1e-5)
    else:
        np.testing.assert_allclose(y, want, rtol=TOLERANCE.get(name, 1e-3), atol=1e-7)
    if name in LARGE and (name, device) != ("bvlc_alexnet", "vulkan"):
        return
    with weft.load(random_model(name), device=device, fallback="error") as session:
        (y,) = session.run(ramp(model(name)))
    best = expected(name)
    scale = float(np.abs(best).max())
    assert best.std() > 0.01 * scale, "the outputs say nothing"
    np.testing.assert_allclose(y / scale, best / scale, rtol=0, atol=1e-5)
