"""Hopper's warpgroups, four subgroups that multiply matrices together: what the kernels on them share."""

from __future__ import annotations

from dataclasses import replace

from weft.kernels.device_caps import WARPGROUP_MEMORY, DeviceCaps
from weft.kernels.special import SpecialKernel

GROUP = 128
"""Work-items of a warpgroup."""
ROWS = 64
"""Rows of sums that a warpgroup holds."""
STEP = 64
"""Elements along K of a step: 128 bytes, the widest row that can be swizzled."""
RASTER = 8
"""Tiles of rows that pass through the columns together, so that their operands stay in the cache."""
SHARED = WARPGROUP_MEMORY
"""Bytes of work-group memory of a multiprocessor, which reserves a KiB for each work-group."""
RESERVED = 1 << 10
REGISTERS = 1 << 16
"""Registers of a multiprocessor."""
NO_WARPGROUPS = "the device has no warpgroup matrix instructions"
FAILED = "the device's matrix instructions failed their self-test"
"""Why kernels on warpgroups do not run where the device claims their hardware."""


class Warpgroups:
    """A tile of `wm` x `wz` warpgroups, each with 64 pixels; `wz` of them share the pixels and take turns in K."""

    wm: int
    wz: int

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return ROWS * self.wm

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return GROUP * self.wm * self.wz


def within_limit(kind: SpecialKernel) -> SpecialKernel:
    """Return the kind that replaces one that is wrong: the same within the work-group memory that a driver reports."""

    def claimed(caps: DeviceCaps) -> bool:
        return kind.claimed(caps) and kind.name in caps.without

    title = f"{kind.title} within the limit of work-group memory"
    return replace(kind, name=f"{kind.name}_small", title=title, claimed=claimed)
