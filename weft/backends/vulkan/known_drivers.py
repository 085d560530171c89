"""What is known of Vulkan drivers by the names of their devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weft.backends.gpu.device.known_drivers import best_match, read_table

TABLE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class KnownDriver:
    """A driver, by a part of its devices' names."""

    name: str = ""
    compiles_late: bool = False
    """Whether it compiles a pipeline at its first dispatch, and not when it is created."""
    max_rounds: int = 0
    """Rounds of all loops of an item after which it skips the rest (Mesa's LP_MAX_TGSI_LOOP_ITERATIONS); 0: none."""


def driver_named(device: str) -> KnownDriver:
    """Return what is known of the driver of a device."""
    return best_match([KnownDriver(**each) for each in read_table(TABLE)["drivers"]], device) or KnownDriver()
