"""Convolutions of each group by itself give the right numbers in place, and are taken where that pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.cards import H200, OPENCL, VULKAN
from tests.helpers.conv_problems import compute_groups, conv_problem
from tests.helpers.convolutions import launched_in_halves
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.nets import Net
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.kernels.chooser import Algorithm
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import PIECE
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile, TiledConv
from weft.ops.gpu.conv.gemm.wide_tiles import WideConv, WideTile
from weft.ops.gpu.conv.grouped.blocks import GroupedConv, facts_of_grouped
from weft.ops.gpu.conv.grouped.one_by_one import MOST_GROUPS, ConvApart
from weft.ops.gpu.conv.matrix.staged import MatrixConv, MatrixTile
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv, UnstagedTile
from weft.ops.gpu.conv.matrix.wgmma import WgmmaConv, WgmmaTile
from weft.ops.gpu.conv.problem import ConvProblem
from weft.ops.gpu.conv.winograd import WinogradConv, WinogradTile

GEMM = GemmTile(4, 1, 8, 8, 1)


def network(
    images: int,
    groups: int,
    inside: int,
    channels: int,
    size: tuple[int, int] = (7, 9),
    kernel: int = 3,
    more: int = 8,
    **attributes: Any,
) -> Graph:
    """Return a convolution in groups of some channels of a value, with steps, joined with another value.

    It reads what lies behind `more` channels. Its steps have one operand a channel and one of the result's shape, and
    what is there before the last one is a result, too.
    """
    net = Net(seed=5)
    x = net.input("x", images, more + groups * inside, *size)
    read = net.pool(x)
    behind = net.add("Split", read, np.array([more, groups * inside]), axis=1, outputs=2)
    pads = (kernel // 2,) * 4
    conv = net.conv(f"{behind}.1", channels, kernel, group=groups, kernel_shape=(kernel,) * 2, pads=pads, **attributes)
    steep = net.add("PRelu", conv, net.random(channels, 1, 1))
    residual = net.input("residual", *net.shape(conv))
    total = net.add("Add", steep, net.pool(residual), name="total")
    y = net.add("Sigmoid", total, name="y")
    joined = net.add("Concat", net.add("Relu", residual), y, axis=1, name="joined")
    return net.finish(joined, total)


def check(graph: Graph, device: str, wanted: dict[str, int], tolerance: float, **options: Any) -> None:
    """Fail unless a device computes what the CPU does, the convolution by so many launches of each of these kernels."""
    launched = launched_in_halves(graph, device, tolerance, **options)
    others = {"relayout", "pool", "elementwise"}
    assert {name: count for name, count in launched.items() if name not in others} == wanted


TOLERANCES = {"high": 1e-5, "low": 4e-3}


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("layout", [Layout.NC4HW4, Layout.NHWC4])
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("images", [1, 3])
def test_groups_are_computed_in_place(
    device: str, layout: Layout, precision: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_groups(monkeypatch, TiledConv(), GEMM)
    monkeypatch.setattr(Target, "packed_layout", layout)
    graph = network(images, 2, 20, 24, strides=(2, 1))
    check(graph, device, {"conv_gemm": 2}, TOLERANCES[precision], precision=precision)


@pytest.mark.covering
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize(
    ("algorithm", "tile", "images", "groups", "wanted"),
    [
        (WideConv(), WideTile(8, 2, 8, 8, 1), 1, 3, {"conv_gemm": 3}),
        (TiledConv(), InParts(GemmTile(2, 1, 8, 8, 4), 2), 3, 2, {"conv_gemm": 2, "sum_parts": 2}),
        (
            WinogradConv(), WinogradTile(GEMM), 3, 2,
            {"conv_winograd_input": 2, "conv_winograd_gemm": 2, "conv_winograd_output": 2},
        ),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_several_launches_and_more_memory_serve_each_group(
    device: str,
    algorithm: Algorithm[Any, Any, Any],
    tile: Any,
    images: int,
    groups: int,
    wanted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_groups(monkeypatch, algorithm, tile)
    check(network(images, groups, 36, groups * 20, (13, 15)), device, wanted, 1e-5)


PIECES = UnstagedTile(1, 1, 1, 4)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "tile", "inside", "channels", "more", "api", "wanted"),
    [
        (UnstagedConv(), PIECES, 24, 48, 8, "opencl", {"conv_unstaged": 2}),
        (UnstagedConv(), PIECES, 24, 48, 8, "vulkan", {"conv_unstaged": 2}),
        (UnstagedConv(), InParts(PIECES, 2), 64, 32, 8, "opencl", {"conv_unstaged": 2, "sum_parts": 2}),
        (MatrixConv(), MatrixTile(2, 1, 2, 2), 24, 48, 8, "opencl", {"conv_matrix": 2}),
        # The second group begins within a piece, and so do both.
        (MatrixConv(), MatrixTile(2, 1, 2, 2), 20, 24, 8, "opencl", {"conv_matrix": 2}),
        (MatrixConv(), MatrixTile(2, 1, 2, 2), 24, 24, 4, "opencl", {"conv_matrix": 2}),
        (WgmmaConv(), WgmmaTile(1, 32, 3), 40, 80, 8, "opencl", {"conv_wgmma": 2}),
        (WgmmaConv(), WgmmaTile(1, 32, 3), 20, 24, 4, "opencl", {"conv_wgmma": 2}),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_matrix_units_compute_groups(
    api: str,
    images: int,
    algorithm: Algorithm[Any, Any, Any],
    tile: Any,
    inside: int,
    channels: int,
    more: int,
    wanted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_groups(monkeypatch, algorithm, tile)
    graph = network(images, 2, inside, channels, more=more)
    warpgroups = "conv_wgmma" in wanted
    with emulated_gpu(api, channels_last=True, warpgroups=warpgroups):
        check(graph, "emulated", wanted, 4e-3, precision="low")


def in_groups(
    caps: DeviceCaps, images: int, channels: tuple[int, int], size: int, groups: int, dtype: DType
) -> ConvProblem:
    """Return a 3 x 3 convolution in groups as it lies on a card."""
    half, (inside, outside) = dtype is DType.FLOAT16, channels
    shape = images, inside, size, size
    problem = conv_problem(shape, (outside, inside // groups, 3, 3), caps, dtype=dtype, rows=half)
    pieces = [half and n // groups % PIECE == 0 for n in channels]
    lies = {"layout": Layout.NHWC4 if half else Layout.NC4HW4, "read_pieces": pieces[0], "written_pieces": pieces[1]}
    return replace(problem, group=groups, **lies)  # type: ignore[arg-type]


@pytest.mark.parametrize("caps", [OPENCL, VULKAN], ids=["opencl", "vulkan"])
@pytest.mark.parametrize(
    ("images", "channels", "size", "groups", "in_fp32", "in_fp16"),
    [
        (1, (512, 1024), 14, 2, False, True),  # ResNeSt
        (1, (256, 512), 28, 2, True, True),
        (1, (128, 256), 56, 2, True, True),
        (16, (384, 384), 13, 2, True, True),  # AlexNet
        (32, (1056, 1056), 7, 4, True, True),  # RegNet
        (1, (1056, 1056), 7, 4, False, False),
        (1, (400, 400), 7, 10, False, False),
        (1, (512, 512), 14, 16, False, False),
        (1, (1024, 1024), 7, 32, False, False),  # ResNeXt
        (32, (128, 128), 56, 32, False, False),
    ],
)
def test_few_wide_groups_are_computed_apart(
    caps: DeviceCaps,
    images: int,
    channels: tuple[int, int],
    size: int,
    groups: int,
    in_fp32: bool,
    in_fp16: bool,
) -> None:
    for dtype, expected in ((DType.FLOAT32, in_fp32), (DType.FLOAT16, in_fp16)):
        decision = CONVOLUTIONS.decide(in_groups(caps, images, channels, size, groups, dtype))
        taken = decision.candidates[decision.default]
        assert isinstance(taken.algorithm, ConvApart if expected else GroupedConv) and decision.in_microseconds
        rivals = [each.cost for each in decision.candidates.values()]
        assert taken.cost == min(rivals)


def test_where_groups_are_not_computed_apart() -> None:
    problem = in_groups(OPENCL, 1, (256, 512), 28, 2, DType.FLOAT16)
    assert ConvApart().why_not(problem) is None
    refused = {
        "self-test": replace(problem, caps=replace(OPENCL, without=frozenset({"conv_apart"}))),
        "on a CPU": replace(problem, caps=replace(OPENCL, software=True)),
        f"more than {MOST_GROUPS} groups": in_groups(OPENCL, 1, (512, 512), 14, 2 * MOST_GROUPS, DType.FLOAT16),
        "its weights are computed": replace(problem, computed=True),
        "its bias is computed": replace(problem, bias_computed=True),
        "no kernel": replace(problem, caps=replace(H200, matrices=(), without=frozenset({"conv_gemm"}))),
    }
    for why, each in refused.items():
        assert why in (ConvApart().why_not(each) or "")


def test_a_view_that_begins_within_a_piece_is_another_problem_to_tuning() -> None:
    problem = in_groups(OPENCL, 1, (256, 512), 28, 2, DType.FLOAT16)
    facts, moved = facts_of_grouped(problem), facts_of_grouped(replace(problem, read_pieces=False))
    assert moved == {**facts, "x_pieces": False} and "x_pieces" not in facts
    in_fp32 = in_groups(OPENCL, 1, (256, 512), 28, 2, DType.FLOAT32)
    assert "x_pieces" not in facts_of_grouped(in_fp32)
