"""A network of at least 50 nodes, divided over Vulkan, OpenCL and the CPU, with the right numbers (A3, A4, A8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import groupby

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from benchmarks.models import resnet50, squeezenet1_1
from tests.helpers.run_length import is_long
from weft.core.graph.layout import Array

ORDER = ("vulkan", "opencl", "cpu")
BLOCKS = 18


def blocks() -> onnx.ModelProto:
    """Return a network of 18 residual blocks, one like the other, so that a device compiles few kernels for it."""
    rng = np.random.default_rng(5)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    value = "x"
    for k in range(BLOCKS):
        name = f"blocks.{k}"
        kernel = (rng.standard_normal((8, 8, 3, 3)) / 9).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        out = "y" if k == BLOCKS - 1 else f"{name}/out"
        nodes += [
            helper.make_node("Conv", [value, f"{name}.weight"], [f"{name}/c"], f"{name}/conv", pads=[1] * 4),
            helper.make_node("Add", [value, f"{name}/c"], [f"{name}/s"], f"{name}/add"),
            helper.make_node("MaxPool", [f"{name}/s"], [out], f"{name}/pool", kernel_shape=[3, 3], pads=[1] * 4),
        ]
        value = out
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 8, 13, 11]) for n in "xy"]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "blocks": blocks,
    "squeezenet": lambda: squeezenet1_1("N", image=63, width=0.25, classes=40),
    "resnet50": lambda: resnet50("N", image=32, width=0.125, classes=40),
}


@cache
def model(name: str) -> onnx.ModelProto:
    return MODELS[name]()


@cache
def picture(name: str, batch: int) -> Array:
    _, *sizes = (dim.dim_value for dim in model(name).graph.input[0].type.tensor_type.shape.dim)
    return np.random.default_rng(batch).standard_normal((batch, *sizes)).astype(np.float32)


@cache
def alone(name: str, batch: int) -> Array:
    """Return what the CPU makes of the pictures."""
    with weft.load(model(name), "cpu") as session:
        y: Array = session.run(picture(name, batch))[0]
        return y


def block(node: str) -> str:
    """Return the block that a node belongs to: "features.3", "layer2.1"."""
    return ".".join(node.partition("/")[0].split(".")[:2])


def by_block(name: str) -> dict[str, str]:
    """Return a device for each node, the blocks taking turns."""
    nodes = [n.name for n in model(name).graph.node]
    turns = {b: ORDER[k % 3] for k, (b, _) in enumerate(groupby(nodes, block))}
    return {n: turns[block(n)] for n in nodes}


def by_node(name: str) -> dict[str, str]:
    """Return a device for each node, every one on the next device."""
    return {n.name: ORDER[k % 3] for k, n in enumerate(model(name).graph.node)}


def assert_close(name: str, got: Array, batch: int, tolerance: float) -> None:
    wanted = alone(name, batch)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(got / scale, wanted / scale, rtol=0, atol=tolerance)


def check_placement(session: weft.Session, hints: dict[str, str]) -> int:
    """Every node is where its hint says; return how many there are."""
    report = session.report
    assert not report.refusals
    assert set(report.nodes_by_device) == set(ORDER)
    network = session.optimized
    hinted = {n: d.removesuffix(":0") for n, d in network.placement.items() if n in hints}
    assert len(hinted) > 0.9 * len(network.placement), "few nodes are not of the model"
    assert hinted == {n: hints[n] for n in hinted}
    assert [p.device for p in network.parts] == list(report.subgraphs)
    assert all(a != b for a, b in zip(report.subgraphs, report.subgraphs[1:], strict=False))
    assert len({n for p in network.parts for n in (x.name for x in p.graph.nodes)}) == len(network.placement)
    copied = {c.name for c in report.copies}
    assert copied == {n.name for n in network.copies} and all(c.source != c.target for c in report.copies)
    return len(network.placement)


@pytest.mark.parametrize(
    ("name", "nodes", "parts", "precision", "batches"),
    [
        pytest.param("squeezenet", 36, 13, "low", (1,), marks=pytest.mark.long),
        ("blocks", 42, 18, "high", (1, 2, 1)),
        pytest.param("squeezenet", 36, 13, "high", (1, 2, 1), marks=pytest.mark.long),
        pytest.param("resnet50", 70, 18, "high", (1, 2, 1), marks=pytest.mark.long),
    ],
)
def test_blocks_take_turns_on_three_devices(
    name: str, nodes: int, parts: int, precision: str, batches: tuple[int, ...]
) -> None:
    assert len(model(name).graph.node) >= 50
    hints, tolerance = by_block(name), 1e-4 if precision == "high" else 0.03
    with weft.load(model(name), ORDER, hints=hints, precision=precision, fallback="error") as session:
        for batch in batches:
            (y,) = session.run(picture(name, batch))
            assert_close(name, y, batch, tolerance)
            assert check_placement(session, hints) >= nodes
            assert len(session.report.subgraphs) >= parts
            assert len(session.report.copies) >= parts - 1


def test_at_least_fifty_nodes_each_on_the_next_device() -> None:
    """The worst case: nearly every value crosses."""
    name, nodes = ("resnet50", 70) if is_long() else ("blocks", 50)
    hints = by_node(name)
    network = weft.optimize(model(name), ORDER, hints=hints, shapes={"x": picture(name, 1).shape})
    with weft.Runtime() as runtime:
        id_ = runtime.load(network)
        for _ in range(2):
            assert_close(name, runtime.run(id_, picture(name, 1))[0], 1, 1e-4)
        assert check_placement(runtime.session(id_), hints) >= nodes
        assert len(runtime.session(id_).report.subgraphs) > 40


def test_a_divided_network_tells_of_every_node_in_debug_and_profile() -> None:
    name = "resnet50" if is_long() else "blocks"
    heard: list[weft.DebugRecord] = []
    shapes = {"x": picture(name, 1).shape}
    with weft.load(
        model(name), ORDER, hints=by_block(name), shapes=shapes, debug=heard.append, profile=True
    ) as session:
        (y,) = session.run(picture(name, 1))
        assert_close(name, y, 1, 1e-4)
        placed = {n: d for n, d in session.optimized.placement.items() if not n.startswith("debug ")}
        assert {r.node: r.device for r in heard} == placed
        assert all(r.nan_count == 0 and r.minimum is not None for r in heard)
        last = heard[[r.node for r in heard].index(session.optimized.graph.producers()["y"].name)]
        np.testing.assert_allclose(np.array([last.minimum, last.maximum], float), [y.min(), y.max()], rtol=1e-6)
        assert {e.device for e in session.profile.events} == {f"{d}:0" for d in ORDER}
        assert {c.name for c in session.report.copies} <= {e.name for e in session.profile.events}
