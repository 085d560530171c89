"""The page of a measurement: ratios from rows, nothing that was not measured."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.measure import Row
from benchmarks.page import page


def found(rows: list[Row], **absent: str) -> dict[str, object]:
    facts = {"date": "a day", "command": "python -m benchmarks.gpu", "devices": ["gpu:0"], "tuning": "none"}
    return {**facts, "source": "x", "versions": {"weft": "0"}, "rows": [asdict(row) for row in rows], "absent": absent}


ROWS = [
    Row("net", 1, "weft vulkan", "fp16", host_ms=0.5, error=1e-3, more={"arrays_ms": 0.25}),
    Row("net", 1, "weft opencl", "fp16", host_ms=0.5, error=0.5),
    Row("net", 1, "torch graph nchw", "fp16", host_ms=1.0, error=1e-3),
    Row("net", 1, "torch compile nchw", "fp16", host_ms=0.75, error=1e-3),
    Row("net", 1, "torch eager nchw", "fp16", host_ms=0.1, error=1e-3),
    Row("net", 16, "weft vulkan", "fp32", host_ms=9.0, device_ms=2.0, error=1e-6, more={"arrays_ms": 4.0}),
    Row("net", 16, "torch graph nchw", "fp32", host_ms=9.0, device_ms=1.0, error=1e-6, more={"pinned_ms": 6.0}),
]


def test_each_ratio_is_that_of_the_fastest_right_peer() -> None:
    text = page(found(ROWS, ncnn="there is none"))
    first, _, device, kept = text.split("\n## ")[1:5]
    assert first.startswith("Batch 1, host to host")
    assert "| net | fp16 | 1.000 | 0.750 | - | - | 0.500 | - | 1.50 | - |" in first
    assert "Weft vulkan, fp16: geometric mean 1.50 of 1 networks, behind in 0." in first
    assert "Weft opencl" not in first.split("|")[-1], "a wrong output has no ratio, and so no mean"
    assert device.startswith("Batch 16, on the device") and "| 1.000 | - | - | - | 2.000 | - | 0.50 | - |" in device
    assert "behind in 1" in device
    assert "arrays kept" in kept and "| 6.000 | - | - | - | 4.000 | - | 1.50 | - |" in kept
    assert "- ncnn: there is none" in text
    assert "| net | fp32 | - | - | - | - | - | - | - | - |" in first
