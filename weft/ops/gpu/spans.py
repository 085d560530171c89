"""Lines and images that several work-groups normalize together, a span of the elements each.

A work-group a line leaves most of a device idle where lines are few and long: a group norm over whole pictures, say. So
one launch finds the mean of each span and the sum of the squares of the differences from it, and the next one joins
those of a line and normalizes (T. Chan, G. Golub and R. LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979). Differences from a mean that is near lose no digits.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures

FAMILY = "norm_spans"
"""The family of these kernels; where they are wrong, a work-group does a whole line."""


@dataclass(frozen=True)
class SpanFigures(AlgorithmFigures, section="norm_spans"):
    """From which sizes sharing pays."""

    shared_loads: int
    """Loads of a line from which sharing it saves more than the launch that it takes."""
    least_loads: int
    """Loads of a span: fewer leave a work-group's items too little to do."""


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

    None if there is a line for more than half of the compute units, if a line is too short, or on a CPU, where sharing
    mostly took longer.
    """
    figures, units = caps.model.of(SpanFigures), caps.likely_units
    if caps.software or FAMILY in caps.without or 2 * lines > units or length * loads < figures.shared_loads:
        return None
    count = min(-(-units // max(lines, 1)), length * loads // figures.least_loads, length)
    size = -(-length // max(count, 1))
    count = -(-length // size)
    return Spans(count, size) if count > 1 else None
