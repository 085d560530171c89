"""The devices that the drivers list: names, limits, queues, features."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.backends.gpu.device.cards import Card, Visible, pci_text, uuid_text, vendor_of, visible
from weft.backends.gpu.device.device import DeviceCaps, Size3
from weft.backends.gpu.device.known_drivers import KnownDriver, best_match, read_table
from weft.backends.vulkan import workgroup_matrices
from weft.backends.vulkan._vk import NULL, Arena, enumerate_all, ffi, lib, string, vk
from weft.backends.vulkan.instance import instance
from weft.core.contract.backend import DeviceInfo
from weft.kernels.matrix_shapes import HALVES, MatrixShape

_API_1_1 = (1 << 22) | (1 << 12)
_API_1_2 = (1 << 22) | (2 << 12)
_API_1_3 = (1 << 22) | (3 << 12)
_KINDS = {0: "other", 1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "CPU"}
_RANK = {2: 0, 1: 1, 3: 2, 0: 3, 4: 5}
_CPU = 4
_MIB = 1 << 20
FLOAT_CONTROLS = "VK_KHR_shader_float_controls"
"""The extension, part of Vulkan 1.2, by which a kernel says which floats matter to it."""
EXTERNAL_HOST = "VK_EXT_external_memory_host"
"""The extension by which a device adopts memory of the process."""
PTX_EXTENSION = "VK_NVX_binary_import"
"""The extension by which a device runs PTX; its kernels take the addresses of buffers."""
ADDRESSES = "VkPhysicalDeviceBufferDeviceAddressFeatures"
"""The features of addresses of buffers."""
DOT_PRODUCTS = "VkPhysicalDeviceShaderIntegerDotProductProperties"
"""The properties of dot products of integers, part of Vulkan 1.3."""
DOT_FEATURES = "VkPhysicalDeviceShaderIntegerDotProductFeatures"
_IDS = "VkPhysicalDeviceIDProperties"
_BUS = "VkPhysicalDevicePCIBusInfoPropertiesEXT"
MATRIX_EXTENSIONS = {"VK_KHR_cooperative_matrix", "VK_KHR_vulkan_memory_model", "VK_KHR_shader_float16_int8"}
MATRIX_FEATURES = {
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": "cooperativeMatrix",
    "VkPhysicalDeviceVulkanMemoryModelFeatures": "vulkanMemoryModel",
    "VkPhysicalDeviceShaderFloat16Int8Features": "shaderFloat16",
}
"""What kernels with cooperative matrices require of a device, by feature struct."""


@dataclass(frozen=True)
class QueueFamily:
    """A family of queues that can compute."""

    index: int
    timestamp_bits: int


class Physical:
    """One device as its driver describes it, before it is opened."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._arena = arena = Arena()
        base = arena.new("VkPhysicalDeviceProperties2")
        lib.vkGetPhysicalDeviceProperties2(handle, base)
        self.api = int(base.properties.apiVersion)
        self.extensions = {
            string(e.extensionName)
            for e in enumerate_all(
                lib.vkEnumerateDeviceExtensionProperties,
                "VkExtensionProperties",
                "the extensions of a device cannot be listed",
                handle,
                NULL,
            )
        }
        self._extra: dict[str, Any] = {}
        if self.api >= _API_1_1:
            self._read_more(base)
        self._base = base.properties
        self.limits = self._base.limits
        self.name = string(self._base.deviceName)
        self.kind = int(self._base.deviceType)
        self.software = self.kind == _CPU
        self.cache_id = bytes(self._base.pipelineCacheUUID).hex()
        self.pci_ids = int(self._base.vendorID), int(self._base.deviceID)
        self.timestamp_period = float(self.limits.timestampPeriod)

    def _read_more(self, base: Any) -> None:
        """Read the properties outside the 1.0 struct, each only if the device supports it."""
        wanted = ["VkPhysicalDeviceMaintenance3Properties", "VkPhysicalDeviceSubgroupProperties", _IDS]
        if self.api >= _API_1_2 or "VK_KHR_driver_properties" in self.extensions:
            wanted.append("VkPhysicalDeviceDriverProperties")
        if self.api >= _API_1_3 or "VK_EXT_subgroup_size_control" in self.extensions:
            wanted.append("VkPhysicalDeviceSubgroupSizeControlProperties")
        if "VK_NV_shader_sm_builtins" in self.extensions:
            wanted.append("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV")
        if "VK_AMD_shader_core_properties" in self.extensions:
            wanted.append("VkPhysicalDeviceShaderCorePropertiesAMD")
        if "VK_EXT_pci_bus_info" in self.extensions:
            wanted.append(_BUS)
        if EXTERNAL_HOST in self.extensions:
            wanted.append("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
        if self.api >= _API_1_2 or FLOAT_CONTROLS in self.extensions:
            wanted.append("VkPhysicalDeviceFloatControlsProperties")
        if self.api >= _API_1_3 or "VK_KHR_shader_integer_dot_product" in self.extensions:
            wanted.append(DOT_PRODUCTS)
        for name in wanted:
            self._extra[name] = self._arena.new(name, pNext=base.pNext)
            base.pNext = self._extra[name]
        lib.vkGetPhysicalDeviceProperties2(self.handle, base)

    @cached_property
    def known(self) -> VulkanDriver:
        """Return what is known of the driver by its name."""
        return driver_named(self.name)

    @cached_property
    def card(self) -> Card:
        """Return what tells the device from others."""
        ids, bus, vendor = self._extra.get(_IDS), self._extra.get(_BUS), self.pci_ids[0]
        pci = pci_text(bus.pciDomain, bus.pciBus, bus.pciDevice, bus.pciFunction) if bus else ""
        uuid = uuid_text(bytes(ids.deviceUUID) if ids else b"", vendor, pci)
        return Card(self.name, vendor, uuid, pci, self.software)

    @property
    def page(self) -> int:
        """Return the alignment of memory that the device adopts, and of its size; 0 if it adopts none."""
        known = self._extra.get("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
        return int(known.minImportedHostPointerAlignment) if known else 0

    @cached_property
    def preserved_widths(self) -> tuple[int, ...]:
        """Return the bits of floats whose infinities, NaN and signs of zeros the driver preserves if it is told to."""
        known = self._extra.get("VkPhysicalDeviceFloatControlsProperties")
        flags = {w: f"shaderSignedZeroInfNanPreserveFloat{w}" for w in (32, 64)}
        return tuple(width for width, flag in flags.items() if known and getattr(known, flag))

    @property
    def compiles_late(self) -> bool:
        """Tell whether the driver compiles a pipeline at its first dispatch, and not when it is created."""
        return self.known.compiles_late

    @property
    def usable(self) -> bool:
        """Tell whether the device has Vulkan 1.1 and a queue that computes."""
        return self.api >= _API_1_1 and self.family is not None

    @cached_property
    def driver(self) -> str:
        """Return the driver's name and version."""
        known = self._extra.get("VkPhysicalDeviceDriverProperties")
        if known:
            return f"{string(known.driverName)} {string(known.driverInfo)}".strip()
        raw = int(self._base.driverVersion)
        return f"{raw >> 22}.{raw >> 12 & 0x3FF}.{raw & 0xFFF}"

    @cached_property
    def family(self) -> QueueFamily | None:
        """Return the queue family to use, preferably one that cannot draw, since it has no display work."""
        found = []
        for index, each in enumerate(
            enumerate_all(lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", "", self.handle)
        ):
            if each.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
                draws = bool(each.queueFlags & vk.VK_QUEUE_GRAPHICS_BIT)
                found.append((draws, QueueFamily(index, int(each.timestampValidBits))))
        return min(found, key=lambda f: f[0])[1] if found else None

    @cached_property
    def memory(self) -> Any:
        """Return the VkPhysicalDeviceMemoryProperties: heaps and memory types."""
        memory = self._arena.new("VkPhysicalDeviceMemoryProperties")
        lib.vkGetPhysicalDeviceMemoryProperties(self.handle, memory)
        return memory

    def available(self, heap: int) -> int | None:
        """Return the bytes of a heap that this process can still allocate; None if the driver does not say."""
        if "VK_EXT_memory_budget" not in self.extensions:
            return None
        arena = Arena()
        budget = arena.new("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        lib.vkGetPhysicalDeviceMemoryProperties2(
            self.handle, arena.new("VkPhysicalDeviceMemoryProperties2", pNext=budget)
        )
        return max(0, int(budget.heapBudget[heap]) - int(budget.heapUsage[heap]))

    def features(self) -> dict[str, Any]:
        """Return the device's feature structs that Weft uses, by struct name."""
        names = ["VkPhysicalDevice16BitStorageFeatures"]
        if self.api >= _API_1_2 or "VK_KHR_8bit_storage" in self.extensions:
            names.append("VkPhysicalDevice8BitStorageFeatures")
        if self.extensions >= MATRIX_EXTENSIONS:
            names += MATRIX_FEATURES
        if self.api >= _API_1_3:
            names.append("VkPhysicalDeviceMaintenance4Features")
            names += (ADDRESSES, DOT_FEATURES)
        base = self._arena.new("VkPhysicalDeviceFeatures2")
        found = {}
        for name in names:
            found[name] = self._arena.new(name, pNext=base.pNext)
            base.pNext = found[name]
        lib.vkGetPhysicalDeviceFeatures2(self.handle, base)
        return found

    def doubles(self) -> bool:
        """Tell whether kernels may compute in float64."""
        base = self._arena.new("VkPhysicalDeviceFeatures2")
        lib.vkGetPhysicalDeviceFeatures2(self.handle, base)
        return bool(base.features.shaderFloat64)

    @cached_property
    def matrices(self) -> tuple[MatrixShape, ...]:
        """Return the products of matrices that subgroups compute, and whole work-groups where Weft can have them do it.

        The kernels of work-groups are SPIR-V 1.6, where a constant local size requires maintenance4.
        """
        features = self.features()
        if not all(name in features and getattr(features[name], f) for name, f in MATRIX_FEATURES.items()):
            return ()
        name = ffi.new("char[]", b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
        address = lib.vkGetInstanceProcAddr(instance(), name)
        if address == NULL:
            return ()
        function = ffi.cast("PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", address)
        kinds = enumerate_all(function, "VkCooperativeMatrixPropertiesKHR", "matrix types", self.handle)
        items = int(self._extra["VkPhysicalDeviceSubgroupProperties"].subgroupSize)
        found = {
            MatrixShape(
                int(k.MSize), int(k.NSize), int(k.KSize), workgroup_matrices.component(k.AType),
                workgroup_matrices.component(k.CType), items,
            )
            for k in kinds
            if k.scope == vk.VK_SCOPE_SUBGROUP_KHR and k.AType == k.BType and k.CType == k.ResultType
        }
        maintained = features.get("VkPhysicalDeviceMaintenance4Features")
        extended = workgroup_matrices.EXTENSION in self.extensions and maintained and maintained.maintenance4
        if HALVES in found and extended and workgroup_matrices.supported(self.handle):
            found.update(workgroup_matrices.shapes(self.handle))
        return tuple(sorted(found))

    @cached_property
    def imports_ptx(self) -> bool:
        """Tell whether the driver runs PTX in command buffers."""
        addresses, vendor = self.features().get(ADDRESSES), vendor_of(self.pci_ids[0])
        known = PTX_EXTENSION in self.extensions and vendor is not None and vendor.runs_ptx
        return known and addresses is not None and bool(addresses.bufferDeviceAddress)

    def subgroup_sizes(self) -> tuple[int, ...]:
        """Return the sizes that subgroups may have: the powers of two between the least and the most."""
        sizes = self._extra.get("VkPhysicalDeviceSubgroupSizeControlProperties")
        usual = int(self._extra["VkPhysicalDeviceSubgroupProperties"].subgroupSize)
        least, most = (int(sizes.minSubgroupSize), int(sizes.maxSubgroupSize)) if sizes else (usual, usual)
        return tuple(1 << power for power in range(8) if least <= 1 << power <= most)

    def dot8(self) -> bool:
        """Tell whether one instruction multiplies four pairs of signed bytes and adds the products."""
        known, has = self._extra.get(DOT_PRODUCTS), self.features().get(DOT_FEATURES)
        can = has is not None and bool(has.shaderIntegerDotProduct)
        return can and known is not None and bool(known.integerDotProduct4x8BitPackedSignedAccelerated)

    def shuffles(self) -> bool:
        """Tell whether subgroups always have 32 work-items, in the order of their numbers, that can exchange values."""
        known = self._extra["VkPhysicalDeviceSubgroupProperties"]
        return (
            "VkPhysicalDeviceSubgroupSizeControlProperties" in self._extra
            and self.subgroup_sizes() == (32,)
            and bool(known.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT)
            and bool(known.supportedOperations & vk.VK_SUBGROUP_FEATURE_SHUFFLE_BIT)
        )

    def compute_units(self) -> int:
        """Return the number of compute units; 1 if the driver does not say."""
        if self.software:
            return os.cpu_count() or 1
        nv = self._extra.get("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV")
        if nv:
            return int(nv.shaderSMCount)
        amd = self._extra.get("VkPhysicalDeviceShaderCorePropertiesAMD")
        if amd:
            arrays = amd.shaderEngineCount * amd.shaderArraysPerEngineCount
            return int(arrays * amd.computeUnitsPerShaderArray)
        return 1

    def caps(self) -> DeviceCaps:
        """Return what the device can do."""
        limits, features = self.limits, self.features()
        eight = features.get("VkPhysicalDevice8BitStorageFeatures")
        return DeviceCaps(
            max_local_items=int(limits.maxComputeWorkGroupInvocations),
            max_local_size=_size3(limits.maxComputeWorkGroupSize),
            max_grid=_size3(limits.maxComputeWorkGroupCount),
            local_memory=int(limits.maxComputeSharedMemorySize),
            max_buffer_range=min(int(limits.maxStorageBufferRange), 2**32 - 1) // 4 * 4,
            max_allocation=int(self._extra["VkPhysicalDeviceMaintenance3Properties"].maxMemoryAllocationSize),
            offset_alignment=max(1, int(limits.minStorageBufferOffsetAlignment)),
            max_buffers=int(limits.maxPerStageDescriptorStorageBuffers),
            max_rounds=self.known.max_rounds,
            fp16_storage=bool(features["VkPhysicalDevice16BitStorageFeatures"].storageBuffer16BitAccess),
            int8_storage=bool(eight and eight.storageBuffer8BitAccess),
            doubles=self.doubles(),
            channels_last=HALVES in self.matrices,
            matrices=self.matrices,
            dot8=self.dot8(),
            subgroup_sizes=self.subgroup_sizes(),
            shuffles=self.shuffles(),
            compute_units=self.compute_units(),
            software=self.software,
        )

    def info(self, index: int) -> DeviceInfo:
        """Return the device as a user sees it."""
        heaps = [self.memory.memoryHeaps[i] for i in range(self.memory.memoryHeapCount)]
        local = [h.size for h in heaps if h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT]
        rest = [h.size for h in heaps if not h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT]
        details: dict[str, object] = {
            "api": f"Vulkan {self.api >> 22}.{self.api >> 12 & 0x3FF}.{self.api & 0xFFF}",
            "type": _KINDS.get(self.kind, "other"),
            "device_memory_mib": sum(local) // _MIB,
            "host_memory_mib": sum(rest) // _MIB,
            **self.caps().told(),
        }
        card = self.card
        return DeviceInfo("vulkan", index, self.name, self.driver, self.software, details, card.uuid, card.pci)


def _size3(values: Any) -> Size3:
    return (int(values[0]), int(values[1]), int(values[2]))


def physical_devices() -> list[Physical]:
    """Return the usable devices that the user does not hide; see `listed_devices`."""
    found, shown = listed_devices()
    return [found[i] for i in shown.shown]


def listed_devices() -> tuple[list[Physical], Visible]:
    """Return all usable devices, the best kind first (discrete, integrated, virtual, software), and which to show."""
    handles = enumerate_all(
        lib.vkEnumeratePhysicalDevices, "VkPhysicalDevice", "the Vulkan devices cannot be listed", instance()
    )
    found = [device for device in map(Physical, handles) if device.usable]
    found = sorted(found, key=lambda d: _RANK.get(d.kind, len(_RANK)))
    return found, visible([device.card for device in found])


# -- what is known of drivers -----------------------------------------------------------------------------


TABLE = Path(__file__).with_name("known_drivers.json")


@dataclass(frozen=True)
class VulkanDriver(KnownDriver):
    """A driver, by a part of its devices' names."""

    compiles_late: bool = False
    """Whether it compiles a pipeline at its first dispatch, and not when it is created."""
    max_rounds: int = 0
    """Rounds of all loops of an item after which it skips the rest (Mesa's LP_MAX_TGSI_LOOP_ITERATIONS); 0: none."""


def driver_named(device: str) -> VulkanDriver:
    """Return what is known of the driver of a device."""
    return best_match([VulkanDriver(**each) for each in read_table(TABLE)["drivers"]], device) or VulkanDriver()
