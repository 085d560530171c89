"""The trials of `weft tune` on the H200, and the choices that Weft brings: of the kernels as they are, by plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks import models
from scripts.update_shipped_choices import CARDS, GAIN, TRIALS, choices, plan
from weft.backends.gpu.tuning.tuner import PENDING
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import SHIPPED, Entries, Entry, Trial, TuningTable

PRECISIONS = ("high", "normal", "low")
NETWORKS = [pytest.param(n, marks=[pytest.mark.long] * (n == "resnet50")) for n in models.MODELS]
"""The networks of the benchmarks; planning the largest takes a second for each API, batch and precision."""
README = Path(__file__).parents[4] / "benchmarks" / "README.md"


@pytest.fixture(params=list(CARDS))
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    monkeypatch.setenv("WEFT_CACHE", "0")
    name: str = request.param
    return name


def entries_of(api: str, folder: Path) -> Entries:
    """Return the table of the card in a folder."""
    return TuningTable(CARDS[api].info, shipped=folder).entries()


@cache
def planned(api: str, network: str, batch: int, precision: str) -> tuple[Choice, ...]:
    """Return what a network leaves open on the card, chosen by the trials."""
    return plan(api, network, batch, precision, TRIALS)


def stale(entries: Entries, choice: Choice) -> bool:
    """Tell whether the choice was timed with kernels that have changed since."""
    entry = entries.get(choice.key)
    return entry is not None and entry.choice is not None and choice.chosen != entry.choice


@pytest.mark.covering
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_choice_is_of_kernels_that_have_changed(api: str, network: str, precision: str) -> None:
    """Whoever changes a tuned kernel tunes it again on the card, or takes its choices out of the table."""
    entries = entries_of(api, TRIALS)
    old = {
        choice.key: (entries[choice.key].choice, choice.chosen)
        for batch in (1, 32)
        for choice in planned(api, network, batch, precision)
        if stale(entries, choice)
    }
    assert old == {}


@pytest.mark.covering
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_what_weft_brings_chooses_as_the_trials_do(api: str, network: str, precision: str) -> None:
    """Whoever tunes on the card, or fits the cost model anew, runs: python -m scripts.update_shipped_choices.

    Where the package has no row, the default must take about as long.
    """
    brought, trials = entries_of(api, SHIPPED), entries_of(api, TRIALS)
    for batch in (1, 32):
        for choice in planned(api, network, batch, precision):
            if not choice.made:  # in another layout the kernels of a problem are others than those that were timed
                continue
            if choice.key in brought:
                assert brought[choice.key].choice == choice.chosen
                continue
            default, best = (trials[choice.key].trials.get(text) for text in (choice.default, choice.chosen))
            if default is None or default.failed == PENDING:  # trials of another card, or the tuner was ended
                continue
            assert default.us is not None and best is not None and best.us is not None
            assert default.us <= GAIN * best.us


def test_what_weft_brings_are_choices_alone(api: str) -> None:
    trials = entries_of(api, TRIALS)
    for key, entry in entries_of(api, SHIPPED).items():
        assert entry.choice is not None and entry.choice == trials[key].choice
        assert entry.trials == {entry.choice: trials[key].trials[entry.choice]}


def test_choices_that_gain_little_are_left_out() -> None:
    timed = {text: Trial(text, us=us) for text, us in (("a", 1.0), ("b", 2.0), ("c", GAIN))}
    defaults = {"same": {"a"}, "near": {"c"}, "several": {"a", "b"}, "slow": {"b"}, "untimed": {"d"}, "open": {"b"}}
    trials = {name: Entry("a", timed) for name in (*defaults, "asked by none")} | {"open": Entry(None, timed)}
    kept = choices(trials, defaults)
    assert {key: entry.choice for key, entry in kept.items()} == dict.fromkeys(("several", "slow"), "a")
    assert all(entry.trials == {"a": timed["a"]} for entry in kept.values())


@pytest.mark.parametrize("network", list(models.MODELS))
def test_the_table_has_all_of_a_network_at_batch_1_in_fp16_on_vulkan(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    entries = entries_of("vulkan", TRIALS)
    open_ = [choice for choice in planned("vulkan", network, 1, "low") if choice.key not in entries]
    assert [choice.key for choice in open_] == []


def test_a_choice_is_about_as_fast_as_anything_tried_beside_it(api: str) -> None:
    """Times of different clocks in one entry would say otherwise. The finalists' last times are not in the table."""
    slow = {}
    for key, entry in entries_of(api, TRIALS).items():
        times = {text: trial.us for text, trial in entry.trials.items() if trial.us is not None}
        if entry.choice not in times or times[entry.choice] > 1.25 * min(times.values()):
            slow[key] = entry.choice
    assert slow == {}


def covered(api: str, batch: int, precision: str) -> str:
    """Return how many of the problems that the networks leave open have a choice that stands."""
    made: dict[str, bool] = {}
    for network in models.MODELS:
        made |= {choice.key: choice.made for choice in planned(api, network, batch, precision)}
    return f"{sum(made.values())} of {len(made)}"


@pytest.mark.long  # it plans every network at every precision
def test_the_readme_says_what_the_table_covers(api: str) -> None:
    """Whoever tunes on the card, or changes a tuned kernel, corrects the row: the message has it."""
    name = {"opencl": "OpenCL", "vulkan": "Vulkan"}[api]
    cells = [covered(api, batch, precision) for batch in (1, 32) for precision in PRECISIONS]
    row = f"| {name} | {' | '.join(cells)} |"
    section = README.read_text().partition("## What the tuned tables cover")[2].partition("\n## ")[0]
    (stated,) = [line for line in section.splitlines() if line.startswith(f"| {name} ")]
    assert stated == row, f"{README.name} has a row of another table; the right one is\n{row}"
