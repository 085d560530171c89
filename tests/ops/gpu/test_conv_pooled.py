"""A max pool that the 1 x 1 convolution behind it computes as it loads."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from benchmarks.cards import CARDS
from benchmarks.models import squeezenet1_1
from tests.helpers.cards import card
from tests.helpers.conv_problems import take
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds, op
from tests.helpers.null_gpu import null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.run_length import examples
from weft.backends.gpu.tuning.tuner import tune_pipelines
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.ops.conv import Conv
from weft.ops.gpu.conv.fused.pooled import PooledConv
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile
from weft.ops.gpu.conv.gemm.wide_tiles import WIDE_TILES, WideConv
from weft.ops.pool import MaxPool
from weft_conformance.cases.table import tolerance


def pooled(
    channels: int = 8, co: int = 8, *, batch: int = 1, size: int = 9, kind: str = "MaxPool", **more: object
) -> Graph:
    """Return a pool of 3 x 3 with stride 2 between two convolutions; `more` changes the pool, or the second."""
    net = Net()
    x = net.conv(net.input("x", batch, 3, size, size), channels, 3, pads=(1, 1, 1, 1))
    window = {k: more.pop(k) for k in ("pads", "dilations", "kernel_shape") if k in more}
    p = net.add(op(kind, **{"kernel_shape": (3, 3), "strides": (2, 2)} | window), x, name="p")
    return net.finish(net.add("Relu", net.conv(p, co, **more), name="y"))  # type: ignore[arg-type]


def read_twice() -> Graph:
    graph = pooled()
    graph.outputs.append("p")
    return graph


# -- where it is done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["high", "low"])
def test_a_pool_that_one_convolution_reads_is_no_launch(precision: str) -> None:
    assert planned_kernels(pooled(), precision) == ["conv_gemm", "conv_gemm", "relayout"]
    assert_plan_computes(pooled(batch=2), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        read_twice(),
        pooled(kind="AveragePool"),
        pooled(dilations=(2, 2)),
        pooled(kernel_shape=(5, 5), pads=(2, 2, 2, 2)),
        pooled(co=68),
        pooled(kernel=3),
        pooled(strides=(2, 2)),
        pooled(pads=(0, 0, 0, 0), group=2),
        pooled(batch=64, size=33),
    ],
    ids=["output", "average", "gaps", "large", "channels", "taps", "stride", "groups", "work"],
)
def test_another_pool_is_a_launch(graph: Graph) -> None:
    assert "pool" in planned_kernels(graph)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("batch", "precision", "pools"), [(1, "high", 0), (1, "normal", 0), (1, "low", 0), (32, "high", 3), (32, "low", 3)]
)
@pytest.mark.parametrize("api", list(CARDS))
def test_large_batches_keep_their_pools(
    api: str, batch: int, precision: str, pools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    with null_gpu() as device:
        card(device, api)
        model = squeezenet1_1(batch).SerializeToString()
        with weft.load(model, "null", precision=precision, fallback="error") as session:
            assert kernels(session).count("pool") == pools


def test_nine_places_of_a_window_are_not_taken_for_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    net = Net()
    p = net.add(MaxPool((3, 3), pads=(1, 1, 1, 1)), net.conv(net.input("x", 1, 8, 40, 40), 256))
    with null_gpu() as device:
        card(device, "vulkan")
        with weft.load(net.finish(net.conv(p, 64, name="y")), "null", fallback="error") as session:
            assert kernels(session) == ["relayout", "conv_gemm", "conv_gemm", "relayout"]
            choices = [p for task in session.pipelines[0].tasks for p in getattr(task.execution, "choices", ())]
    assert "pooled=9" in choices[1].key and not any("Winograd" in text for text in choices[1].candidates)


# -- what comes of it -----------------------------------------------------------------------------------------


def test_it_is_an_op_that_is_both() -> None:
    pool, taps = MaxPool((3, 3), strides=(2, 2)), Conv()
    both, rng = PooledConv(pool, taps), np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 9, 7), np.float32), rng.standard_normal((5, 3, 1, 1), np.float32)
    y = taps.reference(pool.reference(x)[0], w)
    np.testing.assert_array_equal(both.reference(x, w), y)
    specs = [weft.TensorSpec(a.shape, DType.FLOAT32) for a in (x, w)]
    assert both.infer(specs, [None, w]) == (weft.TensorSpec(y.shape, DType.FLOAT32),)
    assert both.flops([x.shape, w.shape], [y.shape]) == 2 * 3 * 4 * 3 * 9 + 2 * y.size * 3


def assert_right(graph: Graph, device: str, kind: DType = DType.FLOAT32) -> None:
    """Fail unless a GPU computes what the references do, without a launch for the pool."""
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision="high" if kind is DType.FLOAT32 else "low", fallback="error") as session:
        assert "pool" not in kernels(session)
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))


sizes, small = st.integers(1, 9), st.integers(1, 3)


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@settings(max_examples=examples(12), deadline=None)
@given(
    st.tuples(small, st.integers(1, 20), sizes, sizes),
    st.integers(1, 40),
    st.tuples(small, small),
    st.tuples(small, small),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.booleans(),
)
def test_any_shape(
    device: str,
    shape: tuple[int, ...],
    co: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    wanted: tuple[int, ...],
    ceil: bool,
) -> None:
    n, ci, h, w = shape
    pads = tuple(min(p, k - 1) for p, k in zip(wanted, kernel * 2, strict=True))
    net = Net()
    x = net.input("x", n, ci, max(h, kernel[0] - pads[0] - pads[2]), max(w, kernel[1] - pads[1] - pads[3]))
    p = net.add(MaxPool(kernel, ceil_mode=int(ceil), pads=pads, strides=strides), x)
    assume(prod(kernel) > 1 or net.shape(p) != net.shape(x))
    y = net.conv(p, co)
    graph = net.finish(net.add("Relu", net.add("Add", y, net.input("r", *net.shape(y))), name="y"))
    assert_right(graph, device)


@pytest.mark.covering
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize(
    "tile",
    [
        *gemm.TILES[::3],
        WIDE_TILES[-1],
        InParts(GemmTile(4, 1, 8, 8, 1), 2),
        InParts(GemmTile(2, 1, 8, 8, 1), 8),
    ],
    ids=str,
)
def test_tiles_of_all_kinds_compute_it(
    device: str, tile: GemmTile | InParts[GemmTile], monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, WideConv() if tile in WIDE_TILES else gemm.TiledConv(), tile)
    net = Net()
    p = net.add(MaxPool((3, 3), strides=(2, 2), pads=(0, 1, 1, 0)), net.input("x", 2, 68, 9, 9))
    assert_right(net.finish(net.add("Relu", net.conv(p, 20), name="y")), device)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_it_is_right_in_fp16(device: str) -> None:
    assert_right(pooled(20, 12), device, DType.FLOAT16)


@pytest.mark.parametrize("device", GPUS)
def test_nothing_is_larger_than_what_is_no_number(device: str) -> None:
    net = Net()
    graph = net.finish(net.conv(net.add(MaxPool((3, 3), strides=(2, 2)), net.input("x", 1, 4, 9, 9)), 4, name="y"))
    x = np.zeros((1, 4, 9, 9), np.float32)
    x[0, 1, 2, 2] = np.nan
    (want,) = outputs(graph, {"x": x})
    with weft.load(graph, device, fallback="error") as session:
        (got,) = session.run(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want).any() and not np.isnan(want).all()


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
def test_a_network_has_three_launches_less(device: str) -> None:
    model = squeezenet1_1(image=63, width=0.25, classes=12).SerializeToString()
    x = np.random.default_rng(0).standard_normal((1, 3, 63, 63), np.float32)
    with weft.load(model, "cpu") as session:
        (want,) = session.run(x)
    with weft.load(model, device, fallback="error") as session:
        assert len(kernels(session)) == 27 and "pool" not in kernels(session)
        (got,) = session.run(x)
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.long  # the driver compiles every tile; test_tiles_of_all_kinds_compute_it has each kind
def test_its_tiles_are_tuned_and_agree(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    with weft.load(pooled(36, 20), "opencl", fallback="error") as session:
        rows = tune_pipelines(session.pipelines, budget=1e6)
    assert [("CI=3" in row.problem, "pooled=9" in row.problem) for row in rows].count((False, True)) == 1
    assert all(row.tried and not row.failed for row in rows)
