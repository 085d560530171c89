"""What `benchmarks.start_timeline` makes of samples, and that the functions that it looks for exist."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import weft
from benchmarks import start_samples, start_timeline
from benchmarks.start_samples import phase

SAMPLES = """
10.0\t0\tprocess\t'python -m benchmarks.start_once model.onnx vulkan high'\t
10.0\t1\tMainThread\timport\t
10.5\t1\tMainThread\tself-test in children\t
10.5\t2\tweft-build_0\tGLSL to SPIR-V\tconv 1234
10.7\t2\tweft-build_0\twait\t
12.0\t1\tMainThread\trun\t
12.1\t1\t\t\t
12.2\t0\tbeat\t\t
""".lstrip()
CHILD = """
10.6\t0\tprocess\t'python -c from weft.backends.gpu.selftest.child import main'\t
10.6\t7\tMainThread\tself-test\tpool
11.9\t0\tbeat\t\t
""".lstrip()


def test_a_timeline_says_what_each_thread_did_and_when(tmp_path: Path) -> None:
    for name, text in {"1.tsv": SAMPLES, "2.tsv": CHILD}.items():
        (tmp_path / name).write_text(text)
    shown = start_timeline.shown([start_timeline.read(tmp_path / name) for name in ("1.tsv", "2.tsv")])
    assert "MainThread: 0.0-0.5 import; 0.5-2.0 self-test in children; 2.0-2.1 run" in shown
    assert "weft-build_0: 0.5-0.7 GLSL to SPIR-V\n" in shown
    assert "self-test, 0.60 to 1.90 s" in shown
    assert "1 kernels, 0.2 s of threads; the longest: conv 1234 0.20" in shown
    assert "the longest: pool 1.30" in shown


def test_a_thread_does_what_the_innermost_listed_function_does() -> None:
    assert phase(sys._getframe()) == ("other", "")
    assert phase(None) == (start_samples.WAITS, "")


def test_the_functions_that_are_looked_for_exist() -> None:
    files = {"/".join(path.parts[-2:]): path for path in Path(weft.__file__).parent.rglob("*.py")}
    for file, function in start_samples.PHASES:
        tree = ast.parse(files[file].read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, function)
