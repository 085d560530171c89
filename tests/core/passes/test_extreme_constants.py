"""What is made with constants that fp16 cannot hold stays float32 at precision LOW, and little else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks.models import MODELS
from tests.helpers.nets import Net, assert_near, feeds
from tests.helpers.onnx_models import make_model
from tests.helpers.staged_models import FLOAT, branch, node
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.passes.wide_values import wide_values

LOWEST = float(np.finfo(np.float32).min)
DEVICES = ("cpu", "opencl", "vulkan")
X = np.array([[0, 0.5, 2, 0], [0, 0, 0, 0]], np.float32)
SCORES = np.array([[-40, -20, -30, -25], [1, 2, 3, -4]], np.float32)
SHOWN = np.array([[0, 0, 0, 0], [1, 1, 0, 1]], np.float32)


def number(value: float) -> Array:
    return np.array(value, np.float32)


def softmax(x: Array) -> Array:
    shares = np.exp(x - x.max(-1, keepdims=True))
    made: Array = shares / shares.sum(-1, keepdims=True)
    return made


def logarithm(net: Net, x: str) -> str:
    return net.add("Log", net.add("Add", x, number(1e-10)))


def log_of_limit(net: Net, x: str) -> str:
    return net.add("Log", net.add("Clip", x, number(1e-10)))


def log_of_limits(net: Net, x: str) -> str:
    return net.add("Log", net.add("Max", x, np.array([1e-10, 1e-3, 1e-10, 1], np.float32)))


def normalised(net: Net, x: str) -> str:
    length = net.add("ReduceL2", x, np.array([-1]), keepdims=1)
    return net.add("Div", x, net.add("Max", length, number(1e-12)))


def shares(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("Add", net.add("ReduceSum", x, np.array([-1])), number(1e-9)))


def deviations(net: Net, x: str) -> str:
    apart = net.add("Sub", x, net.add("ReduceMean", x, np.array([-1])))
    variance = net.add("ReduceMean", net.add("Mul", apart, apart), np.array([-1]))
    return net.add("Div", apart, net.add("Sqrt", net.add("Add", variance, number(1e-12))))


def root_of_epsilon(net: Net, x: str) -> str:
    """Take the logarithm of a square beside the smallest step of a float32 above 1, as audio networks do."""
    return net.add("Log", net.add("Add", net.add("Mul", x, x), number(2.0**-23)))


def up_and_down(net: Net, x: str) -> str:
    return net.add("Div", net.add("Mul", x, number(1e6)), number(1e6))


def down_and_up(net: Net, x: str) -> str:
    return net.add("Mul", net.add("Reshape", net.add("Mul", x, number(1e-9)), np.array([2, 4])), number(1e9))


def small_product(net: Net, x: str) -> str:
    return net.add("Mul", net.add("MatMul", x, np.eye(4, dtype=np.float32) * 1e-9), number(1e9))


def large_product(net: Net, x: str) -> str:
    return net.add("Mul", net.add("MatMul", x, np.eye(4, dtype=np.float32) * 1e7), number(1e-7))


def gathered(net: Net, x: str) -> str:
    table = net.add("Gather", np.full((3, 4), 3e-9, np.float32), net.add("Cast", x, to=DType.INT64), axis=0)
    return net.add("Mul", table, number(1e9))


def masked(net: Net, x: str) -> str:
    return net.add("Softmax", net.add("Add", x, (1 - SHOWN) * number(LOWEST)))


def masked_by_a_choice(net: Net, x: str) -> str:
    return net.add("Softmax", net.add("Where", SHOWN.astype(bool), x, number(LOWEST)))


def masked_by_an_input(net: Net, x: str) -> str:
    hidden = net.add("Sub", number(1), net.input("shown", 2, 4))
    return net.add("Softmax", net.add("Add", x, net.add("Mul", hidden, number(LOWEST))))


def hard_choice(net: Net, x: str) -> str:
    return net.add("Softmax", net.add("Mul", x, number(1e6)))


def log_of_hard_choice(net: Net, x: str) -> str:
    return net.add("LogSoftmax", net.add("Div", x, number(1e-5)))


def log_of_shares(net: Net, x: str) -> str:
    return net.add("Log", net.add("Add", net.add("Softmax", x), number(1e-12)))


def direction(net: Net, x: str) -> str:
    small = net.add("Mul", x, number(1e-9))
    length = net.add("ReduceL2", small, np.array([-1]), keepdims=1)
    return net.add("Div", small, net.add("Max", length, number(1e-12)))


def layer_norm(net: Net, x: str) -> str:
    small = net.add("Mul", x, number(1e-9))
    return net.add("LayerNormalization", small, np.ones(4, np.float32), np.zeros(4, np.float32), epsilon=1e-24)


def shifted(net: Net, x: str) -> str:
    return net.add("Softmax", net.add("Sub", net.add("Mul", x, number(0.25)), number(1e5)))


def hard_attention(net: Net, x: str) -> str:
    scores = net.add("Mul", net.add("MatMul", x, net.add("Transpose", x, perm=(0, 2, 1))), number(1e6))
    return net.add("MatMul", net.add("Softmax", scores), x)


def attention_in_float64(x: Array) -> Array:
    made: Array = softmax(1e6 * (x @ x.transpose(0, 2, 1))) @ x
    return made


def length(x: Array) -> Array:
    made: Array = np.sqrt((x * x).sum(-1, keepdims=True))
    return made


EVEN = softmax(np.where(SHOWN, SCORES, LOWEST).astype(np.float64))
CASES: Mapping[str, tuple[Callable[[Net, str], str], Array, Any]] = {
    "log(x + 1e-10)": (logarithm, X, lambda x: np.log(x + 1e-10)),
    "log(clip(x, 1e-10))": (log_of_limit, X, lambda x: np.log(np.maximum(x, 1e-10))),
    "log(max(x, limits))": (log_of_limits, X, lambda x: np.log(np.maximum(x, [1e-10, 1e-3, 1e-10, 1]))),
    "x / max(norm(x), 1e-12)": (normalised, X, lambda x: x / np.maximum(length(x), 1e-12)),
    "x / (sum(x) + 1e-9)": (shares, X, lambda x: x / (x.sum(-1, keepdims=True) + 1e-9)),
    "(x - mean) / sqrt(var + 1e-12)": (
        deviations, X, lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12),
    ),
    "log(x * x + 2**-23)": (root_of_epsilon, X * 1e-3, lambda x: np.log(x * x + 2.0**-23)),
    "x * 1e6 / 1e6": (up_and_down, X, lambda x: x),
    "x * 1e-9 * 1e9": (down_and_up, X, lambda x: x),
    "a product with 1e-9": (small_product, X, lambda x: x),
    "a product with 1e7": (large_product, X, lambda x: x),
    "a table of 3e-9": (gathered, X[1], lambda x: np.full((4, 4), 3.0)),
    "a mask that is added": (masked, SCORES, lambda x: EVEN),
    "a mask that is chosen": (masked_by_a_choice, SCORES, lambda x: EVEN),
    "a mask that is computed": (masked_by_an_input, SCORES, lambda x: EVEN),
    "softmax(x * 1e6)": (hard_choice, X, lambda x: softmax(x * 1e6)),
    "log(softmax(x / 1e-5))": (log_of_hard_choice, X, lambda x: -1e5 * (x.max(-1, keepdims=True) - x) - np.log(
        (x == x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    )),
    "log(softmax(x) + 1e-12)": (log_of_shares, SCORES, lambda x: np.log(softmax(x) + 1e-12)),
    "x * 1e-9 / norm(x * 1e-9)": (direction, X, lambda x: x / np.maximum(length(x), 1e-3)),
    "layer_norm(x * 1e-9)": (
        layer_norm, SCORES, lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
    ),
    "softmax(x / 4 - 1e5)": (shifted, SCORES, lambda x: softmax(x / 4)),
    "attention to the nearest": (hard_attention, SCORES[None] / 10, attention_in_float64),
}


def network(build: Callable[[Net, str], str], x: Array) -> Graph:
    net = Net()
    made = build(net, net.input("x", *x.shape))
    return net.finish(net.add("Identity", made, name="y"))


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_constants_that_fp16_cannot_hold_count(name: str, device: str) -> None:
    build, x, expected = CASES[name]
    graph = network(build, x)
    for fusing in (True, False):
        with weft.load(graph, device, precision="low", fallback="error", fusing=fusing) as session:
            arrays = {"x": x} | ({"shown": SHOWN} if "shown" in graph.inputs else {})
            (y,) = session.run(arrays)
            np.testing.assert_allclose(y, expected(x.astype(np.float64)), rtol=5e-3, atol=2e-3)
            assert {*session.report.placement.values()} == {device}
            lost = [note for note in session.report.notes if "float16 constants" in note]
            assert lost == [] or name == "a mask that is chosen"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [-1e9, LOWEST])
def test_attention_to_nothing_is_attention_to_all(hidden: float, device: str) -> None:
    """Attend with a mask `(1 - shown) * hidden`: a row that hides all is as at HIGH, where the mask leaves no score."""
    net = Net()
    x, shown = net.input("x", 1, 2, 8, 16), net.input("shown", 1, 1, 8, 8)
    mask = net.add("Mul", net.add("Sub", number(1), shown), number(hidden))
    scores = net.add("Mul", net.add("MatMul", x, net.add("Transpose", x, perm=(0, 1, 3, 2))), number(0.25))
    net.add("MatMul", net.add("Softmax", net.add("Add", scores, mask)), x, name="y")
    given = np.ones((1, 1, 8, 8), np.float32)
    given[..., 5:] = 0
    given[0, 0, 3] = 0
    arrays = feeds(net.finish("y")) | {"shown": given}
    with weft.load(net.graph, "cpu") as high, weft.load(net.graph, device, precision="low") as low:
        (expected,), (y,) = high.run(arrays), low.run(arrays)
    alike = np.ones(8, bool)
    alike[3] = hidden == LOWEST  # of -1e9 float32 leaves steps of 64 of a score, which nobody means
    assert_near(y[:, :, alike], expected[:, :, alike], 2e-3)
    assert np.isfinite(y).all()


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_saved_networks_keep_float32(device: str, tmp_path: Path) -> None:
    weft.optimize(network(logarithm, X), device, precision="low").save(tmp_path / "n.weft")
    with weft.load(tmp_path / "n.weft") as session:
        np.testing.assert_allclose(session.run(X)[0], np.log(X + 1e-10), rtol=2e-3, atol=1e-3)


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_sizes_may_be_open(device: str) -> None:
    net = Net()
    x = net.input("x", "rows", 4)
    with weft.load(net.finish(logarithm(net, x)), device, precision="low", fallback="error") as session:
        for rows in (2, 3, 1, 5):
            x_value = np.linspace(0, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
            np.testing.assert_allclose(session.run(x_value)[0], np.log(x_value + 1e-10), rtol=2e-3, atol=1e-3)


def test_float32_crosses_to_another_device() -> None:
    net = Net()
    x = net.input("x", 2, 4)
    net.add("Log", net.add("Add", x, number(1e-10), name="sum"), name="y")
    devices = ["opencl", "vulkan", "cpu"]
    with weft.load(net.finish("y"), devices, precision="low", hints={"n_sum": "vulkan", "n_y": "opencl"}) as session:
        np.testing.assert_allclose(session.run(X)[0], np.log(X + 1e-10), rtol=2e-3, atol=1e-3)
        assert session.report.placement["n_sum"] == "vulkan" and session.report.placement["n_y"] == "opencl"


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_branches_and_later_stages_keep_float32(device: str) -> None:
    """Add in one stage, take the logarithm in another: in a branch that a sum chooses, and behind it."""
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node("Add", "x least", "held"),
        node(
            "If", "positive", "chosen",
            then_branch=branch("then", node("Mul", "held held", "squares"), node("Add", "squares least", "out")),
            else_branch=branch("else", node("Neg", "x", "out")),
        ),
        node("Log", "chosen", "y"),
    ]
    constants = {"zero": number(0), "least": number(1e-10)}
    model = make_model(nodes, {"x": (FLOAT, (3,))}, ["y"], constants)
    x = np.array([0, 1e-6, 2], np.float32)
    with weft.load(model, device, precision="low") as session:
        np.testing.assert_allclose(session.run(x)[0], np.log((x + 1e-10) ** 2 + 1e-10), rtol=5e-3)


@settings(deadline=None, max_examples=20)
@given(st.floats(1e-30, 6e-6), st.lists(st.floats(0, 10, width=16), min_size=1, max_size=6))
def test_any_epsilon_is_that_of_the_model(epsilon: float, elements: list[float]) -> None:
    net = Net()
    x = np.array(elements, np.float32)
    net.add("Reciprocal", net.add("Add", net.input("x", len(elements)), number(epsilon)), name="y")
    with weft.load(net.finish("y"), "cpu", precision="low") as session:
        np.testing.assert_allclose(session.run(x)[0], 1 / (x.astype(np.float64) + np.float32(epsilon)), rtol=2e-3)


def test_weights_of_which_some_are_tiny_change_nothing() -> None:
    """Training leaves single weights and biases near 0, which do not count; neither do epsilons that fp16 holds."""
    net = Net()
    x = net.conv(net.input("x", 1, 8, 6, 6), 8)
    few = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1, 1)
    few[3] = 1e-12
    scaled = net.add("PRelu", net.add("Mul", net.add("Add", x, few), few), few)
    net.add("Sqrt", net.add("Add", net.add("Mul", scaled, scaled), number(1e-5)), name="y")
    assert not wide_values(net.finish("y"))


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
def test_common_networks_store_float16_throughout(name: str) -> None:
    net = weft.optimize(MODELS[name](1), "cpu", precision="low")
    floats = {v: s.dtype for v, s in net.graph.specs.items() if s.dtype.is_float and v not in net.graph.constants}
    ends = {*net.graph.inputs, *net.graph.outputs}
    assert {v for v, dtype in floats.items() if dtype is DType.FLOAT32} <= ends
