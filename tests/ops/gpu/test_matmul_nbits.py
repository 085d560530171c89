"""Products with weights of four bits on GPUs: which kernels run, the numbers, and that rows do not depend on others."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

K, N, BLOCK = 192, 10, 32


def product(rows: int | str, zeros: str = "packed", *, block: int = BLOCK, bits: int = 4, order: bool = False) -> Graph:
    net = Net()
    blocks = K // block
    weights = net.rng.integers(0, 256, (N, blocks, block * bits // 8)).astype(np.uint8)
    scales = net.rng.uniform(0.01, 0.1, (N, blocks)).astype(np.float32)
    middle: dict[str, Array] = {
        "packed": net.rng.integers(0, 256, (N, -(-blocks * bits // 8))).astype(np.uint8),
        "floats": net.rng.uniform(6, 9, (N, blocks)).astype(np.float32),
    }
    given = [net.input("x", 1, rows, K), net.constant(weights), net.constant(scales)]
    given += [net.constant(middle[zeros])] if zeros else [""]
    if order:
        given.append(net.constant((np.arange(K) // block)[::-1].astype(np.int32).copy()))
    return net.finish(net.add("com.microsoft::MatMulNBits", *given, K=K, N=N, bits=bits, block_size=block))


def run(graph: Graph, device: str, x: Array) -> tuple[Array, list[str]]:
    with weft.load(graph, device, fallback="error") as session:
        (y,) = session.run({"x": x})
        return y, kernels(session) if device != "cpu" else []


def rows_of(count: int) -> Array:
    return np.random.default_rng(5).standard_normal((1, count, K)).astype(np.float32)


@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
@pytest.mark.parametrize("block", [32, 64])
def test_few_rows_read_packed_weights(zeros: str, block: int) -> None:
    graph, x = product(3, zeros, block=block), rows_of(3)
    y, launched = run(graph, "opencl", x)
    assert launched == ["matmul_nbits"]
    np.testing.assert_allclose(y, run(graph, "cpu", x)[0], rtol=1e-5, atol=1e-5)


def test_on_vulkan() -> None:
    graph, x = product(2), rows_of(2)
    y, launched = run(graph, "vulkan", x)
    assert launched == ["matmul_nbits"]
    np.testing.assert_allclose(y, run(graph, "cpu", x)[0], rtol=1e-5, atol=1e-5)


def test_a_row_has_the_same_bits_beside_any_others() -> None:
    x = rows_of(16)
    alone, _ = run(product(1), "opencl", x[:, :1])
    for count in (2, 5, 16):
        y, launched = run(product(count), "opencl", x[:, :count])
        assert launched == ["matmul_nbits"]
        assert y[:, :1].tobytes() == alone.tobytes()


def test_many_rows_are_multiplied_by_floats() -> None:
    graph, x = product(17), rows_of(17)
    y, launched = run(graph, "opencl", x)
    assert launched == ["unpack_nbits", "matmul"]
    np.testing.assert_allclose(y, run(graph, "cpu", x)[0], rtol=1e-5, atol=1e-5)


def test_a_number_of_rows_that_changes() -> None:
    with weft.load(product("rows"), "opencl", fallback="error") as session:
        for count in (1, 3, 2, 7):
            x = rows_of(count)
            (y,) = session.run({"x": x})
            np.testing.assert_allclose(y, run(product(count), "cpu", x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", [{"bits": 8}, {"block": 16}, {"order": True}])
def test_other_weights_become_floats(other: dict[str, int]) -> None:
    graph, x = product(2, "", **other), rows_of(2)  # type: ignore[arg-type]
    y, launched = run(graph, "opencl", x)
    assert "matmul_nbits" not in launched
    np.testing.assert_allclose(y, run(graph, "cpu", x)[0], rtol=1e-5, atol=1e-5)
