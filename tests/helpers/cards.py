"""Null devices that look like the cards whose trials there are."""

from __future__ import annotations

from scripts.update_shipped_choices import CARDS
from tests.helpers.null_gpu import NullDevice
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect


def card(device: NullDevice, api: str) -> None:
    """Let a device without kernels be an H200, as far as plans can tell."""
    device.dialect = OpenCLDialect() if api == "opencl" else GlslDialect()
    device.info, device.caps = CARDS[api].info, CARDS[api].caps
    device.launches_overlap = api == "vulkan"
    device.computes_ahead = True  # of which the first layers of a large batch are asked for in halves
