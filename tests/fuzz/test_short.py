"""A few cases of each fuzzer of files, the same in every run, and half of them in the short one.

`python -m scripts.fuzz` looks at more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.fuzz.target import case_stream, find_targets
from scripts.fuzz.worker import outcome
from tests.helpers.run_length import is_long

SEED = 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "device", "cases"),
    [
        ("onnx-bytes", "cpu", 80),
        ("onnx-fields", "cpu", 80),
        ("onnx-fields", "opencl", 4),
        ("onnx-fields", "vulkan", 4),
        ("onnx-functions", "cpu", 40),
        ("onnx-lies", "cpu", 60),
        ("onnx-special", "cpu", 60),
        ("external-data", "cpu", 40),
        ("tflite-bytes", "cpu", 80),
        ("tflite-fields", "cpu", 80),
        ("weft-bytes", "cpu", 80),
        ("weft-fields", "cpu", 60),
        ("weft-fields", "opencl", 3),
        pytest.param("weft-fields", "vulkan", 3, marks=pytest.mark.long),  # OpenCL takes what a GPU's file holds alike
        ("weft-stages", "cpu", 60),
    ],
)
def test_a_few_cases_of_each_fuzzer(name: str, device: str, cases: int, tmp_path: Path) -> None:
    target = find_targets()[name](device, tmp_path / "kept")
    target.scratch.mkdir()
    target.prepare()
    try:
        for number in range(cases if is_long() else -(-cases // 2)):
            folder = tmp_path / str(number)
            folder.mkdir()
            became = outcome(target, SEED, number, folder)
            assert "kind" not in became, f"--target {name} --device {device} --seed {SEED} --case {number}: {became}"
    finally:
        target.close()


@pytest.mark.parametrize(
    "name",
    [
        "onnx-bytes", "onnx-fields", "onnx-functions", "onnx-lies", "onnx-special", "external-data", "tflite-bytes",
        "tflite-fields", "weft-bytes", "weft-fields", "weft-stages",
    ],
)
def test_a_case_is_the_same_files_every_time(name: str, tmp_path: Path) -> None:
    target = find_targets()[name]("cpu", tmp_path / "kept")
    target.scratch.mkdir()
    made = []
    if name.startswith("weft"):
        target.files = [tmp_path / "good.weft"]  # type: ignore[attr-defined]
        import weft
        from scripts.fuzz.onnx_cases import convolution
        from scripts.fuzz.staged_cases import branches

        model, shapes = (branches(), {}) if name == "weft-stages" else (convolution(), {"x": (1, 3, 8, 8)})
        weft.optimize(model, "cpu", shapes=shapes).save(tmp_path / "good.weft")
    for turn in ("one", "two"):
        folder = tmp_path / turn
        folder.mkdir()
        target.make(case_stream(name, SEED, 5), folder)
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        made.append([(p.relative_to(folder), p.read_bytes()) for p in files])
    assert made[0] == made[1]
