"""Small convolutions that stage nothing: by value under emulation in both languages, packing and tiles by numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take
from tests.helpers.convolutions import assert_compiles, assert_runs_on, uneven_convolution
from tests.helpers.emulated_gpus import APIS
from weft.kernels.source import SUBGROUP
from weft.ops.gpu.conv.gemm.split_k import InParts, tile_and_parts
from weft.ops.gpu.conv.matrix import unstaged
from weft.ops.gpu.conv.matrix.unstaged import (
    CHUNK,
    TILES,
    UnstagedTile,
    choose_tile,
    legal_tiles,
    pack_weights,
)


@pytest.fixture
def tile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UnstagedTile | InParts[UnstagedTile]]:
    """Make that tile the default for everything."""
    take(monkeypatch, unstaged.UnstagedConv(), request.param)
    yield request.param


WHOLE, SLICED, WIDE = UnstagedTile(1, 1, 1, 2), UnstagedTile(1, 2, 2, 1), UnstagedTile(2, 1, 1, 1)


@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("tile", "ci", "co", "kernel", "stride", "residual"),
    [
        (WHOLE, 8, 20, 1, 1, False),  # one piece of one chunk; channels that are no whole tile
        (WHOLE, 40, 24, 3, 2, False),  # pieces of a chunk that are of two taps; a chunk too many
        (SLICED, 72, 40, 1, 1, False),  # two slices, one of which has a chunk less; an odd tile of columns
        (SLICED, 16, 16, 3, 1, True),  # what is added in the store
        (WIDE, 24, 16, 1, 1, False),  # rows behind the last pixel
        (InParts(WHOLE, 4), 40, 40, 3, 1, True),  # six rounds of two chunks, of which the last part has none
        (InParts(SLICED, 3), 264, 20, 1, 1, False),  # five rounds of two slices, of which the last part has one
    ],
    indirect=["tile"],
    ids=str,
)
def test_convolution_by_value(
    api: str,
    tile: UnstagedTile | InParts[UnstagedTile],
    ci: int,
    co: int,
    kernel: int,
    stride: int,
    residual: bool,
) -> None:
    network_of = uneven_convolution(ci, co, kernel, stride, residual)
    kernels = ("conv_unstaged", "sum_parts") if isinstance(tile, InParts) else ("conv_unstaged",)
    assert_runs_on(kernels, *network_of, api, {"channels_last": True})


@pytest.mark.covering
@pytest.mark.parametrize("fn", [1, 2])
@pytest.mark.parametrize("shape", [(20, 8, 3, 3), (16, 32, 1, 1), (33, 24, 2)])
def test_items_find_the_weights_of_their_columns(shape: tuple[int, ...], fn: int) -> None:
    """Item 4g + t of half h reads piece t of column g, which stands for a channel of the store's four."""
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    co, ci, taps = shape[0], shape[1], int(np.prod(shape[2:]))
    read = pack_weights(weight, fn).transpose(0, 2, 1).reshape(-1, 2, -(-taps * ci // CHUNK), 8, 4, 8)
    assert read.shape[0] % fn == 0
    found = np.zeros((read.shape[0], 16, read.shape[2] * CHUNK), np.float16)
    for half in range(2):
        for column in range(8):
            channel = column // 2 * 4 + half * 2 + column % 2
            found[:, channel] = read[:, half, :, column].reshape(read.shape[0], -1)
    flat = found.reshape(-1, read.shape[2] * CHUNK)
    np.testing.assert_array_equal(
        flat[:co, : taps * ci].reshape(co, taps, ci), weight.reshape(co, ci, taps).transpose(0, 2, 1)
    )
    assert np.count_nonzero(flat) == np.count_nonzero(weight)


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_the_kernel_of_every_tile_compiles(tile: UnstagedTile, pointwise: bool, parted: bool) -> None:
    variant = {
        "fm": tile.fm, "fn": tile.fn, "ahead": tile.ahead, "sliced": tile.lz > 1, "pointwise": pointwise,
        "parted": parted,
    }
    assert_compiles("conv_unstaged", variant, "CHUNKS PIECES EACH", wide=True)


def test_the_self_test_covers_small_and_large_tiles_with_slices_and_without_and_parts() -> None:
    found = set()
    for case in unstaged._cases():
        (x,), (weight, _) = case.inputs.values(), case.constants.values()
        algorithm, problem = unstaged.UnstagedConv(), conv_problem(x.shape, weight.shape, H200)
        assert algorithm.why_not(problem) is None
        launched: tuple[UnstagedTile, int] = tile_and_parts(algorithm.candidates(problem)[0].tile)
        tile, parts = launched
        found.add((tile.fm, tile.lz > 1, parts > 1))
    assert {(fm, sliced) for fm, sliced, _ in found} >= {(1, False), (1, True), (2, False), (2, True)}
    assert any(parted for _, _, parted in found)


def test_only_small_products_are_not_staged() -> None:
    assert choose_tile(H200, 32 * 56 * 56, 256, 2) is None
    small = choose_tile(H200, 49, 512, 144)
    assert small is not None and small.lz > 1
    assert all(t.lz == 1 for t in legal_tiles(H200, 49, 1)), "a chunk cannot be shared out"
    for tile in TILES:
        assert tile.items <= SUBGROUP * 16 and tile.shared_bytes() <= H200.local_memory
