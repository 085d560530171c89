"""Finds the OpenCL devices and their order, or why there are none; imports pyopencl only when called."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from weft.backends.gpu.device.cards import UNHIDE, Card, Visible, visible
from weft.backends.gpu.device.driver_parts import unlisted
from weft.backends.opencl.known_drivers import driver_named
from weft.core.contract.backend import DeviceInfo
from weft.errors import NoDevice, Reason

DEVICE_ID = "opencl"
_VENDORS = (
    "install the GPU vendor's OpenCL driver (NVIDIA: the driver and its nvidia.icd; AMD: rocm-opencl; Intel: "
    "intel-opencl-icd)"
)


def absent_reason() -> Reason | None:
    """Return why there is no OpenCL device here and what to install, or None if there is one."""
    try:
        import_module("pyopencl")
    except ImportError as e:
        return Reason(f"pyopencl cannot be imported ({e})", "pip install pyopencl")
    found, shown = listed_devices()
    if shown.shown:
        return None
    if found:
        return Reason(f"all OpenCL devices are hidden: {'; '.join(shown.notes)}", UNHIDE)
    driver, trial = import_module("weft.backends.opencl.pip_driver"), import_module("weft.backends.opencl.driver_trial")
    problem: Reason | None = driver.problem()
    if problem is not None:
        return problem
    lacking = [each.reason for each in unlisted(DEVICE_ID, ())]
    if lacking:
        return Reason(f"OpenCL lists no device: {lacking[0].what}", lacking[0].fix)
    advice = f"{_VENDORS}, or for the CPU: {trial.for_the_cpu()}"
    platforms = _platforms()
    if not platforms:
        return Reason("the OpenCL loader found no platform", advice)
    names = ", ".join(p.name.strip() for p in platforms)
    return Reason(f"the OpenCL platforms found ({names}) have no usable device", advice)


def enumerate_devices() -> list[DeviceInfo]:
    """Return all OpenCL devices in the order of `raw_devices`."""
    try:
        return [describe(device, index) for index, device in enumerate(raw_devices())]
    except ImportError:
        return []


def why_unusable(index: int) -> str | None:
    """Return why this device is unusable and what to install, or None; runs a small kernel to find out."""
    devices = raw_devices()
    if not 0 <= index < len(devices):
        return None
    why: str | None = import_module("weft.backends.opencl.driver_trial").why_unusable(devices, index)
    return why


def hidden() -> list[str]:
    """Return what the user's variables hide, a sentence each; nothing where OpenCL cannot be asked."""
    try:
        return listed_devices()[1].notes
    except ImportError:
        return []


def listed_vendors() -> set[int] | None:
    """Return the PCI ids of the vendors whose GPUs OpenCL lists, hidden ones too; None without pyopencl."""
    try:
        cards = [card_of(device) for device in listed_devices()[0]]
    except ImportError:
        return None
    return {card.vendor for card in cards if not card.software}


def raw_devices() -> list[Any]:
    """Return pyopencl's device objects in the order of their indices; see `listed_devices`."""
    found, shown = listed_devices()
    return [found[i] for i in shown.shown]


def listed_devices() -> tuple[list[Any], Visible]:
    """Return all of pyopencl's usable devices, and which to show; the order is independent of the loader's.

    GPUs and accelerators come before CPUs. Of the CPU drivers, Intel's comes first because it is the fastest, then
    others by name, the newest first. Devices of one driver keep the driver's order.
    """
    cl = import_module("pyopencl")
    found = [(platform, device) for platform in _platforms() for device in _devices_of(platform)]
    usable = [(p, d) for p, d in found if d.available and d.compiler_available]

    def place(each: tuple[Any, Any]) -> tuple[bool, bool, str, list[int]]:
        platform, device = each
        version = [-int(number) for number in re.findall(r"\d+", platform.version)]
        is_cpu = bool(device.type & cl.device_type.CPU)
        return is_cpu, not (is_cpu and driver_named(platform.name).first_of_cpus), platform.name, version

    devices = [device for _, device in sorted(usable, key=place)]
    return devices, visible([card_of(device) for device in devices])


def card_of(device: Any) -> Card:
    """Return what tells one of pyopencl's devices from others."""
    cl = import_module("pyopencl")
    uuid, pci = import_module("weft.backends.opencl.identity").identity(device)
    software = bool(device.type & cl.device_type.CPU)
    obeyed = frozenset(driver_named(device.platform.name).obeys)
    return Card(device.name.strip(), int(device.vendor_id), uuid, pci, software, obeyed)


def raw_device(index: int) -> Any:
    """Return pyopencl's device with this index; NoDevice lists the present ones."""
    reason = absent_reason()
    devices = [] if reason else raw_devices()
    if 0 <= index < len(devices):
        return devices[index]
    names = ", ".join(f"{DEVICE_ID}:{i} ({d.name.strip()})" for i, d in enumerate(devices))
    raise NoDevice(
        f"there is no device {DEVICE_ID}:{index}",
        why=reason.what if reason else f"the OpenCL devices here are {names}",
        fix=reason.fix if reason else "name one of these",
    )


def describe(device: Any, index: int) -> DeviceInfo:
    """Return the facts about one of pyopencl's devices."""
    cl = import_module("pyopencl")
    platform, card = device.platform, card_of(device)
    return DeviceInfo(
        DEVICE_ID,
        index,
        device.name.strip(),
        driver=f"{platform.name.strip()} {device.driver_version.strip()}",
        software=bool(device.type & cl.device_type.CPU),
        details={
            "vendor": device.vendor.strip(),
            "platform": platform.name.strip(),
            "platform version": platform.version.strip(),
            "version": device.version.strip(),
            "compute units": device.max_compute_units,
            "memory": device.global_mem_size,
            "largest allocation": device.max_mem_alloc_size,
            "local memory": device.local_mem_size,
            **import_module("weft.backends.opencl.capabilities").told(device),
        },
        uuid=card.uuid,
        pci=card.pci,
    )


def _platforms() -> list[Any]:
    cl = import_module("pyopencl")
    import_module("weft.backends.opencl.native").start_drivers()
    try:
        found = list(cl.get_platforms())
    except cl.Error:  # loaders report "no platform" as an error
        return []
    return [platform for platform in found if not driver_named(platform.name).ignored]


def _devices_of(platform: Any) -> list[Any]:
    cl = import_module("pyopencl")
    try:
        return list(platform.get_devices())
    except cl.Error:  # a driver without hardware raises this; it must not hide other platforms
        return []
