"""Winograd's convolution: by value in both languages, its matrices and weights by numbers, where it is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take_where_it_fits
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.nets import Net
from tests.helpers.op_rows import ROWS, assert_agree, reference
from tests.helpers.rows_together import as_it_is, check_rows
from weft.backends.gpu.tuning.tuner import tune_pipelines
from weft.backends.gpu.tuning_tables.tuning_table import Entry
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv import winograd
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm.tiles import SOFTWARE_TILE, TILES, GemmTile
from weft.ops.gpu.conv.problem import ConvProblem
from weft.ops.gpu.conv.winograd import READ, SIDE, TAPS, WinogradConv, WinogradTile, matrices, pack_weights
from weft_conformance.cases.table import Case, tolerance

KERNELS = [f"conv_winograd_{part}" for part in ("input", "gemm", "output")]


def take_wherever_it_fits(patch: pytest.MonkeyPatch, tile: WinogradTile) -> None:
    patch.setattr(winograd, "TRIED", 0)
    patch.setattr(winograd, "MAY_WIN", float("inf"))
    take_where_it_fits(patch, WinogradConv(), tile)


@pytest.fixture
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WinogradTile]:
    """Make Winograd's method with that tile of the GEMM what is taken wherever it fits."""
    made = WinogradTile(getattr(request, "param", SOFTWARE_TILE))
    take_wherever_it_fits(monkeypatch, made)
    yield made


def network(
    shape: tuple[int, ...],
    co: int,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    *,
    bias: bool = True,
    residual: bool = False,
    relu: bool = True,
    **attributes: Any,
) -> Graph:
    """Return a convolution of 3 x 3 taps with weights as networks have them, and what may be fused to it."""
    net, rng = Net(), np.random.default_rng(3)
    ci = shape[1]
    x = net.input("x", *shape)
    weight = (rng.standard_normal((co, ci, 3, 3)) / np.sqrt(9 * ci)).astype(np.float32)
    more = (rng.standard_normal(co).astype(np.float32),) if bias else ()
    y = net.add(Conv(kernel_shape=(3, 3), pads=pads, **attributes), x, weight, *more)
    if residual:
        top, left, bottom, right = pads
        y = net.add("Add", y, net.input("r", shape[0], co, shape[2] + top + bottom - 2, shape[3] + left + right - 2))
    return net.finish(net.add("Relu", y, name="y") if relu else y)


def inputs_of(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-1, 1, graph.specs[name].dims).astype(np.float32) for name in graph.inputs]


def kernels(session: weft.Session) -> list[str]:
    """Return the templates of the convolution's launches."""
    (pipeline,) = session.pipelines
    labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
    return [k for k in (label.rpartition("/")[2] for label in labels) if k.startswith("conv")]


def assert_winograd(graph: Graph, device: str, precision: str = "high") -> None:
    """Fail unless the device computes what the CPU does, by the three kernels."""
    inputs = inputs_of(graph)
    with weft.load(graph, "cpu") as session:
        (want,) = session.run(*inputs)
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(*inputs)
        assert kernels(session) == KERNELS
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


# -- by value ------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize(
    ("shape", "co", "pads"),
    [
        ((1, 16, 14, 14), 16, (1, 1, 1, 1)),  # patches that end behind the edge
        ((3, 20, 7, 7), 36, (1, 1, 1, 1)),  # blocks that are no whole step
        ((2, 7, 5, 9), 10, (1, 1, 1, 1)),  # channels that are no whole blocks
        ((1, 5, 8, 8), 5, (0, 0, 0, 0)),  # nothing is padded
        ((2, 8, 9, 6), 8, (0, 2, 1, 0)),  # something else on each side
        ((1, 5, 3, 3), 4, (0, 0, 0, 0)),  # one output
        ((1, 5, 2, 1), 4, (6, 1, 0, 3)),  # patches that read nothing but padding
        ((1, 40, 20, 20), 70, (1, 1, 1, 1)),  # more than one tile of the GEMM
    ],
    ids=str,
)
def test_convolution_by_value(
    tile: WinogradTile, device: str, shape: tuple[int, ...], co: int, pads: tuple[int, ...]
) -> None:
    assert_winograd(network(shape, co, pads, residual=True), device)


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize(
    ("bias", "residual", "relu"),
    [(False, False, False), (True, False, False), (False, True, True), (True, False, True)],
)
def test_what_is_fused_is_part_of_the_last_kernel(
    tile: WinogradTile, device: str, bias: bool, residual: bool, relu: bool
) -> None:
    assert_winograd(network((2, 6, 7, 10), 9, bias=bias, residual=residual, relu=relu), device)


@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("tile", [t for t in TILES if t.lz == 1], indirect=True, ids=str)
def test_every_tile_of_the_products(tile: WinogradTile, device: str) -> None:
    assert_winograd(network((3, 18, 13, 6), 34), device)


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("ci", [7, 16, 36])
def test_images_with_channels_last(tile: WinogradTile, api: str, ci: int) -> None:
    with emulated_gpu(api, channels_last=True):
        assert_winograd(network((2, ci, 7, 9), 20, residual=True), "emulated", "normal")


@pytest.mark.alike
@pytest.mark.parametrize("device", APIS)
def test_layers_in_a_row_take_turns_in_scratch_memory(tile: WinogradTile, device: str) -> None:
    net = Net()
    x = net.input("x", 2, 8, 9, 9)
    left, right = (net.add("Relu", net.conv(x, 8, 3, pads=(1, 1, 1, 1))) for _ in range(2))
    graph = net.finish(net.conv(net.add("Add", left, right), 8, 3, pads=(1, 1, 1, 1)))
    inputs = inputs_of(graph)
    with weft.load(graph, "cpu") as cpu, weft.load(graph, device, fallback="error") as session:
        (want,), (got,) = cpu.run(*inputs), session.run(*inputs)
        assert kernels(session).count("conv_winograd_gemm") == 3
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))



def test_sessions_short_of_memory_do_without(tile: WinogradTile) -> None:
    with weft.load(network((1, 8, 8, 8), 8), "opencl", memory="limit", fallback="error") as session:
        assert kernels(session) == ["conv_gemm"]


@pytest.mark.alike
@pytest.mark.parametrize("device", APIS)
def test_sessions_that_forbid_it_do_without(tile: WinogradTile, device: str) -> None:
    with weft.load(network((1, 8, 8, 8), 8), device, winograd=False, fallback="error") as session:
        assert kernels(session) == ["conv_gemm"] and "winograd: off" in str(session.report)


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("ci", [16, 256])
def test_the_errors_are_those_that_the_docs_state(tile: WinogradTile, device: str, ci: int) -> None:
    """By norm, against float64, at HIGH: the bounds in docs/guides/precision.md."""
    graph = network((1, ci, 18, 18), 32, bias=False, relu=False)
    inputs = inputs_of(graph)
    (weight,) = graph.constants.values()
    (exact,) = reference(graph.nodes[0].op, [inputs[0].astype(np.float64), weight.astype(np.float64)])
    errors = []
    for allowed in (True, False):
        with weft.load(graph, device, winograd=allowed, fallback="error") as session:
            (y,) = session.run(*inputs)
            assert (kernels(session) == KERNELS) is allowed
        errors.append(float(np.linalg.norm(y - exact) / np.linalg.norm(exact)))
    assert errors[0] < 2e-6 and errors[1] < 1e-6, errors


def has_constant_weights(row: Case) -> bool:
    return row.op == "Conv" and row.inputs[1] is not None and row.inputs[1].constant


WITH_CONSTANT_WEIGHTS = [row for row in ROWS if has_constant_weights(row)]


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
def test_rows_of_the_table(tile: WinogradTile, device: str) -> None:
    """Those that it does not fit are computed as ever."""
    check_rows(WITH_CONSTANT_WEIGHTS, device, as_it_is, assert_exact)


def assert_exact(row: Case, actual: list[Array]) -> None:
    """Compare with an exact reference: the errors are Winograd's alone."""
    exact = reference(row.make_op(), [None if a is None else a.astype(np.float64) for a in row.arrays()])
    assert_agree(actual, [e.astype(a.dtype) for e, a in zip(exact, actual, strict=True)], row.make_op())


sizes = st.integers(1, 12)
pads = st.integers(0, 3)


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@settings(max_examples=8, deadline=None)
@given(st.tuples(st.integers(1, 3), st.integers(5, 20), sizes, sizes), st.integers(1, 20), st.tuples(*[pads] * 4))
def test_any_shape(device: str, shape: tuple[int, ...], co: int, pads: tuple[int, ...]) -> None:
    n, ci, h, w = shape
    grown = (n, ci, max(h, 3 - pads[0] - pads[2]), max(w, 3 - pads[1] - pads[3]))
    with pytest.MonkeyPatch.context() as patch:
        take_wherever_it_fits(patch, WinogradTile(SOFTWARE_TILE))
        assert_winograd(network(grown, co, pads), device)


# -- by numbers ----------------------------------------------------------------------------------------------


def test_the_matrices_are_those_of_a_correlation() -> None:
    a, g, b = matrices()
    x, w = [Fraction(v) for v in (3, -1, 4, 1, -5, 9)], [Fraction(v) for v in (2, 7, -1)]
    points = [_dot(to, w) * _dot(of, x) for to, of in zip(g, b, strict=True)]
    assert [_dot(row, points) for row in a] == [_dot(x[i : i + TAPS], w) for i in range(SIDE)]


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), start=Fraction(0))


def test_what_kernels_multiply_with_is_exact_in_fp32() -> None:
    a, _, b = matrices()
    assert all(Fraction(float(np.float32(float(x)))) == x for row in (*a, *b) for x in row)


def test_the_points_err_less_than_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def error() -> float:
        matrices.cache_clear()
        a, g, b = (np.array(m, np.float64) for m in matrices())
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((4000, READ)), rng.standard_normal((4000, TAPS))
        exact = np.stack([(x[:, i : i + TAPS] * w).sum(1) for i in range(SIDE)], 1)
        v, u = (x.astype(np.float32) @ b.T.astype(np.float32)), (w @ g.T).astype(np.float32)
        return float(np.linalg.norm((v * u) @ a.T.astype(np.float32) - exact))

    ours = error()
    monkeypatch.setattr(winograd, "POINTS", tuple(map(Fraction, (0, 1, -1, 2, -2))))
    usual = error()
    monkeypatch.undo()
    matrices.cache_clear()
    assert ours < 0.75 * usual


@pytest.mark.parametrize(("co", "ci"), [(5, 3), (16, 16), (9, 20)])
def test_weights_lie_where_the_kernel_reads_them(co: int, ci: int) -> None:
    weight = np.random.default_rng(0).standard_normal((co, ci, 3, 3)).astype(np.float32)
    g = np.array(matrices()[1], np.float64)
    blocks_in, blocks_out = -(-ci // 16) * 4, -(-co // 4)
    packed = pack_weights(weight).reshape(READ, READ, blocks_in, blocks_out, 4, 4)
    for o, i in ((0, 0), (co - 1, ci - 1), (co // 2, ci // 2)):
        want = g @ weight[o, i].astype(np.float64) @ g.T
        np.testing.assert_array_equal(packed[:, :, i // 4, o // 4, i % 4, o % 4], want.astype(np.float32))
    assert np.count_nonzero(packed) == READ * READ * ci * co


# -- where it is chosen --------------------------------------------------------------------------------------

RESNET = [(64, 56), (128, 28), (256, 14), (512, 7)]
"""Channels and sizes of its layers of 3 x 3 taps."""


def problem_of(n: int, ci: int, co: int, size: int, caps: DeviceCaps = H200, **more: Any) -> ConvProblem:
    """Return the problem of square images."""
    kernel, options = more.pop("kernel", 3), {"dtype": DType.FLOAT32, **more}
    return conv_problem((n, ci, size, size), (co, ci, kernel, kernel), caps, **options)


def offered(problem: ConvProblem) -> list[WinogradTile]:
    """Return what tuning may try."""
    algorithm = WinogradConv()
    return [each.tile for each in algorithm.candidates(problem)] if algorithm.why_not(problem) is None else []


def chosen(problem: ConvProblem) -> WinogradTile | None:
    """Return the tile that is expected to win."""
    return winograd.choose_tile(problem, offered(problem))


@pytest.mark.parametrize(("channels", "size"), RESNET)
def test_large_batches_are_transformed_by_default(channels: int, size: int) -> None:
    tile = chosen(problem_of(32, channels, channels, size))
    assert tile is not None and tile.gemm.lz == 1
    assert chosen(problem_of(1, channels, channels, size)) is None


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(32, 32, 64, 56),
        problem_of(32, 64, 32, 56),
        problem_of(32, 64, 64, 56, replace(H200, software=True)),
        problem_of(32, 64, 64, 56, replace(H200, compute_units=16)),
        problem_of(32, 64, 64, 56, replace(H200, max_buffer_range=1 << 25)),
        problem_of(32, 64, 64, 56, replace(H200, max_allocation=1 << 27)),
        problem_of(32, 64, 64, 56, thrifty=True),
        problem_of(32, 64, 64, 56, winograd=False),
        problem_of(32, 64, 64, 56, dtype=DType.FLOAT16),
        problem_of(32, 64, 64, 56, kernel=5),
        problem_of(32, 64, 64, 56, strides=(2, 2)),
    ],
    ids=["few in", "few out", "software", "small", "range", "room", "thrifty", "off", "halves", "taps", "strides"],
)
def test_others_are_not(problem: ConvProblem) -> None:
    assert chosen(problem) is None


def test_tuning_tries_more_than_the_default_takes() -> None:
    problem = problem_of(32, 32, 64, 56)
    assert chosen(problem) is None
    assert offered(problem) == [WinogradTile(t) for t in TILES if t.lz == 1]
    assert offered(problem_of(1, 64, 64, 7)) == []


def test_a_candidate_is_timed_and_a_stored_choice_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(winograd, "MAY_WIN", 1e9)
    small = GemmTile(2, 1, 8, 8, 1)
    monkeypatch.setattr(gemm, "TILES", (small,))
    graph, wanted = network((1, 16, 16, 16), 16), WinogradTile(small)
    with weft.load(graph, "opencl", fallback="error") as session:
        assert kernels(session) == ["conv_gemm"]
        (row,) = tune_pipelines(session.pipelines)
        table = session.pipelines[0].backend.runtime.tuning  # type: ignore[attr-defined]
    assert row.failed == {} and row.default == repr(SOFTWARE_TILE)
    entry = table.entries()[row.problem]
    assert {repr(SOFTWARE_TILE), repr(small), repr(wanted)} <= entry.trials.keys()
    table.note(row.problem, Entry(repr(wanted)))
    with weft.load(graph, "opencl", fallback="error") as session:
        assert kernels(session) == KERNELS


def test_a_profile_shows_three_launches_with_the_work_of_one_node(tile: WinogradTile) -> None:
    graph = network((1, 8, 8, 8), 8)
    with weft.load(graph, "opencl", fallback="error", profile=True) as session:
        session.run(*inputs_of(graph))
        events = [e for e in session.profile.events if "winograd" in e.name]
    assert [e.name.rpartition("/")[2] for e in events] == KERNELS
    (work,) = {e.work for e in events}
    assert work is not None and work.flops >= 2 * 9 * 64 * 64
