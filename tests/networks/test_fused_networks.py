"""Small networks of several nodes on every GPU against the CPU: what fusing and views could get wrong.

The op table runs single nodes, which are never fused. Here each base has fewer inputs than it could take, so
that an operand of a fused step must not be mistaken for one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import weft
from tests.helpers.choices import ACTIVATIONS
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import null_gpu
from weft.core.graph.dtypes import DType
from weft.ops.norm import LayerNormalization
from weft_conformance.cases.table import tolerance

GPUS = ("opencl", "vulkan")
IMAGE, MATRIX = (1, 4, 3, 3), (5, 6)


def image(build: Callable[[Net, str], str], channels: int = 4) -> weft.Graph:
    net = Net(0)
    return net.finish(build(net, net.input("x", 1, channels, 3, 3)))


def matrix(build: Callable[[Net, str], str]) -> weft.Graph:
    net = Net(0)
    return net.finish(build(net, net.input("x", *MATRIX)))


def two(net: Net, x: str) -> str:
    return net.input("z", *IMAGE)


def _activated(name: str) -> weft.Graph:
    return image(lambda net, x: ACTIVATIONS[name](net, net.conv(x, 4, 1)))


TWO, THREE, TENTH, ZERO = (np.array(v, np.float32) for v in (2, 3, 0.1, 0))
FUSED: dict[str, Callable[[], weft.Graph]] = {
    "conv without bias, + channels": lambda: image(
        lambda n, x: n.add("Add", n.conv(x, 4, 1, bias=False), n.random(1, 4, 1, 1))
    ),
    "conv without bias, * 2": lambda: image(lambda n, x: n.add("Mul", n.conv(x, 4, 1, bias=False), TWO)),
    "conv without bias, prelu": lambda: image(
        lambda n, x: n.add("PRelu", n.conv(x, 4, 1, bias=False), n.random(4, 1, 1))
    ),
    "transposed conv without bias, + channels": lambda: image(
        lambda n, x: n.add("Add", n.add("ConvTranspose", x, n.random(4, 4, 2, 2)), n.random(1, 4, 1, 1))
    ),
    "gemm without C, * 2": lambda: matrix(lambda n, x: n.add("Mul", n.add("Gemm", x, n.random(6, 3)), TWO)),
    "gemm without C, + columns": lambda: matrix(
        lambda n, x: n.add("Add", n.add("Gemm", x, n.random(6, 3)), n.random(3))
    ),
    "sum, * 3": lambda: image(lambda n, x: n.add("Mul", n.add("Sum", x, two(n, x)), THREE)),
    "mean, * 3": lambda: image(lambda n, x: n.add("Mul", n.add("Mean", x, two(n, x)), THREE)),
    "sum with a broadcast operand, * x": lambda: image(
        lambda n, x: n.add("Mul", n.add("Mul", n.input("h", 1), x), n.add("Sum", n.input("o", 1), n.add("Erf", x)))
    ),
    "clip without max, * 0.1": lambda: image(lambda n, x: n.add("Mul", n.add("Clip", x, ZERO), TENTH)),
    "reduce over all, * 3": lambda: image(lambda n, x: n.add("Mul", n.add("ReduceSum", x), THREE)),
    "conv, SiLU": lambda: image(lambda n, x: _gated(n, n.conv(x, 4, 1))),
    "conv, Mish, * a branch of another value": lambda: image(
        lambda n, x: n.add("Mul", _mish(n, n.conv(x, 5, 1)), n.add("Exp", n.input("z", 1, 5, 3, 3)))
    ),
    "conv + z, SiLU": lambda: image(lambda n, x: _gated(n, n.add("Add", n.conv(x, 4, 1), two(n, x)))),
    "gemm, two branches": lambda: matrix(
        lambda n, x: _branches(n, n.add("Gemm", x, n.random(6, 3), n.random(3)))
    ),
    "matmul, SiLU, two branches": lambda: matrix(
        lambda n, x: _branches(n, _gated(n, n.add("MatMul", x, n.random(6, 4))))
    ),
    "squeeze and excite": lambda: image(lambda n, x: n.add("Mul", x, _excited(n, x))),
    "x * x + x": lambda: image(lambda n, x: n.add("Add", n.add("Mul", x, x), x)),
    "layer norm without B, * 3": lambda: matrix(
        lambda n, x: n.add("Mul", n.add("LayerNormalization", x, n.random(6)), THREE)
    ),
    "concat of a concat and its part": lambda: image(
        lambda n, x: _nested(n, n.conv(x, 4, 1), n.conv(x, 8, 1), lambda a, b: (n.add("Concat", a, b, axis=1), a))
    ),
    "concat of a part and a concat": lambda: image(
        lambda n, x: _nested(n, n.conv(x, 4, 1), n.conv(x, 8, 1), lambda a, b: (a, n.add("Concat", b, a, axis=1)))
    ),
    "mask of -3e38 before a softmax": lambda: image(
        lambda n, x: n.add("Softmax", n.add("Add", x, np.full((1, 1, 3, 3), -3e38, np.float32)), axis=1)
    ),
}

FUSED |= {f"conv, {name} by Where": partial(_activated, name) for name in ACTIVATIONS}


def _nested(net: Net, a: str, b: str, parts: Callable[[str, str], tuple[str, str]]) -> str:
    return net.add("Concat", *parts(a, b), axis=1)


def _gated(net: Net, x: str) -> str:
    return net.add("Mul", x, net.add("Sigmoid", x))


def _excited(net: Net, x: str) -> str:
    inner = net.add("Relu", net.conv(net.add("GlobalAveragePool", x), 3))
    return net.add("Sigmoid", net.conv(inner, 4))


def _mish(net: Net, x: str) -> str:
    return net.add("Mul", net.add("Tanh", net.add("Softplus", x)), x)


def _branches(net: Net, x: str) -> str:
    inner = net.add("Tanh", net.add("Add", x, net.add("Mul", x, TENTH)))
    return net.add("Sub", net.add("Mul", _gated(net, x), inner), net.add("Mul", x, TENTH))


@pytest.mark.parametrize("name", [name for name in FUSED if name.startswith(("conv", "gemm", "matmul"))])
def test_a_product_and_all_that_follows_is_one_launch(name: str) -> None:
    with null_gpu():
        network = weft.optimize(FUSED[name](), ["null"])
    (part,) = network.parts
    assert part.lowered is not None
    launched = [launch for launch in part.lowered.launches if "relayout" not in launch.kernel]
    assert len(launched) == 1, launched


def _between_convolutions(activation: Callable[[Net, str], str]) -> weft.Graph:
    return image(lambda net, x: net.conv(activation(net, net.conv(x, 8, 3, pads=(1, 1, 1, 1))), 8, 3), channels=8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_choice_between_convolutions_takes_as_many_launches_as_an_activation(name: str) -> None:
    for precision in ("high", "low"):
        plain = planned_kernels(_between_convolutions(lambda net, v: net.add("LeakyRelu", v)), precision)
        assert planned_kernels(_between_convolutions(ACTIVATIONS[name]), precision) == plain


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_network_is_what_the_cpu_computes(name: str, device: str, precision: str) -> None:
    graph = FUSED[name]()
    given = feeds(graph)
    with weft.load(graph, device="cpu") as session:
        (want,) = session.run(given)
    with weft.load(graph, device=device, precision=precision, fallback="error") as session:
        (got,) = session.run(given)
        assert session.report.nodes_by_device.keys() == {device}
    rtol, atol = tolerance(DType.FLOAT32 if precision == "high" else DType.FLOAT16, "reduction")
    np.testing.assert_allclose(got, want, rtol, atol * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_outputs_are_told_by_position_where_one_between_is_unnamed(device: str) -> None:
    net = Net(0)
    x = net.input("x", *MATRIX)
    graph = net.finish(net.add(LayerNormalization(outputs=3), x, net.random(6), outputs=3))
    (node,) = graph.nodes
    y, _, deviation = node.outputs
    graph.nodes = [weft.Node(node.name, node.op, node.inputs, (y, "", deviation))]
    graph.outputs = [y, deviation]
    given = feeds(graph)
    with weft.load(graph, device=device) as session:
        got = session.run(given)[1]
    np.testing.assert_allclose(got, 1 / np.sqrt(given["x"].var(1, keepdims=True) + 1e-5), 1e-5)


WIDENED: dict[str, tuple[Callable[[], weft.Graph], bool]] = {
    "layer norm": (lambda: matrix(lambda n, x: n.add(LayerNormalization(axis=-1), x, n.random(6))), True),
    "softmax, * 2": (lambda: matrix(lambda n, x: n.add("Mul", n.add("Softmax", x), TWO)), True),
    "few rows": (
        lambda: (n := Net(0)).finish(n.add("Relu", n.add("Gemm", n.input("x", 2, 8), n.random(8, 3), n.random(3)))),
        True,
    ),
    "global pool": (lambda: image(lambda n, x: n.add("GlobalAveragePool", x)), True),
    "many rows": (lambda: matrix(lambda n, x: n.add("MatMul", x, n.random(6, 4))), False),
}
"""Networks, and whether the kernel that computes the output stores it in fp32 where all before is fp16."""


@pytest.mark.covering
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("name", WIDENED)
def test_the_last_kernel_stores_what_the_output_is(name: str, device: str) -> None:
    build, widened = WIDENED[name]
    graph = build()
    fed = feeds(graph)
    with weft.load(graph, "cpu", precision="low") as session:
        (expected,) = session.run(fed)
    with weft.load(graph, device, precision="low", fallback="error") as session:
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
        (actual,) = session.run(fed)
    assert actual.dtype == np.float32
    assert (f"{graph.outputs[0]}/elementwise" in labels) is not widened, labels
    rtol, atol = tolerance(DType.FLOAT16, "reduction")
    np.testing.assert_allclose(actual, expected, rtol, atol)
