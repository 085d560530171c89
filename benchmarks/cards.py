"""Plans the networks of the benchmarks for a card that is not there, and holds the trials of `weft tune` on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import weft
from benchmarks.models import MODELS
from scripts.plan_kernels import PlanningCreator, PlanningDevice
from weft.backends.gpu.device.device import DeviceCaps, GpuDevice
from weft.backends.gpu.lowering.lower import GpuPlan
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import DeviceKey, Entries, read_tables
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import DeviceInfo
from weft.core.placement.optimized_network import Part
from weft.core.registry.backend_registry import registry
from weft.kernels.matrix_shapes import HALVES, WARPGROUP_HALVES, MatrixShape

TRIALS = Path(__file__).parents[1] / "benchmarks" / "tuned"
"""Tables of `weft tune`, to which the cost model is fitted."""
PRECISIONS = ("high", "normal", "low")
OF_WORKGROUPS = tuple(MatrixShape(32, 32, 16, "float16", "float32", items, "workgroup") for items in (128, 256))
"""Products by whole work-groups as a card lists them."""
_CAPS = DeviceCaps(
    max_local_items=1024, max_local_size=(1024, 1024, 64), local_memory=48 << 10, max_buffer_range=(1 << 32) - 4,
    fp16_storage=True, int8_storage=True, matrices=(HALVES,), channels_last=True, shuffles=True, compute_units=132,
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
            _CAPS, max_local_items=256, local_memory=(48 << 10) - 1, matrices=(HALVES, WARPGROUP_HALVES),
            asynchronous_copies=True,
        ),
    ),
    "vulkan": Card(
        DeviceInfo("vulkan", 0, "NVIDIA H200", "NVIDIA 580.159.04"), replace(_CAPS, matrices=(HALVES, *OF_WORKGROUPS))
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


def plan(api: str, network: str, batch: int, precision: str) -> tuple[Choice, ...]:
    """Return what a network leaves open on the card of an API, as the chooser takes it without a table."""
    creator = _CardCreator(CARDS[api])
    creator.runtime(0).trust()
    registry.insert(creator.id, creator)
    try:
        planned = weft.optimize(_model(network, batch), creator.id, precision=precision, fallback="error")
        every = [choice for part in planned.parts for choice in _choices(part)]
        return tuple(replace(p, launches=[]) for p in every if len(p.candidates) > 1)
    finally:
        registry.remove(creator.id)
        creator.close()


def trials(key: DeviceKey) -> Entries:
    """Return the trials of a card: every candidate with its time, with the kernels of its day."""
    found: Entries = {}
    for path in sorted(TRIALS.glob("*.json")):
        found |= read_tables(path).get(key, {})
    return found
