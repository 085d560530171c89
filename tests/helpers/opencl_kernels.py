"""Kernels that are written by hand for the OpenCL device, and how its tests run them."""

from __future__ import annotations

from typing import cast

from weft.backends.gpu.device.device import Binding, Command, GpuBuffer
from weft.backends.opencl.device import OpenCLDevice
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.kernels.dialect import Dialect
from weft.kernels.source import Arg, ConstantKind, KernelCode, KernelSource

LOCAL: tuple[tuple[str, ConstantKind], ...] = (("LX", "int"), ("LY", "int"), ("LZ", "int"))
SCALE = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void scale(__global const float* x, __global float* y) {
  for (int i = (int)get_global_id(0); i < N; i += (int)get_global_size(0)) y[i] = A * x[i];
}
"""
HALF = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void half_scale(__global const half* x, __global half* y) {
  int i = (int)get_global_id(0);
  if (i < N) vstore_half_rte(A * vload_half(i, x), i, y);
}
"""
X, Y = Arg("x", DType.FLOAT32, "linear"), Arg("y", DType.FLOAT32, "linear", written=True)
SOURCE = KernelSource("scale", KernelCode(SCALE), (X, Y), (*LOCAL, ("N", "int"), ("A", "float")))

NO_DIALECT = cast(Dialect, None)  # never asked: these kernels are written by hand


def whole(buffer: GpuBuffer) -> Binding:
    return Binding(buffer, 0, buffer.nbytes)


def values(n: int, a: float = 2.0, lx: int = 32) -> dict[str, int | float]:
    return {"LX": lx, "LY": 1, "LZ": 1, "N": n, "A": a}


def host(buffer: GpuBuffer) -> Array:
    assert buffer.host is not None
    return buffer.host


def run(device: OpenCLDevice, *commands: Command) -> None:
    recording = device.record(commands)
    device.submit(recording)
    device.wait(recording)
    device.release(recording)


def free(device: OpenCLDevice, *buffers: GpuBuffer) -> None:
    for buffer in buffers:
        device.free(buffer)
