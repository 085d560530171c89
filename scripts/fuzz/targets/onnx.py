"""ONNX files: bytes and fields changed, loaded and run on a device, compared with ONNX Runtime."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import weft
from scripts.fuzz.mutate import change_bytes
from scripts.fuzz.numbers import compare
from scripts.fuzz.onnx_cases import change_fields, draw_model, networks, single_ops
from scripts.fuzz.oracle import Oracle
from scripts.fuzz.target import Finding, Target, target
from weft.core.graph.graph import Graph, bind, infer_shapes
from weft.core.graph.layout import Array
from weft.core.passes.constants import fold_constants
from weft.errors import WeftError
from weft.frontends.onnx import load

MOST_ELEMENTS = 1 << 22
MOST_WORK = 10**9
"""Most operations of a model that is run: a larger one shows nothing more and takes long without a GPU."""


class OnnxTarget(Target):
    """Loads and runs a model and compares its outputs with the oracle's."""

    file = "model.onnx"

    def prepare(self) -> None:
        """Make the models to start from, and the oracle."""
        networks()
        single_ops()
        self.oracle = Oracle()
        weft.load(networks()[0], self.device).close()

    def check(self, folder: Path) -> str:
        """Return whether the model was refused, or gave ONNX Runtime's results."""
        path = folder / self.file
        try:
            graph = load(path)
            sizes = {
                name: tuple(2 if isinstance(d, str) else d for d in graph.specs[name].shape)
                for name in graph.inputs
            }
            bound = bind(graph, sizes)
            if large(bound):
                return "skipped: too large to run"
            feeds = draw_feeds(bound)
            with weft.load(path, self.device, shapes=sizes) as session:
                mine = session.run(feeds)
        except WeftError as e:
            return "refused" if e.what else "refused without a word"
        return self.compared(path, feeds, mine)

    def compared(self, path: Path, feeds: Mapping[str, Array], mine: list[Array]) -> str:
        """Return how the outputs compare with the oracle's."""
        theirs = self.oracle.run(path, feeds, nudged(feeds))
        if isinstance(theirs, str):
            return f"skipped: {theirs.partition(':')[0]}"
        try:
            return compare(mine, *theirs)
        except Finding as e:
            graph = load(path)
            reason = reason_for(graph)
            if reason:
                return f"skipped: {reason}"
            ops = ", ".join(sorted({node.op.type for node in graph}))
            raise Finding(f"{e.key} ({ops:.80})", e.text) from e

    def close(self) -> None:
        """End the oracle."""
        self.oracle.close()


@target
class OnnxFields(OnnxTarget):
    """Changes fields of the protobuf message to other values of their type."""

    name = "onnx-fields"
    about = "ONNX models with fields changed, run and compared with ONNX Runtime"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model."""
        model = draw_model(draw)
        change_fields(model, draw)
        (folder / self.file).write_bytes(model.SerializeToString())


@target
class OnnxBytes(OnnxTarget):
    """Changes bytes of the file."""

    name = "onnx-bytes"
    about = "ONNX files with bytes changed, run and compared with ONNX Runtime"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        data = draw_model(draw).SerializeToString()
        (folder / self.file).write_bytes(change_bytes(data, draw))


def reason_for(graph: Graph) -> str:
    """Return why a model's numbers may differ from the oracle's, or ""; each reason is a rule of ONNX."""
    sizes = {name: spec.shape for name, spec in graph.specs.items()}
    for node in graph:
        empty = any(0 in sizes.get(i, ()) for i in node.inputs)
        if empty and node.op.type in ("ReduceMean", "Mean", "ReduceMax", "ReduceMin"):
            return "ONNX leaves open what the mean or the extreme of nothing is"
    return ""


def large(bound: Graph) -> bool:
    """Tell whether a graph with known input sizes has values, or needs work, too large to run."""
    if sum(bound.specs[i].size for i in bound.inputs) > MOST_ELEMENTS:
        return True
    return large_shapes(infer_shapes(fold_constants(bound)))


def large_shapes(graph: Graph) -> bool:
    """Tell the same for a graph with all shapes known."""
    if any(spec.size > MOST_ELEMENTS for spec in graph.specs.values()):
        return True
    work = 0
    for node in graph.nodes:
        inputs = [spec.dims if spec else None for spec in graph.input_specs(node)]
        work += node.op.flops(inputs, [spec.dims for spec in graph.output_specs(node)])
    return work > MOST_WORK


def draw_feeds(graph: Graph) -> dict[str, Array]:
    """Return numbers for the inputs, the same for each graph with the same inputs."""
    feeds = {}
    for name in graph.inputs:
        spec = graph.specs[name]
        rng = np.random.default_rng(zlib.crc32(f"{name} {spec}".encode()))
        small = rng.integers(0, 3, spec.dims) if not spec.dtype.is_float else rng.uniform(-1, 1, spec.dims)
        feeds[name] = np.asarray(small).astype(spec.dtype.numpy)
    return feeds


def nudged(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the floats changed by a rounding error; if that changes a result, any rounding may."""
    out = {}
    for name, value in feeds.items():
        factor = 1 + (2e-3 if value.dtype.itemsize == 2 else 1e-6)
        out[name] = value * value.dtype.type(factor) if value.dtype.kind == "f" else value
    return out
