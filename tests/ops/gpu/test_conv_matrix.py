"""Convolutions on matrix units, as far as a machine without them can tell: packing, tiles, sources, the self-test.

On a device that has them the op table and the networks run through these kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem
from tests.helpers.convolutions import assert_compiles, matrices
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu import runtime as gpu_runtime
from weft.backends.gpu.selftest import value_check, verdict_store
from weft.backends.vulkan.dialect import GlslDialect
from weft.kernels.verdict import Verdict
from weft.ops.gpu.conv.matrix.staged import (
    SIDE,
    SPECIAL,
    TILES,
    MatrixConv,
    MatrixTile,
    pack_weights,
)


@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_a_tile_is_shared_out_evenly_and_fits(tile: MatrixTile) -> None:
    items = tile.items // tile.lz
    assert tile.rows * tile.kb % items == 0 and tile.columns * tile.kb % items == 0
    assert tile.shared_bytes() <= H200.local_memory and tile.items <= H200.max_local_items


@pytest.mark.parametrize("shape", [(20, 6, 3, 3), (16, 4, 1, 1), (33, 7, 2), (64, 64, 1, 1)])
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_weights_lie_as_rows_with_four_channels_for_an_item(shape: tuple[int, ...], tile: MatrixTile) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    co, ci, *kernel = shape
    taps, blocks = int(np.prod(kernel)), -(-ci // 4)
    width = -(-co // tile.columns) * tile.columns
    rows = pack_weights(weight, tile).transpose(0, 2, 1).reshape(-1, width)
    assert rows.shape[0] % (4 * tile.kb) == 0
    column = [c // SIDE * SIDE + 8 * (c // 2 % 2) + c % SIDE // 4 * 2 + c % 2 for c in range(co)]
    found = np.zeros((taps, blocks * 4, co), np.float16)
    found[:] = rows[: taps * blocks * 4, column].reshape(taps, blocks * 4, co)
    np.testing.assert_array_equal(found[:, :ci], weight.reshape(co, ci, taps).transpose(2, 1, 0))
    assert not found[:, ci:].any() and np.count_nonzero(rows) == np.count_nonzero(weight)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize(("tile", "parted"), [*((t, False) for t in TILES), *((t, True) for t in TILES[::3])], ids=repr)
def test_the_kernel_of_every_tile_compiles(tile: MatrixTile, parted: bool, pointwise: bool, wide: bool) -> None:
    variant: dict[str, Any] = {"parted": True} if parted else {}
    variant |= {
        "fm": tile.fm, "fn": tile.fn, "kb": tile.kb, "pointwise": pointwise, "sliced": tile.lz > 1,
        "sm": tile.sm, "sn": tile.sn, "wide": wide,
    }
    assert_compiles("conv_matrix", variant, "C4 STEPS TILES WIDTH EACH" if parted else "C4 STEPS TILES WIDTH", wide)


def test_small_problems_get_small_tiles_and_deep_ones_slices() -> None:
    conv = MatrixConv()
    assert conv.tiles(conv_problem((32, 64, 56, 56), (256, 64, 1, 1), H200))[0] == TILES[0]
    deep, _ = conv.tiles(conv_problem((1, 512, 7, 7), (512, 512, 3, 3), H200))
    assert deep is not None and deep.lz > 1 and deep.rows <= 16
    _, shallow = conv.tiles(conv_problem((1, 32, 7, 7), (512, 32, 1, 1), H200))
    assert all(t.lz == 1 for t in shallow), "one step cannot be shared out"


@pytest.mark.parametrize("found", ["", "a convolution of (1, 2) with (3, 4) was wrong by 1.0e+00"])
def test_a_device_whose_matrix_units_are_wrong_does_without_them(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_store, "verdicts", lambda *_, **__: {SPECIAL.name: Verdict(found)} if found else {})
    with null_gpu() as device:
        device.caps, device.dialect = H200, GlslDialect()
        with weft.load(matrices(), "null", precision="low", fallback="error") as session:
            (pipeline,) = session.pipelines
            labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
            notes = session.report.notes
    on_units = [label for label in labels if label.endswith(("/conv_matrix", "/conv_unstaged"))]
    assert bool(on_units) == (not found)
    assert any("matrix units are not used" in note for note in notes) == bool(found)


def test_the_self_test_tells_wrong_numbers_from_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a null device nothing is computed: what is not written is found too."""
    with null_gpu() as device:
        device.caps, device.dialect = H200, GlslDialect()
        runtime = gpu_runtime.GpuRuntime(device)
        why = value_check.check(SPECIAL, runtime)
        assert why == "Conv of (2, 13, 9, 7) with (20, 13, 1, 1) with (20,) was wrong by nan of its largest value"
        monkeypatch.setattr(value_check, "apart", lambda *_: 1e-4)
        assert value_check.check(SPECIAL, runtime) is None
        monkeypatch.setattr(value_check, "apart", lambda *_: 1e-2)
        assert "was wrong by 1.0e-02" in str(value_check.check(SPECIAL, runtime))


def test_cases_that_launch_no_special_kernel_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_check, "apart", lambda *_: 0.0)
    with null_gpu() as device, pytest.raises(value_check.NotRun, match="none of its cases"):
        value_check.check(SPECIAL, gpu_runtime.GpuRuntime(device))
