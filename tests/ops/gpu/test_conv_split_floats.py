"""Convolutions of split fp32, as far as a machine without matrix units can tell: numbers, packing, sources.

The kernels for cooperative matrices and mma.sync run by value under emulation, in their smallest tile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take
from tests.helpers.convolutions import convolution, matrices
from tests.helpers.device_figures import set_figures
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import null_gpu
from tests.helpers.run_length import examples
from tests.helpers.truncating_units import added, split_products
from weft.backends.gpu.selftest import verdict_store
from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, render
from weft.ops.gpu.conv.matrix import split_floats, split_floats_wgmma
from weft.ops.gpu.conv.matrix.halves import (
    ACTIVATION_BITS,
    HALF_ULP,
    LANES,
    LOW_BITS,
    SIDE,
    by_taps,
    split_weights,
    truncation,
    undoing,
)
from weft.ops.gpu.conv.matrix.split_floats import (
    TILES,
    SplitFigures,
    SplitTile,
    packed_weights,
)
from weft.ops.gpu.conv.matrix.staged import fitting, with_most_reuse
from weft.ops.gpu.conv.matrix.warpgroups import STEP


def split_activations(x: Array) -> tuple[Array, Array]:
    """Return hi and lo as the kernels make them."""
    with np.errstate(all="ignore"):
        scaled = x * np.float32(2.0**-ACTIVATION_BITS)
        high = scaled.astype(np.float16)
        low = ((scaled - high.astype(np.float32)) * np.float32(2.0**LOW_BITS)).astype(np.float16)
        return high, np.where(np.abs(scaled) < 65520, low, np.float16(0))


def product(x: Array, w: Array) -> Array:
    """Return the product of split numbers; the sums are exact, or what IEEE says of infinities."""
    both = split_activations(x), split_weights(w, truncation(STEP, w.shape[1]))
    (xh, xl), (wh, wl) = ([h.astype(np.float64) for h in halves] for halves in both)
    with np.errstate(all="ignore"):
        return np.asarray((xh @ wh.T + (xh @ wl.T + xl @ wh.T) / 2**LOW_BITS) * undoing(w))


@pytest.mark.parametrize("weights", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("size", [1e5, 1.0, 1e-2, 1e-3, 1e-4])
def test_products_of_split_numbers_are_fp32(size: float, weights: float) -> None:
    """Activations below 2^-6 lose up to 2^-28 each, about 2e-9 by norm."""
    rng = np.random.default_rng(0)
    x = (size * rng.standard_normal((40, 300))).astype(np.float32)
    w = (weights * rng.standard_normal((30, 300)) * 10.0 ** rng.integers(-3, 3, (30, 1))).astype(np.float32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    assert np.linalg.norm(product(x, w) - exact) < (2e-7 + 3e-9 / size) * np.linalg.norm(exact)


def test_weights_come_back_whole() -> None:
    rng = np.random.default_rng(1)
    w = (rng.standard_normal((6, 500)) * 10.0 ** rng.uniform(-9, 0, (6, 500))).astype(np.float32)
    w[0, :9], w[5] = 0, 0
    factor = undoing(w).astype(np.float64)[:, None] * 2.0**-ACTIVATION_BITS
    for bits in (LOW_BITS, 0):
        high, low = (half.astype(np.float64) for half in split_weights(w, truncation(STEP, w.shape[1]), bits))
        error = np.abs((high + low / 2**bits) * factor - w)
        assert (error <= np.abs(w) * 2.0**-21 + np.abs(w).max(axis=1, keepdims=True) * 2.0**-37).all()
        assert ((high == 0) == (w == 0)).all() and (np.sign(high) == np.sign(low)).all()


@pytest.mark.parametrize("step", [16, 32, 64])
@pytest.mark.parametrize("held", [np.float16, np.float32])
def test_weights_make_up_for_truncated_sums(held: type[np.floating[Any]], step: int) -> None:
    w = np.random.default_rng(2).standard_normal((40, 3072)).astype(held).astype(np.float32)
    lost = truncation(step, w.shape[1])
    high, low = (half.astype(np.float64) for half in split_weights(w, lost))
    back = (high + low / 2**LOW_BITS) * undoing(w).astype(np.float64)[:, None] * 2.0**-ACTIVATION_BITS
    more = (np.abs(back) - np.abs(w)).reshape(-1, SIDE)
    wanted = (np.abs(w) * lost).reshape(-1, SIDE)
    assert more.sum() / wanted.sum() == pytest.approx(1, abs=0.05)


def test_an_element_loses_with_each_sum_that_follows_it_in_its_step() -> None:
    sums = np.round(truncation(64, 64 + 40) / HALF_ULP)
    assert [int(n) for n in sums[::8]] == [4, 4, 3, 3, 2, 2, 1, 1, 3, 3, 2, 2, 1]


@given(st.integers(0, 2**32), st.integers(1, 64), st.integers(-60, 20), st.floats(0, 1), st.floats(0, 12))
@settings(max_examples=examples(60), deadline=None)
def test_weights_that_make_up_for_truncation_bound_the_error_more_tightly(
    seed: int, depth: int, power: int, positive: float, spread: float
) -> None:
    """Whatever the products: an addition is within 0.64 ulp of its sum then, and within a whole one without.

    The weights are as exact as doubles here, and nothing is lost before the end of an addition.
    """
    rng = np.random.default_rng(seed)
    products = rng.standard_normal((16, depth)) * np.exp2(rng.uniform(-spread, spread, (16, depth)))
    products = np.ldexp(np.where(rng.random((16, depth)) < positive, np.abs(products), products), power)
    larger = products * (1 + truncation(64, depth).astype(np.float64))

    def error(given: Array) -> tuple[Array, Array]:
        total, partial = np.zeros(16), np.zeros(16)
        for first in range(0, depth, SIDE):
            total = added(total, given[:, first : first + SIDE], guard_bits=None)
            partial = partial + np.abs(total)
        return np.abs(total - products.sum(axis=1)), partial * 2.0**-23

    plain, bound = error(products)
    assert (plain <= bound).all()
    made_up, bound = error(larger)
    assert (made_up <= (0.64 + 1e-6) * bound).all()


@pytest.mark.covering
@pytest.mark.parametrize("step", [16, 32, 64])
@pytest.mark.parametrize("depth", [64, 64 * 9])
@pytest.mark.parametrize("signs", ["any", "activations", "positive"])
def test_truncation_leaves_little_that_layers_would_add_up(
    signs: str, depth: int, step: int
) -> None:
    """The share of the result that is missing, by least squares; without it is up to a whole 2^-23."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((80, depth)) * np.exp2(rng.random((80, 1))) for _ in range(2))
    x = x if signs == "any" else np.maximum(x, 0)
    w = w if signs != "positive" else np.abs(w)
    x, w = x.astype(np.float32), w.astype(np.float32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)

    def missing(lost: Array | None) -> tuple[float, float]:
        got = split_products(split_activations(x), split_weights(w, lost), step) * undoing(w).astype(np.float64)
        off = got - exact
        return -float((off * exact).sum() / (exact**2).sum()) * 2.0**23, float(np.linalg.norm(off))

    (before, error), (after, less) = missing(None), missing(truncation(step, depth))
    assert before > max(2 * abs(after), 0.25) and abs(after) < 0.25 and less < error


@pytest.mark.parametrize("made_up_for", [True, False])
def test_units_that_are_not_known_to_truncate_are_not_made_up_for(made_up_for: bool) -> None:
    weight = np.full((16, 64, 1, 1), 0.75, np.float32)
    tile = TILES[0]
    packed = packed_weights(weight, tile, made_up_for).transpose(0, 2, 1).reshape(-1, 2, PACK * tile.kb * tile.columns)
    assert (packed[:, 1].max() > 2.0**-24) == made_up_for, "0.75 is a half, so that its low half is as small as can be"


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e7])
def test_what_is_not_finite_stays_so_and_has_its_sign(value: float) -> None:
    w = np.array([[1.0, 0.3], [-1.0, 2.0], [1e-20, 5.0], [0.0, 1.0]], np.float32)
    got = product(np.array([[value, 1.0]], np.float32), w)[0]
    with np.errstate(invalid="ignore"):
        want = np.array([np.inf * value * w[0, 0], np.inf * -value, np.inf * value, np.nan])
    np.testing.assert_array_equal(got, want)


def test_the_range_is_that_of_fp16_times_256() -> None:
    w = np.ones((1, 1), np.float32)
    assert product(np.array([[1.67e7]], np.float32), w)[0, 0] == pytest.approx(1.67e7, rel=1e-6)


@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_a_tile_is_shared_out_evenly_and_fits(tile: SplitTile) -> None:
    items = tile.items // tile.lz
    assert tile.rows * tile.kb % items == 0 and tile.columns * tile.kb % items == 0
    assert tile.shared_bytes() <= H200.local_memory and tile.items <= H200.max_local_items
    assert tile.kb % 4 == 0, "whole tiles of 16 along K"


@pytest.mark.parametrize("shape", [(20, 6, 3, 3), (16, 4, 1, 1), (33, 7, 2)])
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_halves_of_a_step_lie_together(shape: tuple[int, ...], tile: SplitTile) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    flat = packed_weights(weight, tile, truncates=True).transpose(0, 2, 1).reshape(-1)
    tiles = -(-shape[0] // tile.columns)
    packed = flat.reshape(tiles, -1, 2, 4 * tile.kb, tile.columns // SIDE, SIDE)
    channels = np.zeros_like(packed)
    channels[..., LANES] = packed
    by_column = channels.reshape(*packed.shape[:4], tile.columns).transpose(2, 0, 4, 1, 3)
    found = by_column.reshape(2, tiles * tile.columns, -1)
    rows = by_taps(weight)
    for half, want in zip(found, split_weights(rows, truncation(4 * tile.kb, rows.shape[1])), strict=True):
        np.testing.assert_array_equal(half[: want.shape[0], : want.shape[1]], want)
        assert not half[want.shape[0] :].any() and not half[:, want.shape[1] :].any()


@pytest.mark.parametrize(("planes", "turns"), [(2, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("shape", [(40, 20, 3, 3), (16, 4, 1, 1), (130, 68, 1, 1)])
def test_warpgroups_find_the_halves_where_their_instruction_reads_them(
    shape: tuple[int, ...], planes: int, turns: int
) -> None:
    """Products in the places of wgmma's fragments (PTX ISA): K and columns permuted, pieces of 16 bytes swizzled."""
    rng, cols = np.random.default_rng(0), 64
    weight = rng.standard_normal(shape).astype(np.float32)
    rows = by_taps(weight)
    packed = split_floats_wgmma.pack_planes(weight, cols, planes, turns)
    packed = packed.reshape(-(-shape[0] // cols), -1, planes, cols, 8, 8)
    assert packed.shape[1] % turns == 0 and packed.shape[1] * STEP >= rows.shape[1]
    column, piece = np.arange(cols)[:, None], np.arange(8)[None]
    read = packed[:, :, :, column, piece ^ column % 8].reshape(*packed.shape[:4], STEP // SIDE, SIDE)
    x = np.zeros((3, packed.shape[1] * STEP), np.float32)
    x[:, : rows.shape[1]] = rng.standard_normal((3, rows.shape[1]))
    # Item t of four loads channels 4t .. 4t + 3, and has the places 2t, 2t + 1, 2t + 8, 2t + 9 of a fragment.
    high, low = (h.astype(np.float64).reshape(3, -1, STEP // SIDE, SIDE)[..., LANES] for h in split_activations(x))
    halves = [read[:, :, p].astype(np.float64) for p in range(planes)]
    main, cross = ("rsqp,tscqp->rtc", "rsqp,tscqp->rtc")
    if planes == 2:
        small = np.einsum(cross, low, halves[0]) + np.einsum(cross, high, halves[1])
        sums = np.einsum(main, high, halves[0]) + small / 2**LOW_BITS
    else:
        sums = sum(np.einsum(main, a, b) for a, b in zip((high, high, low), halves, strict=True))
    got = np.zeros((3, sums.shape[1] * cols))
    got.reshape(3, -1, SIDE)[..., LANES] = sums.reshape(3, -1, SIDE)
    exact = x[:, : rows.shape[1]].astype(np.float64) @ rows.T.astype(np.float64)
    scaled = got[:, : shape[0]] * undoing(weight)
    assert np.abs(scaled - exact).max() < 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_the_kernel_of_every_tile_compiles(tile: SplitTile, pointwise: bool, last: bool) -> None:
    variant: dict[str, str | int | bool | tuple[str, ...]] = {
        "fm": tile.fm, "fn": tile.fn, "kb": tile.kb, "last": last, "low": "0.5", "pointwise": pointwise,
        "scale": "0.5", "sliced": tile.lz > 1, "sm": tile.sm, "sn": tile.sn,
    }
    args = [Arg(n, DType.FLOAT32, "c4", n == "y") for n in ("x", "s", "b", "y")]
    args.insert(1, Arg("w", DType.FLOAT16, "wide", False))
    names = "C4 COUNT DD DH DW ID IH IW KD KH KW OD OH OW PD PH PIXELS PW SD SH STEPS SW TILES".split()
    source = render(KernelRequest("conv_split", tuple(variant.items()), tuple(args), tuple(names)), GlslDialect())
    compiler = glslang.find_compiler()
    assert compiler is not None
    assert compiler.compile(source.text, source.entry).startswith(glslang.SPIRV_MAGIC)


def test_small_problems_get_small_tiles_and_deep_ones_slices() -> None:
    large = conv_problem((32, 64, 56, 56), (256, 64, 1, 1), H200)
    assert with_most_reuse(fitting(TILES, large), large) == fitting(TILES, large)[0]
    small = conv_problem((1, 512, 7, 7), (512, 512, 3, 3), H200)
    deep = with_most_reuse(fitting(TILES, small), small)
    assert deep is not None and deep.lz > 1
    wide = split_floats_wgmma.choose_tile(H200, 32 * 56 * 56, 256, 64, True)
    assert wide.cols >= 64 and wide.shared_bytes() <= 227 << 10


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("units", [False, True])
def test_only_normal_splits_and_only_on_matrix_units(
    units: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_store, "examine", lambda *_, **__: [])
    set_figures(monkeypatch, SplitFigures, least_products=0)
    with null_gpu() as device:
        device.caps, device.dialect = replace(H200, matrices=(HALVES,) if units else ()), GlslDialect()
        with weft.load(matrices(), "null", precision=precision, fallback="error") as session:
            (pipeline,) = session.pipelines
            labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
            notes = session.report.notes
    splits = units and precision == "normal"
    assert any("conv_split" in label for label in labels) == splits
    assert any("computed as HIGH" in note for note in notes) == (precision == "normal" and not splits)


@pytest.mark.parametrize("api", APIS)
def test_a_sliced_tile_computes_the_convolution(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = SplitTile(1, 1, 1, 1, 2, 4)
    take(monkeypatch, split_floats.SplitConv(), tile)
    graph = convolution(1, 14, 20, 5, 3, 1, 1)
    inputs = [np.random.default_rng(1).standard_normal(graph.specs[i].dims, np.float32) for i in graph.inputs]
    (want,) = weft.load(graph, device="cpu").run(*inputs)
    with emulated_gpu(api), weft.load(graph, "emulated", precision="normal", fallback="error") as session:
        (got,) = session.run(*inputs)
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
    assert any("conv_split" in label for label in labels)
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("known", [False, True])
def test_results_lack_little_where_units_are_known_to_truncate(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated units truncate. Products are of one sign, so that two sums a step lose 0.54 * 2^-23 of them."""
    take(monkeypatch, split_floats.SplitConv(), SplitTile(1, 1, 1, 1, 2, 8))
    net = Net(seed=2)
    weight = np.abs(net.random(16, 64 * 9, 1, 1))
    pooled = net.pool(net.input("x", 1, 64 * 9, 7, 9))
    graph = net.finish(net.add("Conv", pooled, weight), pooled)
    (x,) = feeds(graph).values()
    with (
        emulated_gpu("opencl", warpgroups=known),
        weft.load(graph, "emulated", precision="normal", fallback="error") as session,
    ):
        got, image = session.run(np.abs(x))
        assert "conv_split" in kernels(session)
    exact = np.einsum("oi,ihw->ohw", weight[..., 0, 0].astype(np.float64), image[0].astype(np.float64))
    missing = np.mean(1 - got[0] / exact) * 2.0**23
    assert missing == pytest.approx(0.0 if known else 0.54, abs=0.08)
