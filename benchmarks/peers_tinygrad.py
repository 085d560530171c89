"""tinygrad's side of the measurement: its OpenCL device runs the same ONNX file, compiled by its TinyJit.

Host to host: numpy array to `Tensor`, the jitted network, and back to numpy. Only fp32: its OpenCL kernels take
fp16 where the device has cl_khr_fp16, and NVIDIA's has not. Device times are not taken. tinygrad reads BEAM itself.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks.measure import Array, Case, Counts, Row, relative_error, timed


def facts() -> str:
    """Return the version and the device; an error if there is none."""
    os.environ.setdefault("DEV", "CL")  # read when tinygrad is imported
    from importlib.metadata import version

    from tinygrad import Device

    return f"{version('tinygrad')}, {Device.DEFAULT}, {Device['CL'].device_name}"


def row(case: Case, counts: Counts) -> Row:
    """Compile, check and time a network."""
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    found = Row(case.network, case.batch, "tinygrad opencl", "fp32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(case.model, path)
        runner = OnnxRunner(path)
    names = [o.name for o in case.model.graph.output]
    jitted = TinyJit(lambda **tensors: tuple(runner(tensors)[name].realize() for name in names))

    def run() -> list[Array]:
        tensors: dict[str, Any] = {n: Tensor(a, device="CL").realize() for n, a in case.inputs.items()}
        return [y.numpy() for y in jitted(**tensors)]

    for _ in range(3):  # the first two are needed to record the kernels, the third replays them
        got = run()
    found.error = relative_error(got, case.outputs)
    found.host_ms, found.host_p90_ms = timed(run, counts)
    found.more["gflop"] = case.flops / 1e9
    return found
