"""Convolutions by warpgroups: by value under emulation, and packing, tiles and PTX as far as numbers can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take
from tests.helpers.convolutions import assert_runs_on, uneven_convolution
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.nets import Net
from weft.backends.opencl import ptx
from weft.kernels.matrix_shapes import HALVES, WARPGROUP_HALVES
from weft.ops.conv import Conv
from weft.ops.gpu.conv.gemm.split_k import InParts, tile_and_parts
from weft.ops.gpu.conv.matrix import split_floats_wgmma, wgmma
from weft.ops.gpu.conv.matrix.warpgroups import REGISTERS, SHARED
from weft.ops.gpu.conv.matrix.wgmma import (
    WgmmaConv,
    WgmmaFigures,
    WgmmaTile,
    pack_weights,
    steps_of,
    tiles,
)
from weft.ops.gpu.conv.problem import ConvPlan

NARROW, WIDE, SLICED = WgmmaTile(1, 16, 3), WgmmaTile(2, 32, 4), WgmmaTile(1, 16, 3, 2)
TEAMS = WgmmaTile(1, 16, 3, teams=2)


@pytest.mark.parametrize(
    ("tile", "ci", "co", "kernel", "stride", "residual"),
    [
        (NARROW, 5, 20, 3, 2, False),  # pieces of four channels, in odd places
        (NARROW, 24, 24, 1, 1, True),  # pieces of eight; no taps; two tiles of columns
        (WIDE, 40, 40, 3, 1, True),  # more steps than buffers, eight channels an item, two warpgroups
        (SLICED, 40, 40, 3, 1, True),  # two sets of a warpgroup, of which one has a step more
        (WIDE, 16, 36, 1, 1, False),  # one step; sixteen bytes cannot be stored
        (TEAMS, 40, 40, 3, 1, True),  # teams that take several tiles each
        (replace(TEAMS, teams=3), 232, 40, 1, 1, False),  # three of them, without taps and with more steps than buffers
        (InParts(NARROW, 4), 40, 40, 3, 1, True),  # six steps in parts of two; the last has none
        (InParts(SLICED, 2), 40, 40, 3, 1, False),  # three rounds of two sets, of which the last part has one
        (InParts(WIDE, 3), 72, 72, 3, 1, True),  # eleven steps; eight channels an item
    ],
    ids=str,
)
def test_convolution_by_value(
    monkeypatch: pytest.MonkeyPatch,
    tile: WgmmaTile | InParts[WgmmaTile],
    ci: int,
    co: int,
    kernel: int,
    stride: int,
    residual: bool,
) -> None:
    take(monkeypatch, wgmma.WgmmaConv(), tile)
    caps = {"matrices": (HALVES, WARPGROUP_HALVES), "channels_last": True, "compute_units": 2}
    kernels = ("conv_wgmma", "sum_parts") if isinstance(tile, InParts) else ("conv_wgmma",)
    assert_runs_on(kernels, *uneven_convolution(ci, co, kernel, stride, residual), "opencl", caps)


def test_without_the_large_form_tiles_stay_within_the_limit() -> None:
    both, without = (HALVES, WARPGROUP_HALVES), frozenset({"conv_wgmma"})
    caps = replace(H200, local_memory=(48 << 10) - 1, matrices=both, without=without)
    for pixels, channels, steps in ((49, 512, 72), (100_000, 256, 36), (3000, 24, 1), (784, 128, 18)):
        offered = tiles(caps, pixels, channels, steps)
        assert offered and all(t.shared_bytes(steps) <= caps.local_memory for t in offered)
    assert any(t.cols == 48 for t in offered), "the widest of which three steps fit"
    small = split_floats_wgmma.tiles(caps, 256, 1024), split_floats_wgmma.tiles(
        replace(caps, without=frozenset({"conv_split_wgmma"})), 256, 1024
    )
    assert len(small[0]) > len(small[1]) > 0 and all(t.shared_bytes() <= caps.local_memory for t in small[1])


def test_a_driver_that_enforces_the_limit_gets_the_small_form(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, taken = WgmmaConv.launch, list[int]()

    def watched(self: WgmmaConv, plan: ConvPlan, tile: WgmmaTile | InParts[WgmmaTile]) -> None:
        whole: WgmmaTile = tile_and_parts(tile)[0]
        taken.append(whole.shared_bytes(steps_of(plan.problem)))
        launch(self, plan, tile)

    monkeypatch.setattr(WgmmaConv, "launch", watched)
    limit = (48 << 10) - 1
    caps = {
        "matrices": (HALVES, WARPGROUP_HALVES), "channels_last": True, "compute_units": 2,
        "without": frozenset({"conv_wgmma"}), "local_memory": limit,
    }
    assert_runs_on(("conv_wgmma",), *uneven_convolution(40, 40, 3, 1, True), "opencl", caps)
    assert taken and max(taken) <= limit
    taken.clear()
    assert_runs_on(("conv_wgmma",), *uneven_convolution(40, 40, 3, 1, True), "opencl", {**caps, "without": frozenset()})
    assert max(taken) > limit, "or the limit would not matter here"
    caps["without"] = frozenset({"conv_wgmma", "conv_wgmma_small"})
    with pytest.raises(AssertionError, match="conv_"):
        assert_runs_on(("conv_wgmma",), *uneven_convolution(40, 40, 3, 1, True), "opencl", caps)


@pytest.mark.parametrize(("cols", "each"), [(16, 4), (48, 4), (32, 8), (96, 8)])
def test_weights_lie_where_the_descriptors_say(cols: int, each: int) -> None:
    co, ci, taps = 70, 13, 9
    weight = np.arange(1, co * ci * taps + 1, dtype=np.float32).reshape(co, ci, 3, 3)
    packed = pack_weights(weight, cols, each).reshape(-1, cols, 64)
    steps = -(-taps * 16 // 64)
    for channel, c, tap in ((0, 0, 0), (1, 12, 8), (37, 5, 3), (69, 12, 8)):
        tile, inner = divmod(channel, cols)
        side, within = divmod(inner, 4 * each)
        item, pair = divmod(within, each)  # of every eight columns an item has 2t and 2t + 1
        column = side * 4 * each + pair // 2 * 8 + item * 2 + pair % 2
        step, k = divmod(tap * 16 + c, 64)
        place = (k // 8 ^ column % 8) * 8 + k % 8
        assert packed[tile * steps + step, column, place] == weight[channel, c, tap // 3, tap % 3]
    assert np.count_nonzero(packed) == weight.size


@pytest.mark.parametrize(("channels", "steps"), [(1, 1), (24, 9), (96, 1), (256, 36), (1000, 32), (4096, 64)])
def test_tiles_fit_a_multiprocessor(channels: int, steps: int) -> None:
    for pixels in (49, 100_000):
        offered = tiles(H200, pixels, channels, steps)
        assert offered
        for tile in offered:
            assert tile.stages >= 3 and tile.cols % 16 == 0 and tile.items <= 256
            assert tile.shared_bytes(steps) + 1024 <= SHARED and tile.at_a_time(H200, steps) >= 1 == tile.teams


@pytest.mark.parametrize(("channels", "steps"), [(1, 1), (24, 9), (96, 1), (256, 36), (1000, 32), (4096, 64)])
def test_teams_take_the_place_of_groups_that_a_device_keeps_apart(channels: int, steps: int) -> None:
    apart = replace(H200, shared_alone=48 << 10)
    for tile in tiles(apart, 100_000, channels, steps):
        held = tile.teams * tile.shared_bytes(steps) + 1024
        assert held <= SHARED and tile.teams * tile.all_registers <= REGISTERS
        assert tile.teams == 1 or tile.shared_bytes(steps) >= apart.shared_alone
        assert tile.at_a_time(apart, steps) == tile.teams or held < (48 << 10) + 1024
    best = tiles(apart, 100_000, channels, steps)[0]
    wanted = tiles(H200, 100_000, channels, steps)[0].at_a_time(H200, steps)
    assert best.at_a_time(apart, steps) >= min(wanted, 2)
    assert all(tile.teams == 1 for tile in tiles(apart, 49, channels, steps)), "there are units for all tiles"


def test_the_self_test_covers_sets_of_warpgroups_and_single_ones_and_parts() -> None:
    found = set()
    for case in wgmma._cases():
        (x,), (weight, _) = case.inputs.values(), case.constants.values()
        op: Conv = case.nodes[0].op  # type: ignore[assignment]
        problem = conv_problem(x.shape, weight.shape, H200, strides=op.strides)
        default = WgmmaConv().candidates(problem)[0]
        assert default.cost == H200.model.of(WgmmaFigures).cost, "or another kernel is the default"
        launched: tuple[WgmmaTile, int] = tile_and_parts(default.tile)
        tile, parts = launched
        found.add((tile.wm, tile.wz, parts > 1))
    assert found >= {(1, 1, False), (2, 1, False), (1, 2, False)}
    assert any(parted for _, _, parted in found)
    (x,), (weight, _) = wgmma._cases()[2].inputs.values(), wgmma._cases()[2].constants.values()
    apart = replace(H200, shared_alone=48 << 10)
    teamed, _ = tile_and_parts(WgmmaConv().candidates(conv_problem(x.shape, weight.shape, apart))[0].tile)
    assert teamed.teams > 1


def offers(n: int, co: int, size: int, ci: int = 512, kernel: int = 3) -> list[WgmmaTile | InParts[WgmmaTile]]:
    """Return what is offered for square images, the expected fastest first."""
    problem = conv_problem((n, ci, size, size), (co, ci, kernel, kernel), H200)
    return [each.tile for each in WgmmaConv().candidates(problem)]


def test_few_groups_get_their_steps_in_parts_where_these_are_many() -> None:
    offered = offers(1, 512, 7)
    parted = [each for each in offered if isinstance(each, InParts)]
    assert len({each.parts for each in parted}) > 1
    for each in parted:
        assert each.tile.shared_bytes(-(-72 // each.parts)) + 1024 <= SHARED
    assert isinstance(offered[0], InParts), "without tuning where the sums are longest"
    assert not any(isinstance(each, InParts) for each in offers(1, 256, 14, ci=1024, kernel=1)), "a launch costs more"
    assert not any(isinstance(each, InParts) for each in offers(2048, 512, 7)), "there is work for all"


def test_few_groups_share_out_their_steps() -> None:
    assert tiles(H200, 49, 512, 72)[0].wz > 1
    assert all(t.wz == 1 for t in tiles(H200, 49, 512, 5)), "not where there are only a few"
    assert all(t.wz == 1 for t in tiles(H200, 100_000, 512, 72)), "nor where there is work for all units"


def test_short_sums_take_no_memory_for_steps_that_do_not_come() -> None:
    assert WgmmaTile(1, 64, 8).slots(2) == 2 and WgmmaTile(1, 64, 8).slots(7) == 8


COVERED = b"""//
.version 8.8
.target sm_90, texmode_independent
  //@ wgmma.fence.sync.aligned;
  add.f32 %f1, %f2, %f3;
\0"""


def test_covered_instructions_are_uncovered_for_the_target_that_has_them() -> None:
    text = ptx.uncover(COVERED)
    assert text is not None
    assert b".target sm_90a, texmode" in text and b"\n   wgmma.fence.sync.aligned;" in text and b"//@" not in text


@pytest.mark.parametrize(
    "binary", [COVERED.replace(b"sm_90", b"sm_80"), COVERED.replace(b"sm_90", b"sm_90a"), b"\x7fELF\xff"]
)
def test_what_is_not_ptx_for_that_target_is_refused(binary: bytes) -> None:
    assert ptx.uncover(binary) is None


@pytest.mark.parametrize("warpgroups", [False, True])
def test_convolutions_of_views_by_value(monkeypatch: pytest.MonkeyPatch, warpgroups: bool) -> None:
    """Write and read channels that lie inside of a concat, from an odd block on, where pieces of eight do not fit."""
    monkeypatch.setattr(wgmma, "tiles", lambda *_: [NARROW])
    net, rng = Net(), np.random.default_rng(5)
    x = net.input("x", 1, 8, 7, 5)

    def convolved(source: str, ci: int, co: int) -> str:
        weight = (rng.standard_normal((co, ci, 3, 3)) / 8).astype(np.float16).astype(np.float32)
        return net.add(Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), source, weight)

    parts = convolved(x, 8, 12), convolved(x, 8, 8)
    both = net.add("Concat", *parts, axis=1)
    graph = net.finish(net.add("Relu", convolved(both, 20, 16), name="y"))
    graph.outputs.append(net.add("Relu", convolved(parts[1], 8, 16), name="z"))
    feed = rng.standard_normal((1, 8, 7, 5)).astype(np.float16).astype(np.float32)
    with weft.load(graph, "cpu") as session:
        expected = session.run(feed)
    with (
        emulated_gpu("opencl", warpgroups=warpgroups, channels_last=True, compute_units=2),
        weft.load(graph, "emulated", precision="low", fallback="error") as session,
    ):
        actual = session.run(feed)
    for mine, theirs in zip(actual, expected, strict=True):
        assert np.abs(mine - theirs).max() <= 3e-3 * np.abs(theirs).max()
