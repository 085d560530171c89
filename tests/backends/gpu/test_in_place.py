"""Inputs and outputs that kernels read and write where the host does: no copy, whatever else is done with them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.opened import opened
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

SHAPE = (2, 4, 6, 5)


def read_directly() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", *SHAPE), name="y"))


def read_through_a_view() -> Graph:
    net = Net()
    flat = net.add("Flatten", net.input("x", *SHAPE), axis=1)
    return net.finish(net.add("Softmax", flat, axis=1, name="y"))


def part_of_a_concat() -> Graph:
    net = Net()
    x = net.input("x", *SHAPE)
    both = net.add("Concat", x, net.add("Sigmoid", x), axis=1)
    return net.finish(net.add("MaxPool", both, kernel_shape=(2, 2), name="y"))


def read_twice() -> Graph:
    net = Net()
    x = net.input("x", *SHAPE)
    return net.finish(net.add("Add", net.add("Exp", net.add("Tanh", x)), x, name="y"))


NETWORKS = (read_directly, read_through_a_view, part_of_a_concat, read_twice)


def read_inside_as_well() -> Graph:
    net = Net()
    y = net.add("Sigmoid", net.input("x", *SHAPE), name="y")
    return net.finish(y, net.add("Exp", y, name="z"))


def written_in_parts() -> Graph:
    net = Net()
    x = net.input("x", *SHAPE)
    parts = [net.conv(net.add(kind, x), 4) for kind in ("Sigmoid", "Relu")]
    return net.finish(net.add("Concat", *parts, axis=1, name="y"))


def copies(session: weft.Session) -> list[str]:
    """Return the transfers of the last run."""
    return [e.name for e in session.profile.events if e.name.startswith(("upload", "download"))]


@pytest.mark.parametrize("make", NETWORKS)
def test_vulkan_computes_where_the_host_writes(make: type) -> None:
    graph, rng = make(), np.random.default_rng(0)
    with weft.load(graph, "cpu") as cpu, weft.load(graph, "vulkan", fallback="error", profile=True) as session:
        for _ in range(2):
            x: Array = rng.standard_normal(SHAPE, np.float32)
            before = x.copy()
            np.testing.assert_allclose(session.run(x)[0], cpu.run(x)[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(x, before)
        assert copies(session) == []


@pytest.mark.parametrize("make", [read_inside_as_well, written_in_parts])
def test_outputs_that_others_read_or_write_are_right(make: type) -> None:
    graph, rng = make(), np.random.default_rng(0)
    with weft.load(graph, "cpu") as cpu, weft.load(graph, "vulkan", fallback="error") as session:
        for _ in range(2):
            x: Array = rng.standard_normal(SHAPE, np.float32)
            for mine, theirs in zip(session.run(x), cpu.run(x), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_large_output_is_downloaded() -> None:
    net, shape = Net(), (1, 3, 200, 200)
    graph = net.finish(net.add("Relu", net.input("x", *shape), name="y"))
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    with weft.load(graph, "vulkan", fallback="error", profile=True) as session:
        np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
        assert copies(session) == ["download y"]


@pytest.mark.parametrize("flag", ["computes_on_uploads", "stores_to_host"])
@pytest.mark.parametrize("make", [*NETWORKS, read_inside_as_well, written_in_parts])
def test_a_device_that_cannot_copies_as_others_do(make: type, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened("vulkan"), flag, False)
    graph = make()
    x: Array = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    with weft.load(graph, "cpu") as cpu, weft.load(graph, "vulkan", fallback="error", profile=True) as session:
        for mine, theirs in zip(session.run(x), cpu.run(x), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
        kinds = {name.split()[0] for name in copies(session)}
    assert ("upload" if flag == "computes_on_uploads" else "download") in kinds


def test_a_backend_copies_from_and_to_such_memory() -> None:
    graph, rng = read_directly(), np.random.default_rng(0)
    with weft.load(graph, "vulkan", fallback="error") as session:
        x: Array = rng.standard_normal(SHAPE, np.float32)
        (y,) = session.run(x)
        (pipeline,) = session.pipelines
        np.testing.assert_array_equal(pipeline.tensor("x").numpy(), x)
        np.testing.assert_array_equal(pipeline.tensor("y").numpy(), y)
        other: Array = rng.standard_normal(SHAPE, np.float32)
        pipeline.backend.onCopyBuffer(weft.Tensor.from_numpy(other), pipeline.tensor("x"))
        pipeline.execute()
        pipeline.wait()
        np.testing.assert_array_equal(pipeline.tensor("y").numpy(), np.maximum(other, 0))
        pipeline.backend.onClearBuffer()
        with pytest.raises(weft.WeftError):
            pipeline.tensor("x").numpy()


def test_memory_mode_limit_uploads_without_lasting_host_memory() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    with weft.load(read_directly(), "vulkan", memory="limit", fallback="error") as session:
        np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))


def test_memory_is_given_back_with_other_shapes_and_at_the_end() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "n", 3, 4, 4), name="y"))
    rng, stats = np.random.default_rng(0), opened("vulkan").stats
    before = (stats.live_buffers, stats.live_bytes)
    with weft.load(graph, "vulkan", fallback="error") as session:
        for n in (1, 3, 2):
            x = rng.standard_normal((n, 3, 4, 4), np.float32)
            np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
            (pipeline,) = session.pipelines
            assert pipeline.backend.statistics()["staging_bytes"] == 2 * x.nbytes
    assert (stats.live_buffers, stats.live_bytes) == before
