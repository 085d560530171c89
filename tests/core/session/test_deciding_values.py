"""Integers that a caller gives and that decide shapes: after a first run in stages they count as sizes do."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.session.session import Session
from weft.errors import WeftError

DEVICES = ("cpu", "opencl", "vulkan")
HEADS, GROUPS, DEPTH = 4, 2, 8


def decoder() -> Graph:
    """Return a layer of GroupQueryAttention with a cache, whose size follows from `total`, and a product."""
    net = Net()
    x = net.input("x", 1, "s", 16)
    q, k, v = (net.add("MatMul", x, net.random(16, n * DEPTH)) for n in (HEADS, GROUPS, GROUPS))
    past = [net.input(f"past_{side}", 1, GROUPS, "p", DEPTH) for side in "kv"]
    lengths, total = net.input("lengths", 1, dtype=weft.DType.INT32), net.input("total", dtype=weft.DType.INT32)
    angles = np.arange(64)[:, None] / 100.0 ** (np.arange(DEPTH // 2) / 4)
    turns = [net.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    attend = new_op("com.microsoft::GroupQueryAttention", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, outputs=3)
    y = net.add(attend, q, k, v, *past, lengths, total, *turns, name="y", outputs=3)
    return net.finish(net.add("MatMul", y, net.random(HEADS * DEPTH, 16)), "y.1", "y.2")


def step(past: int, rows: int, total: int) -> dict[str, Array]:
    """Return the inputs of a step of the decoder: `rows` words behind `total - rows`, in caches of `past` rows."""
    rng = np.random.default_rng(past + total)
    caches = {f"past_{side}": rng.standard_normal((1, GROUPS, past, DEPTH)).astype(np.float32) for side in "kv"}
    x = rng.standard_normal((1, rows, 16)).astype(np.float32)
    return {"x": x, **caches, "lengths": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}


def check(session: Session, graph: Graph, given: dict[str, Array]) -> None:
    wanted = outputs(bind(graph, {name: a.shape for name, a in given.items()}), given)
    for got, want in zip(session.run(given), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_a_dimension_may_have_the_name_of_an_element() -> None:
    net = Net()
    row, shape = net.input("x", "shape[0]"), net.input("shape", 2, dtype=weft.DType.INT64)
    grown = net.add("Neg", net.add("Expand", net.add("Tanh", net.input("z", 1)), shape))
    graph = net.finish(grown, net.add("Exp", row))
    with weft.load(graph, "cpu") as session:
        for seed, given in enumerate(([2, 5], [3, 5], [1, 4])):
            x, z = (np.random.default_rng(seed).standard_normal(n).astype(np.float32) for n in (7, 1))
            check(session, graph, {"x": x, "shape": np.array(given, np.int64), "z": z})


def in_stages(session: Session) -> bool:
    return any("stages" in note for note in session.report.notes)


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_whose_size_a_value_tells(device: str) -> None:
    """It grows, and lengths come back; then the caches have room, and only the value differs from run to run."""
    graph = decoder()
    with weft.load(graph, device, fallback="error") as session:
        check(session, graph, step(0, 5, 5))
        assert in_stages(session)
        for past in (5, 6, 7, 20, 6, 8, 7, 5):
            check(session, graph, step(past, 1, past + 1))
            assert not in_stages(session)
        for total in (9, 10, 3, 10, 9, 12):
            check(session, graph, step(12, 1, total))
        check(session, graph, step(0, 4, 4))
        assert not in_stages(session)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_that_an_input_gives(device: str) -> None:
    """The same arrays with another shape, also of another rank, and shapes that do not fit."""
    net = Net()
    rows, shape = net.input("x", "n", 6), net.input("shape", "r", dtype=weft.DType.INT64)
    graph = net.finish(net.add("Exp", net.add("Reshape", net.add("Tanh", rows), shape)))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    with weft.load(graph, device, fallback="error") as session:
        for given in ([2, 12], [12, 2], [3, 8], [2, 12], [4, 2, 3], [24], [8, 3], [-1, 2]):
            check(session, graph, {"x": x, "shape": np.array(given, np.int64)})
        assert not in_stages(session)
        with pytest.raises(WeftError):
            session.run({"x": x, "shape": np.array([5, 5], np.int64)})
        check(session, graph, {"x": x[:2], "shape": np.array([3, 4], np.int64)})


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_sizes_that_only_a_run_tells_stay_in_stages(device: str) -> None:
    net = Net()
    row, shape = net.input("x", "n"), net.input("shape", "r", dtype=weft.DType.INT64)
    grown = net.add("Expand", net.add("Tanh", row), shape)
    graph = net.finish(net.add("Transpose", net.add("NonZero", net.add("Relu", grown)), perm=(1, 0)), grown)
    with weft.load(graph, device) as session:
        for seed, given in enumerate(([2, 5], [3, 5], [1, 5], [2, 5], [4, 5])):
            x = np.random.default_rng(seed).standard_normal(5).astype(np.float32)
            check(session, graph, {"x": x, "shape": np.array(given, np.int64)})
            assert in_stages(session)
