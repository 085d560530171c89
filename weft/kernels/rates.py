"""What a device does in a time, as a probe measured it (`weft.backends.gpu.tuning.probe`): the scale of cost estimates.

`device_models.json` has figures that were fitted on one card, beside the rates that the same probe measures there.
Another device's figures follow from its own rates: `DeviceModel.scaled`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Rate = Literal[
    "products", "item_products", "matrix_products", "shared_vectors", "cache_bytes", "memory_bytes", "waits",
    "launches", "uploads",
]
"""What bounds a part of a kernel's time. Of "waits" the rate is how many loads that wait for memory an item does one
after the other in a microsecond, of "launches" how many launches that wait for each other there are in one."""
SAME = 0.5
"""Rates that differ by up to so many powers of two count as equal, and larger differences in steps of that: estimates
are no better, and the choices of a card must not change with the noise of its probe."""
DIGITS = 2
"""Digits that are kept of a rate."""
OF_UNITS = frozenset({"products", "matrix_products", "shared_vectors", "cache_bytes", "memory_bytes"})
"""The rates that compute units share; of the others a device with twice as many units has no more."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a whole device does in a microsecond, and what it waits for; 0 where nothing was measured."""

    products: float = 0.0
    """Products in fp32, added up."""
    item_products: float = 0.0
    """Those of one work-item, with several sums."""
    matrix_products: float = 0.0
    """Products of tiles of halves on matrix units (`matrix_shapes.HALVES`)."""
    shared_vectors: float = 0.0
    """Vectors of 16 bytes that are read from work-group memory."""
    cache_bytes: float = 0.0
    """Bytes that are read of a small buffer, over and over."""
    memory_bytes: float = 0.0
    """Bytes that are read of a large buffer."""
    half_bytes: float = 0.0
    """Bytes of halves that are read of a small buffer and converted."""
    wait_us: float = 0.0
    """Microseconds of a load on whose result the next one depends."""
    barrier_us: float = 0.0
    """Microseconds of a barrier of a work-group of 64 items, with what they write and read there."""
    launch_us: float = 0.0
    """Microseconds of a launch that waits for none before it."""
    between_us: float = 0.0
    """Microseconds of a launch that waits for the one before it."""
    start_us: float = 0.0
    """Microseconds from a submit to its end, for one launch."""
    upload_bytes: float = 0.0
    """Bytes that the host sends in a microsecond."""
    download_bytes: float = 0.0
    """Bytes that the host gets back in a microsecond."""
    matrices: tuple[tuple[str, float], ...] = ()
    """Products by the shape of the matrices, as `MatrixShape` prints it."""
    api: str = ""
    """The API of the device: launches differ with it."""

    def of(self, rate: Rate) -> float:
        """Return how much is done in a microsecond of what bounds a kernel; 0 if that was not measured."""
        if rate == "waits":
            return 1 / self.wait_us if self.wait_us else 0.0
        if rate == "launches":
            return 1 / self.between_us if self.between_us else 0.0
        if rate == "uploads":
            return self.upload_bytes
        value: float = getattr(self, rate)
        return value

    def as_dict(self) -> dict[str, Any]:
        """Return what was measured, for JSON."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "api" and getattr(self, f.name)}
        return {**known, "matrices": dict(self.matrices)} if self.matrices else known

    @classmethod
    def from_dict(cls, held: Mapping[str, Any], api: str = "") -> Rates:
        """Return the rates of such a dictionary; ValueError if it holds anything else."""
        numbers = {name: value for name, value in held.items() if name != "matrices"}
        shapes = held.get("matrices", {})
        if not isinstance(shapes, dict) or numbers.keys() - {f.name for f in fields(cls) if f.name != "api"}:
            raise ValueError("these are no rates")
        for value in (*numbers.values(), *shapes.values()):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{value!r} is no rate")
        known = {name: float(value) for name, value in numbers.items()}
        return cls(**known, matrices=tuple(sorted(shapes.items())), api=api)


def rounded(value: float) -> float:
    """Return a number with `DIGITS` digits."""
    return float(f"{value:.{DIGITS}g}")


def faster(own: float, other: float) -> float:
    """Return how many times as much one rate is as another, in steps of `SAME`; 1 if either is unknown."""
    if own <= 0 or other <= 0:
        return 1.0
    return float(2 ** (SAME * math.trunc(math.log2(own / other) / SAME)))
