"""Random numbers: the generator's known answers, the distributions, and what a seed decides."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from tests.helpers.onnx_models import make_model, node
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.ops.random import Bernoulli, RandomNormal, RandomUniform, philox


def test_the_words_are_those_that_the_authors_of_the_generator_give() -> None:
    """The first of the known answers of Random123 for Philox4x32-10: counter and key are zero."""
    assert [hex(word) for word in philox((0, 0), 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert len(set(philox((0, 0), 400).tolist())) == 400
    np.testing.assert_array_equal(philox((3, 0), 5), philox((3, 0), 9)[:5])


def test_numbers_are_spread_as_their_names_say() -> None:
    uniform = RandomUniform(shape=(100_000,), low=-1.0, high=3.0, seed=1.0).reference()
    assert uniform.min() >= -1 and uniform.max() < 3
    np.testing.assert_allclose([uniform.mean(), uniform.var()], [1, 16 / 12], atol=0.02)
    normal = RandomNormal(shape=(100_000,), mean=2.0, scale=0.5, seed=1.0).reference()
    np.testing.assert_allclose([normal.mean(), normal.std(), np.mean(normal < 1.5)], [2, 0.5, 0.1587], atol=0.005)
    shares = np.tile(np.array([0, 0.1, 0.75, 1], np.float32), 50_000).reshape(-1, 4)
    drawn = Bernoulli(seed=1.0).reference(shares)
    np.testing.assert_allclose(drawn.mean(axis=0), shares[0], atol=0.005)
    assert set(np.unique(drawn)) == {0, 1}


def drawn(device: str, **attributes: float) -> list[Array]:
    """Return the numbers that two nodes add to zeros."""
    nodes = [node("RandomUniformLike", "x", f"r{k}", name=f"r{k}", **attributes) for k in range(2)]
    nodes += [node("Add", f"x r{k}", f"y{k}") for k in range(2)]
    with weft.load(make_model(nodes, outputs=("y0", "y1")), device, fallback="error") as session:
        first, again = (session.run(np.zeros((2, 3), np.float32)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    return list(first)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_seed_means_the_same_numbers_on_every_device_and_in_every_run(device: str) -> None:
    np.testing.assert_array_equal(drawn(device, seed=3.0), drawn("cpu", seed=3.0))
    np.testing.assert_array_equal(drawn(device), drawn("cpu"))


def test_nodes_without_a_seed_draw_different_numbers() -> None:
    first, second = drawn("cpu")
    assert not np.isin(first, second).any()
    first, second = drawn("cpu", seed=3.0)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.5, 0.7), (-3.0, -2.0)])
def test_no_number_is_rounded_up_to_the_end(dtype: DType, low: float, high: float) -> None:
    class Last(RandomUniform):
        def draw(self, count: int) -> Array:
            return np.full(count, low + (high - low) * (1 - 2.0**-32))

    (number,) = Last(shape=(1,), low=low, high=high, dtype=dtype).reference()
    assert low < float(number) < high


def loop(count: int | None, device: str, nested: bool = False) -> Array:
    """Return the numbers that a loop of three steps draws, `count` of which is known, or an input of the network."""
    drawn = [
        node("RandomUniform", "", "u", name="u", shape=[2]),
        node("RandomNormalLike", "u", "n", name="n"),
        node("Concat", "u n", "both", axis=0),
        node("Identity", "c", "on"),
    ]
    outputs = [("on", TensorProto.BOOL), ("both", TensorProto.FLOAT)]
    body = helper.make_graph(
        drawn,
        "inner",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("k", TensorProto.INT64), ("c", TensorProto.BOOL))],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs],
    )
    if nested:
        inner = helper.make_node("Loop", ["three", ""], ["rows"], body=body, name="inner")
        outer = [("k2", TensorProto.INT64), ("c2", TensorProto.BOOL)]
        body = helper.make_graph(
            [inner, node("Identity", "c2", "on2")],
            "outer",
            [helper.make_tensor_value_info(n, t, []) for n, t in outer],
            [helper.make_tensor_value_info(n, t, None) for n, t in (("on2", outputs[0][1]), ("rows", outputs[1][1]))],
        )
    held = {"three": np.array(3), "yes": np.array(True)} | ({} if count is None else {"count": np.array(count)})
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    inputs += [helper.make_tensor_value_info("count", TensorProto.INT64, [])] if count is None else []
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "yes"], ["all"], body=body, name="loop"), node("Add", "all x", "y")],
        "net",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.zeros(1, np.float32)} | ({"count": np.array(3)} if count is None else {})
    with weft.load(model, device) as session:
        first: Array
        (first,), (again,) = session.run(feeds), session.run(feeds)
    np.testing.assert_array_equal(first, again)
    return first


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_each_step_of_a_loop_draws_numbers_of_its_own(device: str) -> None:
    """As in onnxruntime; the same in each run, on each device, and whether the loop is unrolled or not."""
    known = loop(3, "cpu")
    assert known.shape == (3, 4) and np.unique(known).size == 12
    np.testing.assert_array_equal(loop(3, device), known)
    np.testing.assert_array_equal(loop(None, device), known)


def test_each_step_of_an_inner_loop_does_too() -> None:
    numbers = loop(None, "cpu", nested=True)
    assert numbers.shape == (3, 3, 4) and np.unique(numbers).size == 36
