"""Write the choices that the package brings, from the trials of `weft tune` in benchmarks/tuned.

Run it after `weft tune --output` has added trials there (about a minute, no device needed):

    python -m scripts.update_shipped_choices

The package holds choices alone, each with the time and the hash of the kernels that it stands for, and only those that
gain: where what the chooser takes without a table takes more than `GAIN` times as long. Where that was not timed on the
card, there is nothing to compare with, and no row overrules it. To see what is taken, the networks of the benchmarks
are planned for the card, without it. What none of them asks for is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import weft
from benchmarks.models import MODELS
from scripts.plan_kernels import PlanningCreator, PlanningDevice
from weft.backends.gpu.device.device import DeviceCaps, GpuDevice
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.backends.gpu.tuning_tables import tuning_table
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import (
    SHIPPED,
    DeviceKey,
    Entries,
    Entry,
    Trial,
    read_tables,
    write_tables,
)
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import DeviceInfo
from weft.core.placement.optimized_network import Part
from weft.core.registry.backend_registry import registry

TRIALS = Path(__file__).parents[1] / "benchmarks" / "tuned"
"""The tables of `weft tune`, with the time of every candidate."""
BATCHES = (1, 8, 32)
PRECISIONS = ("high", "normal", "low")
GAIN = 1.05
"""A choice that gains less is not worth a row: much of it may be noise."""
_CAPS = DeviceCaps(
    max_local_items=1024, max_local_size=(1024, 1024, 64), local_memory=48 << 10, max_buffer_range=(1 << 32) - 4,
    fp16_storage=True, int8_storage=True, matrix_units=True, channels_last=True, shuffles=True, compute_units=132,
)


@dataclass(frozen=True)
class Card:
    """A GPU as far as plans can tell."""

    info: DeviceInfo
    caps: DeviceCaps

    @property
    def key(self) -> DeviceKey:
        """Return what tables know it by."""
        return DeviceKey.of(self.info)


CARDS = {
    "opencl": Card(
        DeviceInfo("opencl", 0, "NVIDIA H200", "NVIDIA CUDA 580.159.04"),
        replace(
            _CAPS, max_local_items=256, local_memory=(48 << 10) - 1, warpgroup_units=True, asynchronous_copies=True
        ),
    ),
    "vulkan": Card(
        DeviceInfo("vulkan", 0, "NVIDIA H200", "NVIDIA 580.159.04"), replace(_CAPS, workgroup_matrices=True)
    ),
}
"""The card whose trials there are, by API."""


class _CardCreator(PlanningCreator):
    """Makes backends on a card without kernels."""

    def __init__(self, card: Card) -> None:
        super().__init__(card.caps)
        self._card = card

    def devices(self) -> list[DeviceInfo]:
        """Return the card, under the name of its backend here."""
        return [replace(self._card.info, id=self.id)]

    def open(self, index: int) -> GpuDevice:
        """Return the card."""
        api = self._card.info.id
        device = PlanningDevice(self._card.info, self._card.caps, OpenCLDialect() if api == "opencl" else GlslDialect())
        device.launches_overlap = api == "vulkan"
        device.computes_ahead = True  # of which the first layers of a large batch are asked for in halves
        return device


@lru_cache(maxsize=3)  # callers go from precision to precision; all of them would take 600 MB
def _model(network: str, batch: int) -> bytes:
    content: bytes = MODELS[network](batch).SerializeToString()
    return content


def _choices(part: Part) -> list[Choice]:
    assert part.lowered is not None and isinstance(part.lowered.plan, GpuPlan)
    return [choice for plans in part.lowered.plan.nodes.values() for plan in plans for choice in plan.choices]


def plan(api: str, network: str, batch: int, precision: str, tables: Path) -> tuple[Choice, ...]:
    """Return what a network leaves open on the card of an API, chosen by the tables in a folder."""
    creator = _CardCreator(CARDS[api])
    creator.runtime(0).trust()
    creator.runtime(0).tuning = tuning_table.TuningTable(CARDS[api].info, shipped=tables)
    registry.insert(creator.id, creator)
    try:
        planned = weft.optimize(_model(network, batch), creator.id, precision=precision, fallback="error")
        every = [choice for part in planned.parts for choice in _choices(part)]
        return tuple(replace(p, launches=[]) for p in every if len(p.candidates) > 1)
    finally:
        registry.remove(creator.id)
        creator.close()


def choices(trials: Entries, defaults: Mapping[str, Set[str]]) -> Entries:
    """Return the choices that gain against one of the chooser's defaults for their problem, each with its own trial.

    A problem has several defaults where images lie in one layout or another.
    """
    return {
        key: Entry(entry.choice, {entry.choice: entry.trials[entry.choice]})
        for key, entry in trials.items()
        if entry.choice is not None and any(_gains(entry, default) for default in defaults.get(key, ()))
    }


def _gains(entry: Entry, default: str) -> bool:
    """Tell whether the choice of an entry gains against a default."""
    if entry.choice is None or entry.choice == default or entry.choice not in entry.trials:
        return False
    best, other = entry.trials[entry.choice].us, entry.trials.get(default, Trial("")).us
    return best is not None and other is not None and other > GAIN * best


def main() -> None:
    """Write the files."""
    defaults: dict[DeviceKey, dict[str, set[str]]] = {card.key: {} for card in CARDS.values()}
    with patch.dict("os.environ", {"WEFT_CACHE": "0"}):
        for api, card in CARDS.items():
            for network in MODELS:
                for batch in BATCHES:
                    for precision in PRECISIONS:
                        for choice in plan(api, network, batch, precision, TRIALS):
                            defaults[card.key].setdefault(choice.key, set()).add(choice.default)
    SHIPPED.mkdir(exist_ok=True)
    for path in sorted(TRIALS.glob("*.json")):
        found = {key: choices(entries, defaults[key]) for key, entries in read_tables(path).items() if key in defaults}
        (SHIPPED / path.name).unlink(missing_ok=True)
        if found:
            write_tables(SHIPPED / path.name, found)


if __name__ == "__main__":
    main()
