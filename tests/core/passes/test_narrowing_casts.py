"""Casts to float16 and bfloat16 round at precision HIGH and NORMAL, where the values are stored as float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, kinds
from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.placement.prepare import prepare_network
from weft_conformance.cases.types import NARROWED

DEVICES = ("cpu", "opencl", "vulkan")
NARROW = (DType.FLOAT16, DType.BFLOAT16)
WHOLE = np.arange(-40, 40).reshape(1, 4, 4, 5) * 4097
"""Whole numbers beyond the ends of float16, and with more digits than either type has."""


def narrowed(net: Net, x: str, to: DType) -> str:
    """Cast to a narrow type and back."""
    return net.add("Cast", net.add("Cast", x, to=to), to=DType.FLOAT32)


def numbers() -> Array:
    """Return numbers that round up, down, to even, to zero and to infinity, in an image."""
    assert NARROWED.value is not None
    return np.resize(NARROWED.value, (1, 4, 4, 5))


def same(graph: Graph, device: str, *fed: Array, precision: str = "high") -> None:
    """Fail unless a device computes what the ops' references do in the network's own types."""
    expected = outputs(graph, dict(zip(graph.inputs, fed, strict=True)))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        for got, want in zip(session.run(*fed), expected, strict=True):
            np.testing.assert_array_equal(got, want)
        assert not any("cast(s)" in note for note in session.report.notes)


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize(
    "around",
    [
        lambda net, x, to: narrowed(net, x, to),
        lambda net, x, to: net.add("Neg", net.add("Neg", net.add("Cast", net.add("Neg", x), to=to))),
        lambda net, x, to: net.add("Sub", narrowed(net, x, to), x),
        lambda net, x, to: net.add("Neg", narrowed(net, net.pool(net.add("Abs", x)), to)),
        lambda net, x, to: net.pool(narrowed(net, x, to)),
        lambda net, x, to: net.add("ReduceMin", narrowed(net, x, to), np.array([3])),
        lambda net, x, to: net.add("Concat", narrowed(net, x, to), x, axis=1),
        lambda net, x, to: net.add("CastLike", net.add("CastLike", x, np.zeros(1, to.numpy)), x),
        lambda net, x, to: narrowed(net, narrowed(net, x, to), next(t for t in NARROW if t is not to)),
    ],
    ids="alone between-steps both-read behind-a-pool before-a-pool reduced joined like both-types".split(),
)
def test_a_cast_rounds_wherever_it_stands(
    around: Callable[[Net, str, DType], str], precision: str, to: DType, device: str
) -> None:
    net = Net()
    y = around(net, net.input("x", 1, 4, 4, 5), to)
    same(net.finish(net.add("Identity", net.add("Cast", y, to=DType.FLOAT32))), device, numbers(), precision=precision)


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize("source", [DType.INT32, DType.INT64, DType.FLOAT64, DType.UINT8, DType.BOOL])
def test_whatever_is_cast_rounds(source: DType, to: DType, device: str) -> None:
    net = Net()
    y = net.add("Cast", net.add("Cast", net.input("x", 1, 4, 4, 5, dtype=source), to=to), to=DType.FLOAT32)
    same(net.finish(net.add("Neg", y)), device, WHOLE.astype(source.numpy))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_an_output_and_read_has_one_value(device: str) -> None:
    net = Net()
    half = net.add("Cast", net.input("x", 1, 4, 4, 5), to=DType.FLOAT16, name="half")
    same(net.finish(half, net.add("Neg", net.add("Cast", half, to=DType.FLOAT32))), device, numbers())


def test_where_nothing_can_round_nothing_does() -> None:
    """Casts that undo a widening one, those of an output that nothing else reads, and of types that fit."""
    net = Net()
    x, i = net.input("x", 4, dtype=DType.FLOAT16), net.input("i", 4, dtype=DType.INT8)
    back = net.add("Cast", net.add("Cast", net.add("Cast", x, to=DType.FLOAT32), to=DType.FLOAT64), to=DType.FLOAT16)
    small = net.add("Neg", net.add("Cast", i, to=DType.BFLOAT16))
    made = net.add("Cast", net.add("Exp", net.input("z", 4)), to=DType.FLOAT16)
    graph = net.finish(net.add("Neg", back), net.add("Cast", small, to=DType.FLOAT32), made)
    assert "weft::Narrow" not in kinds(prepare_network(graph, Precision.HIGH).graph)


def test_constants_are_rounded_once() -> None:
    net = Net()
    third = narrowed(net, net.constant(np.full(4, 1 / 3, np.float32)), DType.FLOAT16)
    graph = net.finish(net.add("Mul", net.input("x", 4), third))
    assert kinds(prepare_network(graph, Precision.HIGH).graph) == ["Mul"]
    same(graph, "cpu", np.ones(4, np.float32))


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_an_attention_with_casts_stays_one_op(device: str) -> None:
    """As Llama is exported in float16: the scores are cast up for the softmax, and its shares down."""
    net = Net()
    q, k, v = (net.input(name, 1, 2, 6, 4, dtype=DType.FLOAT16) for name in "qkv")
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.add("Mul", scores, np.asarray(0.5, np.float16))
    shares = net.add("Softmax", net.add("Cast", scores, to=DType.FLOAT32), axis=-1)
    graph = net.finish(net.add("MatMul", net.add("Cast", shares, to=DType.FLOAT16), v))
    rng = np.random.default_rng(0)
    fed = {name: rng.standard_normal((1, 2, 6, 4)).astype(np.float16) for name in graph.inputs}
    (want,) = outputs(graph, fed)
    with weft.load(graph, device, fallback="error") as session:
        assert "Softmax" not in kinds(session.optimized.graph)
        np.testing.assert_allclose(session.run(fed)[0].astype(np.float32), want.astype(np.float32), atol=4e-3)


def test_low_may_round_bfloat16_to_float16_and_says_so() -> None:
    net = Net()
    y = narrowed(net, net.input("x", 4), DType.BFLOAT16)
    with weft.load(net.finish(net.add("Neg", y)), "cpu", precision="low") as session:
        np.testing.assert_array_equal(session.run(np.full(4, 1 / 3, np.float32))[0], -np.float32(np.float16(1 / 3)))
        assert any("1 cast(s) to bfloat16 keep float16 at precision LOW" in note for note in session.report.notes)
