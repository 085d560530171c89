"""ONNX's backend interface over Weft, and the onnx package's own test suite through it, on every device."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend

import weft
import weft.onnx_backend as backend
from tests.helpers.fakes import Creator
from tests.helpers.run_length import is_long
from weft import models
from weft.errors import ConfigError, InputError, NoDevice, UnsupportedOps
from weft_conformance.onnx_suite import DISPUTED, refusals_of_suite, run_onnx_suite, suite_cases
from weft_conformance.report import Verdict

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
CASES = 2024
"""How many cases the suite had when the numbers below were counted; older ones have fewer."""

REFUSED = {
    r"ai_onnx_ml_.*": "classical machine learning: the domain ai.onnx.ml",
    r"(adagrad|adam|momentum|nesterov_momentum)(_multiple)?": "training: an optimiser's step",
    r"gradient_of_.*": "training: gradients",
    r"training_dropout.*": "training: elements dropped at random",
    r"(equal_string|regex_full_match|string_concat|string_split|strnormalizer|strnorm_model)_?.*": "strings",
    r"image_decoder_decode_.*": "image files: a program decodes them before the network",
}
"""Which cases each device refuses, by patterns of their names behind "test_", each with the reason."""

SUPPORTED = {"cpu": 1928, "opencl": 1899, "vulkan": 1899}
"""How many of all cases run, and have a node that runs on the device."""
TAKEN = 1954
"""How many are not refused: those, and cases that rewrites or the session leave nothing of for a device."""
SAMPLE = "test_r"
"""What the short run has on a GPU: the first case of each op among those with this in their names."""
SAMPLE_SUPPORTED = 28
"""How many of them run there."""


# -- the suite -----------------------------------------------------------------------------------------------


def check_refused(refused: Set[str]) -> None:
    """Fail for each case that is refused and not listed, or listed and not refused."""
    names = {case.name.removeprefix("test_") for case in suite_cases() if case.name not in DISPUTED}
    refused = {name.removeprefix("test_") for name in refused}
    listed = {p: {name for name in names if re.fullmatch(p, name)} for p in REFUSED}
    every = set[str]().union(*listed.values())
    assert not refused - every, f"refused, and not listed: {sorted(refused - every)}"
    assert not every - refused, f"listed, and not refused any more: {sorted(every - refused)}"
    if len(suite_cases()) >= CASES:
        assert all(listed.values()), f"no case: {[p for p, cases in listed.items() if not cases]}"
        assert len(names) - len(refused) == TAKEN


@pytest.mark.long
def test_each_case_that_a_gpu_refuses_is_listed_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan every case. In the short run tests/ops shows that a GPU refuses no row of the op table that it should take.

    What each pass made of these networks is checked where the CPU runs them, below.
    """
    monkeypatch.delenv("WEFT_CHECK_PASSES", raising=False)
    for reasons in refusals_of_suite(["opencl", "vulkan"]).values():
        assert all(reasons.values())
        check_refused(reasons.keys())


@pytest.mark.parametrize("device", ["cpu", "opencl", pytest.param("vulkan", marks=pytest.mark.long)])
def test_the_suite_of_onnx_finds_nothing_wrong(device: str) -> None:
    """Run all cases on the CPU, and on GPUs in the long run; in the short one, one GPU has a sample.

    How a file's nodes become ops does not depend on the GPU: the CPU shows it. GPUs' kernels run the op table
    (tests/ops/test_ops_devices.py), and the test above plans every case for them.
    """
    every = device == "cpu" or is_long()
    report = run_onnx_suite(device, "" if every else SAMPLE, one_per_op=not every)
    assert report.ok, str(report)
    assert len(report.notes) == (len(DISPUTED) if every else sum(SAMPLE in name for name in DISPUTED))
    counts = report.counts()
    assert counts[Verdict.SUPPORTED] + counts[Verdict.REFUSED] + counts[Verdict.NOTHING] == len(report.findings)
    refused = {f.subject.partition("/")[2]: f.message for f in report.findings if f.verdict is Verdict.REFUSED}
    assert all(refused.values())
    if every:
        check_refused(refused.keys())
    if len(suite_cases()) >= CASES:
        assert counts[Verdict.SUPPORTED] == (SUPPORTED[device] if every else SAMPLE_SUPPORTED)


def test_cases_are_chosen_by_name() -> None:
    report = run_onnx_suite("cpu", "test_relu")
    assert [f.subject for f in report.findings][:1] == ["node/test_relu"]
    assert all("test_relu" in f.subject and f.verdict is Verdict.SUPPORTED for f in report.findings)


def test_a_case_with_a_shape_as_an_input_is_run_as_it_is() -> None:
    (finding,) = run_onnx_suite("cpu", "test_reshape_reordered_last_dims").findings[:1]
    assert (finding.verdict, finding.message) == (Verdict.SUPPORTED, "")


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = backend.WeftRep.run

    def off(self: backend.WeftRep, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(y + np.float32(0.01) for y in run(self, inputs, **kwargs))

    monkeypatch.setattr(backend.WeftRep, "run", off)
    report = run_onnx_suite("cpu", "test_relu")
    assert not report.ok
    assert "output 0 differs" in report.wrong[0].message


# -- the interface -------------------------------------------------------------------------------------------


def model(*nodes: NodeProto, shape: tuple[int | str, ...] = (2, 3), opset: int = 17) -> ModelProto:
    """Return a model with input x and output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


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
    ]
    with pytest.raises(NoDevice, match="no backend is registered for 'CUDA'"):
        backend.prepare(model(RELU), "CUDA")


def test_cuda_is_a_device_where_a_backend_of_that_name_is_registered() -> None:
    weft.registry.insert("cuda", Creator())
    try:
        assert backend.supports_device("CUDA")
    finally:
        weft.registry.remove("cuda")


def test_what_the_device_does_not_run_is_an_error_unless_fallback_is_given() -> None:
    hard = model(
        helper.make_node("Constant", [], ["step"], value_float=1.0),
        helper.make_node("QuantizeLinear", ["x", "step"], ["bytes"], precision=TensorProto.FLOAT16),
        helper.make_node("Cast", ["bytes"], ["y"], to=TensorProto.FLOAT),
        opset=23,
    )
    with pytest.raises(UnsupportedOps, match="QuantizeLinear"):
        backend.prepare(hard, "OPENCL")
    assert not backend.is_compatible(hard, "OPENCL")
    assert backend.is_compatible(hard)
    assert backend.is_compatible(hard, "OPENCL", fallback="cpu")
    assert not backend.is_compatible(model(helper.make_node("Nonsense", ["x"], ["y"])))
    assert (backend.run_model(hard, [X], "OPENCL", fallback="cpu")[0] == np.maximum(X, 0)).all()


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
