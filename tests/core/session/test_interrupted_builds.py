"""Ctrl-C while a driver compiles: it reaches the caller at once, and what the driver goes on with does no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.backends.gpu.tuning.tuner import tune_pipelines
from weft.backends.opencl.native import NativeCalls
from weft.backends.vulkan.late_compiler import LateCompiler
from weft.backends.vulkan.pipeline_builder import PipelineBuilder
from weft.core.graph.graph import Graph
from weft.core.host import background

DRIVERS: dict[str, tuple[type, str]] = {
    "opencl": (NativeCalls, "build"),
    "opencl:1": (NativeCalls, "build"),
    "vulkan": (PipelineBuilder, "pipeline"),
    "vulkan:0": (LateCompiler, "compile"),
}
"""What has the driver of a device compile: llvmpipe does so twice, when it makes a pipeline and at a dispatch."""
PATIENCE = 60.0
"""Seconds after which a compiler that nobody lets go on fails its test."""


class Compiler:
    """A driver's compiler that sends Ctrl-C when it is called, and goes on when it is let."""

    def __init__(self) -> None:
        self.may_end, self.calls, self.in_main = threading.Event(), 0, False

    def begins(self) -> None:
        self.calls += 1
        self.in_main |= threading.current_thread() is threading.main_thread()
        if not self.may_end.is_set() and not self.in_main:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.may_end.wait(PATIENCE)

    def end(self) -> None:
        self.may_end.set()
        background.wait()


@contextmanager
def compiler(api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    kind, name = DRIVERS[api]
    made = Compiler()
    real = getattr(kind, name)

    def waits(self: Any, *given: Any) -> Any:
        made.begins()
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, waits)
        try:
            yield made
        finally:
            made.end()


def some(*ops: str, shape: tuple[int | str, ...] = (8, 8)) -> Graph:
    """Return a network with a kernel that no other test compiles."""
    net = Net()
    x = net.input("x", *shape)
    for op in ops:
        x = net.add(op, x)
    return net.finish(net.add("MatMul", x, x, name="y"))


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, int]]:
    """Return options for a device of each API that knows no kernels, neither in memory nor on disk."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    return {api: {"kernels_kept": 0} for api in ("opencl", "vulkan")}


@pytest.mark.parametrize("when", ["load", "run"])
@pytest.mark.parametrize("api", DRIVERS)
def test_ctrl_c_waits_for_no_compiler(
    api: str, when: str, options: dict[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a load, and in the run that loads a network of open shapes."""
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    graph = some("Atan", "Erf", "Cos") if when == "load" else some("Cos", "Atan", "Erf", shape=("n", "n"))
    with weft.load(graph, "cpu") as reference:
        expected = reference.run(x)[0]
    load = partial(weft.load, graph, api, fallback="error", backend_options=options)
    first = None if when == "load" else load()
    with compiler(api, monkeypatch) as driver:
        with pytest.raises(KeyboardInterrupt):
            load() if first is None else first.run(x)
        assert driver.calls and not driver.in_main and not driver.may_end.is_set()
        driver.may_end.set()
        with load() if first is None else first as session:
            np.testing.assert_allclose(session.run(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_ctrl_c_in_a_tuning_waits_for_no_compiler(
    options: dict[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        weft.load(some("Sinh", "Cos"), "vulkan", fallback="error", backend_options=options) as session,
        compiler("vulkan", monkeypatch) as driver,
    ):
        with pytest.raises(KeyboardInterrupt):
            tune_pipelines(session.pipelines)
        assert driver.calls and not driver.in_main and not driver.may_end.is_set()
        driver.may_end.set()
        assert tune_pipelines(session.pipelines, budget=0.0)


INTERRUPTED = """
import os, signal, sys, threading
import weft
from tests.helpers.nets import Net
from weft.backends.opencl.native import NativeCalls
from weft.backends.vulkan.pipeline_builder import PipelineBuilder

def never_ends(*given):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Event().wait()

NativeCalls.build = PipelineBuilder.pipeline = never_ends
net = Net()
net.finish(net.add("Erf", net.input("x", 8), name="y"))
try:
    weft.load(net.graph, API, fallback="error")
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_the_end_of_the_process_waits_for_no_compiler(api: str, tmp_path: Path) -> None:
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    text = INTERRUPTED.replace("API", repr(api))
    ended = subprocess.run(
        [sys.executable, "-c", text], env=environment, timeout=PATIENCE, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (7, "")
