"""The cost model: its data, its terms, where it ranks candidates, and how far its choices are from the best."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest

from benchmarks.fit_costs import MODELLED, RULES, choice, fit, mean, timed, unseen
from tests.helpers.cards import H200, OPENCL, VULKAN
from tests.helpers.conv_problems import conv_problem
from weft.core.graph.dtypes import DType
from weft.kernels.chooser import NEVER
from weft.kernels.cost_model import DATA, TERMS, WORTH, Effort, coefficients, excess, microseconds
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm.split_k import tile_and_parts
from weft.ops.gpu.conv.gemm.wide_tiles import WideTile

ALGORITHMS = (
    "conv_gemm", "conv_matrix", "conv_split", "conv_split_wgmma", "conv_unstaged", "conv_wgmma", "conv_wide",
    "conv_winograd", "workgroup_gemm",
)
CLOSE = 1.1
"""The most that choices may be from the best, as a geometric mean over the problems of some rivals."""


def test_the_data_has_all_terms_of_each_algorithm() -> None:
    held = json.loads(DATA.read_text())
    assert sorted(held["microseconds"]) == sorted(ALGORITHMS)
    for name in ALGORITHMS:
        found = coefficients(name)
        assert found is not None and len(found) == len(TERMS) and min(found) > 0
    assert coefficients("conv_direct") is None and excess("conv_direct") is None
    assert all(1 <= (excess(name) or 0) < CLOSE for name in MODELLED)


def test_terms_are_what_the_busiest_unit_does() -> None:
    """Of 600 groups each of 132 units has 5 or 4; of 512 items and 64 registers two fit a unit: three waves."""
    effort = Effort(
        groups=600, items=512, registers=64, shared=0, rows=64, columns=32, rounds=10, depth=16, slices=2,
        read=1_320_000, moved=2_640_000,
    )
    products = 64 * 32 * 10 * 16 * 2
    found = dict(zip(TERMS, effort.terms(H200), strict=True))
    assert found == pytest.approx({
        "start": 1.0, "rounds": 30, "steps": 5 * 10 * 512 * 1e-3, "chain": 3 * products / 512 * 1e-3,
        "products": 5 * products * 1e-6, "alone": 0.0, "stores": 3 * 64 * 32 / 512 * 0.1,
        "slices": 5 * 64 * 32 * 1e-3, "read": 1.0, "moved": 2.0, "launches": 0.0, "parts": 0.0,
    })
    alone = dict(zip(TERMS, replace(effort, registers=128).terms(H200), strict=True))
    assert alone["alone"] == alone["products"] == found["products"] and alone["rounds"] == 50
    split = dict(zip(TERMS, replace(effort, parts=4, results=132_000).terms(H200), strict=True))
    assert (split["launches"], split["parts"]) == (1.0, 4.0)
    assert microseconds("conv_direct", effort, H200) is None


def test_the_model_ranks_convolutions_on_gpus_and_rules_rank_them_on_software_devices() -> None:
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        problem = conv_problem((1, 64, 56, 56), (64, 64, 3, 3), H200, dtype=dtype)
        decision = CONVOLUTIONS.decide(problem)
        costs = [each.weighed for each in decision.candidates.values()]
        assert decision.in_microseconds and costs[1:] == sorted(costs[1:]) and decision.problem is problem
        assert costs[0] <= WORTH * min(costs)
        assert "about" in str(decision)
        software = CONVOLUTIONS.decide(replace(problem, caps=DeviceCaps(software=True)))
        assert not software.in_microseconds and "about" not in str(software)
        assert software.texts == RULES.decide(replace(problem, caps=DeviceCaps(software=True))).texts


def test_large_products_take_wide_tiles_and_small_ones_must_gain_clearly() -> None:
    def taken(images: int, side: int, read: int, written: int) -> str:
        shape = (images, read, side, side)
        return CONVOLUTIONS.decide(conv_problem(shape, (written, read, 1, 1), OPENCL, dtype=DType.FLOAT32)).default

    assert "WideTile" in taken(16, 14, 384, 1536) and "WideTile" in taken(16, 56, 384, 96)
    assert "WideTile" not in taken(16, 56, 24, 144) and "WideTile" not in taken(1, 14, 96, 96)
    decision = CONVOLUTIONS.decide(conv_problem((16, 24, 56, 56), (144, 24, 1, 1), OPENCL, dtype=DType.FLOAT32))
    wide = [each for each in decision.candidates.values() if each.margin]
    assert wide and all(isinstance(tile_and_parts(each.tile)[0], WideTile) for each in wide)
    assert "and a margin of" in str(decision)
    default = decision.candidates[decision.default]
    doubtful = next(each for each in wide if each.cost < default.cost < each.weighed)
    assert decision.near([decision.default, repr(doubtful.tile)]) == decision.default


def test_a_piece_is_estimated_as_a_convolution_of_as_many_channels() -> None:
    whole = conv_problem((16, 64, 7, 7), (512, 64, 1, 1), OPENCL, dtype=DType.FLOAT32)
    piece, alone = replace(whole, piece=16), replace(whole, channels_out=64)
    assert (piece.moved, piece.staged(64, 64, 64)) == (alone.moved, alone.staged(64, 64, 64))


def test_the_model_makes_nothing_illegal_and_knows_few_units() -> None:
    for caps in (OPENCL, VULKAN, replace(VULKAN, compute_units=8), replace(H200, matrices=(), compute_units=1)):
        for dtype in (DType.FLOAT16, DType.FLOAT32):
            problem = conv_problem((1, 64, 56, 56), (64, 64, 3, 3), caps, dtype=dtype)
            decided, by_rules = CONVOLUTIONS.decide(problem), RULES.decide(problem)
            assert set(decided.texts) == set(by_rules.texts) and decided.in_microseconds
            winograd = [c.cost for text, c in decided.candidates.items() if text.startswith("WinogradTile")]
            assert all((cost == NEVER) is (caps.compute_units < caps.model.many_units) for cost in winograd)


def test_choices_are_close_to_the_best_that_was_timed() -> None:
    """Whoever changes tiles, what they do, or the model's data fits it anew: python -m benchmarks.fit_costs --write."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in timed(CONVOLUTIONS):
        if each.decision.default in each.us:
            found[each.rivals, each.api].append(each.excess(each.decision.default))
    assert {rivals for rivals, _ in found} == set(MODELLED) and sum(map(len, found.values())) > 400
    assert {key: mean(values) for key, values in found.items() if mean(values) > CLOSE} == {}


@pytest.mark.long  # it fits the model eight times
def test_the_data_is_what_the_trials_give_and_holds_for_networks_that_they_do_not_have() -> None:
    problems = timed()
    fitted, held = fit(problems), json.loads(DATA.read_text())["microseconds"]
    assert {key: held[key[0]][key[1]] for key in fitted} == pytest.approx(fitted, rel=0.02)
    assert mean(each.excess(choice(each, fitted)) for each in problems) < CLOSE
    assert mean(excess for *_, excess in unseen(problems)) < CLOSE
