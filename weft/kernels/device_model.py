"""Figures of kinds of device that cost estimates read: how fast they are, and from which sizes an algorithm pays.

`device_models.json` holds them, so no algorithm knows a device by its name. A device reports for itself what differs
within a kind: compute units, work-group memory, matrix units (`DeviceCaps`). What only one algorithm reads, that
algorithm's file declares (`AlgorithmFigures`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

DATA = Path(__file__).with_name("device_models.json")


class AlgorithmFigures:
    """What one algorithm knows of a kind of device: a frozen dataclass in the algorithm's file, with a figure a field.

    `section` names the place of the numbers in `device_models.json`.
    """

    section: ClassVar[str]

    def __init_subclass__(cls, *, section: str) -> None:
        cls.section = section


FiguresT = TypeVar("FiguresT", bound=AlgorithmFigures)


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """The figures of a kind of device. "A unit" is a compute unit; products are multiply-adds."""

    measured_on: str
    """Where the figures come from."""

    # -- what a device does in a time
    usual_units: int
    """Units of a device whose driver does not report them."""
    resident_items: int
    """Work-items that a unit holds at a time."""
    unit_registers: int
    """Registers that the work-items on a unit share."""
    unit_memory: int
    """Bytes of work-group memory of a unit, which the groups on it share."""
    group_memory: int
    """Bytes of it that each group takes besides its own."""
    busy_items: int
    """Work-items that keep a unit busy."""
    read_bytes: float
    """Bytes that a unit reads in a microsecond."""
    summed: float
    """Partial sums that the whole device writes and reads again in a microsecond."""
    group_vectors: float
    """Vectors of 16 bytes that a unit reads from work-group memory in a microsecond."""
    unit_products: float
    """Products in fp32 that a unit computes in a microsecond."""
    item_products: float
    """Products in fp32 that a work-item computes in a microsecond, one after the other."""
    round_us: float
    """Microseconds that a round of steps along K takes when it waits for memory."""
    launch_us: float
    """Microseconds that one more launch takes."""
    between_launches_us: float
    """Microseconds between a launch and one that depends on it; timestamps do not show them."""
    many_units: int
    """With at least so many units, small work-groups start too slowly to keep all of them busy."""
    algorithms: Mapping[str, Mapping[str, Any]]
    """The figures of single algorithms, by section; `of` returns them."""
    _read: dict[type, Any] = field(init=False, default_factory=dict, repr=False)

    def side_by_side(self, items: int, registers: int, memory: int = 0) -> int:
        """Return how many groups fit a unit: of so many items, registers of an item and bytes of work-group memory."""
        return min(
            self.resident_items // items,
            self.unit_memory // (memory + self.group_memory),
            self.unit_registers // (registers * items),
        )

    def of(self, figures: type[FiguresT]) -> FiguresT:
        """Return what an algorithm knows of this kind of device."""
        held = self._read.get(figures)
        if held is None:
            held = self._read[figures] = figures(**self.algorithms[figures.section])
        made: FiguresT = held
        return made


@dataclass(frozen=True)
class Peaks:
    """What a device can do in a second, as its datasheet says."""

    fp32: float
    """Operations in fp32."""
    fp16: float
    """Operations in fp16 on matrix units, summed in fp32, without sparsity."""
    bandwidth: float
    """Bytes that its memory transfers."""


def _read(kind: str) -> Any:
    return json.loads(DATA.read_text(encoding="utf-8"))[kind]


def _models() -> dict[str, DeviceModel]:
    """Return the models by kind; what a kind does not say is as with "gpu"."""
    kinds: dict[str, dict[str, Any]] = _read("kinds")
    usual = kinds["gpu"]
    names = {f.name for f in fields(DeviceModel)}
    assert all(held.keys() <= names for held in kinds.values()), "device_models.json has a figure that nothing reads"
    return {
        kind: DeviceModel(**{**usual, **held, "algorithms": _sections(usual["algorithms"], held["algorithms"])})
        for kind, held in kinds.items()
    }


def _sections(usual: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {section: {**figures, **own.get(section, {})} for section, figures in usual.items()}


MODELS = _models()
"""The models by kind: "gpu", and "software" for CPUs behind an API of GPUs."""


@cache
def _peaks() -> dict[str, Peaks]:
    return {words: Peaks(*map(float, held)) for words, held in _read("peaks").items()}


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a device by its name, or None if no datasheet is known.

    Each datasheet has a pattern of whole words of the name; the first that matches counts.
    """
    return next((p for words, p in _peaks().items() if re.search(rf"\b{words}\b", name)), None)
