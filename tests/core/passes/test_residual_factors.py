"""A value plus itself times factors is one product: before and after, what stays, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import find_pass, run_passes

rewrite = find_pass("join_residual_factors")
SHAPE = (2, 6, 5, 7)


def gate_of(net: Net, x: str) -> str:
    return net.add("Sigmoid", net.add("ReduceMean", x, np.array([2, 3])))


def residual(form: str, dtype: DType = DType.FLOAT32) -> Graph:
    """Return x plus its product with a gate and perhaps constants, in one of several orders."""
    net = Net()
    x = net.add("Relu", net.input("x", *SHAPE, dtype=dtype))
    gate, kind = gate_of(net, x), dtype.numpy
    weight, bias = net.random(1, 6, 1, 1).astype(kind), net.random(6, 1, 1).astype(kind)
    product = net.add("Mul", net.add("Mul", x, weight) if form == "factor first" else x, gate)
    y = {
        "alone": lambda: net.add("Add", x, product),
        "swapped": lambda: net.add("Add", product, x),
        "factor": lambda: net.add("Add", x, net.add("Mul", weight, product)),
        "factor first": lambda: net.add("Add", x, product),
        "twice": lambda: net.add("Add", x, net.add("Add", x, product)),
        "bias": lambda: net.add("Add", x, net.add("Add", bias, net.add("Mul", weight, product))),
        "another value": lambda: net.add("Add", net.add("Add", product, net.input("z", *SHAPE, dtype=dtype)), x),
    }[form]()
    return net.finish(y)


def counts(graph: Graph) -> tuple[int, int]:
    """Return how many nodes make values of the shape of x by products, and by sums."""
    made = [n.op.type for n in graph.nodes if graph.specs[n.outputs[0]].dims == SHAPE]
    return made.count("Mul"), made.count("Add")


@pytest.mark.parametrize("form", ["alone", "swapped", "factor", "factor first", "twice", "bias", "another value"])
def test_each_form_is_one_product(form: str) -> None:
    graph = residual(form)
    after = rewrite(graph)
    assert counts(after) == (1, form in ("bias", "another value"))
    assert len(after.nodes) <= len(graph.nodes)
    assert_same(graph, after)
    assert rewrite(after) is after
    assert counts(run_passes(graph)) == counts(after)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = residual("bias", dtype)
    assert counts(rewrite(graph)) == (1, 1)
    tolerance = {DType.FLOAT16: 4e-3, DType.BFLOAT16: 4e-2, DType.FLOAT64: 1e-15}[dtype]
    assert_same(graph, rewrite(graph), tolerance)


def _a_constant_alone(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", x, net.add("Mul", x, net.random(6, 1, 1))),)


def _a_gate_of_each_element(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", x, net.add("Mul", x, net.add("Sigmoid", x))),)


def _two_gates(net: Net, x: str) -> tuple[str, ...]:
    product = net.add("Mul", net.add("Mul", x, gate_of(net, x)), net.add("Sigmoid", net.input("z", 2, 1, 5, 7)))
    return (net.add("Add", x, product),)


def _a_constant_along_other_axes(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", x, net.add("Mul", net.add("Mul", x, gate_of(net, x)), net.random(5, 7))),)


def _the_gate_is_read(net: Net, x: str) -> tuple[str, ...]:
    gate = gate_of(net, x)
    return net.add("Add", x, net.add("Mul", x, gate)), gate


def _the_product_is_read(net: Net, x: str) -> tuple[str, ...]:
    product = net.add("Mul", x, gate_of(net, x))
    return net.add("Add", x, product), product


def _a_gate_that_is_moved(net: Net, x: str) -> tuple[str, ...]:
    gate = net.add("Reshape", net.add("Sigmoid", net.input("z", 2, 6)), np.array([2, 6, 1, 1]))
    return (net.add("Add", x, net.add("Mul", x, gate)),)


def _another_value(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", net.input("z", *SHAPE), net.add("Mul", x, gate_of(net, x))),)


STAYS = [
    _a_constant_alone,
    _a_gate_of_each_element,
    _two_gates,
    _a_constant_along_other_axes,
    _the_gate_is_read,
    _the_product_is_read,
    _a_gate_that_is_moved,
    _another_value,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_residual_stays(build: Callable[[Net, str], tuple[str, ...]]) -> None:
    net = Net()
    graph = net.finish(*build(net, net.add("Relu", net.input("x", *SHAPE))))
    assert rewrite(graph) is graph


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_global_response_norm_is_a_factor_that_a_convolution_applies_as_it_loads(device: str, precision: str) -> None:
    net = Net()
    x = net.add("Relu", net.conv(net.input("x", 2, 3, 9, 7), 16))
    norms = net.add("ReduceL2", x, np.array([2, 3]))
    mean = net.add("Add", net.add("ReduceMean", norms, np.array([1])), np.asarray(1e-6, np.float32))
    shares = net.add("Div", norms, mean)
    scaled = net.add("Mul", net.random(1, 16, 1, 1), net.add("Mul", x, shares))
    graph = net.finish(net.conv(net.add("Add", x, net.add("Add", net.random(1, 16, 1, 1), scaled)), 8, 1))
    after = run_passes(graph)
    assert kinds(after)[-2:] == ["Mul", "Conv"]
    told = planned_kernels(graph, precision)
    assert not any("elementwise" in kernel for kernel in told)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-2 if precision == "low" else 1e-4)
