"""How the fuzzer judges numbers that differ from ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.fuzz.numbers import compare
from scripts.fuzz.oracle import Oracle
from scripts.fuzz.target import Finding, Target, find_targets
from scripts.fuzz.targets.onnx import CROPPED, EVALUATED, EXTREME, RANK, rounded
from weft.frontends.onnx import load


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = find_targets()["onnx-functions"]("cpu", tmp_path_factory.mktemp("kept"))
    target.prepare()
    yield target
    target.close()


def checked(
    fuzzer: Target, folder: Path, nodes: list[onnx.NodeProto], shape: tuple[int, ...],
    made: int = TensorProto.FLOAT, domain: str = "", **constants: Any,
) -> str:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", made, None)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "case", inputs, outputs, weights)
    opsets = [helper.make_opsetid(domain, 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
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


@pytest.mark.parametrize(("stride", "word"), [(255, f"skipped: {CROPPED}"), (7, "right")])
def test_a_pool_is_excused_where_no_window_reaches_the_end(
    fuzzer: Target, tmp_path: Path, stride: int, word: str
) -> None:
    how: dict[str, Any] = {"auto_pad": "SAME_UPPER", "kernel_shape": [2], "strides": [stride]}
    assert checked(fuzzer, tmp_path, [helper.make_node("LpPool", ["x"], ["y"], **how)], (1, 1, 8)) == word


def test_the_evaluator_knows_the_long_name_of_the_domain(fuzzer: Target, tmp_path: Path) -> None:
    """ONNX adds 1e-9 to the deviation of nothing, and ONNX Runtime does not."""
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2, 3], domain="ai.onnx")
    assert checked(fuzzer, tmp_path, [node], (1, 5, 1, 1), domain="ai.onnx") == EVALUATED


def test_integers_may_differ_only_within_what_rounding_errors_make_of_them() -> None:
    theirs = np.array([1, 2, 3], np.uint8)
    between = {0: (np.array([1.0, 2, 2]), np.array([1.0, 2, 3]))}
    near, far, sure = np.array([1, 2, 2], np.uint8), np.array([1, 2, 1], np.uint8), np.array([1, 3, 3], np.uint8)
    assert compare([near], [theirs], between=between) == "skipped: a rounding error decides"
    for wrong, allowed in ((near, {}), (far, between), (sure, between)):
        with pytest.raises(Finding):
            compare([wrong], [theirs], between=allowed)


def test_pixels_may_differ_only_where_they_lie_between_two_integers(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1)
    scales = numpy_helper.from_array(np.array([0.5], np.float32), "s")
    graph = helper.make_graph(
        [node], "case", [helper.make_tensor_value_info("x", TensorProto.UINT8, (8,))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (4,))], [scales],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), tmp_path / "m.onnx")
    # The weights are 1/8, 3/8, 3/8 and 1/8: the results are 5, 10.5, 7 and 2.
    x = np.array([0, 10, 10, 10, 14, 0, 4, 1], np.uint8)
    ((least, largest),) = rounded(load(tmp_path / "m.onnx"), {"x": x}).values()
    assert (largest - least).tolist() == [0, 1, 0, 0]


def test_states_of_a_quantised_layer_are_compared_as_floats(fuzzer: Target, tmp_path: Path) -> None:
    """ONNX Runtime quantises them by their range, which is coarse where one of a batch is large."""
    rng = np.random.default_rng(3)
    values: dict[str, Any] = {name: rng.integers(-127, 127, (1, 3, 12)).astype(np.int8) for name in ("w", "r")}
    values |= {name: np.full(1, 0.05, np.float32) for name in ("ws", "rs")}
    values["h"] = np.array([[[9, -9, 9], [1e-3, -2e-3, 3e-3]]], np.float32)
    values |= {"c": np.zeros((1, 2, 3), np.float32), "wz": np.zeros(1, np.int8)}
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "", "", "h", "c", "", "ws", "wz", "rs", "wz"], ["y"],
        domain="com.microsoft", hidden_size=3,
    )
    word = checked(fuzzer, tmp_path, [node], (2, 2, 3), **values)
    assert word == "right with states of floats"


def test_the_evaluator_takes_a_function_whose_attribute_a_branch_reads(tmp_path: Path) -> None:
    body = helper.make_node("LeakyRelu", ["a"], ["c"])
    body.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    branch = helper.make_graph([body], "branch", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)])
    truth = helper.make_node("Constant", [], ["truth"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    choice = helper.make_node("If", ["truth"], ["b"], then_branch=branch, else_branch=branch)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "f", ["a"], ["b"], [truth, choice], imports, ["slope"])
    graph = helper.make_graph(
        [helper.make_node("f", ["x"], ["y"], domain="local", slope=0.5)], "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10), path)
    oracle = Oracle()
    try:
        found = oracle.evaluate(path, {"x": np.array([-4, 4], np.float32)})
    finally:
        oracle.close()
    assert not isinstance(found, str), found
    assert found[0][0].tolist() == [-2, 4]
