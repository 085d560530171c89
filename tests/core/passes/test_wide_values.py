"""Coordinates stay float32 where other floats are stored as float16, back to a layer and on to the outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, op
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.passes.precision import set_storage
from weft.core.passes.wide_values import wide_values

ANCHORS = np.array([[[611.3, 402.7, 33.1, 21.9], [13.7, 871.9, 10.3, 77.7], [900.1, 51.3, 40.9, 61.3]]], np.float32)
KEPT = np.array([9])
WEIGHTS = np.linspace(-60, 63, 64 * 5).reshape(64, 5).astype(np.int8)


def detector() -> Graph:
    """Return products that give deltas and scores, and the boxes that are kept, in a picture twice as large."""
    net = Net()
    features = net.input("x", 3, 8)
    deltas = net.add("MatMul", features, np.eye(8, 4, dtype=np.float32) / 8, name="deltas")
    places = net.add("Mul", deltas, ANCHORS[0, :, 2:].repeat(2, 1), name="places")
    boxes = net.add("Add", places, ANCHORS[0], name="boxes")
    rows = net.add("Unsqueeze", boxes, np.array([0]), name="rows")
    scores = net.add("Sigmoid", net.add("MatMul", features, np.eye(8, 1, -4, dtype=np.float32)), name="scores")
    of_class = net.add("Reshape", scores, np.array([1, 1, 3]), name="of_class")
    net.add("Relu", deltas, name="z")
    half, two, factor = np.array([0.5], np.float32), np.array(2), np.array(2, np.float32)
    kept, half_, two_, factor_ = (net.constant(each) for each in (KEPT, half, two, factor))
    net.graph.nodes += [
        Node("n_kept", op("NonMaxSuppression"), (rows, of_class, kept, half_), ("kept",)),
        Node("n_index", op("Gather", axis=1), ("kept", two_), ("index",)),
        Node("n_chosen", op("Gather", axis=0), (boxes, "index"), ("chosen",)),
        Node("n_y", op("Mul"), ("chosen", factor_), ("y",)),
    ]
    return net.finish("y", "z")


def test_what_coordinates_are_made_of_is_wide_back_to_a_layer() -> None:
    graph = detector()
    wide = wide_values(graph)
    assert {"deltas", "places", "boxes", "rows", "scores", "of_class", "chosen", "y"} <= wide
    assert "x" not in wide and not wide_values(graph.copy()) ^ wide


@pytest.mark.alike
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_boxes_of_a_large_picture_keep_their_places(device: str, tmp_path: Path) -> None:
    x = np.zeros((3, 8), np.float32)  # numbers that fp16 holds: what is left is the rounding of coordinates
    x[:, :5] = [[0.5, -0.25, 1, 2, 3], [1, 1, -1, 0.5, 1], [0.25, 0.5, 0.75, 1, 2]]
    order = [0, 2, 1]
    expected = 2 * (x[:, :4] / 8 * ANCHORS[0, :, 2:].repeat(2, 1) + ANCHORS[0])[order]
    network = weft.optimize(detector(), device, precision="low")
    network.save(tmp_path / "n.weft")
    for source in (network, tmp_path / "n.weft"):
        with weft.load(source) as session:
            y, z = session.run(x)
            np.testing.assert_allclose(y, expected, rtol=1e-6)
            np.testing.assert_array_equal(z, np.maximum(x[:, :4] / 8, 0))
            assert {*session.report.placement.values()} == {device}
    made = {v: s.dtype for stage in network.stages for v, s in stage.graph.specs.items()}
    assert DType.FLOAT16 in made.values()


def test_a_constant_and_an_input_are_read_as_they_are() -> None:
    net = Net()
    x, grid = net.input("x", 1, 2, 4, 4), net.input("grid", 1, 3, 3, 2)
    shifted = net.add("Add", grid, np.full(2, 1 / 3, np.float32), name="shifted")
    after = set_storage(net.finish(net.add("GridSample", x, shifted, name="y")), DType.FLOAT16)
    assert [n.op.type for n in after.nodes] == ["Cast", "Add", "GridSample", "Cast"]
    add = after.nodes[1]
    assert [after.specs[v].dtype for v in (*add.inputs, *add.outputs)] == [DType.FLOAT32] * 3
    np.testing.assert_array_equal(after.constants[add.inputs[1]], np.full(2, 1 / 3, np.float32))


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_sizes_that_follow_from_floats_are_exact(device: str) -> None:
    """Resize by a scale that fp16 rounds down, so that a row less would be left, and count in steps that it rounds."""
    net = Net()
    scales = np.array([1, 1, 1.3, 0.8], np.float32)
    net.input("step")
    picture = net.add("Relu", net.input("x", 1, 2, 10, 20))
    net.add("Relu", net.add("Resize", picture, "", scales, mode="linear"), name="y")
    start, limit = (net.constant(np.array(end, np.float32)) for end in (0, 1))
    net.graph.nodes += [
        Node("n_step", op("Abs"), ("step",), ("size",)),
        Node("n_places", op("Range"), (start, limit, "size"), ("places",)),
        Node("n_z", op("Neg"), ("places",), ("z",)),
    ]
    with weft.load(net.finish("y", "z"), device, precision="low", fallback="error") as session:
        y, z = session.run({"x": np.ones((1, 2, 10, 20), np.float32), "step": np.array(0.1, np.float32)})
    assert y.shape == (1, 2, 13, 16) and z.shape == (10,)


@pytest.mark.alike
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_sums_of_integers_and_their_scales_keep_their_range(device: str) -> None:
    """Multiply as dynamically quantised networks do: sums reach 10^5, which fp16 has not, and scales are near 10^-8."""
    net = Net()
    x = net.input("x", 3, 64)
    net.graph.nodes.append(Node("n_q", op("DynamicQuantizeLinear"), (x,), ("q", "scale", "zero")))
    net.graph.nodes.append(Node("n_sums", op("MatMulInteger"), ("q", net.constant(WEIGHTS), "zero"), ("sums",)))
    step = net.constant(np.array(2e-6, np.float32))
    nodes = [("Mul", ("scale", step), "both"), ("Cast", ("sums",), "floats"), ("Mul", ("floats", "both"), "y")]
    for kind, inputs, made in nodes:
        made_by = op(kind, to=DType.FLOAT32) if kind == "Cast" else op(kind)
        net.graph.nodes.append(Node(f"n_{made}", made_by, inputs, (made,)))
    x_value = np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
    with weft.load(net.finish("y"), device, precision="low", fallback="error") as session:
        (y,) = session.run(x_value)
    scale = 2 / 255
    np.testing.assert_allclose(y, np.rint(x_value / scale) * scale @ WEIGHTS.astype(np.float64) * 2e-6, rtol=0.02)


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_what_an_op_always_makes_as_float32_meets_fp16(device: str) -> None:
    net = Net()
    x = net.input("x", 3, 8)
    ones = net.constant(np.ones(8, np.float32))
    outputs = ("normed", "mean", "inverse")
    net.graph.nodes.append(Node("n_norm", op("LayerNormalization", outputs=3), (x, ones), outputs))
    net.graph.nodes.append(Node("n_y", op("Mul"), (x, "inverse"), ("y",)))
    value = np.linspace(-2, 3, 24, dtype=np.float32).reshape(3, 8)
    with weft.load(net.finish("y", "mean"), device, precision="low", fallback="error") as session:
        y, mean = session.run(value)
    np.testing.assert_allclose(y, value / value.std(1, keepdims=True), rtol=5e-3)
    np.testing.assert_allclose(mean, value.mean(1, keepdims=True), atol=2e-3)
