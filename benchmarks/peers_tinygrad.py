"""tinygrad's side of the measurement: its OpenCL device runs the same ONNX file, compiled by its TinyJit.

Host to host: numpy array to `Tensor`, the jitted network, and back to numpy. Only fp32: its OpenCL kernels take
fp16 where the device has cl_khr_fp16, and NVIDIA's has not. Device times are not taken. tinygrad reads BEAM itself.
It compiles a few kernels for the CPU, to read constants, and needs clang for them (or a compiler that CC names).

It runs in a process of its own for each row: a second OpenCL context stays open as long as its process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks.apart import apart
from benchmarks.measure import Array, Counts, Row, Workload


def facts() -> str:
    """Return the version and the device; an error if there is none."""
    return apart(_facts)


def _facts() -> str:
    _share_driver()
    from importlib.metadata import version

    from tinygrad import Device

    return f"{version('tinygrad')}, {Device.DEFAULT}, {Device['CL'].device_name}"


def _share_driver() -> None:
    """Have tinygrad use the OpenCL loader, and so the driver, that Weft uses; it reads both variables when imported."""
    import pyopencl

    pyopencl.get_platforms()
    os.environ.setdefault("DEV", "CL")
    loaded = _loaded("libOpenCL")
    if loaded:
        os.environ.setdefault("OPENCL_PATH", loaded)


def _loaded(name: str) -> str:
    """Return the path of a library that this process has loaded, or nothing."""
    maps = Path("/proc/self/maps")
    paths = [line.split()[-1] for line in maps.read_text().splitlines()] if maps.exists() else []
    return next((path for path in paths if Path(path).name.startswith(name)), "")


def row(case: Workload, counts: Counts) -> Row:
    """Compile, check and time a network."""
    return apart(_in_folder, case, counts)


def _in_folder(case: Workload, counts: Counts) -> Row:
    with tempfile.TemporaryDirectory() as folder:  # weights are read from the file when they are needed
        path = Path(folder) / "network.onnx"
        onnx.save(case.model, path)
        return _row(case, path, counts)


def _row(case: Workload, path: Path, counts: Counts) -> Row:
    _share_driver()
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    found = Row(case.network, case.batch, "tinygrad opencl", "fp32")
    runner = OnnxRunner(path)
    names = [o.name for o in case.model.graph.output]
    jitted = TinyJit(lambda **tensors: tuple(runner(tensors)[name].realize() for name in names))

    def run() -> list[Array]:
        tensors: dict[str, Any] = {n: Tensor(a, device="CL").realize() for n, a in case.inputs.items()}
        return [y.numpy() for y in jitted(**tensors)]

    for _ in range(3):  # the first two are needed to record the kernels, the third replays them
        got = run()
    found.compare(got, case)
    found.compare(found.time(run, counts), case)
    if case.flops:
        found.more["gflop"] = case.flops / 1e9
    return found
