"""The kit on the devices that Weft brings, and on the example: nothing wrong, and no reason is missing.

The op table on the GPUs is the matter of tests/ops/test_ops_devices.py; here a sample of its rows stands for it.
"""

from __future__ import annotations

import pytest

from examples.numpy_backend import AcmeCreator
from tests.helpers.fakes import registered
from tests.helpers.run_length import is_long
from weft_conformance import CHECKS, Verdict, open_kit, run

OTHERS = [name for name in CHECKS if name != "table"]
SAMPLE = ["Softmax", "Relu", "MatMul", "Concat", "GlobalAveragePool", "Transpose", "Gather", "Shape"]
FEW = ["Relu", "Concat", "Transpose", "Shape"]
"""The sample for GPUs in the short run: those whose rows differ by numbers alone, or are computed in the load."""
SUPPORTED = {"cpu": 60, "ort": 10, "opencl": 10, "vulkan": 10}
"""The least rows of the sample that a device must take: a kit in which all is refused would find nothing."""


SLOW = {"outputs", "threads"}
"""Checks that take llvmpipe half of the kit's time. In the short run OpenCL shows what GPUs do alike, and
tests/core/session/test_steady_state.py that threads may share a Vulkan device. Which outputs are read is most of the
kit's time on OpenCL too: tests/ops/gpu/test_unread_outputs.py shows it there."""
ON_CPU = {"outputs"}
"""Two thirds of the kit's time on the CPU, whose ops compute all outputs at once."""
ON_ORT = {"outputs", "support"}
"""As on the CPU. Each answer opens a session of ONNX Runtime, so that the check that asks the most takes seconds."""
ON_VULKAN = SLOW | {"copies", "leaks", "networks", "convolutions"}
ON_OPENCL = {"outputs", "copies", "networks", "convolutions"}
"""What the short run leaves out on a GPU: tests/core/host/test_copies.py copies between all forms there, too,
tests/core/session/test_steady_state.py counts what sessions and runs leave on Vulkan, and what convolutions compute is
the matter of tests/ops/gpu."""


@pytest.mark.usefixtures("sizes_are_pushed")
@pytest.mark.parametrize(
    ("device", "without"),
    [
        *[("cpu", ON_CPU), ("ort", ON_ORT), ("opencl", ON_OPENCL), ("vulkan", ON_VULKAN)],
        *[pytest.param(device, set(), marks=pytest.mark.long) for device in ("cpu", "ort", "opencl", "vulkan")],
    ],
)
def test_a_device_of_ours_keeps_the_contract(
    device: str, without: set[str], request: pytest.FixtureRequest
) -> None:
    """The networks are the same on each device: in the short run passes are checked on the CPU."""
    if device != "cpu":
        request.getfixturevalue("passes_unchecked")
    rows = SAMPLE if device == "cpu" or is_long() else FEW
    report = run(device, only=[*(name for name in OTHERS if name not in without), *rows])
    assert report.ok, report
    assert report.counts("table")[Verdict.SUPPORTED] >= SUPPORTED[device]
    assert set(report.checks) == set(CHECKS) - without


@pytest.mark.alike
@pytest.mark.usefixtures("sizes_are_pushed", "passes_unchecked")
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_some_random_networks_are_right_on_a_gpu(device: str) -> None:
    """The long run draws as many as the kit does."""
    kit = open_kit(device)
    kit.networks = 12
    findings = kit.look(CHECKS["networks"])
    assert not [str(f) for f in findings if f.verdict.is_bad]
    assert [f.verdict for f in findings].count(Verdict.SUPPORTED) == 12


@pytest.mark.alike
@pytest.mark.usefixtures("sizes_are_pushed", "passes_unchecked")
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_gpu_keeps_the_contract_at_fp16(device: str) -> None:
    report = run(device, only=["order", "resize", "errors", "Relu", "determinism", "inputs"], precision="low")
    assert report.ok, report


@pytest.mark.long
def test_the_whole_kit_on_the_cpu() -> None:
    report = run("cpu")
    assert report.ok, report
    assert report.counts("table")[Verdict.SUPPORTED] > 1000
    assert report.counts()[Verdict.REFUSED] == 0


@pytest.mark.usefixtures("passes_unchecked")
def test_the_example_refuses_most_rows_and_says_why() -> None:
    rows = () if is_long() else [*(name for name in OTHERS if name not in SLOW), *SAMPLE]
    with registered(AcmeCreator(), "acme"):
        report = run("acme", only=rows)
    assert report.ok, report
    counts = report.counts("table")
    assert counts[Verdict.SUPPORTED] > (30 if is_long() else 4)
    assert counts[Verdict.REFUSED] > (800 if is_long() else 50)
    assert any(f.message == "acme has no implementation of Softmax" for f in report.findings)
