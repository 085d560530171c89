"""Tiles of which each work-item computes a part by itself."""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.device_caps import DeviceCaps


@dataclass(frozen=True)
class ItemTile:
    """How a work-group divides its work: each item computes `pixels` x `blocks` vectors of four channels.

    The group has lx x ly items, and lz slices of K.
    """

    pixels: int
    blocks: int
    lx: int
    ly: int
    lz: int = 1

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return self.pixels * self.lx

    @property
    def columns(self) -> int:
        """Return the blocks of output channels of a group."""
        return self.blocks * self.ly

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return self.lx * self.ly * self.lz

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory, at least."""
        raise NotImplementedError

    def fits(self, caps: DeviceCaps, steps: int) -> bool:
        """Tell whether a device has room for a group, and each slice has its share of so many steps of K."""
        has_room = caps.holds((self.lx, self.ly, self.lz)) and self.shared_bytes() <= caps.local_memory
        return has_room and (self.lz == 1 or steps >= 2 * self.lz)
