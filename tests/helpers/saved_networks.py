"""Networks to be saved, what is made of their files, and how a file is refused, for the tests of contract row F8."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.fuzz.resealed import reseal
from tests.helpers.nets import op
from weft.core.contract.backend import BackendConfig
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import Copy, OptimizedNetwork, Part, PreCompiled
from weft.core.saved.network_file import load_saved
from weft.errors import ModelError, WeftError

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "weft" / "models" / "shapes.onnx"
F32 = TensorSpec((2,), DType.FLOAT32)


class Color(Enum):
    """An enum that only an op below knows."""

    RED = 1


@dataclass(frozen=True)
class Holder(Op):
    """An op whose attribute may be anything."""

    value: object = None
    color: Color | None = None

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (F32,)

    def reference(self, *inputs: Array | None) -> Array:
        return np.zeros(2, np.float32)


def of_ops(*ops: Op) -> OptimizedNetwork:
    """Return a network with a node for each op, all of one part."""
    nodes = [Node(f"n{k}", each, ("x",), (f"y{k}",)) for k, each in enumerate(ops)]
    values = ["x", *(f"y{k}" for k in range(len(ops)))]
    return whole(Graph("g", ["x"], values[1:], nodes, dict.fromkeys(values, F32)))


def whole(graph: Graph, device: str = "cpu:0") -> OptimizedNetwork:
    """Return a graph as a network of one part."""
    part = replace(graph, name=f"{graph.name}.0")
    return OptimizedNetwork(
        graph, (Part(device, part),), (device,), BackendConfig(), versions={device[:-2]: ""}
    )


def content(network: OptimizedNetwork, folder: Path) -> bytes:
    """Return the bytes of a saved network."""
    network.save(folder / "content.weft")
    return (folder / "content.weft").read_bytes()


def again(network: OptimizedNetwork, folder: Path) -> OptimizedNetwork:
    """Return the network saved and loaded, having checked that saving that gives the same file."""
    first = content(network, folder)
    loaded = OptimizedNetwork.load(folder / "content.weft")
    assert content(loaded, folder) == first
    return loaded


def manifest_of(saved: bytes) -> Any:
    """Return what network.json says."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        return json.loads(archive.read("network.json"))


def changed(saved: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Return a saved network with other members, with checksums and seals of those."""
    members = members_of(saved)
    change(members)
    reseal(members)
    return packed(members)


def members_of(saved: bytes) -> dict[str, bytes]:
    """Return the members of a saved network by name."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: Mapping[str, bytes]) -> bytes:
    """Return the file of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def rewritten(saved: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a saved network with another network.json."""

    def rewrite(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["network.json"])
        change(manifest)
        members["network.json"] = json.dumps(manifest).encode()

    return changed(saved, rewrite)


def refusal(saved: bytes, folder: Path, kind: type[WeftError] = ModelError) -> str:
    """Return the message with which a file is refused; it names the file."""
    path = folder / "refused.weft"
    path.write_bytes(saved)
    with pytest.raises(kind) as caught:
        load_saved(path)
    assert type(caught.value) is kind
    assert caught.value.where == str(path)
    return str(caught.value)


def same_bits(a: Array, b: Array) -> bool:
    """Tell whether two arrays are the same to the bit."""
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def small() -> OptimizedNetwork:
    """Return a network with two parts, a copy, a constant, a fused op and bytes of a backend."""
    values = ["x", "h", "a", "a@b", "w", "y"]
    fused = Fused(op("Add"), 2, (Step(op("Relu"), (RUNNING,)),))
    first = Graph("g.0", ["x"], ["a"], [Node("n0", fused, ("x", "w"), ("h",)), Node("n2", op("Abs"), ("h",), ("a",))])
    last = Graph(
        "g.1", ["a@b"], ["y"], [Node("n1", PreCompiled("cpu", b"code", (F32,)), ("a@b", "w"), ("y",))]
    )
    copy = Node("copy a", Copy("cpu:0", "cpu:1"), ("a",), ("a@b",))
    weights = {"w": np.arange(2, dtype=np.float32)}
    for part in (first, last):
        part.constants = dict(weights)
        part.specs = {v: F32 for n in part.nodes for v in (*n.inputs, *n.outputs)}
    graph = Graph(
        "g", ["x"], ["y", "w", "x"], [*first.nodes, copy, *last.nodes], dict.fromkeys(values, F32), weights
    )
    first.layouts = graph.layouts = {"h": Layout.NHWC}
    parts = (Part("cpu:0", first), Part("cpu:1", last))
    return OptimizedNetwork(graph, parts, ("cpu:0", "cpu:1"), BackendConfig(), versions={"cpu": "1.2"})


def unsavable(network: OptimizedNetwork, folder: Path) -> str:
    """Return the message with which saving is refused; what was there stays."""
    path = folder / "kept.weft"
    path.write_bytes(b"before")
    with pytest.raises(ModelError) as caught:
        network.save(path)
    assert path.read_bytes() == b"before"
    assert [p.name for p in folder.iterdir()] == ["kept.weft"]
    return str(caught.value)


def compiled(payload: object) -> OptimizedNetwork:
    return whole(of_ops(PreCompiled("acme", payload, (F32,))).graph, "acme:0")


def as_saved(network: OptimizedNetwork) -> OptimizedNetwork:
    """Return a network without what no file has: what devices launch."""
    tail = network.tail
    if tail is not None:
        tail = replace(tail, stages=tuple(replace(each, network=as_saved(each.network)) for each in tail.stages))
    return replace(network, parts=tuple(replace(part, lowered=None) for part in network.parts), tail=tail)
