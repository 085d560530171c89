"""At precision LOW passes see float16 weights as float32, which are made once something reads their numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.passes.manager import PassContext, graph_pass


def products(net: Net) -> str:
    x = net.input("x", 1, 512)
    for _ in range(4):
        x = net.add("MatMul", x, net.random(512, 512))
    return x


def folded(net: Net) -> str:
    """A batch norm, whose factors become a part of the weights, and a kernel without effect."""
    x = net.add("Conv", net.input("x", 1, 64, 6, 6), net.random(96, 64, 3, 3), net.random(96))
    x = net.add("BatchNormalization", x, *(np.abs(net.random(96)) + 0.5 for _ in range(4)))
    return net.add("Mul", x, np.ones((1, 96, 4, 4), np.float32))


def projected(net: Net) -> str:
    """Heads of one value, whose weights are joined, some with biases; and an attention."""
    x = net.input("x", 1, 7, 160)
    made = []
    for biased in (True, False, True):
        y = net.add("MatMul", x, net.random(160, 240))
        y = net.add("Add", y, net.random(240)) if biased else y
        y = net.add("Reshape", y, np.array([1, 7, 3, 80]))
        made.append(net.add("Transpose", y, perm=(0, 2, 1, 3)))
    q, k, v = made
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    return net.add("MatMul", net.add("Softmax", scores), v)


def moved(net: Net) -> str:
    """Constants that are transposed and reshaped with what they are added to, and one that is computed."""
    x = net.add("Transpose", net.input("x", 1, 200, 180), perm=(0, 2, 1))
    x = net.add("Mul", x, net.random(180, 200))
    x = net.add("Transpose", x, perm=(0, 2, 1))
    x = net.add("Reshape", x, np.array([1, 36000]))
    x = net.add("Reshape", net.add("Add", x, net.random(1, 36000)), np.array([200, 180]))
    weight = net.add("Div", net.constant(net.random(180, 200)), np.asarray(3, np.float32))
    return net.add("MatMul", x, weight)


def in_type(graph: Graph, dtype: DType) -> Graph:
    """Return a graph whose floats are of a type, all numbers being those of float16."""
    out = graph.copy()
    out.specs = {n: replace(s, dtype=dtype) if s.dtype is DType.FLOAT32 else s for n, s in graph.specs.items()}
    out.constants = {
        n: v.astype(np.float16).astype(dtype.numpy) if v.dtype == np.float32 else v for n, v in graph.constants.items()
    }
    for value in out.constants.values():
        value.setflags(write=False)
    return out


def built(make: Callable[[Net], str], dtype: DType) -> Graph:
    net = Net()
    return in_type(net.finish(make(net)), dtype)


def optimized(graph: Graph) -> weft.OptimizedNetwork:
    return weft.optimize(graph, "cpu", precision="low")


def test_weights_that_nobody_reads_take_no_memory_for_float32() -> None:
    graph = built(products, DType.FLOAT16)
    optimized(built(products, DType.FLOAT16))  # imports
    tracemalloc.start()
    made = optimized(graph)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    weights = [value for value in graph.constants.values() if value.ndim == 2]
    assert peak < sum(value.nbytes for value in weights)
    assert all(any(value is each for each in made.graph.constants.values()) for value in weights)


@pytest.mark.parametrize("make", [products, folded, projected, moved])
def test_passes_make_the_weights_that_they_make_of_float32(make: Callable[[Net], str]) -> None:
    found = []
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        network = optimized(built(make, dtype))
        assert all(type(value) is np.ndarray for value in network.graph.constants.values())
        large = (v for v in network.graph.constants.values() if v.size > 1000)
        nodes = [n.op.type for n in network.graph.nodes if n.op.type not in ("Cast", "weft::Cast")]
        found.append((nodes, sorted((v.dtype.str, v.shape, v.tobytes()) for v in large)))
    half, single = found
    assert half == single
    assert half[1] and {dtype for dtype, _, _ in half[1]} == {"<f2"}


def test_a_pass_of_the_user_gets_arrays() -> None:
    seen = list[Array]()

    @graph_pass(after="fold_batch_norm")
    def look(graph: Graph, context: PassContext) -> Graph:
        """Look at all weights."""
        seen.extend(graph.constants.values())
        return graph

    weft.optimize(built(folded, DType.FLOAT16), "cpu", precision="low", passes=[look])
    large = [value for value in seen if value.size > 50_000]
    assert large and all(type(value) is np.ndarray and value.dtype == np.float32 for value in large)
