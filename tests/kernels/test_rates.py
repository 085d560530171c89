"""Rates of devices: what counts as a difference, and how the figures of estimates follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.cards import H200
from weft.kernels import device_model
from weft.kernels.device_model import MODELS, model_of
from weft.kernels.rates import Rates, faster
from weft.ops.gpu.matmul.tiled import TiledFigures

CARD = Rates(products=1e7, shared_vectors=1e6, cache_bytes=5e6, wait_us=0.5, between_us=2.0, api="opencl")
AMOUNTS = st.floats(1e-6, 1e12)


@pytest.fixture(autouse=True)
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_model, "_references", lambda: {"opencl": (132, CARD)})
    model_of.cache_clear()


@given(AMOUNTS, AMOUNTS)
def test_noise_is_no_difference_and_more_is_never_slower(own: float, other: float) -> None:
    assert faster(own, own * 1.4) == faster(own * 1.4, own) == 1.0
    assert 0.7 <= faster(own, other) / (own / other) <= 1.42
    assert faster(2 * own, other) >= faster(own, other)
    assert faster(0.0, other) == faster(own, 0.0) == 1.0


def test_rates_survive_being_kept() -> None:
    rates = replace(CARD, matrices=(("16x16x16 float16 to float32 by 32 items", 7e6),))
    assert Rates.from_dict(rates.as_dict(), "opencl") == rates
    for wrong in ({"products": -1.0}, {"products": True}, {"products": "7"}, {"speed": 1.0}, {"wait_us": float("nan")}):
        with pytest.raises(ValueError):
            Rates.from_dict(wrong)


def test_the_card_of_the_figures_keeps_them() -> None:
    caps = replace(H200, rates=replace(CARD, products=0.8e7, wait_us=0.6))
    held, model = MODELS["gpu"], caps.model
    for name in ("unit_products", "round_us", "read_bytes", "between_launches_us"):
        assert getattr(model, name) == getattr(held, name)
    assert model.of(TiledFigures) == held.of(TiledFigures)


@pytest.mark.parametrize("end", [0, 1], ids=["least", "most"])
@pytest.mark.parametrize(
    ("api", "between", "upload"),
    [("opencl", (8.3, 7.2), (9.5e3, 12e3)), ("vulkan", (2.1, 1.9), (13e3, 18e3))],
    ids=["opencl", "vulkan"],
)
def test_what_the_probe_found_on_that_card_changes_no_figure(
    api: str, between: tuple[float, float], upload: tuple[float, float], end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least and the most of six measurements by each API, in two runs; reads of memory in one of them."""
    monkeypatch.undo()
    rates = Rates(
        products=(22e6, 27e6)[end], item_products=(980, 1400)[end], matrix_products=(310e6, 330e6)[end],
        shared_vectors=(2.2e6, 2.6e6)[end], cache_bytes=29e6, memory_bytes=(4.7e6, 5.1e6)[end],
        wait_us=(0.14, 0.13)[end], between_us=between[end], upload_bytes=upload[end], api=api,
    )
    factors = replace(H200, rates=rates).model.factors
    assert len(factors) == 9 and set(factors.values()) == {1.0}


def test_another_device_has_its_own() -> None:
    slow = replace(CARD, products=1e7 / 16, wait_us=4.0, between_us=8.0, shared_vectors=1e6 / 4)
    held, model = MODELS["gpu"], replace(H200, rates=slow).model
    assert model.unit_products == held.unit_products / 16
    assert model.round_us == held.round_us * 8
    assert model.between_launches_us == held.between_launches_us * 4
    own, other = model.of(TiledFigures), held.of(TiledFigures)
    assert (own.start_us, own.round_us, own.reads) == (other.start_us * 4, other.round_us * 8, other.reads / 4)
    assert own.exposed == other.exposed, "a ratio is no time"


def test_units_share_what_they_have_together() -> None:
    """A device with a fourth of the units that does a fourth of the work has the same units."""
    small = replace(CARD, products=1e7 / 4, shared_vectors=1e6 / 4, cache_bytes=5e6 / 4)
    assert replace(H200, compute_units=33, rates=small).model.unit_products == MODELS["gpu"].unit_products


def test_software_is_not_compared_with_a_card() -> None:
    assert replace(H200, software=True, rates=CARD).model is MODELS["software"]


def test_rates_are_no_part_of_what_verdicts_are_kept_by() -> None:
    assert repr(replace(H200, rates=CARD)) == repr(H200)
