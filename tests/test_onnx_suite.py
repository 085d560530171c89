"""ONNX's backend interface over Weft, and the onnx package's own test suite through it, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend

import weft
import weft.onnx_backend as backend
from tests.helpers.fakes import Creator
from weft import models
from weft.conformance.onnx_suite import DISPUTED, run_onnx_suite, suite_cases
from weft.conformance.report import Verdict
from weft.errors import ConfigError, InputError, NoDevice, UnsupportedOps

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
CASES = 2022
"""How many cases the suite had when the numbers below were counted; older ones have fewer."""

LEAST_SUPPORTED = {"cpu": 1256, "opencl": 73, "vulkan": 73}
"""On the CPU of all cases, on GPUs of the first one of each op. More is progress: raise the number."""


# -- the suite -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_the_suite_of_onnx_finds_nothing_wrong(device: str) -> None:
    report = run_onnx_suite(device, one_per_op=device != "cpu")
    assert report.ok, str(report)
    assert len(report.notes) == len(DISPUTED)
    counts = report.counts()
    assert counts[Verdict.SUPPORTED] + counts[Verdict.REFUSED] + counts[Verdict.NOTHING] == len(report.findings)
    assert all(f.message for f in report.findings if f.verdict is Verdict.REFUSED)
    if len(suite_cases()) >= CASES:
        assert counts[Verdict.SUPPORTED] >= LEAST_SUPPORTED[device]


def test_cases_are_chosen_by_name() -> None:
    report = run_onnx_suite("cpu", "test_relu")
    assert [f.subject for f in report.findings][:1] == ["node/test_relu"]
    assert all("test_relu" in f.subject and f.verdict is Verdict.SUPPORTED for f in report.findings)


def test_a_case_with_a_shape_as_an_input_is_run_with_a_constant() -> None:
    (finding,) = run_onnx_suite("cpu", "test_reshape_reordered_last_dims").findings[:1]
    assert (finding.verdict, finding.message) == (Verdict.SUPPORTED, "inputs from the 2. on as constants")


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = backend.WeftRep.run

    def off(self: backend.WeftRep, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(y + np.float32(0.01) for y in run(self, inputs, **kwargs))

    monkeypatch.setattr(backend.WeftRep, "run", off)
    report = run_onnx_suite("cpu", "test_relu")
    assert not report.ok
    assert "output 0 differs" in report.wrong[0].message


# -- the interface -------------------------------------------------------------------------------------------


def model(*nodes: NodeProto, shape: tuple[int | str, ...] = (2, 3)) -> ModelProto:
    """Return a model with input x and output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


RELU = helper.make_node("Relu", ["x"], ["y"])


@pytest.mark.parametrize("device", ["CPU", "cpu:0", "OPENCL", "Vulkan:0"])
def test_a_model_is_prepared_and_run_on_the_device(device: str) -> None:
    with backend.prepare(model(RELU), device=device, precision="low") as prepared:
        outputs = prepared.run([X])
        assert {d.partition(":")[0] for d in prepared.session.report.placement.values()} == {
            device.partition(":")[0].lower()
        }
    np.testing.assert_array_equal(outputs[0], np.maximum(X, 0))
    assert outputs.y is outputs[0] and outputs["y"] is outputs[0]  # type: ignore[attr-defined, call-overload]


@pytest.mark.parametrize("inputs", [[X], (X,), {"x": X}, X], ids=["list", "tuple", "dict", "array"])
def test_inputs_are_given_in_every_way_that_onnx_does(inputs: Any) -> None:
    (y,) = backend.run_model(model(RELU), inputs)
    np.testing.assert_array_equal(y, np.maximum(X, 0))


@pytest.mark.parametrize("inputs", [X, 3, "x", iter([X, X]), None, [X]], ids=lambda v: type(v).__name__)
def test_inputs_are_a_list_or_a_dict_where_there_are_several(inputs: Any) -> None:
    add = helper.make_node("Add", ["x", "x2"], ["y"])
    several = model(add)
    several.graph.input.append(helper.make_tensor_value_info("x2", TensorProto.FLOAT, (2, 3)))
    with backend.prepare(several) as prepared:
        with pytest.raises(InputError) as caught:
            prepared.run(inputs)
        assert caught.value.why == "the model reads x, x2"
        np.testing.assert_array_equal(prepared.run([X, X]).y, 2 * X)  # type: ignore[attr-defined]
    with pytest.raises(InputError) as caught:
        backend.run_node(add, inputs)
    assert caught.value.why == "the node reads x, x2"


def test_a_path_is_a_model_too() -> None:
    image = np.zeros((1, 3, 128, 128), np.float32)
    assert backend.run_model(models.path("shapes"), [image])[0].shape == (1, 5, 64, 64)


def test_single_nodes_run() -> None:
    (y,) = backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X, X], outputs_info=[(np.float32, (2, 3))])
    np.testing.assert_array_equal(y, 2 * X)
    old = helper.make_node("Clip", ["x"], ["y"], min=0.0)
    np.testing.assert_array_equal(backend.run_node(old, X, opset_version=10)[0], np.maximum(X, 0))
    same = helper.make_node("Mul", ["x", "x"], ["y"])
    np.testing.assert_array_equal(backend.run_node(same, {"x": X}, "OPENCL")[0], X * X)
    with pytest.raises(InputError, match=r"'y' is float32\[2, 3\] instead of float32\[3\]"):
        backend.run_node(RELU, [X], outputs_info=[(np.float32, (3,))])
    with pytest.raises(InputError, match="2 input"):
        backend.run_node(RELU, [X, X])


def test_devices_are_those_of_weft() -> None:
    assert issubclass(backend.WeftBackend, Backend)
    assert [d for d in ("CPU", "opencl", "VULKAN:0", "CUDA", "vulkan:99", "!") if backend.supports_device(d)] == [
        "CPU", "opencl", "VULKAN:0",
    ]  # fmt: skip
    with pytest.raises(NoDevice, match="no backend is registered for 'CUDA'"):
        backend.prepare(model(RELU), "CUDA")


def test_cuda_is_a_device_where_a_backend_of_that_name_is_registered() -> None:
    weft.registry.insert("cuda", Creator())
    try:
        assert backend.supports_device("CUDA")
    finally:
        weft.registry.remove("cuda")


def test_what_the_device_does_not_run_is_an_error_unless_fallback_is_given() -> None:
    hard = model(helper.make_node("Hardmax", ["x"], ["y"]))
    with pytest.raises(UnsupportedOps, match="Hardmax"):
        backend.prepare(hard, "OPENCL")
    assert not backend.is_compatible(hard, "OPENCL")
    assert backend.is_compatible(hard)
    assert backend.is_compatible(hard, "OPENCL", fallback="cpu")
    assert not backend.is_compatible(model(helper.make_node("Nonsense", ["x"], ["y"])))
    assert backend.run_model(hard, [X], "OPENCL", fallback="cpu")[0].sum() == 2


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'precison': did you mean 'precision'(?s:.)*use precision, "):
        backend.prepare(model(RELU), precison="low")
    with pytest.raises(ConfigError, match="unknown option"):
        backend.is_compatible(model(RELU), nonsense=1)
    with backend.prepare(model(RELU)) as prepared, pytest.raises(ConfigError, match="run takes no options"):
        prepared.run([X], nonsense=1)


def test_the_comparison_of_onnx_agrees() -> None:
    from onnx.backend.test.runner import Runner

    case = next(c for c in suite_cases() if c.name == "test_softmax_axis_1")
    with backend.prepare(case.model()) as prepared:
        for inputs, expected in case.data(case.model()):
            Runner.assert_similar_outputs(expected, prepared.run(inputs), case.rtol, case.atol)
