"""What a load foresees of stages that wait for values: it compiles their kernels, and refuses what no device takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import weft
from tests.helpers.opened import opened
from weft.errors import UnsupportedOps
from weft.ops.sequence import ConcatFromSequence

GPUS = ["opencl", "vulkan"]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: tuple[Any, ...] | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=outputs.split()[0], **attributes)


def make(nodes: list[NodeProto], shape: tuple[Any, ...], **constants: Any) -> ModelProto:
    """Return a model with the input x and the output y."""
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", [info("x", shape)], [info("y")], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


ROWS = [
    node("NonZero", "x", "at"),
    node("Transpose", "at", "places"),
    node("GatherND", "x places", "values"),
    node("Unsqueeze", "values one", "column"),
    node("MatMul", "column weights", "features"),
]
WEIGHTS = np.arange(1.0, 6.0, dtype=np.float32)[None] / 50


def rows(*after: NodeProto, **constants: Any) -> ModelProto:
    """Return a network that multiplies what is not zero."""
    return make([*ROWS, *after], (30,), one=np.array([1]), weights=WEIGHTS, **constants)


def loop() -> ModelProto:
    """Return a loop whose end a run tells, around a product."""
    body = helper.make_graph(
        [node("MatMul", "held weights", "next"), node("ReduceSum", "next", "total", keepdims=0),
         node("Less", "total limit", "fits")],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held", (2, 3))],
        [info("fits", (), BOOL), info("next", (2, 3))],
    )
    nodes = [node("Relu", "x", "begin"), node("Loop", "most yes begin", "y", body=body)]
    held = {"most": np.int64(5000), "yes": np.array(True), "limit": np.float32(99)}
    return make(nodes, (2, 3), weights=np.full((3, 3), 0.5, np.float32), **held)


def branches(then: NodeProto | None = None) -> ModelProto:
    """Return a network that multiplies one way or another, by the sign of a sum."""
    made = {
        "then_branch": helper.make_graph([then or node("MatMul", "x weights", "out")], "then", [], [info("out")]),
        "else_branch": helper.make_graph([node("Softmax", "x", "out", axis=0)], "else", [], [info("out")]),
    }
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node("If", "positive", "chosen", **made),
        node("Neg", "chosen", "y"),
    ]
    return make(nodes, (2, 3), zero=np.float32(0), weights=np.ones((3, 3), np.float32))


def counted(size: int) -> np.ndarray[Any, Any]:
    """Return 30 numbers of which the first ones are not 0."""
    return np.asarray(np.arange(1, 31) * (np.arange(30) < size), np.float32)


NETWORKS: Mapping[str, tuple[ModelProto, Any]] = {
    "rows": (rows(node("Softmax", "features", "y", axis=-1)), [counted(7), counted(30)]),
    "sum": (rows(node("ReduceSum", "features", "y", keepdims=0)), [counted(30)]),
    "loop": (loop(), [np.ones((2, 3), np.float32)]),
    "branches": (branches(), [np.ones((2, 3), np.float32), -np.ones((2, 3), np.float32)]),
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_run_compiles_nothing_that_the_load_can_foresee(name: str, device: str) -> None:
    model, inputs = NETWORKS[name]
    seen: list[tuple[int, int]] = []
    with weft.load(model, "cpu") as plain:
        expected = [plain.run(x)[0] for x in inputs]
    with weft.load(model, device, progress=lambda *at: seen.append(at)) as session:
        first_stage = len(session.report.placement)
        assert len(seen) > first_stage, "the later stages are part of the progress"
        stats = opened(device).stats
        before = stats.compiles
        for x, wanted in zip(inputs, expected, strict=True):
            np.testing.assert_allclose(session.run(x)[0], wanted, rtol=1e-5)
        assert stats.compiles == before
        assert set(session.report.placement.values()) <= {f"{device}:0", device, "session"}


REFUSED = node("QuantizeLinear", "features step", "bytes", precision=TensorProto.FLOAT16)
"""A division in float16, which GPUs do not compute."""


@pytest.mark.parametrize("device", GPUS)
def test_a_later_stage_that_a_device_refuses_is_refused_by_the_load(device: str) -> None:
    refused = rows(REFUSED, node("Cast", "bytes", "y", to=FLOAT), step=np.float32(1))
    with pytest.raises(UnsupportedOps, match="bytes"):
        weft.load(refused, device, fallback="error")
    with weft.load(refused, device) as session:
        session.run(counted(4))
        assert session.report.placement["bytes"].startswith("cpu")


def test_a_refused_branch_is_no_matter_until_a_run_takes_it() -> None:
    model = branches(node("QuantizeLinear", "x total", "out", precision=TensorProto.FLOAT16))
    inner = next(held.g for held in model.graph.node[2].attribute if held.name == "then_branch")
    inner.node.append(node("Cast", "out", "narrow", to=FLOAT))
    inner.output[0].name = "narrow"
    with weft.load(model, "opencl", fallback="error") as session:
        assert session.run(-np.ones((2, 3), np.float32))[0].shape == (2, 3)
        with pytest.raises(UnsupportedOps, match="out"):
            session.run(np.ones((2, 3), np.float32))


def test_size_classes_of_a_stage_share_kernels_that_read_the_number_of_rows() -> None:
    model = rows(node("Softmax", "features", "y", axis=-1))
    built = []
    with weft.load(model, "vulkan", fallback="error") as session:
        stats = opened("vulkan").stats
        for count in (9, 9, 6, 6, 20, 20):  # a class gets its own plan when it comes up again
            before = stats.compiles
            found, wanted = session.run(counted(count))[0], np.arange(1.0, count + 1)[:, None] * WEIGHTS
            np.testing.assert_allclose(found, np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True), rtol=1e-4)
            built.append(stats.compiles - before)
    assert built[1] > 0 and [*built[:1], *built[2:]] == [0] * 5


def nested(depth: int, steps: int) -> ModelProto:
    """Return loops in each other, each of that many iterations, around a sum."""

    def body(level: int) -> onnx.GraphProto:
        held, made = f"held{level}", f"made{level}"
        inner = node("Add", f"{held} one", made)
        if level:
            inner = node("Loop", f"steps yes {held}", made, body=body(level - 1))
        going, on = f"going{level}", f"on{level}"
        inputs = [info(f"step{level}", (), INT64), info(going, (), BOOL), info(held, (2,))]
        outputs = [info(on, (), BOOL), info(made, (2,))]
        return helper.make_graph([inner, node("Identity", going, on)], f"level{level}", inputs, outputs)

    loop = node("Loop", "steps yes x", "y", body=body(depth - 1))
    return make([loop], (2,), steps=np.int64(steps), yes=np.array(True), one=np.float32(1))


@pytest.mark.parametrize(("depth", "steps", "own"), [(1, 100, False), (2, 7, False), (2, 30, True), (9, 1, False)])
def test_loops_are_planned_whole_while_all_their_nodes_are_few(depth: int, steps: int, own: bool) -> None:
    with weft.load(nested(depth, steps), "cpu") as session:
        (y,) = session.run(np.zeros(2, np.float32))
        assert y.tolist() == [steps**depth] * 2
        assert ("session" in session.report.placement.values()) == own


def test_loops_in_loops_do_not_become_more_nodes_with_each_level() -> None:
    """Of a hundred iterations of a hundred of a hundred, the innermost are planned whole."""
    network = weft.optimize(nested(4, 100), "cpu")
    assert 100 <= sum(len(stage.graph.nodes) for stage in network.stages) <= 256


def test_a_tensor_of_very_many_pieces_is_taken_apart_in_a_run_alone() -> None:
    def model(size: int) -> ModelProto:
        joined = node("ConcatFromSequence", "pieces", "y", axis=0)
        return make([node("SplitToSequence", "x", "pieces"), joined], (size,))

    few, many = (weft.optimize(model(size), "cpu").tail for size in (1 << 10, 1 << 20))
    assert few is not None and many is not None
    assert not few.unforeseen
    (said,) = many.unforeseen
    assert "the shape of what SplitToSequence 'pieces' makes is open" in said


@pytest.mark.parametrize(("new_axis", "shape"), [(0, (6, 1 << 28)), (1, (3, 2, 1 << 28))])
def test_what_a_sequence_is_joined_to_takes_no_memory_before_a_run(new_axis: int, shape: tuple[int, ...]) -> None:
    piece = np.broadcast_to(np.float32(0), (2, 1 << 28))
    (made,) = ConcatFromSequence(axis=0, new_axis=new_axis).foreseen([[piece] * 3], [None], [])
    assert isinstance(made, np.ndarray) and (made.shape, made.dtype) == (shape, np.float32)
    assert not any(made.strides)
