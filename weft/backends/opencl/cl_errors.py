"""OpenCL's error codes in words, and as exceptions of Weft."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import LESS_MEMORY, DeviceError, DeviceLost, OutOfMemory, listing

WORDS: dict[int, tuple[str, str]] = {
    -1: ("CL_DEVICE_NOT_FOUND", "no device of that kind"),
    -2: ("CL_DEVICE_NOT_AVAILABLE", "the device is not available any more"),
    -3: ("CL_COMPILER_NOT_AVAILABLE", "the driver has no compiler"),
    -4: ("CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has no memory left for a buffer"),
    -5: ("CL_OUT_OF_RESOURCES", "the device ran out of resources, or a kernel accessed memory it does not own"),
    -6: ("CL_OUT_OF_HOST_MEMORY", "the driver has no host memory left"),
    -7: ("CL_PROFILING_INFO_NOT_AVAILABLE", "the driver has no timestamps for this command"),
    -8: ("CL_MEM_COPY_OVERLAP", "source and target of a copy overlap"),
    -11: ("CL_BUILD_PROGRAM_FAILURE", "the compiler refused the source"),
    -12: ("CL_MAP_FAILURE", "the memory cannot be mapped to the host"),
    -13: ("CL_MISALIGNED_SUB_BUFFER_OFFSET", "a piece of a buffer starts at an offset the device cannot take"),
    -14: ("CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "a command failed while it ran"),
    -30: ("CL_INVALID_VALUE", "a size, offset or pointer is outside of its buffer"),
    -34: ("CL_INVALID_CONTEXT", "the context does not exist or was lost"),
    -36: ("CL_INVALID_COMMAND_QUEUE", "the queue does not exist or was lost after an error of the device"),
    -37: ("CL_INVALID_HOST_PTR", "the host memory is not usable"),
    -38: ("CL_INVALID_MEM_OBJECT", "the buffer does not exist or was freed"),
    -42: ("CL_INVALID_BINARY", "the compiled kernel is damaged or made for another device"),
    -43: ("CL_INVALID_BUILD_OPTIONS", "the compiler does not know a build option"),
    -44: ("CL_INVALID_PROGRAM", "the program does not exist"),
    -45: ("CL_INVALID_PROGRAM_EXECUTABLE", "the program is not built for this device"),
    -46: ("CL_INVALID_KERNEL_NAME", "the program has no kernel of that name"),
    -48: ("CL_INVALID_KERNEL", "the kernel does not exist"),
    -49: ("CL_INVALID_ARG_INDEX", "the kernel has fewer arguments"),
    -50: ("CL_INVALID_ARG_VALUE", "an argument's value is not valid"),
    -51: ("CL_INVALID_ARG_SIZE", "an argument's size is not that of its type"),
    -52: ("CL_INVALID_KERNEL_ARGS", "an argument of the kernel is not set"),
    -53: ("CL_INVALID_WORK_DIMENSION", "the number of dimensions is not valid"),
    -54: ("CL_INVALID_WORK_GROUP_SIZE", "the work-group is too large for the kernel, or not what it was built for"),
    -55: ("CL_INVALID_WORK_ITEM_SIZE", "the work-group is too large along one axis"),
    -59: ("CL_INVALID_OPERATION", "the operation is not allowed here"),
    -61: ("CL_INVALID_BUFFER_SIZE", "the buffer is larger than the device allows, or empty"),
    -63: ("CL_INVALID_GLOBAL_WORK_SIZE", "the grid is empty or too large"),
    -1001: ("CL_PLATFORM_NOT_FOUND_KHR", "the OpenCL loader found no driver"),
    -9999: ("NVIDIA: illegal access", "a kernel read or wrote memory outside of its buffers"),
}

_MEMORY = frozenset({-4, -6, -12, -61})
_LOST_AT_ONCE = frozenset({-2, -34, -9999})
_LOST_WHEN_WAITING = frozenset({-2, -5, -14, -34, -36, -9999})
_SHOWN_LABELS = 12


def words(code: int) -> str:
    """Return what an error code of OpenCL means, with its name."""
    name, meaning = WORDS.get(code, (f"OpenCL error {code}", "the driver gives no description of it"))
    return f"{meaning} ({name})"


def failure(code: int, what: str, where: str, *, waiting: bool = False) -> DeviceError:
    """Return the exception for an error code; `waiting`: it was reported for work that the driver had accepted."""
    if code in _MEMORY:
        return OutOfMemory(what, where=where, why=words(code), fix=LESS_MEMORY)
    if code in (_LOST_WHEN_WAITING if waiting else _LOST_AT_ONCE):
        fix = "close the device and open it again; if it repeats, run one launch at a time to find the kernel"
        return DeviceLost(what, where=where, why=words(code), fix=fix)
    return DeviceError(
        what, where=where, why=words(code), fix="this is a defect of Weft or of the driver: report it"
    )


def listed(labels: Sequence[str]) -> str:
    """Return a recording's labels as one line."""
    named = list(dict.fromkeys(label for label in labels if label))
    return listing(named, ", ", most=_SHOWN_LABELS) or "no labels"
