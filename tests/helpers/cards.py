"""Null devices that look like the cards whose trials there are, and what plans see of an H200."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cards import CARDS, OF_WORKGROUPS
from tests.helpers.null_gpu import NullDevice
from weft.backends.gpu.selftest import value_check
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.matrix_shapes import BYTES, HALVES, WARPGROUP_HALVES
from weft.kernels.special import SpecialKernel, special_kernels

H200 = DeviceCaps(
    max_local_items=1024, max_local_size=(1024, 1024, 64), local_memory=48 << 10, max_buffer_range=(1 << 32) - 4,
    fp16_storage=True, int8_storage=True, dot8=True, matrices=(HALVES,), compute_units=132,
)
"""What both APIs offer on it."""
OPENCL = replace(
    H200, max_local_items=256, channels_last=True, shuffles=True, matrices=(BYTES, HALVES, WARPGROUP_HALVES),
    asynchronous_copies=True,
)
CHAINED = replace(OPENCL, resident_groups=132, partial_barriers=True)
"""OpenCL where small launches share one."""
VULKAN = replace(H200, channels_last=True, shuffles=True, matrices=(HALVES, *OF_WORKGROUPS))

KINDS = {kind.name: kind for kind in special_kernels() if kind.module.startswith("weft.")}
"""Weft's own: other tests register kinds for their time."""


def alone(kind: SpecialKernel, caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities that its test finds."""
    return value_check.without_others(caps, kind, list(KINDS.values()))


def card(device: NullDevice, api: str) -> None:
    """Let a device without kernels be an H200, as far as plans can tell."""
    device.dialect = OpenCLDialect() if api == "opencl" else GlslDialect()
    device.info, device.caps = CARDS[api].info, CARDS[api].caps
    device.launches_overlap = api == "vulkan"
    device.computes_ahead = True  # of which the first layers of a large batch are asked for in halves
    device.sends_ahead = api == "opencl"
