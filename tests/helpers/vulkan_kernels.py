"""Kernels that are written by hand for the Vulkan device, and how its tests launch and run them."""

from __future__ import annotations

from typing import Any, cast

from weft.backends.gpu.device.device import Binding, GpuBuffer, LaunchCommand
from weft.backends.vulkan.device import VulkanDevice
from weft.core.graph.dtypes import DType
from weft.kernels.dialect import Dialect
from weft.kernels.source import Arg, ConstantKind, KernelCode, KernelSource

NO_DIALECT = cast(Dialect, None)
LOCAL = 64

HEAD = """#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const int LX = 1;
layout(constant_id = 4) const int LY = 1;
layout(constant_id = 5) const int LZ = 1;
layout(constant_id = 6) const int N = 1;
layout(constant_id = 7) const float A = 1.0;
"""
CONSTANTS: tuple[tuple[str, ConstantKind], ...] = (
    ("LX", "int"),
    ("LY", "int"),
    ("LZ", "int"),
    ("N", "int"),
    ("A", "float"),
)


def kernel_source(element: str, body: str, dtype: DType, entry: str = "scale") -> KernelSource:
    text = f"""{HEAD}
layout(std430, set = 0, binding = 0) readonly buffer X {{ {element} x[]; }};
layout(std430, set = 0, binding = 1) buffer Y {{ {element} y[]; }};
void main() {{
    int i = int(gl_GlobalInvocationID.x);
    if (i < N) {{ {body} }}
}}
"""
    args = (Arg("x", dtype, "linear"), Arg("y", dtype, "linear", written=True))
    return KernelSource(entry, KernelCode(text), args, CONSTANTS)


SCALE = kernel_source("float", "y[i] = A * x[i];", DType.FLOAT32)
ADD = kernel_source("float", "y[i] = y[i] + A * x[i];", DType.FLOAT32, "add")
HALF = kernel_source("float16_t", "y[i] = float16_t(A * float(x[i]));", DType.FLOAT16, "half")
BYTES = kernel_source("int8_t", "y[i] = int8_t(int(x[i]) * int(A));", DType.INT8, "bytes")


def values(n: int, a: float = 1.0, local: int = LOCAL) -> dict[str, int | float]:
    return {"LX": local, "LY": 1, "LZ": 1, "N": n, "A": a}


def whole(buffer: GpuBuffer) -> Binding:
    return Binding(buffer, 0, buffer.nbytes)


def launch(kernel: Any, *buffers: GpuBuffer, n: int, local: int = LOCAL) -> LaunchCommand:
    return LaunchCommand(kernel, tuple(map(whole, buffers)), (-(-n // local), 1, 1), kernel.name)


def run(device: VulkanDevice, recording: Any) -> None:
    device.submit(recording)
    device.wait(recording)


def host(buffer: GpuBuffer, dtype: str = "float32") -> Any:
    assert buffer.host is not None
    return buffer.host.view(dtype)
