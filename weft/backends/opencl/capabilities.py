"""What an OpenCL device can do: its limits, and matrix units that its driver does not report."""

from __future__ import annotations

import pyopencl as cl

from weft.backends.gpu.device.device import DeviceCaps

_NVIDIA_LOCAL_MEMORY = 48 * 1024 - 1
_NVIDIA_ITEMS = 256
"""NVIDIA's compiler ignores the work-group size and may use so many registers per work-item that no more fit."""
_MAX_GRID = ((1 << 31) - 1, 65535, 65535)


def caps_of(device: cl.Device) -> DeviceCaps:
    """Return the limits of a device and what its hardware can do."""
    x, y, z = (int(size) for size in device.max_work_item_sizes[:3])
    local = int(device.local_mem_size)
    items = int(device.max_work_group_size)
    if "NVIDIA" in device.platform.name:  # beyond these limits launches fail there, whatever it reports
        local, items = min(local, _NVIDIA_LOCAL_MEMORY), min(items, _NVIDIA_ITEMS)
    return DeviceCaps(
        max_local_items=items,
        max_local_size=(x, y, z),
        max_grid=_MAX_GRID,
        local_memory=local,
        max_buffer_range=int(device.max_mem_alloc_size),
        max_allocation=int(device.max_mem_alloc_size),
        offset_alignment=max(int(device.mem_base_addr_align) // 8, 1),
        fp16_storage=True,
        int8_storage=True,
        doubles=bool(device.double_fp_config),
        channels_last=_has_matrix_units(device),
        matrix_units=_has_matrix_units(device),
        shuffles=capability(device) >= (7, 0),
        warpgroup_units=capability(device) == (9, 0),
        resident_groups=int(device.max_compute_units) if capability(device) >= (7, 0) else 0,
        partial_barriers=capability(device) >= (7, 0),
        asynchronous_copies=capability(device) >= (8, 0),
        compute_units=int(device.max_compute_units),
        software=bool(device.type & cl.device_type.CPU),
    )


def _has_matrix_units(device: cl.Device) -> bool:
    """Tell whether it is an NVIDIA GPU of compute capability 8.0 or later, whose compiler accepts PTX in C."""
    return capability(device) >= (8, 0)


def capability(device: cl.Device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU; (0, 0) for other devices."""
    try:
        if "NVIDIA" in device.platform.name:
            return int(device.compute_capability_major_nv), int(device.compute_capability_minor_nv)
    except (AttributeError, cl.Error):
        pass
    return 0, 0
