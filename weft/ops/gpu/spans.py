"""Lines and images that several work-groups normalize together, a span of the elements each.

A work-group a line leaves most of a device idle where lines are few and long: a group norm over whole pictures, say. So
one launch finds the mean of each span and the sum of the squares of the differences from it, and the next one joins
those of a line and normalizes (T. Chan, G. Golub and R. LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979). Differences from a mean that is near lose no digits.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.device_caps import DeviceCaps

LEAST_LOADS = 512
"""Loads of a span: fewer leave a work-group's items too little to do."""
SHARED_LOADS = 8192
"""Loads of a line from which sharing it saves more than the launch that it takes."""


@dataclass(frozen=True, slots=True)
class Spans:
    """How a line or an image is shared: `count` spans of `size` elements or pixels each, the last one shorter."""

    count: int
    size: int

    def ints(self) -> dict[str, int]:
        """Return the constants of the kernels."""
        return {"SPANS": self.count, "SPAN": self.size}


def choose_spans(caps: DeviceCaps, lines: int, length: int, loads: int = 1) -> Spans | None:
    """Return the spans of each of `lines` lines of so many elements or pixels, of `loads` loads each.

    None if every compute unit has a line, or a line is too short to share.
    """
    if length * loads < SHARED_LOADS:
        return None
    count = min(-(-caps.likely_units // max(lines, 1)), length * loads // LEAST_LOADS, length)
    size = -(-length // max(count, 1))
    count = -(-length // size)
    return Spans(count, size) if count > 1 else None
