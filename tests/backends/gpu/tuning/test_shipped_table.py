"""The table that Weft brings for the H200: its choices are of the kernels as they are, by a plan without the card."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import weft
from benchmarks import models
from tests.backends.gpu.selftest.test_special_kinds import OPENCL, VULKAN
from tests.helpers.null_gpu import NullDevice, null_gpu
from weft.backends.gpu.tuning.tunables import Pick
from weft.backends.gpu.tuning.tuning_table import Entries, TuningTable
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import DeviceInfo

PRECISIONS = ("high", "normal", "low")
README = Path(__file__).parents[4] / "benchmarks" / "README.md"
H200 = {
    "opencl": DeviceInfo("opencl", 0, "NVIDIA H200", "NVIDIA CUDA 580.159.04"),
    "vulkan": DeviceInfo("vulkan", 0, "NVIDIA H200", "NVIDIA 580.159.04"),
}


def card(device: NullDevice, api: str) -> None:
    """Let a device without kernels be an H200, as far as plans can tell."""
    device.dialect = OpenCLDialect() if api == "opencl" else GlslDialect()
    device.caps = replace(OPENCL, local_memory=(48 << 10) - 1) if api == "opencl" else VULKAN
    device.info = H200[api]
    device.launches_overlap = api == "vulkan"
    device.computes_ahead = True  # of which the first layers of a large batch are asked for in halves


@pytest.fixture(params=list(H200))
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    monkeypatch.setenv("WEFT_CACHE", "0")
    name: str = request.param
    return name


@cache
def picks(api: str, network: str, batch: int, precision: str) -> tuple[Pick, ...]:
    """Return what a network leaves open on the card; nothing of the device is kept with it."""
    with null_gpu() as device:
        card(device, api)
        model = models.MODELS[network](batch).SerializeToString()
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            every = [p for task in session.pipelines[0].tasks for p in getattr(task.execution, "picks", ())]
            return tuple(replace(p, launches=[]) for p in every if len(p.candidates) > 1)


def stale(entries: Entries, pick: Pick) -> bool:
    """Tell whether the choice was timed with kernels that have changed since."""
    entry = entries.get(pick.key)
    return entry is not None and entry.choice is not None and pick.chosen != entry.choice


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("network", list(models.MODELS))
def test_no_choice_is_of_kernels_that_have_changed(api: str, network: str, precision: str) -> None:
    """Whoever changes a tuned kernel tunes it again on the card, or takes its choices out of the table."""
    entries = TuningTable(H200[api]).entries()
    old = {
        pick.key: (entries[pick.key].choice, pick.chosen)
        for batch in (1, 32)
        for pick in picks(api, network, batch, precision)
        if stale(entries, pick)
    }
    assert old == {}


@pytest.mark.parametrize("network", list(models.MODELS))
def test_the_table_has_all_of_a_network_at_batch_1_in_fp16_on_vulkan(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    entries = TuningTable(H200["vulkan"]).entries()
    open_ = [pick for pick in picks("vulkan", network, 1, "low") if pick.key not in entries]
    assert [pick.key for pick in open_] == []


def test_a_choice_is_about_as_fast_as_anything_tried_beside_it(api: str) -> None:
    """Times of different clocks in one entry would say otherwise. The finalists' last times are not in the table."""
    slow = {}
    for key, entry in TuningTable(H200[api]).entries().items():
        times = {text: trial.us for text, trial in entry.trials.items() if trial.us is not None}
        if entry.choice not in times or times[entry.choice] > 1.25 * min(times.values()):
            slow[key] = entry.choice
    assert slow == {}


def covered(api: str, batch: int, precision: str) -> str:
    """Return how many of the problems that the networks leave open have a choice that stands."""
    made: dict[str, bool] = {}
    for network in models.MODELS:
        made |= {pick.key: pick.made for pick in picks(api, network, batch, precision)}
    return f"{sum(made.values())} of {len(made)}"


def test_the_readme_says_what_the_table_covers(api: str) -> None:
    """Whoever tunes on the card, or changes a tuned kernel, corrects the row: the message has it."""
    name = {"opencl": "OpenCL", "vulkan": "Vulkan"}[api]
    cells = [covered(api, batch, precision) for batch in (1, 32) for precision in PRECISIONS]
    row = f"| {name} | {' | '.join(cells)} |"
    section = README.read_text().partition("## What the shipped table covers")[2].partition("\n## ")[0]
    (stated,) = [line for line in section.splitlines() if line.startswith(f"| {name} ")]
    assert stated == row, f"{README.name} has a row of another table; the right one is\n{row}"
