"""VK_NV_cooperative_matrix2: matrices held by a whole work-group and loaded through tensor layouts.

The `vulkan` package does not know this extension, so its structs are declared here and passed to the driver
as plain addresses.
"""

from __future__ import annotations

import ctypes
from typing import Any

from weft.backends.vulkan._vk import NULL, Arena, ffi, lib, vk
from weft.backends.vulkan.instance import instance
from weft.kernels.matrix_shapes import MatrixShape

EXTENSION = "VK_NV_cooperative_matrix2"
_FEATURES_TYPE = 1000593000
_SIZES_TYPE = 1000593001
_WANTED = (
    "cooperativeMatrixWorkgroupScope",
    "cooperativeMatrixFlexibleDimensions",
    "cooperativeMatrixPerElementOperations",
    "cooperativeMatrixTensorAddressing",
)
"""The features of the extension that Weft's kernels use."""


class _Features(ctypes.Structure):
    _fields_ = (
        ("sType", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "cooperativeMatrixWorkgroupScope", "cooperativeMatrixFlexibleDimensions",
                "cooperativeMatrixReductions", "cooperativeMatrixConversions",
                "cooperativeMatrixPerElementOperations", "cooperativeMatrixTensorAddressing",
                "cooperativeMatrixBlockLoads",
            )
        ),
    )


class _Sizes(ctypes.Structure):
    _fields_ = (
        ("sType", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("MGranularity", "NGranularity", "KGranularity")),
        *((name, ctypes.c_int32) for name in ("AType", "BType", "CType", "ResultType")),
        ("saturatingAccumulation", ctypes.c_uint32),
        ("scope", ctypes.c_int32),
        ("workgroupInvocations", ctypes.c_uint32),
    )


_GET_SIZES = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_void_p)


_COMPONENTS = {
    0: "float16", 1: "float32", 2: "float64", 3: "int8", 4: "int16", 5: "int32", 6: "int64", 7: "uint8", 8: "uint16",
    9: "uint32", 10: "uint64", 1000141000: "bfloat16", 1000491002: "float8e4m3", 1000491003: "float8e5m2",
}
"""Element types of matrices (VkComponentTypeKHR)."""


def component(number: int) -> str:
    """Return the name of an element type of matrices, or its number if it is unknown."""
    return _COMPONENTS.get(number, str(number))


def _address(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle))


def supported(physical: Any) -> bool:
    """Tell whether a physical device (a Vulkan handle) has all features of the extension that Weft uses."""
    arena, found = Arena(), _Features(sType=_FEATURES_TYPE)
    chain = ffi.cast("void*", ctypes.addressof(found))
    lib.vkGetPhysicalDeviceFeatures2(physical, arena.new("VkPhysicalDeviceFeatures2", pNext=chain))
    return all(getattr(found, name) for name in _WANTED)


def enable(arena: Arena, following: Any) -> Any:
    """Return the struct to chain when creating a device; it lives as long as the arena."""
    wanted = dict.fromkeys(_WANTED, 1)
    made = arena.keep(_Features(sType=_FEATURES_TYPE, pNext=_address(following), **wanted))
    return ffi.cast("void*", ctypes.addressof(made))


def shapes(physical: Any) -> list[MatrixShape]:
    """Return the steps in which the sizes of matrices may grow that a work-group multiplies."""
    name = ffi.new("char[]", b"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV")
    address = lib.vkGetInstanceProcAddr(instance(), name)
    if address == NULL:
        return []
    function, device, count = _GET_SIZES(_address(address)), _address(physical), ctypes.c_uint32()
    if function(device, count, None) != 0:
        return []
    sizes = (_Sizes * count.value)(*[_Sizes(sType=_SIZES_TYPE) for _ in range(count.value)])
    if function(device, count, ctypes.addressof(sizes)) != 0:
        return []
    return [
        MatrixShape(
            s.MGranularity, s.NGranularity, s.KGranularity, component(s.AType), component(s.CType),
            s.workgroupInvocations, "workgroup",
        )
        for s in sizes[: count.value]
        if s.AType == s.BType and s.CType == s.ResultType and s.scope == vk.VK_SCOPE_WORKGROUP_KHR
    ]
