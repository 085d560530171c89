"""How the fuzzer judges numbers that differ from ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.fuzz.numbers import Grid, compare
from scripts.fuzz.target import Finding, Target, find_targets
from scripts.fuzz.targets.onnx import EVALUATED, EXTREME, RANK
from weft.core.graph.layout import Array


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = find_targets()["onnx-functions"]("cpu", tmp_path_factory.mktemp("kept"))
    target.prepare()
    yield target
    target.close()


def checked(
    fuzzer: Target, folder: Path, nodes: list[onnx.NodeProto], shape: tuple[int, ...],
    made: int = TensorProto.FLOAT, **constants: Array,
) -> str:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", made, None)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "case", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return fuzzer.check(folder)


def test_onnx_own_evaluator_is_asked_where_onnxruntime_differs(fuzzer: Target, tmp_path: Path) -> None:
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode="nearest", coordinate_transformation_mode="half_pixel_symmetric"
    )
    scales = np.array([1, 1, 0.6, 0.5], np.float32)
    assert checked(fuzzer, tmp_path, [node], (1, 2, 7, 8), s=scales) == EVALUATED


@pytest.mark.parametrize(("value", "word"), [(np.nan, f"skipped: {EXTREME}"), (0.5, "right")])
def test_an_op_is_excused_only_where_a_value_is_no_number(
    fuzzer: Target, tmp_path: Path, value: float, word: str
) -> None:
    shift = np.zeros((1, 1, 4, 4), np.float32)
    shift[0, 0, 1, 1] = value
    add = helper.make_node("Add", ["x", "shift"], ["a"])
    pool = helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[2, 2])
    assert checked(fuzzer, tmp_path, [add, pool], shift.shape, shift=shift) == word


@pytest.mark.parametrize(("value", "word"), [(np.nan, f"skipped: {EXTREME}"), (0.5, "right")])
def test_a_global_pool_is_excused_as_a_pool_is(fuzzer: Target, tmp_path: Path, value: float, word: str) -> None:
    shift = np.zeros((1, 2, 3, 4, 5), np.float32)
    shift[0, 1, 0, 2, 2] = value
    add, pool = helper.make_node("Add", ["x", "shift"], ["a"]), helper.make_node("GlobalMaxPool", ["a"], ["y"])
    assert checked(fuzzer, tmp_path, [add, pool], shift.shape, shift=shift) == word


@pytest.mark.parametrize(("value", "word"), [(np.nan, f"skipped: {RANK}"), (0.1, "right")])
def test_a_suppression_is_excused_only_where_a_score_is_no_number(
    fuzzer: Target, tmp_path: Path, value: float, word: str
) -> None:
    scores = np.array([[[0.2, 0.9, value, 0.5]]], np.float32)
    node = helper.make_node("NonMaxSuppression", ["x", "scores", "most"], ["y"])
    made = TensorProto.INT64
    assert checked(fuzzer, tmp_path, [node], (1, 4, 4), made, scores=scores, most=np.array([2])) == word


def test_integers_may_differ_by_a_unit_where_few_do() -> None:
    theirs = np.zeros(9, np.uint8)
    few, many, far = theirs.copy(), theirs.copy(), theirs.copy()
    few[:2], many[:5], far[0] = 1, 1, 2
    assert compare([few], [theirs], grid=Grid(unit=1)) == "right"
    for wrong, unit in ((few, 0), (many, 1), (far, 1)):
        with pytest.raises(Finding):
            compare([wrong], [theirs], grid=Grid(unit=unit))


def test_floats_may_differ_by_a_step_of_the_largest() -> None:
    theirs = np.array([1, 0.5], np.float32)
    assert compare([theirs + np.float32(0.003)], [theirs], grid=Grid(step=1 / 255)) == "right"
    with pytest.raises(Finding):
        compare([theirs + np.float32(0.003)], [theirs])
