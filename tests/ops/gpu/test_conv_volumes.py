"""Convolutions of volumes run as convolutions of images, with the right numbers, wherever those can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.conv_problems import take
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds, halves
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile, TiledConv
from weft.ops.gpu.conv.matrix import wgmma
from weft.ops.gpu.conv.matrix.wgmma import WgmmaTile
from weft.ops.gpu.conv.volumes import slices as volumes
from weft.ops.gpu.conv.winograd import WinogradConv, WinogradTile

Attributes = Mapping[str, Any]
WARP = WgmmaTile(1, 16, 3)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Attributes]] = {
    "taps on all axes": ((1, 8, 4, 6, 6), (8, 8, 3, 3, 3), {"pads": (1,) * 6}),
    "blocks in part": ((2, 5, 5, 6, 7), (5, 5, 3, 2, 3), {"strides": (2, 1, 2), "pads": (0, 1, 0, 1, 0, 1)}),
    "slices alone": ((2, 8, 4, 5, 6), (9, 8, 1, 3, 3), {}),
    "depth alone": (
        (2, 6, 7, 3, 5), (9, 6, 3, 1, 1),
        {"strides": (2, 1, 1), "dilations": (2, 1, 1), "pads": (1, 0, 0, 2, 0, 0)},
    ),
    "every other voxel": ((2, 3, 6, 5, 5), (4, 3, 1, 1, 1), {"strides": (2, 2, 2)}),
    "one tap": ((1, 16, 3, 4, 4), (16, 16, 1, 1, 1), {}),
}
TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Attributes]] = {
    "twice as large": ((2, 8, 3, 4, 5), (8, 5, 2, 2, 2), {"strides": (2, 2, 2)}),
    "slices alone": ((2, 5, 2, 3, 4), (5, 4, 1, 2, 2), {"strides": (1, 2, 2)}),
    "taps that overlap": ((2, 5, 2, 3, 4), (5, 6, 3, 3, 3), {"strides": (2, 2, 2), "pads": (1,) * 6}),
    "one more at the end": (
        (1, 8, 3, 3, 2), (8, 4, 3, 3, 3), {"strides": (2, 2, 2), "pads": (1,) * 6, "output_padding": (1, 1, 1)},
    ),
    "as large": ((1, 8, 3, 3, 2), (8, 4, 3, 3, 3), {"pads": (1,) * 6}),
    "cut off": ((1, 8, 3, 4, 3), (8, 4, 3, 2, 4), {"strides": (3, 2, 4), "pads": (1, 0, 1, 0, 1, 0)}),
}


def network(op: str, shape: tuple[int, ...], weight: tuple[int, ...], attributes: Attributes) -> Graph:
    """Return a convolution with a sum and a ReLU, which its kernel computes, and another one behind it."""
    net = Net(seed=1)
    x = net.input("x", *shape)
    out = weight[0] if op == "Conv" else weight[1]
    y = net.add(op, x, net.random(*weight, scale=0.2), net.random(out), **attributes)
    # Of another volume: convolutions of one would be one.
    added = net.add(op, net.input("z", *shape), net.random(*weight, scale=0.2), **attributes)
    y = net.add("Relu", net.add("Add", y, added))
    return net.finish(net.add("Conv", y, net.random(7, out, 1, 3, 1, scale=0.2), pads=(0, 1, 0, 0, 1, 0), name="y"))


def check(graph: Graph, device: str, precision: str = "high", **options: Any) -> list[str]:
    """Compare a device's result with the CPU's, and return the kernels that it launched."""
    fed = {name: halves(value) for name, value in feeds(graph).items()}
    with weft.load(graph, "cpu") as session:
        (want,) = session.run(fed)
    with weft.load(graph, device, precision=precision, fallback="error", **options) as session:
        (got,) = session.run(fed)
        launched = kernels(session)
    assert np.abs(got - want).max() <= (5e-3 if precision == "low" else 1e-5) * np.abs(want).max()
    return launched


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_they_are_convolutions_of_images(device: str, case: str) -> None:
    launched = check(network("Conv", *CASES[case]), device)
    assert "conv_direct" not in launched and "conv_gemm" in launched


@pytest.mark.covering
@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_transposed_ones_store_sub_pixels_of_slices(device: str, case: str) -> None:
    launched = check(network("ConvTranspose", *TRANSPOSED[case]), device)
    assert "conv_transpose" not in launched and "conv_gemm" in launched


@pytest.mark.covering
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_matrix_units_multiply_them(op: str, channels_last: bool) -> None:
    cases = CASES if op == "Conv" else TRANSPOSED
    for case in cases.values():
        with emulated_gpu("opencl", software=False, channels_last=channels_last):
            launched = check(network(op, *case), "emulated", "low")
        assert not {"conv_direct", "conv_transpose"} & set(launched)
        assert {"conv_matrix", "conv_unstaged"} & set(launched)


@pytest.mark.covering
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("channels", [3, 4, 8])
@pytest.mark.parametrize("kernel", [(1, 3, 3), (3, 3, 3), (3, 1, 1)], ids=str)
def test_volumes_may_be_a_part_of_what_a_concat_joins(kernel: tuple[int, ...], channels: int, first: bool) -> None:
    net = Net(seed=1)
    x = net.add("Relu", net.input("x", 2, channels, 3, 4, 5))
    pads = [k // 2 for k in kernel] * 2
    y = net.add("Conv", x, net.random(4, channels, *kernel, scale=0.2), pads=pads)
    graph = net.finish(net.add("Concat", *((x, y) if first else (y, x)), axis=1, name="y"))
    check(graph, "opencl")
    for channels_last in (False, True):
        with emulated_gpu("opencl", software=False, channels_last=channels_last):
            check(graph, "emulated", "low")


@pytest.mark.parametrize(("case", "stacked"), [("slices alone", False), ("taps on all axes", True)])
def test_slices_alone_are_not_stacked_where_channels_come_last(case: str, stacked: bool) -> None:
    with emulated_gpu("opencl", software=False, channels_last=True):
        launched = check(network("Conv", *CASES[case]), "emulated", "low")
    assert ("stack_slices" in launched) is stacked


def test_one_pixel_a_slice_is_no_row_where_channels_come_first() -> None:
    graph = network("Conv", (1, 12, 3, 1, 1), (20, 12, 3, 3, 3), {"pads": (1,) * 6})
    with emulated_gpu("opencl", warpgroups=True, channels_last=False, compute_units=2, software=False):
        check(graph, "emulated", "low")


@pytest.mark.parametrize(
    ("tile", "shape", "weight", "attributes"),
    [
        (WARP, (2, 24, 3, 5, 4), (20, 24, 3, 3, 3), {"pads": (1,) * 6}),  # pieces of eight channels
        (WARP, (1, 5, 4, 5, 6), (20, 5, 3, 2, 3), {"pads": (1,) * 6}),  # of eight, of which three are zeros
        (WARP, (1, 3, 4, 5, 6), (20, 3, 3, 2, 3), {"strides": (2, 1, 2), "pads": (0, 1, 0, 2, 0, 1)}),  # of four
        (WARP, (2, 16, 5, 4, 4), (36, 16, 2, 1, 3), {"dilations": (2, 1, 1)}),
        (WARP, (2, 24, 4, 4, 5), (20, 24, 1, 1, 1), {"strides": (2, 2, 1)}),  # every other slice
        (InParts(WgmmaTile(2, 32, 4), 2), (2, 24, 3, 5, 4), (20, 24, 3, 3, 3), {"pads": (1,) * 6}),
    ],
)
def test_warpgroups_read_slices_where_they_are(
    tile: object,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: Attributes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(monkeypatch, wgmma.WgmmaConv(), tile)
    with emulated_gpu("opencl", warpgroups=True, channels_last=True, compute_units=2, software=False):
        launched = check(network("Conv", shape, weight, attributes), "emulated", "low")
    assert "conv_wgmma" in launched and "stack_slices" not in launched


@pytest.mark.parametrize("slices", [1, 3])
def test_stacks_are_written_in_turns_where_they_are_large(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of the first convolution has 8 channels of 3 slices of 6 x 6, in fp32."""
    graph = network("Conv", *CASES["taps on all axes"])
    monkeypatch.setattr(volumes, "MOST_STACKED", slices * 8 * 3 * 36 * 4)
    launched = check(graph, "opencl")
    with weft.load(graph, "opencl") as session:
        (pipeline,) = session.pipelines
        planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
    turns = [launch for launch in planned if launch.label.endswith("/stack_slices")]
    assert "stack_slices" in launched and len(turns) >= 2 * -(-4 // slices)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_warpgroups_take_turns_too(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "MOST_STACKED", 1)
    take(monkeypatch, wgmma.WgmmaConv(), WARP)
    shape, weight, attributes = CASES["taps on all axes"] if op == "Conv" else TRANSPOSED["taps that overlap"]
    with emulated_gpu("opencl", warpgroups=True, channels_last=True, compute_units=2, software=False):
        launched = check(network(op, shape, weight, attributes), "emulated", "low")
    assert "conv_wgmma" in launched


@pytest.mark.parametrize(("out", "kernel"), [(8, "sum_parts"), (32, "conv_winograd_gemm")])
def test_turns_share_scratch_memory(out: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(seed=1)
    y = net.add("Conv", net.input("x", 1, 64, 6, 20, 20), net.random(out, 64, 3, 3, 3, scale=0.02), pads=(1,) * 6)
    graph, roots = net.finish(y), list[int]()
    for most in (1 << 30, 1):
        monkeypatch.setattr(volumes, "MOST_STACKED", most)
        if kernel == "sum_parts":
            take(monkeypatch, TiledConv(), InParts(GemmTile(4, 1, 8, 8, 1), 4))
        else:
            take(monkeypatch, WinogradConv(), WinogradTile(GemmTile(4, 1, 8, 8, 1)))
        with emulated_gpu("opencl", software=False):
            assert kernel in check(graph, "emulated")
            with weft.load(graph, "emulated") as session:
                (pipeline,) = session.pipelines
                planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
                written = {t.memory.root for launch in planned for t in launch.plan.writes}
                roots.append(len(written))
    assert roots[0] == roots[1]


def test_stacks_fit_a_kernel_argument() -> None:
    graph = network("Conv", *CASES["taps on all axes"])
    with emulated_gpu("opencl", software=False, max_buffer_range=12_000):
        assert "stack_slices" in check(graph, "emulated")


@pytest.mark.parametrize("wrong", ["stack_slices", "conv_gemm"])
def test_they_have_a_kernel_of_their_own_where_those_of_images_are_wrong(wrong: str) -> None:
    with emulated_gpu("opencl", software=False, without=frozenset({wrong})):
        assert "conv_direct" in check(network("Conv", *CASES["taps on all axes"]), "emulated")


def test_groups_and_computed_weights_keep_it() -> None:
    net = Net()
    x = net.input("x", 1, 8, 4, 5, 6)
    grouped = net.finish(net.add("Conv", x, net.random(8, 4, 3, 3, 3), group=2))
    assert "conv_direct" in planned_kernels(grouped)
    net = Net()
    x, w = net.input("x", 1, 8, 4, 5, 6), net.input("w", 8, 8, 3, 3, 3)
    assert "stack_slices" not in planned_kernels(net.finish(net.add("Conv", x, w)))


def test_tuning_tells_them_from_pictures() -> None:
    """Slices are stored elsewhere, so what is fastest there need not be so for as many pictures."""
    from weft.core.graph.dtypes import DType
    from weft.core.graph.layout import Layout
    from weft.ops.gpu.conv.problem import ConvProblem
    from weft.ops.window import slide

    pictures = ConvProblem(
        4, 8, 8, slide((6, 6), (3, 3)), 1, DType.FLOAT16, DType.FLOAT16, DType.FLOAT16, True, Layout.NHWC4, OPENCL
    )
    slices = replace(pictures, slices=4)
    stacks = replace(slices, stacked=2)
    facts = [each.facts_by_channels() for each in (pictures, slices, stacks)]
    assert facts[0] != facts[1] != facts[2] != facts[0]
    assert not pictures.has_output_map and slices.has_output_map


AXIS = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.integers(0, 2))
"""Taps, stride, dilation and pads before and behind."""


@given(st.tuples(AXIS, AXIS, AXIS), st.integers(1, 2), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=examples(40), deadline=None)
def test_any_geometry_gives_what_the_reference_gives(
    axes: tuple[tuple[int, int, int, int, int], ...], n: int, inside: int, out: int
) -> None:
    kernel, strides, dilations, begin, end = zip(*axes, strict=True)
    sizes = (4, 3, 5)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(size + b + e >= r for size, b, e, r in zip(sizes, begin, end, reach, strict=True)))
    net = Net(seed=1)
    x = net.input("x", n, inside, *sizes)
    weight = net.random(out, inside, *kernel)
    y = net.add("Conv", x, weight, strides=strides, dilations=dilations, pads=(*begin, *end), name="y")
    check(net.finish(y), "opencl")
