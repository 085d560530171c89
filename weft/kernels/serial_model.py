"""A model of the time that a candidate takes where the items of a work-group run in turn: on CPUs behind a GPU's API.

Nothing hides what an item waits for there, and a core gains nothing by many groups. So the time is what all groups of
a core do, added up: products, reads of work-group memory and of the cache, barriers, and what is staged, whose places
cost more than its bytes. Each is taken at the rate that the probe measured (`Rates`). `serial_model.json` says how many
times as long kernels take for one as the probe: the same numbers for all drivers, which `benchmarks/fit_serial.py`
fits.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from weft.kernels.cost_model import Effort

if TYPE_CHECKING:
    from weft.kernels.device_caps import DeviceCaps

DATA = Path(__file__).with_name("serial_model.json")
TERMS = ("launches", "products", "loads", "turns", "read", "moved", "slices", "staged")
"""The terms, as `terms` returns them."""
PROBED_ITEMS, BARRIERS = 64, 2
"""Work-items of the group whose barrier the probe times, and barriers of a step along K."""
VECTOR = 4
"""Numbers of a vector."""


def terms(effort: Effort, caps: DeviceCaps) -> tuple[float, ...] | None:
    """Return the microseconds of each term at the probe's rates; None if the device was not measured."""
    rates, units = caps.rates, caps.likely_units
    if rates is None or not (rates.products and rates.shared_vectors and rates.cache_bytes):
        return None
    on_a_unit, tile = -(-effort.groups // units), effort.rows * effort.columns
    a_product, a_vector = units / rates.products, units / rates.shared_vectors
    rounds = on_a_unit * effort.rounds
    staged = (effort.rows + effort.columns) * effort.depth * effort.slices / VECTOR
    return (
        effort.launches * rates.between_us,
        rounds * tile * effort.depth * effort.slices * a_product,
        rounds * effort.items * effort.loads * a_vector,
        rounds * effort.items / PROBED_ITEMS * BARRIERS * rates.barrier_us,
        effort.read / rates.cache_bytes,
        effort.moved / (rates.memory_bytes or rates.cache_bytes),
        on_a_unit * tile * (effort.slices - 1) / VECTOR * a_vector,
        rounds * staged * a_product,
    )


@cache
def coefficients() -> tuple[float, ...]:
    """Return how many times as long as at the probe's rates kernels take, for each term."""
    held: dict[str, float] = json.loads(DATA.read_text(encoding="utf-8"))["times"]
    return tuple(held[name] for name in TERMS)


def microseconds(effort: Effort, caps: DeviceCaps) -> float | None:
    """Return the estimated time of a candidate on a CPU; None if the device was not measured."""
    found = terms(effort, caps)
    return None if found is None else sum(c * t for c, t in zip(coefficients(), found, strict=True))
