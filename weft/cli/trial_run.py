"""Run a small network on one device in a child process, because a broken driver may crash its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from signal import Signals

import numpy as np

from weft.cli.difference import difference
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.tensor import TensorSpec
from weft.core.registry.backend_registry import registry
from weft.errors import DeviceError, UnsupportedOps, WeftError
from weft.loading import load
from weft.ops.conv import Conv
from weft.ops.unary import Relu

SECONDS = 120
SHAPE = (1, 5, 9, 7)


def small_network() -> Graph:
    """Return a convolution with a Relu behind it."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((6, 5, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(6).astype(np.float32)
    conv = Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    nodes = [Node("conv", conv, ("x", "w", "b"), ("c",)), Node("relu", Relu(), ("c",), ("y",))]
    specs = {"x": TensorSpec(SHAPE, DType.FLOAT32)}
    specs |= {name: TensorSpec(a.shape, DType.FLOAT32) for name, a in (("w", weights), ("b", bias))}
    return Graph("doctor", ["x"], ["y"], nodes, specs, {"w": weights, "b": bias})


def trial_run(device: str) -> float:
    """Run the small network on a device in a child process; return its difference from the CPU."""
    # The child must find Weft and backends where this process did, installed or not.
    folders = None if registry.paths is None else [os.fspath(path) for path in registry.paths]
    code = f"import sys; sys.path[:] = {sys.path!r}; from weft.cli.trial_run import answer"
    command = [sys.executable, "-c", f"{code}; answer({device!r}, {folders!r})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceError("a small network did not end", why=f"it was given {SECONDS} s", fix=_FIX) from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()[-3:]
        end = Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        raise DeviceError(f"the driver ended the process ({end})", why="; ".join(said), fix=_FIX) from None
    if "problems" in answer:
        raise UnsupportedOps(answer["what"], tuple(answer["problems"]))
    if "what" in answer:
        raise DeviceError(answer["what"], why=answer["why"], fix=answer["fix"])
    return float(answer["difference"])


_FIX = "update the driver; PoCL needs a linker and the C library: apt install gcc libc6-dev"


def answer(device: str, folders: list[str] | None = None) -> None:
    """Run the small network on a device and print the result for `trial_run`, which reads it in the parent process."""
    if folders is not None:
        registry.rescan(folders)
    print(json.dumps(_run(device)))


def _run(device: str) -> dict[str, object]:
    graph = small_network()
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    try:
        with load(graph, "cpu") as cpu, load(graph, device, fallback="error", wait="all") as session:
            return {"difference": difference(session.run(x), cpu.run(x)).bound}
    except UnsupportedOps as e:
        return {"what": e.what, "problems": e.problems}
    except WeftError as e:
        return {"what": e.what, "why": e.why, "fix": e.fix}
