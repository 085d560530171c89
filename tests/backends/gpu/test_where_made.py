"""A kernel that stores a value also computes element-wise readers that are not alone, or read it reshaped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from tests.helpers.op_rows import ROWS, SAMPLE, refusal
from tests.helpers.random_nets import assert_right, assert_session_is_right
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.kernels.gpu_op import find_gpu_op
from weft_conformance.cases.table import Case, tolerance

GPUS = ("opencl", "vulkan")


def activated_beside_a_pool() -> Graph:
    """A convolution whose image is pooled as it is and activated for another one."""
    net = Net()
    x = net.conv(net.input("x", 2, 3, 9, 7), 6, 3, name="image")
    return net.finish(
        net.conv(net.add("LeakyRelu", x, alpha=0.1), 5, 3), net.add("AveragePool", x, kernel_shape=(2, 2))
    )


def two_activations() -> Graph:
    """Two activations of one convolution, which nothing reads itself."""
    net = Net()
    x = net.conv(net.input("x", 1, 8, 6, 6), 8, name="image")
    return net.finish(net.conv(net.add("Sigmoid", x), 4, 3), net.conv(net.add("Tanh", x), 4, 3))


def residual() -> Graph:
    """A sum that the next sum reads as well as a norm and its activation, before a convolution of 3 x 3."""
    net = Net()
    x = net.conv(net.input("x", 1, 4, 8, 8), 8, name="stem")
    for block in range(2):
        known = [net.random(8), net.random(8), net.random(8), net.random(8) ** 2 + np.float32(0.5)]
        normed = net.add("Relu", net.add("BatchNormalization", x, *known))
        x = net.add("Add", x, net.conv(normed, 8, 3, pads=(1, 1, 1, 1)), name=f"sum{block}")
    return net.finish(net.add("GlobalAveragePool", x), net.add("Sigmoid", x))


def rows() -> Graph:
    """A product of matrices whose result is added to, beside a product that reads it as it is."""
    net = Net()
    made = net.add("MatMul", net.input("x", 6, 8), net.random(8, 12), name="made")
    changed = net.add("Add", net.add("Tanh", made), net.input("z", 6, 12))
    return net.finish(net.add("MatMul", changed, net.random(12, 4)), net.add("MatMul", made, net.random(12, 4)))


def a_result() -> Graph:
    """A value that is a result of the network, and another computed from it."""
    net = Net()
    made = net.conv(net.input("x", 1, 3, 5, 5), 7, name="made")
    return net.finish(made, net.add("HardSigmoid", made, name="y"))


def reshaped() -> Graph:
    """Rows that are scaled and shifted in another shape, beside the rows as they were."""
    net = Net()
    made = net.add("MatMul", net.input("x", 6, 8), net.random(8, 12), name="made")
    turned = net.add("Reshape", made, np.array([2, 3, 12]))
    ends = net.add("Tanh", net.add("Add", net.add("Mul", turned, np.array(0.5, np.float32)), net.random(12)))
    return net.finish(net.add("MatMul", made, net.random(12, 4)), net.add("Softmax", ends, axis=-1))


def reshaped_residual() -> Graph:
    """A product of all rows at once, to which a sum of rows in batches is added, which a norm reads, too."""
    net = Net()
    before = net.add("MatMul", net.input("z", 2, 3, 8), net.random(8, 12), name="before")
    flat = net.add("Reshape", net.add("LayerNormalization", before, net.random(12)), np.array([6, 12]))
    made = net.add("Reshape", net.add("MatMul", flat, net.random(12, 12)), np.array([2, 3, 12]))
    total = net.add("Add", made, before, name="total")
    return net.finish(total, net.add("LayerNormalization", total, net.random(12)))


def reshaped_image() -> Graph:
    """Pixels in a row, activated, of which alone a reshape of a convolution's image is read."""
    net = Net()
    image = net.conv(net.input("x", 1, 4, 6, 6), 8, 3, name="image")
    row = net.add("LeakyRelu", net.add("Reshape", image, np.array([1, 8, 16])), alpha=0.2)
    return net.finish(net.add("ReduceMax", row, np.array([2])))


CASES: dict[str, tuple[Callable[[], Graph], int]] = {
    "activated beside a pool": (activated_beside_a_pool, 3),
    "two activations": (two_activations, 3),
    "a residual sum": (residual, 4),
    "rows": (rows, 3),
    "a result": (a_result, 1),
    "a reshape between": (reshaped, 3),
    "a reshaped residual": (reshaped_residual, 4),
    "a reshaped image": (reshaped_image, 2),
}
"""Networks, and the launches that are left besides conversions of layouts."""


@pytest.mark.covering
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("case", CASES)
def test_an_element_wise_reader_takes_no_launch(case: str, device: str) -> None:
    make, launches = CASES[case]
    graph = make()
    with weft.load(graph, device, fallback="error") as session:
        made = [kernel for kernel in kernels(session) if kernel != "relayout"]
        assert set(session.report.placement.values()) == {device}
        assert_session_is_right(session, graph, 1e-5)
    assert len(made) == launches and not [kernel for kernel in made if kernel.startswith("elementwise")]


@pytest.mark.covering
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_right_in_fp16(case: str, device: str) -> None:
    assert_right(CASES[case][0](), device, "low", 1e-2)


FUSING = {
    row.op: row
    for row in ROWS
    if refusal(row) is None
    and (form := find_gpu_op(row.make_op())) is not None
    and form.fuses_into_store
    and (row.op in SAMPLE or not row.make_op().is_elementwise)
    and [spec.dtype for spec in row.onnx_specs()] == [DType.FLOAT32]
    and any(i is not None and not i.constant for i in row.inputs)
    and all(spec is None or spec.size for spec in row.specs())
}
"""Of each op whose kernels take steps, its last row with one result and no empty input."""


def beside(rows: list[Case]) -> tuple[Graph, dict[str, Array]]:
    """Return a network with the result of each row, and two functions of it that are computed where it is stored."""
    net, fed, ends = Net(), dict[str, Array](), list[str]()
    for row in rows:
        names = []
        for given, array in zip(row.inputs, row.arrays(), strict=True):
            if given is None or array is None:
                names.append("")
            elif given.constant:
                names.append(net.constant(array))
            else:
                names.append(net.input(f"x{len(fed)}", *array.shape, dtype=DType.of(array.dtype)))
                fed[names[-1]] = array
        y = net.add(row.make_op(), *names)
        second, third = (f"{kind} of {row.op}" for kind in ("second", "third"))
        ends += [y, net.add("Sigmoid", y, name=second), net.add("Mul", y, np.array(2, np.float32), name=third)]
    return net.finish(*ends), fed


@pytest.mark.parametrize("device", GPUS)
def test_every_kernel_that_takes_steps_stores_second_outputs(device: str) -> None:
    graph, fed = beside(list(FUSING.values()))
    with weft.load(graph, device, fallback="error") as session:
        launched, got = {launch.node for _, launch in session.report.launches}, session.run(fed)
    apart = [node for node in launched if node.startswith(("n_second", "n_third"))]
    assert len(FUSING) > 40 and not apart
    wanted, sigmoid = outputs(graph, fed), tolerance(DType.FLOAT32, "transcendental")
    for k, row in enumerate(FUSING.values()):
        own = tolerance(DType.FLOAT32, row.make_op().op_class)
        least = [own, tuple(map(max, own, sigmoid)), own]
        for mine, theirs, (rtol, atol) in zip(got[3 * k :], wanted[3 * k :], least, strict=False):
            np.testing.assert_allclose(mine, theirs, rtol, atol, err_msg=row.id)


def _launched(graph: Graph) -> dict[str, str]:
    """Return the nodes that launch, each with why it is no part of another one, or ""."""
    with null_gpu():
        (part,) = weft.optimize(graph, "null", fallback="error").parts
        assert part.lowered is not None
        return {launch.node: "" for launch in part.lowered.launches} | dict(part.lowered.why_apart())


def test_what_also_reads_what_is_computed_from_it_stays_apart() -> None:
    net = Net()
    x = net.add("MatMul", net.input("x", 6, 8), net.random(8, 6), name="made")
    graph = net.finish(net.add("Mul", x, net.add("Transpose", x, perm=(1, 0)), name="y"))
    assert "it also reads what is computed from that" in _launched(graph)["n_y"]


def test_nothing_is_left_of_a_node_that_cannot_be_computed_before_the_reshape() -> None:
    """It could but for what else it reads, of which it is found last that this follows from the same value."""
    net = Net()
    made = net.add("MatMul", net.input("x", 12, 8), net.random(8, 6), name="made")
    turned = net.add("Reshape", made, np.array([2, 6, 6]))
    other = net.add("Transpose", turned, perm=(0, 2, 1), name="other")
    graph = net.finish(net.add("Mul", turned, other, name="y"))
    assert "it also reads what is computed from that" in _launched(graph)["n_y"]
    assert_nothing_is_left(graph)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_of_values_that_are_no_longer_made(case: str) -> None:
    assert_nothing_is_left(CASES[case][0]())


def assert_nothing_is_left(graph: Graph) -> None:
    """Fail unless the lowered graph has the specs of the values that there are, and no others."""
    with null_gpu():
        (part,) = weft.optimize(graph, "null", fallback="error").parts
        assert part.lowered is not None
        lowered = part.lowered.graph
    assert {*lowered.specs} == {*lowered.inputs, *lowered.constants, *(o for node in lowered for o in node.outputs)}


@pytest.mark.parametrize("device", GPUS)
def test_a_constant_of_more_axes_than_before_the_reshape_keeps_the_node_behind_it(device: str) -> None:
    net = Net()
    made = net.add("MatMul", net.input("x", 2, 3), net.random(3, 1))
    image = net.add("Reshape", made, np.array([2, 1, 1, 1]))
    known = [np.ones(1, np.float32)] * 4
    assert_right(net.finish(net.add("BatchNormalization", image, *known), made), device, "high", 1e-5)


def test_a_cycle_through_a_joined_node_is_seen() -> None:
    """`late` joins `left`, which then waits for `right`: so nothing that follows from `left` may join `right`."""
    net = Net()
    x = net.input("x", 6, 4)
    left, right = net.add("MatMul", x, net.random(4, 6), name="left"), net.add("MatMul", x, net.random(4, 6))
    late = net.add("Mul", right, left, name="late")
    ends = [net.add("Softmax", left), net.add("Softmax", right)]
    after = net.add("Add", right, net.add("Transpose", left, perm=(1, 0)), name="after")
    graph = net.finish(late, after, *ends)
    assert_right(graph, "opencl", "high", 1e-5)
    assert "n_late" not in _launched(graph) and "n_after" in _launched(graph)
