"""Every tile of the convolution's GEMM gives the right numbers, whichever the device would choose itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.conv_problems import take
from tests.helpers.convolutions import convolution, launched_as_on_the_cpu
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.random_nets import assert_session_is_right
from weft.errors import UnsupportedOps
from weft.kernels.source import KernelSource
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm import wide_tiles as wide
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.pool import MaxPool

SHAPES = [
    # batch, channels in, channels out, size, kernel, stride, pad
    (1, 3, 17, 9, 3, 2, 1),
    (2, 36, 33, 7, 1, 1, 0),
    (1, 20, 70, 6, 3, 1, 1),
]


def _runs() -> list[Any]:
    """Return every tile on both devices.

    In the short run the wide ones, which take compilers seconds, run on llvmpipe alone: one of those that differ by the
    size of a work-group only. Each other tile runs on OpenCL, which compiles it in less time.
    """
    narrow = list(dict.fromkeys((*gemm.TILES, gemm.SOFTWARE_TILE)))
    tiles = [*narrow, *wide.WIDE_TILES]
    few = {(t.pixels, t.blocks, t.lz): t for t in reversed(wide.WIDE_TILES)}
    quick = {(t, "vulkan") for t in few.values()} | {(t, "opencl") for t in narrow}
    runs = [(tile, device) for tile in tiles for device in ("opencl", "vulkan")]
    return [pytest.param(*run, marks=[pytest.mark.long] * (run not in quick)) for run in runs]


@pytest.mark.parametrize(("tile", "device"), _runs(), ids=str)
def test_every_tile_computes_the_convolution(
    device: str, tile: gemm.GemmTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, wide.WideConv() if tile in wide.WIDE_TILES else gemm.TiledConv(), tile)
    assert_convolutions(device, ["conv_gemm"])


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize(
    "tile",
    [
        InParts(gemm.GemmTile(4, 1, 8, 8, 1), 2),  # of seven, nine and twelve rounds
        InParts(gemm.GemmTile(2, 1, 8, 8, 1), 8),  # some parts have none
        InParts(gemm.GemmTile(4, 1, 8, 8, 4), 2),  # of two and three rounds of four slices
    ],
    ids=str,
)
def test_groups_share_out_the_sums_of_a_convolution(
    device: str, tile: InParts[gemm.GemmTile], monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, gemm.TiledConv(), tile)
    assert_convolutions(device, ["conv_gemm", "sum_parts"])


@pytest.mark.covering
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("tile", [wide.WideTile(8, 2, 4, 8, 1), InParts(wide.WideTile(8, 2, 4, 8, 2), 2)], ids=str)
def test_wide_tiles_that_are_full_and_others_store_all_that_is_asked(
    device: str, tile: wide.WideTile | InParts[wide.WideTile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 72 pixels and 72 channels some groups compute a whole tile, whose stores have no conditions; others do not.

    The product reads scaled numbers, and its result goes through a sum that is a second output.
    """
    take(monkeypatch, wide.WideConv(), tile)
    net = Net()
    x = net.add("Sigmoid", net.input("x", 2, 36, 6, 6))
    made = net.conv(net.add("Mul", x, net.input("gate", 2, 36, 1, 1)), 72)
    joined = net.add("Add", made, net.input("r", 2, 72, 6, 6), name="sum")
    graph = net.finish(net.add("Relu", joined), joined)
    with weft.load(graph, device, fallback="error") as session:
        assert kernels(session).count("conv_gemm") == kernels(session).count("elementwise") == 1
        assert_session_is_right(session, graph, 1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "tile",
    [
        wide.WideTile(8, 2, 8, 16, 1),  # of one column for each item
        wide.WideTile(8, 2, 4, 8, 1),  # of two
        InParts(wide.WideTile(8, 2, 4, 8, 2), 2),
        InParts(wide.WideTile(8, 2, 4, 8, 1), 8),  # some parts have none
    ],
    ids=str,
)
def test_weights_that_are_copied_asynchronously(
    tile: wide.WideTile | InParts[wide.WideTile], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, wide.WideConv(), tile)
    with emulated_gpu(
        "opencl", copies_at_once=at_once, asynchronous_copies=True, software=False, matrices=(), compute_units=132
    ) as made:
        compiled, compile_ = list[str](), made.runtime(0).device.compile

        def noted(source: KernelSource, values: Mapping[str, int | float]) -> object:
            compiled.append(source.text)
            return compile_(source, values)

        monkeypatch.setattr(made.runtime(0).device, "compile", noted)
        for shape in SHAPES:
            graph = convolution(*shape)
            with weft.load(graph, "emulated", fallback="error") as session:
                assert_session_is_right(session, graph, 1e-5)
        assert all("END_OF_COPIES;" in text for text in compiled if "As[" in text)
        assert any("As[" in text for text in compiled)


@pytest.mark.covering
@pytest.mark.parametrize("device", ["vulkan", pytest.param("opencl", marks=pytest.mark.long)])
@pytest.mark.parametrize("channels", [4, 20])
@pytest.mark.parametrize("kind", ["pooled", "pointwise", "taps"])
def test_a_wide_tile_reads_nothing_of_the_next_image(
    device: str, channels: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the blocks of a sum end before a step does, its weights are 0, and 0 times infinity is no number."""
    take(monkeypatch, wide.WideConv(), wide.WideTile(8, 2, 4, 8, 1))
    net = Net()
    x = read = net.input("x", 2, channels, 9, 9)
    if kind == "pooled":
        read = net.add(MaxPool((3, 3), strides=(2, 2)), x)
    graph = net.finish(net.conv(read, 20, *[3] * (kind == "taps"), name="y"))
    values = net.random(2, channels, 9, 9)
    values[1] = np.inf
    with weft.load(graph, device, fallback="error") as session, weft.load(graph, "cpu") as reference:
        assert "pool" not in kernels(session)
        (got,), (want,) = session.run(values), reference.run(values)
    np.testing.assert_allclose(got[0], want[0], 1e-5, 1e-5)


def test_every_item_fetches_as_much_of_each_factor() -> None:
    for tile in (*gemm.TILES, gemm.SOFTWARE_TILE, *wide.WIDE_TILES):
        assert tile.depth * tile.pixels % tile.ly == 0 and 4 * tile.depth * tile.blocks % tile.lx == 0
    for tile in wide.WIDE_TILES:
        items, columns = tile.lx * tile.ly, 4 * tile.columns
        assert tile.pixels % 4 == tile.lx % 4 == tile.ly % 8 == 0
        assert items % (16 * tile.depth) == 0 and (items % columns == 0 or columns % items == 0)


def assert_convolutions(device: str, kernels: list[str]) -> None:
    """Fail unless a device computes what the CPU does, by these launches between those that change the layout."""
    for shape in SHAPES:
        launched = launched_as_on_the_cpu(convolution(*shape), device)
        assert [kernel for kernel in launched if kernel != "relayout"] == kernels


def test_a_tile_fits_the_device_that_chooses_it() -> None:
    from weft.kernels.device_caps import DeviceCaps

    for local_memory in (16384, 32768, 49151):
        for items in (128, 256, 1024):
            caps = DeviceCaps(items, (items, items, 64), local_memory=local_memory, compute_units=132)
            for pixels, blocks, steps in ((49, 512, 288), (3136, 16, 4), (12544, 16, 13), (1, 250, 128)):
                tile = gemm.choose_tile(caps, pixels, blocks, steps)
                assert tile is not None and tile.lx * tile.ly * tile.lz <= items
                assert tile.shared_bytes() <= local_memory


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize(("little", "why"), [
    ({"max_local_items": 32}, "hold 32 items; GPU kernels need 64"),
    ({"local_memory": 1 << 10}, "have 1024 bytes; GPU kernels need 16384"),
])
def test_devices_with_little_room_are_refused(little: dict[str, int], why: str, software: bool) -> None:
    with null_gpu() as device:
        device.caps = replace(CAPS, software=software, **little)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedOps, match=why):
            weft.optimize(convolution(1, 8, 8, 6, 3, 1, 1), "null", fallback="error")
    assert gemm.choose_tile(device.caps, 49, 2, 18) is None
