"""Winograd's convolution: by value in both languages, its matrices and weights by numbers, where it is chosen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.core.nets import Net
from weft.conformance.cases.table import tolerance
from weft.core.dtypes import DType
from weft.core.graph import Graph
from weft.ops.conv import Conv
from weft.ops.gpu import conv_winograd
from weft.ops.gpu.conv import SOFTWARE_TILE
from weft.ops.gpu.conv_winograd import WinogradTile


@pytest.fixture
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WinogradTile]:
    """Make Winograd's method with that tile of the GEMM the default wherever it fits."""
    made = WinogradTile(getattr(request, "param", SOFTWARE_TILE))
    monkeypatch.setattr(conv_winograd, "tiles", lambda plan, _: [made] if conv_winograd.fits(plan) else [])
    monkeypatch.setattr(conv_winograd, "choose_tile", lambda _, candidates: next(iter(candidates), None))
    yield made


def network(
    shape: tuple[int, ...], co: int, pads: tuple[int, ...], bias: bool = True, residual: bool = True, relu: bool = True
) -> Graph:
    """Return a convolution of 3 x 3 taps with weights as networks have them, and what may be fused to it."""
    net, rng = Net(), np.random.default_rng(3)
    ci = shape[1]
    x = net.input("x", *shape)
    weight = (rng.standard_normal((co, ci, 3, 3)) / np.sqrt(9 * ci)).astype(np.float32)
    more = (rng.standard_normal(co).astype(np.float32),) if bias else ()
    y = net.add(Conv(kernel_shape=(3, 3), pads=pads), x, weight, *more)
    if residual:
        _, _, h, w = shape
        y = net.add("Add", y, net.input("r", shape[0], co, h + pads[0] + pads[2] - 2, w + pads[1] + pads[3] - 2))
    return net.finish(net.add("Relu", y, name="y") if relu else y)


def assert_winograd(graph: Graph, device: str) -> None:
    """Fail unless the device computes what the CPU does, by the three kernels."""
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(-1, 1, graph.specs[i].dims).astype(np.float32) for i in graph.inputs]
    with weft.load(graph, "cpu") as session:
        (want,) = session.run(*inputs)
    with weft.load(graph, device, fallback="error") as session:
        (got,) = session.run(*inputs)
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.launches]  # type: ignore[attr-defined]
    kernels = [label.rpartition("/")[2] for label in labels]
    assert [k for k in kernels if "conv" in k] == [f"conv_winograd_{part}" for part in ("input", "gemm", "output")]
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


DEVICES = ["opencl", "vulkan"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "co", "pads"),
    [
        ((1, 16, 14, 14), 16, (1, 1, 1, 1)),  # patches that end behind the edge
        ((3, 20, 7, 7), 36, (1, 1, 1, 1)),  # blocks that are no whole step
        ((2, 7, 5, 9), 10, (1, 1, 1, 1)),  # channels that are no whole blocks
        ((1, 3, 8, 8), 5, (0, 0, 0, 0)),  # nothing is padded
        ((2, 8, 9, 6), 8, (0, 2, 1, 0)),  # something else on each side
        ((1, 4, 3, 3), 4, (0, 0, 0, 0)),  # one output
        ((1, 40, 20, 20), 70, (1, 1, 1, 1)),  # more than one tile of the GEMM
    ],
    ids=str,
)
def test_convolution_by_value(
    tile: WinogradTile, device: str, shape: tuple[int, ...], co: int, pads: tuple[int, ...]
) -> None:
    assert_winograd(network(shape, co, pads), device)
