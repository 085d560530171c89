"""What rounding to fp16 costs: which weights and values are rounded, and the errors that come of it."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from benchmarks import rounding
from benchmarks.measure import Workload, onnxruntime_session, random_inputs


@pytest.fixture
def case() -> Workload:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4, 6, 6] x) => (float[1, 8, 6, 6] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w)
            b = Relu(a)
            c = Sigmoid(b)
            d = Mul(b, c)
            y = Conv(d, v)
        }
    """)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 4, 3, 3)), ("v", (8, 8, 1, 1))):
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    inputs = random_inputs(model)
    outputs = onnxruntime_session(model).run(None, dict(inputs))
    return Workload("small", 1, model, inputs, outputs, 0)


def test_each_rounding_adds_its_error(case: Workload) -> None:
    found = rounding.errors(case)
    assert found["fp32"] < 1e-6
    for what in ("weights", "values", "both"):
        assert 1e-5 < found[what] < 1e-3
    assert found["both"] > found["weights"]


def test_values_of_one_elementwise_reader_are_not_rounded(case: Workload) -> None:
    graph = rounding.with_rounded_values(case.model).graph
    assert {n.output[0] for n in graph.node if n.op_type == "Cast"} == {"b_fp16", "b", "d_fp16", "d"}


def test_weights_alone_are_rounded(case: Workload) -> None:
    found = rounding.with_rounded_weights(case.model)
    for before, after in zip(case.model.graph.initializer, found.graph.initializer, strict=True):
        np.testing.assert_array_equal(
            numpy_helper.to_array(after), numpy_helper.to_array(before).astype(np.float16).astype(np.float32)
        )
