"""Figures of kinds of device that cost estimates read: how fast they are, and from which sizes an algorithm pays.

`device_models.json` holds them, so no algorithm knows a device by its name. A device reports for itself what differs
within a kind: compute units, work-group memory, matrix units (`DeviceCaps`). What only one algorithm reads, that
algorithm's file declares (`AlgorithmFigures`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from weft.kernels.rates import OF_UNITS, Rate, Rates, faster

DATA = Path(__file__).with_name("device_models.json")


def time_by(rate: Rate) -> Mapping[str, tuple[Rate, int]]:
    """Return the metadata of a figure that is a time, of work that is bound by a rate: a slower device takes longer."""
    return {"scale": (rate, -1)}


def amount_by(rate: Rate) -> Mapping[str, tuple[Rate, int]]:
    """Return the metadata of a figure that is how much is done in a time, bound by a rate."""
    return {"scale": (rate, 1)}


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
    read_bytes: float = field(metadata=amount_by("cache_bytes"))
    """Bytes that a unit reads in a microsecond."""
    summed: float = field(metadata=amount_by("cache_bytes"))
    """Partial sums that the whole device writes and reads again in a microsecond."""
    group_vectors: float = field(metadata=amount_by("shared_vectors"))
    """Vectors of 16 bytes that a unit reads from work-group memory in a microsecond."""
    unit_products: float = field(metadata=amount_by("products"))
    """Products in fp32 that a unit computes in a microsecond."""
    item_products: float = field(metadata=amount_by("item_products"))
    """Products in fp32 that a work-item computes in a microsecond, one after the other."""
    round_us: float = field(metadata=time_by("waits"))
    """Microseconds that a round of steps along K takes when it waits for memory."""
    launch_us: float = field(metadata=time_by("launches"))
    """Microseconds that one more launch takes."""
    between_launches_us: float = field(metadata=time_by("launches"))
    """Microseconds between a launch and one that depends on it; timestamps do not show them."""
    many_units: int
    """With at least so many units, small work-groups start too slowly to keep all of them busy."""
    algorithms: Mapping[str, Mapping[str, Any]]
    """The figures of single algorithms, by section; `of` returns them."""
    factors: Mapping[Rate, float] = field(init=False, default_factory=dict)
    """How many times as much a unit of the device does as one of the card of the figures; 1 for what is left out."""
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
            held = self._read[figures] = figures(**self._scaled(figures, self.algorithms[figures.section]))
        made: FiguresT = held
        return made

    def factor(self, rate: Rate) -> float:
        """Return how many times as much of something a unit does as one of the card that the figures are of."""
        return self.factors.get(rate, 1.0)

    def scaled(self, factors: Mapping[Rate, float]) -> DeviceModel:
        """Return the figures of a device whose units do so many times as much as those of the card of the figures."""
        made = replace(self)
        object.__setattr__(made, "factors", factors)
        for name, value in made._scaled(DeviceModel, vars(self)).items():
            object.__setattr__(made, name, value)
        return made

    def _scaled(self, figures: type, held: Mapping[str, Any]) -> dict[str, Any]:
        scales = {f.name: f.metadata.get("scale") for f in fields(figures) if f.init}
        return {
            name: held[name] if scale is None else type(held[name])(held[name] * self.factor(scale[0]) ** scale[1])
            for name, scale in scales.items()
        }


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
def _references() -> dict[str, tuple[int, Rates]]:
    """Return the units and the rates of the card of the figures, as the probe measures them by each API."""
    return {
        api: (int(held["units"]), Rates.from_dict(held["rates"], api)) for api, held in _read("references").items()
    }


@lru_cache(maxsize=16)
def model_of(kind: str, rates: Rates, units: int) -> DeviceModel:
    """Return the figures of a kind of device, scaled to what a device of so many units was measured to do.

    Only ratios to the card of the figures count, and small ones not at all (`faster`). Software devices are never
    compared with it: `weft.kernels.serial_model` estimates them from their rates alone.
    """
    reference = _references().get(rates.api)
    if kind != "gpu" or reference is None:
        return MODELS[kind]
    most, card = reference
    every: tuple[Rate, ...] = get_args(Rate)
    each = {rate: (units, most) if rate in OF_UNITS else (1, 1) for rate in every}
    return MODELS[kind].scaled({
        rate: faster(rates.of(rate) / own, card.of(rate) / other) for rate, (own, other) in each.items()
    })


@cache
def _peaks() -> dict[str, Peaks]:
    return {words: Peaks(*map(float, held)) for words, held in _read("peaks").items()}


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a device by its name, or None if no datasheet is known.

    Each datasheet has a pattern of whole words of the name; the first that matches counts.
    """
    return next((p for words, p in _peaks().items() if re.search(rf"\b{words}\b", name)), None)
