"""Biases that are added to a reshaped value are added first: before and after, what stays, and attention behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import find_pass, run_passes

rewrite = find_pass("add_biases_first")
APART = (2, 3, 4, 5)
ROWS, COLUMNS = (2, 3, 4, 1), (2, 3, 1, 5)


def biased(
    *biases: tuple[int, ...] | np.ndarray[Any, Any],
    swapped: bool = False,
    back: tuple[int, ...] = (6, 20),
    dtype: DType = DType.FLOAT32,
) -> Graph:
    """Return a value that is reshaped, to which biases are added, inputs or constants, and reshaped again."""
    net = Net()
    total = net.add("Reshape", net.add("Relu", net.input("x", 6, 20, dtype=dtype)), np.array(APART))
    for k, bias in enumerate(biases):
        added = net.input(f"bias{k}", *bias, dtype=dtype) if isinstance(bias, tuple) else bias
        total = net.add("Add", *((added, total) if swapped else (total, added)))
    return net.finish(net.add("Reshape", total, np.array(back)))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "biases",
    [(ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, (5,)), (APART, (1,)), ((2, 1, 1, 1), (3, 1, 1), (4, 1), (5,))],
    ids=str,
)
def test_biases_are_added_first(biases: tuple[tuple[int, ...], ...], swapped: bool) -> None:
    graph = biased(*biases, swapped=swapped)
    after = rewrite(graph)
    assert kinds(after) == ["Relu", *["Add"] * (len(biases) - 1), "Reshape", "Add"]
    assert_same(graph, after)
    assert rewrite(after) is after


def test_one_of_them_may_be_a_constant() -> None:
    graph = biased(np.ones(ROWS, np.float32), COLUMNS)
    assert kinds(rewrite(graph)) == ["Relu", "Add", "Reshape", "Add"]
    assert_same(graph, rewrite(graph))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = biased(ROWS, COLUMNS, dtype=dtype)
    assert kinds(rewrite(graph))[-1] == "Add"
    assert_same(
        graph, rewrite(graph), {DType.FLOAT16: 4e-3, DType.BFLOAT16: 4e-2, DType.FLOAT64: 1e-15}[dtype]
    )


def _read_between(net: Net) -> tuple[str, ...]:
    apart = net.add("Reshape", net.input("x", 6, 20), np.array(APART))
    inner = net.add("Add", apart, net.input("a", *ROWS))
    total = net.add("Add", inner, net.input("b", *COLUMNS))
    return net.add("Reshape", total, np.array([6, 20])), inner


def _the_sum_is_read(net: Net) -> tuple[str, ...]:
    apart = net.add("Reshape", net.input("x", 6, 20), np.array(APART))
    total = net.add("Add", net.add("Add", apart, net.input("a", *ROWS)), net.input("b", *COLUMNS))
    return net.add("Reshape", total, np.array([6, 20])), net.add("Relu", total)


def _transposed(net: Net) -> tuple[str, ...]:
    apart = net.add("Transpose", net.input("x", 3, 2, 4, 5), perm=(1, 0, 2, 3))
    total = net.add("Add", net.add("Add", apart, net.input("a", *ROWS)), net.input("b", *COLUMNS))
    return (net.add("Reshape", total, np.array([6, 20])),)


STAYS: list[Callable[[Net], tuple[str, ...]]] = [_read_between, _the_sum_is_read, _transposed]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_read_or_moved_stays(build: Callable[[Net], tuple[str, ...]]) -> None:
    net = Net()
    graph = net.finish(*build(net))
    assert rewrite(graph) is graph


@pytest.mark.parametrize(
    "graph",
    [
        biased(ROWS),
        biased(ROWS, ROWS),
        biased(ROWS, COLUMNS, back=(20, 6)),
        biased(np.ones(ROWS, np.float32), np.ones(COLUMNS, np.float32)),
        biased(ROWS, COLUMNS, dtype=DType.INT32),
        biased(*[ROWS, COLUMNS] * 3),
    ],
    ids=["one", "not the whole", "another shape", "constants", "integers", "many"],
)
def test_others_stay(graph: Graph) -> None:
    assert rewrite(graph) is graph


def positions(heads: int = 2, side: int = 4, width: int = 16) -> Graph:
    """Return an attention with relative positions by rows and columns, as MViT v2 of timm has it."""
    net, length = Net(), side * side
    q, k, v = (net.input(name, 1, heads, length, width) for name in "qkv")
    scores = net.add(
        "MatMul", net.add("Mul", q, np.array(0.25, np.float32)), net.add("Transpose", k, perm=(0, 1, 3, 2))
    )
    apart = net.add("Reshape", q, np.array([1, heads, side, side, width]))
    by_row, by_column = (net.add("MatMul", apart, net.random(width, side, scale=0.2)) for _ in range(2))
    total = net.add("Reshape", scores, np.array([1, heads, side, side, side, side]))
    total = net.add("Add", total, net.add("Unsqueeze", by_row, np.array([-1])))
    total = net.add("Add", total, net.add("Unsqueeze", by_column, np.array([-2])))
    total = net.add("Reshape", total, np.array([1, heads, length, length]))
    return net.finish(net.add("MatMul", net.add("Softmax", total, axis=-1), v))


def test_relative_positions_are_the_mask_of_an_attention() -> None:
    graph = positions()
    after = run_passes(graph)
    assert kinds(after).count("weft::Attention") == 1 and "Softmax" not in kinds(after)
    assert_same(graph, after)
    told = planned_kernels(graph)
    assert told.count("elementwise") == 1 and not any(kernel.startswith("softmax") for kernel in told)


@pytest.mark.alike
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_device_computes_it_right(device: str, precision: str) -> None:
    graph = positions()
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
        assert device == "cpu" or "softmax" not in kernels(session)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if precision == "low" else 1e-5)
