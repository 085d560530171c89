"""Products of two matrices on matrix units, run by value where there are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.cards import VULKAN
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
from weft.ops.gpu.matmul.matmul import PRODUCTS
from weft.ops.gpu.matmul.matrix import UNPARTED, MatrixProduct, MatrixProductTile, OperandLayout, as_read
from weft.ops.gpu.matmul.problem import ProductProblem

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
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
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


CONSTANTS = (
    ((70, 40), (40, 49), False, SLICED),
    ((70, 49), (49, 72), False, PLAIN),
    ((70, 40), (49, 40), True, PLAIN),
    ((70, 33), (35, 33), True, PLAIN),
    ((2, 20, 512), (512, 23), False, PARTED),
)
"""The shapes of a matrix and a constant one, whether this lies transposed, and the tile."""
QUICK_CONSTANTS = CONSTANTS[:1]


@pytest.mark.parametrize(
    ("api", "a", "b", "turned", "tile"),
    [
        *[("opencl", *each) for each in CONSTANTS],
        *[
            pytest.param("vulkan", *each, marks=[pytest.mark.long] * (each not in QUICK_CONSTANTS))
            for each in CONSTANTS
        ],
    ],
    ids=str,
)
def test_products_with_constants_by_value(
    api: str, a: Shape, b: Shape, turned: bool, tile: MatrixProductTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_where_it_fits(monkeypatch, MatrixProduct(), tile)
    net = Net()
    given, weight = (net.random(*shape).astype(np.float16) for shape in (a, b))
    columns = weight.shape[0] if turned else weight.shape[1]
    bias = net.random(columns) if turned else net.random(a[-2], columns)  # one for each column, or element
    bias = bias.astype(np.float16)
    x = net.input("a", *a, dtype=DType.FLOAT16)
    if turned:
        graph = net.finish(net.add("Gemm", x, weight, bias, transB=1, alpha=0.5, beta=2.0, name="y"))
        want = 0.5 * given.astype(np.float32) @ weight.T.astype(np.float32) + 2.0 * bias
    else:
        graph = net.finish(net.add("Add", net.add("MatMul", x, weight), bias, name="y"))
        want = given.astype(np.float32) @ weight.astype(np.float32) + bias
    with (
        emulated_gpu(api, software=False, compute_units=4, max_grid=(3, 1, 1)),
        weft.load(graph, "emulated", precision="low", fallback="error") as session,
    ):
        assert kernels(session)[0] == "matmul_matrix" and len(kernels(session)) == 1 + (tile.parts > 1)
        (got,) = session.run(given)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_a_constant_is_transposed_where_it_is_fetched_faster_then() -> None:
    assert _read(k=256, n=49, b_steps=(49, 1)) == ((1, 256), True)
    assert _read(k=49, n=256, b_steps=(1, 49)) == ((256, 1), True)
    assert _read(k=256, n=64, b_steps=(64, 1)) == ((64, 1), True)
    assert _read(k=256, n=64, b_steps=(1, 256)) == ((1, 256), True)
    assert _read(k=49, n=49, b_steps=(49, 1)) == ((49, 1), False)


def _read(k: int, n: int, b_steps: tuple[int, int]) -> tuple[tuple[int, int], bool]:
    problem = replace(_constant_product(512, n, k), b_steps=b_steps)
    read = as_read(problem)
    return read.b_steps, OperandLayout.of(read, 1).wide


def _constant_product(m: int, n: int, k: int) -> ProductProblem:
    return ProductProblem(
        m=m, n=n, k=k, a_steps=(k, 1), b_steps=(n, 1), first=(0, 0), batch=(), a_batch=(), b_batch=(), weights=True,
        bias=True, adds=False, holds_scale=True, joins_channels=True, double=False, halves=True, plain=(True, True),
        fours=n % 4 == 0, caps=VULKAN,
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "algorithm"),
    [
        (512, 256, 49, "matmul_matrix"), (512, 49, 256, "matmul_matrix"), (128, 50257, 768, "matmul_matrix"),
        (49, 3, 1, "matmul"), (512, 256, 48, "product as a convolution"), (4, 49, 256, "matmul_rows"),
    ],
)
def test_constants_of_odd_widths_are_multiplied_by_the_kernel_that_is_estimated_to_be_faster(
    m: int, n: int, k: int, algorithm: str
) -> None:
    decision = PRODUCTS.decide(_constant_product(m, n, k))
    taken = decision.candidates[decision.default].algorithm
    assert taken is not None and taken.name == algorithm


def test_constants_beyond_an_argument_are_refused() -> None:
    problem = _constant_product(512, 49, 256)
    small = replace(problem, caps=replace(VULKAN, max_buffer_range=49 * 256))
    assert MatrixProduct().why_not(problem) is None
    assert MatrixProduct().why_not(small) == "its constant matrix exceeds a kernel argument"


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
