"""What an OpenCL device can do: its limits, and matrix units that its driver does not report."""

from __future__ import annotations

from contextlib import suppress

import pyopencl as cl

from weft.backends.gpu.device.device import DeviceCaps
from weft.backends.opencl.known_drivers import driver_of, granted, matrices_of

_MAX_GRID = ((1 << 31) - 1, 65535, 65535)


def caps_of(device: cl.Device) -> DeviceCaps:
    """Return the limits of a device and what its hardware can do."""
    x, y, z = (int(size) for size in device.max_work_item_sizes[:3])
    local = int(device.local_mem_size)
    items = int(device.max_work_group_size)
    known, has = driver_of(device), capability(device)
    can = granted(has)
    units = int(device.max_compute_units)
    return DeviceCaps(
        max_local_items=min(items, known.most_items or items),
        max_local_size=(x, y, z),
        max_grid=_MAX_GRID,
        local_memory=min(local, known.most_local_memory or local),
        max_buffer_range=int(device.max_mem_alloc_size),
        max_allocation=int(device.max_mem_alloc_size),
        offset_alignment=max(int(device.mem_base_addr_align) // 8, 1),
        fp16_storage=True,
        int8_storage=True,
        doubles=bool(device.double_fp_config),
        resident_groups=units if "resident_groups" in can else 0,
        compute_units=units,
        software=bool(device.type & cl.device_type.CPU),
        channels_last="channels_last" in can,
        matrices=matrices_of(has),
        dot8="dot8" in can or "cl_khr_integer_dot_product" in device.extensions,
        subgroup_sizes=_subgroup_sizes(device),
        shuffles="shuffles" in can,
        partial_barriers="partial_barriers" in can,
        asynchronous_copies="asynchronous_copies" in can,
    )


def told(device: cl.Device) -> dict[str, object]:
    """Return what a user is told of the units of a device; a driver that answers no question leaves it at that."""
    try:
        return caps_of(device).told()
    except (AttributeError, TypeError, ValueError, cl.Error):
        return {}


def _subgroup_sizes(device: cl.Device) -> tuple[int, ...]:
    """Return the sizes that a driver's own query tells; OpenCL has none for a device."""
    for query in ("warp_size_nv", "wavefront_width_amd"):
        with suppress(AttributeError, cl.Error, ValueError):
            return (int(getattr(device, query)),)
    return ()


def capability(device: cl.Device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU; (0, 0) for other devices."""
    try:
        if driver_of(device).tells_capability:
            return int(device.compute_capability_major_nv), int(device.compute_capability_minor_nv)
    except (AttributeError, cl.Error):
        pass
    return 0, 0
