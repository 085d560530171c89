"""A model of the time that a candidate takes on a GPU, fitted to the candidates that `weft tune` has timed.

An algorithm describes a candidate as an `Effort`: its work-groups, and what each of them does. With what the device
says of itself that gives a few terms, such as the products of a compute unit. The time is their sum, each multiplied by
the microseconds that the algorithm needs for one. `cost_model.json` holds those. `benchmarks/fit_costs.py` fits them,
and tests them on networks that it left out; `benchmarks/NOTES.md` has its figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.kernels.rates import Rate

if TYPE_CHECKING:
    from weft.kernels.device_caps import DeviceCaps

DATA = Path(__file__).with_name("cost_model.json")
TERMS = (
    "start", "rounds", "steps", "chain", "products", "alone", "stores", "slices", "read", "moved", "launches",
    "parts",
)
"""The terms, as `Effort.terms` returns them."""
BOUNDS: Mapping[str, Rate] = {
    "start": "launches", "rounds": "waits", "steps": "shared_vectors", "chain": "item_products",
    "products": "products", "alone": "products", "stores": "waits", "slices": "shared_vectors", "read": "cache_bytes",
    "moved": "memory_bytes", "launches": "launches", "parts": "cache_bytes",
}
"""The rates by which the microseconds of the terms are scaled to a device (`DeviceModel.factor`); where matrix units
multiply, "chain", "products" and "alone" are scaled by theirs."""
WORTH = 1.05
"""The choice by rules of thumb stays unless the model expects another to be so many times faster.

A smaller difference is within the model's error; and where devices that differ little share their kernels, the package
can bring them compiled.
"""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a candidate has a device do: equal work-groups, each with a tile of results and its steps along K."""

    groups: int
    """Work-groups, of all parts of K."""
    items: int
    """Work-items of a group."""
    registers: int
    """Registers of an item, roughly: sums and operands."""
    shared: int
    """Bytes of work-group memory of a group."""
    rows: int
    """Rows of results of a group."""
    columns: int
    """Columns of results of a group."""
    rounds: int
    """Steps along K that a group does one after the other."""
    depth: int
    """Elements along K of a step of one slice."""
    slices: int
    """Sets of items that share a tile and take turns along K."""
    read: int
    """Bytes that all groups read, mostly from a cache."""
    moved: int
    """Bytes of operands and results, each counted once."""
    parts: int = 1
    """Groups that share a tile; a second launch adds their sums."""
    together: int = 0
    """Groups that a unit runs at once, if fewer than its memory and registers allow; 0 for these."""
    results: int = 0
    """Numbers that the second launch writes."""
    stepped: int = 0
    """Bytes of operands to which a group applies a prologue."""
    loads: int = 0
    """Vectors of 16 bytes that an item reads from work-group memory in a round; 0: unknown."""
    on_matrix_units: bool = False
    """Whether matrix units multiply."""
    launches: int = 1
    """Launches besides the one that adds parts."""

    def terms(self, caps: DeviceCaps) -> tuple[float, ...]:
        """Return the terms for a device, in the order of `TERMS`: what the busiest compute unit does.

        Groups that fit a unit together run in waves. "rounds", "chain" and "stores" are what an item does one after the
        other: steps along K, products, and stores at the end. "steps" (along K, of each item), "products", "slices"
        (sums of slices), "read" and "moved" are the work of all groups of the unit; "alone" counts the products of
        groups that have no other beside them to multiply while they wait. "launches" and "parts" are for the second
        launch. "start" is 1.
        """
        model, units, tile = caps.model, caps.likely_units, self.rows * self.columns
        on_a_unit = -(-self.groups // units)
        fitting = model.side_by_side(self.items, self.registers, self.shared)
        resident = min(fitting, on_a_unit, self.together or on_a_unit)
        waves = -(-on_a_unit // max(resident, 1))
        products = tile * self.rounds * self.depth * self.slices
        more = self.parts > 1
        return (
            1.0,
            waves * self.rounds,
            on_a_unit * self.rounds * self.items * 1e-3,
            waves * products / self.items * 1e-3,
            on_a_unit * products * 1e-6,
            on_a_unit * products * 1e-6 if resident <= 1 else 0.0,
            waves * tile / self.items * 0.1,
            on_a_unit * tile * (self.slices - 1) * 1e-3,
            self.read / units * 1e-4,
            self.moved / units * 1e-4,
            float(more),
            more * self.parts * self.results / units * 1e-3,
        )


@cache
def _fitted() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return held


@cache
def coefficients(algorithm: str) -> tuple[float, ...] | None:
    """Return the microseconds of one of each term, or None for an algorithm that the model does not know.

    Nor does it know an algorithm that was fitted to other terms.
    """
    held: dict[str, float] = _fitted()["microseconds"].get(algorithm, {})
    return tuple(held[name] for name in TERMS) if held.keys() == {*TERMS} else None


def microseconds(algorithm: str, effort: Effort, caps: DeviceCaps) -> float | None:
    """Return the estimated time of a candidate, or None for an algorithm that the model does not know."""
    known = coefficients(algorithm)
    if known is None:
        return None
    # Nobody has fitted a prologue. Converting a number twice and a few steps take about as long as reading it.
    model = caps.model
    stepped = -(-effort.groups // caps.likely_units) * effort.stepped / model.read_bytes
    terms = zip(TERMS, known, effort.terms(caps), strict=True)
    return stepped + sum(c * t / model.factor(_bound(name, effort.on_matrix_units)) for name, c, t in terms)


def _bound(term: str, on_matrix_units: bool) -> Rate:
    return "matrix_products" if on_matrix_units and term in ("chain", "products", "alone") else BOUNDS[term]


def excess(rivals: str) -> float | None:
    """Return how many times longer the choice without tuning takes than the best, as measured; None if unknown.

    It is the geometric mean over the timed problems of these rivals, each estimated without those of its network.
    """
    held = _fitted()["excess"].get(rivals)
    return None if held is None else float(held)
