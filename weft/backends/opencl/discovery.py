"""Which OpenCL devices there are, and if none, why; imports pyopencl only when it is asked."""

from __future__ import annotations

import platform
import shutil
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.core.backend import DeviceInfo
from weft.errors import NoDevice

DEVICE_ID = "opencl"
_INSTALL_DRIVER = (
    "install the GPU vendor's OpenCL driver (NVIDIA: the driver and its nvidia.icd; AMD: rocm-opencl; Intel: "
    "intel-opencl-icd), or for the CPU: pip install pocl-binary-distribution"
)


_LIBRARY_FOLDERS = ("/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu", "/lib64", "/lib")


def absent_reason() -> str | None:
    """Return why there is no OpenCL device here and what to install, or None if there is one."""
    try:
        import_module("pyopencl")
    except ImportError as e:
        return f"pyopencl cannot be imported ({e}): pip install pyopencl"
    platforms = _platforms()
    if not platforms and not _can_link():
        return "PoCL cannot link kernels here: apt install gcc libc6-dev, or install a vendor's OpenCL driver"
    if not platforms:
        return f"the OpenCL loader found no platform: {_INSTALL_DRIVER}"
    if not raw_devices():
        names = ", ".join(p.name.strip() for p in platforms)
        return f"the OpenCL platforms found ({names}) have no usable device: {_INSTALL_DRIVER}"
    return None


def enumerate_devices() -> list[DeviceInfo]:
    """Return all OpenCL devices in a stable order: GPUs and accelerators before CPUs."""
    try:
        return [describe(device, index) for index, device in enumerate(raw_devices())]
    except ImportError:
        return []


def raw_devices() -> list[Any]:
    """Return pyopencl's device objects in the order of their indices."""
    cl = import_module("pyopencl")
    found = [device for platform in _platforms() for device in _devices_of(platform)]
    usable = [device for device in found if device.available and device.compiler_available]
    cpu = cl.device_type.CPU
    return sorted(usable, key=lambda device: bool(device.type & cpu))


def raw_device(index: int) -> Any:
    """Return pyopencl's device of this index; NoDevice says which there are."""
    reason = absent_reason()
    devices = [] if reason else raw_devices()
    if 0 <= index < len(devices):
        return devices[index]
    names = ", ".join(f"{DEVICE_ID}:{i} ({d.name.strip()})" for i, d in enumerate(devices))
    raise NoDevice(
        f"there is no device {DEVICE_ID}:{index}",
        why=reason or f"the OpenCL devices here are {names}",
        fix="" if reason else "name one of these",
    )


def describe(device: Any, index: int) -> DeviceInfo:
    """Return the facts about one of pyopencl's devices."""
    cl = import_module("pyopencl")
    platform = device.platform
    return DeviceInfo(
        DEVICE_ID,
        index,
        device.name.strip(),
        driver=f"{platform.name.strip()} {device.driver_version.strip()}",
        software=bool(device.type & cl.device_type.CPU),
        details={
            "vendor": device.vendor.strip(),
            "platform version": platform.version.strip(),
            "version": device.version.strip(),
            "compute units": device.max_compute_units,
            "memory": device.global_mem_size,
            "largest allocation": device.max_mem_alloc_size,
            "local memory": device.local_mem_size,
        },
    )


def _platforms() -> list[Any]:
    cl = import_module("pyopencl")
    import_module("weft.backends.opencl.native").start_drivers()
    try:
        found = list(cl.get_platforms())
    except cl.Error:  # loaders report "no platform" as an error
        return []
    # PoCL links each kernel, and ends the whole process where there is nothing to link with.
    return [p for p in found if p.name.strip() != "Portable Computing Language" or _can_link()]


@lru_cache(maxsize=1)
def _can_link() -> bool:
    start_files = (f for folder in _LIBRARY_FOLDERS for f in Path(folder).glob("crti.o"))
    return sys.platform != "linux" or (shutil.which("ld") is not None and any(start_files))


def _devices_of(platform: Any) -> list[Any]:
    cl = import_module("pyopencl")
    try:
        return list(platform.get_devices())
    except cl.Error:  # a driver without hardware reports it so, and must not hide the other platforms
        return []
