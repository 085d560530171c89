"""What an OpenCL driver says about the card behind a device: its UUID and its PCI address.

Each vendor has a query of its own, and Khronos one for all. pyopencl knows but some of them.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from weft.backends.gpu.device.cards import pci_text, uuid_text
from weft.backends.opencl import native

_UUID, _BUS = 0x106A, 0x410F
"""CL_DEVICE_UUID_KHR and CL_DEVICE_PCI_BUS_INFO_KHR."""
_NVIDIA_BUS, _NVIDIA_SLOT, _NVIDIA_DOMAIN = 0x4008, 0x4009, 0x400A
_AMD_TOPOLOGY = 0x4037
_AMD_PCIE = 1
"""The kind of a topology of AMD's that holds a PCI address."""


def identity(device: Any) -> tuple[str, str]:
    """Return the UUID and the PCI address of one of pyopencl's devices, each empty if its driver does not say."""
    extensions = set(device.extensions.split())
    raw = native.about(device, _UUID, 16) if "cl_khr_device_uuid" in extensions else b""
    pci = _address(device, extensions)
    return uuid_text(raw, int(device.vendor_id), pci), pci


def _address(device: Any, extensions: set[str]) -> str:
    if "cl_khr_pci_bus_info" in extensions and (raw := native.about(device, _BUS, 16)):
        return pci_text(*struct.unpack("4I", raw))
    if "cl_nv_device_attribute_query" in extensions:
        queries = (_NVIDIA_DOMAIN, _NVIDIA_BUS, _NVIDIA_SLOT)
        domain, bus, slot = (native.about(device, query, ctypes.sizeof(ctypes.c_uint)) for query in queries)
        if bus and slot:
            place = struct.unpack("I", slot)[0]
            first = struct.unpack("I", domain)[0] if domain else 0
            return pci_text(first, struct.unpack("I", bus)[0], place >> 3, place & 7)
    if "cl_amd_device_attribute_query" in extensions and (raw := native.about(device, _AMD_TOPOLOGY, 24)):
        kind, bus, place, function = struct.unpack("I17x3B", raw)
        return pci_text(0, bus, place, function) if kind == _AMD_PCIE else ""
    return ""
