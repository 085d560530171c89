"""The devices of this machine as if they had matrix units, by dialects that emulate them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.helpers.emulated_matrices import EmulatedMatrices
from tests.helpers.emulated_wgmma import EmulatedWgmma
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import DeviceCaps, GpuDevice
from weft.backends.opencl import device as opencl
from weft.backends.opencl.creator import OpenCLCreator
from weft.backends.vulkan import device as vulkan
from weft.core.contract.backend import DeviceInfo
from weft.core.registry.backend_registry import registry
from weft.kernels.matrix_shapes import HALVES, WARPGROUP_HALVES
from weft.kernels.source import SUBGROUP

APIS = ("opencl", "vulkan")


class EmulatedCreator(GpuCreator):
    """Opens the first device of an API as one with matrix units; `caps` are what else it is said to have."""

    id = "emulated"

    def __init__(self, api: str, copies_at_once: bool = False, warpgroups: bool = False, **caps: Any) -> None:
        super().__init__()
        self._api, self._caps, self._copies_at_once, self._warpgroups = api, caps, copies_at_once, warpgroups
        if api == "opencl":
            self.options = OpenCLCreator.options

    def devices(self) -> list[DeviceInfo]:
        """Return the one device."""
        return [DeviceInfo(self.id, 0, self.id)]

    def open(self, index: int) -> GpuDevice:
        """Open the device."""
        opened = (
            opencl.open_device(index, EmulatedWgmma(copies_at_once=self._copies_at_once))
            if self._api == "opencl"
            else vulkan.open_device(index, EmulatedMatrices())
        )
        opened.info = replace(opened.info, id=self.id)
        opened.caps = self.pretended(opened.caps)
        return opened

    def pretended(self, caps: DeviceCaps) -> DeviceCaps:
        """Return the capabilities that kernels are chosen by."""
        told: dict[str, Any] = {
            "matrices": (HALVES, WARPGROUP_HALVES) if self._warpgroups else (HALVES,), "subgroup_sizes": (SUBGROUP,),
            "max_local_items": 256, **self._caps,
        }
        return replace(caps, **told)


@contextmanager
def emulated_gpu(
    api: str, *, copies_at_once: bool = False, warpgroups: bool = False, **caps: Any
) -> Iterator[EmulatedCreator]:
    """Register the device as "emulated" for the time of a test; its kernels are not tested when it is opened.

    Asynchronous copies end as late as they may, or at once: where neither is wrong, their order does not matter.
    """
    creator = EmulatedCreator(api, copies_at_once, warpgroups, **caps)
    registry.insert(creator.id, creator)
    creator.runtime(0).trust()
    try:
        yield creator
    finally:
        registry.remove(creator.id)
        creator.close()
