"""Products of two computed matrices on matrix units, run by value where there are none."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.conv_problems import take_where_it_fits
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, render
from weft.ops.gpu.matmul.matrix import UNPARTED, MatrixProduct, MatrixProductTile

PLAIN, SLICED = MatrixProductTile(1, 2, 2, 1), MatrixProductTile(2, 1, 1, 1, 2)
PARTED = MatrixProductTile(1, 1, 1, 1, parts=4)
ORDERS = (
    ((2, 37, 40), (2, 40, 72), "", PLAIN),
    ((1, 136, 37), (3, 136, 21), "a", SLICED),
    ((3, 40, 37), (3, 72, 40), "ab", PLAIN),
    ((2, 3, 17, 136), (2, 1, 48, 136), "b", SLICED),
    ((2, 33, 140), (140, 70), "", SLICED),
    ((70, 48), (48, 33), "", PLAIN),
    ((2, 20, 512), (2, 512, 24), "", PARTED),
    ((150, 136), (136, 70), "", MatrixProductTile(1, 1, 2, 2, 2)),
    ((3, 90, 80), (3, 80, 136), "", MatrixProductTile(2, 2, 2, 2)),
)
"""The matrices as they lie, which of them is transposed, and the tile."""


QUICK_ON_VULKAN = ORDERS[3:4]
"""What llvmpipe compiles in the short run, which takes it some seconds. OpenCL runs them all."""


@pytest.mark.parametrize(
    ("api", "a", "b", "turned", "tile"),
    [
        *[("opencl", *order) for order in ORDERS],
        *[
            pytest.param("vulkan", *order, marks=[pytest.mark.long] * (order not in QUICK_ON_VULKAN))
            for order in ORDERS
        ],
    ],
    ids=str,
)
def test_products_by_value(
    api: str, a: Shape, b: Shape, turned: str, tile: MatrixProductTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_where_it_fits(monkeypatch, MatrixProduct(), tile)
    net = Net()
    given = {n: net.random(*shape).astype(np.float16) for n, shape in (("a", a), ("b", b))}
    names = dict(zip("ab", (net.input(n, *x.shape, dtype=DType.FLOAT16) for n, x in given.items()), strict=True))
    factors = {n: np.swapaxes(x, -1, -2) if n in turned else x for n, x in given.items()}
    for n in turned:
        rank = given[n].ndim
        names[n] = net.add("Transpose", names[n], perm=(*range(rank - 2), rank - 1, rank - 2))
    want = factors["a"].astype(np.float32) @ factors["b"].astype(np.float32)
    bias = net.random(want.shape[-1]).astype(np.float16)
    total = net.add("Add", net.add("MatMul", names["a"], names["b"]), net.constant(bias))
    graph = net.finish(net.add("Relu", total, name="y"))
    want = np.maximum(want + bias, 0)
    with (
        emulated_gpu(api, software=False, compute_units=4, max_grid=(3, 1, 1)),
        weft.load(graph, "emulated", precision="low", fallback="error") as session,
    ):
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.whole]  # type: ignore[attr-defined]
        assert labels[0].endswith("/matmul_matrix") and len(labels) == 1 + (tile.parts > 1), labels
        (got,) = session.run(given)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_a_result_that_is_transposed_is_stored_one_by_one() -> None:
    net = Net()
    a, b = (net.input(n, *shape, dtype=DType.FLOAT16) for n, shape in (("a", (2, 36, 40)), ("b", (2, 40, 48))))
    graph = net.finish(net.add("Transpose", net.add("MatMul", a, b), perm=(0, 2, 1), name="y"))
    given = {n: net.random(*graph.specs[n].dims).astype(np.float16) for n in "ab"}
    with (
        emulated_gpu("opencl", software=False, compute_units=4),
        weft.load(graph, "emulated", precision="low", fallback="error") as session,
    ):
        assert kernels(session) == ["matmul_matrix"]
        (got,) = session.run(given)
    want = (given["a"].astype(np.float32) @ given["b"].astype(np.float32)).swapaxes(1, 2)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.covering
@pytest.mark.parametrize("tile", UNPARTED, ids=repr)
def test_the_kernel_of_every_tile_compiles(tile: MatrixProductTile) -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None
    names = "A0 AB0 AK AM B0 BB0 BK BN D0 K M N ROUNDS TILES TILES_M TILES_N".split()
    sizes = {"batch": 1, "depth": 32, "result_pitch": 33, "lz": tile.slices}
    sizes |= {"fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn}
    for along, wide, fours in ((True, True, True), (False, False, False)):
        lies = {"a_along": along, "b_along": not along, "a_wide": wide, "b_wide": wide, "fours": fours}
        args = tuple(
            Arg(n, DType.FLOAT16, "fours" if fours and n == "y" else "linear", n == "y") for n in ("a", "b", "y")
        )
        request = KernelRequest(
            "matmul_matrix", tuple(sorted({**sizes, **lies}.items())), args, tuple(names), ("ALPHA", "BETA"), (), "y"
        )
        source = render(request, GlslDialect())
        assert compiler.compile(source.text, source.entry).startswith(glslang.SPIRV_MAGIC)
