"""VK_NV_cooperative_matrix2: matrices that a whole work-group holds, loaded through descriptions of tensors.

The `vulkan` package does not know this extension, so its structs are declared here; they go to the driver
as plain addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cffi import FFI

from weft.backends.vulkan._vk import NULL, Arena, ffi, lib, vk
from weft.backends.vulkan.instance import instance

EXTENSION = "VK_NV_cooperative_matrix2"
_FEATURES_TYPE = 1000593000
_SIZES_TYPE = 1000593001
_WANTED = (
    "cooperativeMatrixWorkgroupScope",
    "cooperativeMatrixFlexibleDimensions",
    "cooperativeMatrixPerElementOperations",
    "cooperativeMatrixTensorAddressing",
)
"""What Weft's kernels use of the extension."""

_own = FFI()
_own.cdef(
    """
    typedef struct {
        int32_t sType;
        void* pNext;
        uint32_t cooperativeMatrixWorkgroupScope;
        uint32_t cooperativeMatrixFlexibleDimensions;
        uint32_t cooperativeMatrixReductions;
        uint32_t cooperativeMatrixConversions;
        uint32_t cooperativeMatrixPerElementOperations;
        uint32_t cooperativeMatrixTensorAddressing;
        uint32_t cooperativeMatrixBlockLoads;
    } Features;
    typedef struct {
        int32_t sType;
        void* pNext;
        uint32_t MGranularity, NGranularity, KGranularity;
        int32_t AType, BType, CType, ResultType;
        uint32_t saturatingAccumulation;
        int32_t scope;
        uint32_t workgroupInvocations;
    } Sizes;
    typedef int32_t (*GetSizes)(void* device, uint32_t* count, Sizes* sizes);
    """
)


@dataclass(frozen=True, slots=True)
class Granularity:
    """The steps in which matrices of fp16, summed in fp32, may grow in a work-group of so many items."""

    items: int
    m: int
    n: int
    k: int


def _address(pointer: Any) -> int:
    return int(_own.cast("uintptr_t", pointer))


def supported(physical: Any) -> bool:
    """Tell whether a physical device, by its Vulkan handle, has all features of the extension that are wanted."""
    arena, found = Arena(), _own.new("Features*", {"sType": _FEATURES_TYPE})
    chain = ffi.cast("void*", _address(found))
    lib.vkGetPhysicalDeviceFeatures2(physical, arena.new("VkPhysicalDeviceFeatures2", pNext=chain))
    return all(getattr(found, name) for name in _WANTED)


def enable(arena: Arena, following: Any) -> Any:
    """Return the struct to chain at the creation of a device; it lives as long as the arena."""
    wanted = dict.fromkeys(_WANTED, 1)
    after = _own.cast("void*", int(ffi.cast("uintptr_t", following)))
    made = arena.keep(_own.new("Features*", {"sType": _FEATURES_TYPE, "pNext": after, **wanted}))
    return ffi.cast("void*", _address(made))


def granularities(physical: Any) -> list[Granularity]:
    """Return the sizes for fp16 products summed in fp32 by a work-group; empty if the driver has none."""
    name = ffi.new("char[]", b"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV")
    address = lib.vkGetInstanceProcAddr(instance(), name)
    if address == NULL:
        return []
    function = _own.cast("GetSizes", int(ffi.cast("uintptr_t", address)))
    device = _own.cast("void*", int(ffi.cast("uintptr_t", physical)))
    count = _own.new("uint32_t*")
    if function(device, count, _own.NULL) != 0:
        return []
    sizes = _own.new("Sizes[]", [{"sType": _SIZES_TYPE}] * count[0])
    if function(device, count, sizes) != 0:
        return []
    half, single = vk.VK_COMPONENT_TYPE_FLOAT16_KHR, vk.VK_COMPONENT_TYPE_FLOAT32_KHR
    return [
        Granularity(s.workgroupInvocations, s.MGranularity, s.NGranularity, s.KGranularity)
        for s in sizes
        if (s.AType, s.BType, s.CType, s.ResultType) == (half, half, single, single)
        and s.scope == vk.VK_SCOPE_WORKGROUP_KHR
    ]
