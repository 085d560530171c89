"""Kernels for matrix units, run by value where there are none: attention in both languages, convolutions in OpenCL C.

Dialects emulate what the devices here lack; the rest of the kernels is the text that GPUs get. Each variant takes a
compiler of kernels for CPUs some seconds, which is why they are few and their tiles small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.op_rows import ROWS, assert_agree, reference
from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, Operand, StepText, render
from weft.ops.attention import Extents
from weft.ops.gpu.attention import matrix as attention_matrix
from weft.ops.gpu.attention.matrix import (
    TILES,
    AttentionTile,
    MatrixAttention,
    StagedTile,
    TallTile,
    legal_tiles,
    microseconds,
)
from weft.ops.gpu.attention.problem import AttentionProblem
from weft.ops.gpu.conv.matrix import staged as matrix
from weft.ops.gpu.conv.matrix.staged import MatrixTile
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of, halved

MINILM = Extents((1, 12), 128, 128, 32, 32)


def by_name(name: str) -> Case:
    """Return the attention's row of that name."""
    (row,) = [r for r in ROWS if re.fullmatch(rf"weft::Attention.*\](-\w+=[\d.]+)*-{name}", r.id)]
    return row


def run_here(graph: Graph, feeds: Mapping[str, Array], kernel: str) -> list[Array]:
    """Return what the emulated device computes, and see that it did so with that kernel."""
    with weft.load(graph, "emulated", precision="low", fallback="error") as session:
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
        assert any(label.endswith(f"/{kernel}") for label in labels), labels
        return session.run(dict(feeds))


@pytest.fixture
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttentionTile]:
    """Make that tile the only one."""
    monkeypatch.setattr(attention_matrix, "TILES", (request.param,))
    yield request.param


BLOCKS, SLICES, LONG = AttentionTile(2, 1, 16), AttentionTile(1, 2, 16), AttentionTile(1, 1, 32)
STAGED, TALL = StagedTile(2, 2, 16), TallTile(2, 1, 32)
PLACES = [
    *[(BLOCKS, n) for n in ("hidden", "lowest", "replaced", "all-hidden", "odd-rows-zero")],
    *[(BLOCKS, n) for n in ("mask-of-all", "packed", "halves")],
    *[(SLICES, name) for name in ("hidden", "all-hidden", "odd-rows-zero", "packed", "capped-hidden")],
    (LONG, "full-blocks"),
    *[(BLOCKS, name) for name in ("shared", "shared-side-by-side", "capped", "capped-high", "capped-halves")],
]
STAGED_PLACES = [
    *[(STAGED, name) for name in ("all-hidden", "packed", "capped-halves")],
    *[(TALL, name) for name in ("hidden", "odd-rows-zero", "packed", "mask-of-all", "halves", "shared", "capped")],
]
QUICK_ON_VULKAN = [(SLICES, "packed")]
"""What llvmpipe compiles in the short run, which takes it ten seconds. OpenCL runs them all."""


@pytest.mark.parametrize(
    ("api", "tile", "name"),
    [
        *[("opencl", t, n) for t, n in (*PLACES, *STAGED_PLACES, (BLOCKS, "uneven-heads"))],
        *[
            pytest.param("vulkan", t, n, marks=[pytest.mark.long] * ((t, n) not in QUICK_ON_VULKAN))
            for t, n in (*PLACES, (BLOCKS, "plain"))
        ],
    ],
    indirect=["tile"],
    ids=str,
)
def test_attention_by_value(api: str, tile: AttentionTile, name: str) -> None:
    row = by_name(name)
    arrays = halved(row)
    for at_once in {False, tile.staged}:
        with emulated_gpu(api, copies_at_once=at_once, asynchronous_copies=tile.staged):
            actual = run_here(graph_of(row), feeds_of(row, arrays), "attention_matrix")
        assert_agree(actual, reference(row.make_op(), arrays), row.make_op())


@pytest.mark.parametrize("api", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@pytest.mark.parametrize("tile", [BLOCKS], indirect=True)
def test_the_lowest_half_of_a_mask_leaves_nothing_of_the_scores(api: str, tile: AttentionTile) -> None:
    net = Net()
    names = [net.input(n, 1, 2, 24, 8, dtype=DType.FLOAT16) for n in "qkv"]
    mask = np.zeros((24, 24), np.float16)
    mask[3] = mask[4, 9:] = mask[5, :20] = np.finfo(np.float16).min
    graph = net.finish(net.add("weft::Attention", *names, mask, scale=3.0, lowest_hides=1, name="y"))
    feeds = {n: net.random(1, 2, 24, 8).astype(np.float16) for n in names}
    with emulated_gpu(api):
        (actual,) = run_here(graph, feeds, "attention_matrix")
    (node,) = graph.nodes
    expected = np.asarray(node.op.reference(*feeds.values(), mask), np.float32)
    np.testing.assert_allclose(actual.astype(np.float32), expected, 5e-3, 3e-3)
    np.testing.assert_allclose(actual[:, :, 3], feeds["v"].astype(np.float32).mean(2), 2e-3, 1e-3)


@pytest.mark.parametrize("tile", [BLOCKS], indirect=True)
def test_attention_with_a_step_fused_into_its_store(tile: AttentionTile) -> None:
    net = Net()
    names = [net.input(n, 1, 2, 5, 8, dtype=DType.FLOAT16) for n in "qkv"]
    graph = net.finish(net.add("Relu", net.add("weft::Attention", *names), name="y"))
    feeds = {n: net.random(1, 2, 5, 8).astype(np.float16) for n in names}
    with emulated_gpu("opencl"):
        (actual,) = run_here(graph, feeds, "attention_matrix")
    with weft.load(graph, "cpu") as session:
        (expected,) = session.run(feeds)
    np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), 2e-3, 1e-3)


@pytest.mark.parametrize("tile", [BLOCKS], indirect=True)
def test_heads_whose_elements_are_apart_are_copied_to_rows(
    tile: AttentionTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is written where it goes: its rows are side by side there, too."""
    monkeypatch.setattr(attention_matrix, "portable_us", lambda problem: inf)
    net = Net()
    shapes = {"q": (2, 3, 8, 21), "k": (2, 3, 8, 18), "v": (2, 3, 18, 16)}
    names = [net.input(n, *shape, dtype=DType.FLOAT16) for n, shape in shapes.items()]
    q, k = (net.add("Transpose", each, perm=(0, 1, 3, 2)) for each in names[:2])
    turned = net.add("Transpose", net.add("weft::Attention", q, k, names[2], scale=0.3), perm=(0, 1, 3, 2))
    graph = net.finish(net.add("Relu", turned, name="y"))
    feeds = {n: net.random(*shape).astype(np.float16) for n, shape in shapes.items()}
    with emulated_gpu("opencl"), weft.load(graph, "emulated", precision="low", fallback="error") as session:
        assert kernels(session) == ["move", "attention_matrix"]
        (actual,) = session.run(feeds)
    (expected,) = outputs(graph, feeds)
    np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), 2e-3, 1e-3)


def test_heads_are_copied_where_that_takes_less_time_than_the_portable_kernel() -> None:
    def why_not(rows: int, apart: str) -> str | None:
        each = Extents((1, 8), rows, rows, 64, 64)
        steps = {name: 64 for letter in "QKVY" for name in (f"{letter}B", f"{letter}H", f"{letter}S")}
        places = steps | {f"{letter}D": rows for letter in apart}
        return MatrixAttention().why_not(AttentionProblem(each, tuple(places.items()), False, True, H200))

    assert why_not(64, "") is None and why_not(64, "Y") is None, "there is nothing to copy"
    assert "copying" in str(why_not(64, "QKV"))
    assert why_not(4096, "QKV") is None


@pytest.mark.parametrize(
    ("tile", "channels_last"), [(MatrixTile(1, 1, 2, 1), True), (MatrixTile(1, 1, 1, 1, 2, 4), False)], ids=repr
)
def test_convolutions_by_value(tile: MatrixTile, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "TILES", (MatrixTile(1, 1, 2, 1), tile))
    net = Net()
    x = net.input("x", 1, 24, 6, 5, dtype=DType.FLOAT16)
    w, b = (net.random(*s, scale=0.1).astype(np.float16) for s in ((20, 24, 3, 3), (20,)))
    graph = net.finish(net.add("Conv", x, w, b, name="y", kernel_shape=(3, 3), pads=(1, 1, 1, 1)))
    feeds = {"x": net.random(1, 24, 6, 5).astype(np.float16)}
    # Where there are more compute units than groups the last tile is taken.
    without = frozenset({"conv_unstaged"})
    with emulated_gpu("opencl", channels_last=channels_last, compute_units=1000, without=without):
        (actual,) = run_here(graph, feeds, "conv_matrix")
    (node,) = graph.nodes
    expected = np.asarray(node.op.reference(feeds["x"], w, b), np.float32)
    np.testing.assert_allclose(actual.astype(np.float32), expected, 2e-3, 1e-3)


@pytest.mark.covering
@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (4, 4), (2, 1)], ids=str)
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_the_kernel_of_every_tile_compiles(tile: AttentionTile, heads: tuple[int, int]) -> None:
    depth, width = heads
    variant: dict[str, int | str] = {
        "warps": tile.warps, "slices": tile.slices, "keys": tile.keys, "depth": depth, "width": width,
    }
    names = "BLOCKS COUNT D E GROUPS HEADS K0 KB KH KS MB MH MK MS Q0 QB QH QS QUERIES V0 VB VH VS YB YH YS".split()
    compiler = glslang.find_compiler()
    assert compiler is not None
    step = StepText("fmax({0}, 0.0)", (Operand("value"),))
    for masked, steps, apart, capped in (
        (True, (), "", False), (False, (step,), "", False), (False, (), "Y", False), (True, (), "", True),
    ):
        drawn: dict[str, int | str] = {**variant, "apart": apart} if apart else variant
        drawn = {**drawn, "capped": True} if capped else drawn
        held = ["q_in", "k_in", "v_in", *["mask"] * masked, "y"]
        args = tuple(Arg(n, DType.FLOAT16, "linear", n == "y") for n in held)
        request = KernelRequest(
            "attention_matrix", tuple(sorted(drawn.items())), args,
            (*names, *["YD"] * bool(apart)), ("SCALE", *["CAP"] * capped), steps, "y",
        )
        source = render(request, GlslDialect())
        assert compiler.compile(source.text, source.entry).startswith(glslang.SPIRV_MAGIC)


def fastest(each: Extents, caps: DeviceCaps = H200) -> AttentionTile:
    """Return the tile that is expected to take the least time."""
    return min(legal_tiles(caps, each), key=lambda tile: microseconds(caps, each, tile))


def test_tiles_fill_the_device_and_fit_it() -> None:
    assert fastest(MINILM) == AttentionTile(1, 2, 64), "12 heads of 8 blocks: slices make up for the rest"
    assert fastest(Extents((16, 12), 197, 197, 64, 64)).slices == 1
    large = legal_tiles(H200, Extents((1, 1), 16, 4096, 128, 128))
    assert large and all(t.keys <= 32 and t.shared_bytes(Extents((1,), 1, 1, 128, 128)) < 48 << 10 for t in large)
    assert all(t.slices == 1 for t in legal_tiles(H200, Extents((1, 1), 16, 8, 32, 32))), "one block is not shared out"


def test_many_queries_share_what_is_staged() -> None:
    stages = replace(H200, asynchronous_copies=True)
    assert isinstance(fastest(Extents((16, 12), 197, 197, 64, 64), stages), TallTile)
    assert not isinstance(fastest(MINILM, stages), StagedTile), "a block of keys has few readers"
    wide = [t for t in legal_tiles(stages, Extents((1, 1), 16, 4096, 128, 128)) if isinstance(t, StagedTile)]
    assert wide and all(t.registers(Extents((1,), 1, 1, 128, 128)) <= 255 for t in wide)
    for without in (replace(stages, without=frozenset({"attention_staged"})), H200):
        assert not any(t.staged for t in legal_tiles(without, MINILM))
