"""The first run at precision LOW is watched for overflow: what its launches store is looked at in batches."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.recording import stored
from weft.core.graph.graph import Graph

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def layers(count: int, factor: float) -> Graph:
    """Return products of which each is `factor` times as large as the one before; tanh hides how large they are."""
    net = Net()
    x = net.input("x", *X.shape)
    for _ in range(count):
        x = net.add("MatMul", x, net.random(64, 64, scale=factor / 8))
    return net.finish(net.add("Tanh", x))


def test_small_launches_share_a_submission() -> None:
    with null_gpu() as device, weft.load(layers(40, 1.0), "null", precision="low", fallback="error") as session:
        before = device.stats.submits
        session.run(X)
        first, live = device.stats.submits - before, device.stats.live_bytes
        session.run(X)
        assert device.stats.submits - before == first + 1
        assert first <= 4
        assert live == device.stats.live_bytes


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("batch", [0, 1024, 4096])
def test_what_overflows_is_found_however_much_fits(device: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "BATCH", batch)
    graph = layers(8, 7.0)
    with weft.load(graph, "cpu") as session:
        (expected,) = session.run(X)
    with weft.load(graph, device, precision="low", fallback="error") as session:
        (y,) = session.run(X)
        assert any("float32 because they overflowed" in note for note in session.report.notes)
    assert np.mean(np.abs(y - expected) < 0.01) > 0.99
