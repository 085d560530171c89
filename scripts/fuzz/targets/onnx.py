"""ONNX files: bytes and fields changed, loaded and run on a device, compared with ONNX Runtime."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, OperatorSetIdProto, numpy_helper

import weft
from scripts.fuzz.mutate import change_bytes
from scripts.fuzz.numbers import compare
from scripts.fuzz.onnx_cases import change_fields, draw_model, lie, networks, single_ops, special
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


EVALUATED = "right by ONNX's evaluator, from which ONNX Runtime differs"


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
                name: (2, 3, 8, 8) if spec.has_open_rank else tuple(2 if isinstance(d, str) else d for d in spec.shape)
                for name, spec in ((name, graph.specs[name]) for name in graph.inputs)
            }
            bound = bind(graph, sizes)
            if large(bound):
                return "skipped: too large to run"
            feeds = self.feeds(folder, bound)
            with weft.load(path, self.device, shapes=sizes) as session:
                mine = session.run(feeds)
        except WeftError as e:
            return "refused" if e.what else "refused without a word"
        return self.compared(path, bound, feeds, mine)

    def feeds(self, folder: Path, bound: Graph) -> dict[str, Array]:
        """Return the inputs of a case."""
        return draw_feeds(bound)

    def compared(self, path: Path, bound: Graph, feeds: Mapping[str, Array], mine: list[Array]) -> str:
        """Return how the outputs compare with ONNX Runtime's and, where they differ, with those of ONNX's evaluator."""
        theirs = self.oracle.run(path, feeds, nudged(feeds))
        if isinstance(theirs, str):
            return f"skipped: {theirs.partition(':')[0]}"
        try:
            return compare(mine, *theirs)
        except Finding as e:
            reason = self.reason_for(infer_shapes(fold_constants(bound))) or reason_for_model(onnx.load(path))
            if reason:
                return f"skipped: {reason}"
            evaluated = self.oracle.evaluate(path, feeds, nudged(feeds))
            with suppress(Finding):
                if not isinstance(evaluated, str):
                    word = compare(mine, *evaluated)
                    return EVALUATED if word == "right" else word
            ops = ", ".join(sorted({node.op.type for node in bound}))
            raise Finding(f"{e.key} ({ops:.80})", e.text) from e

    def reason_for(self, graph: Graph) -> str:
        """Return why a network's numbers may differ from the oracles', or ""; each reason is a rule of ONNX."""
        sizes = {name: spec.shape for name, spec in graph.specs.items()}
        for node in graph:
            if node.op.type in ("Bernoulli", "Multinomial") or node.op.type.startswith("Random"):
                return "each runtime draws random numbers of its own"
            empty = any(0 in sizes.get(i, ()) for i in node.inputs)
            if empty and node.op.type in ("ReduceMean", "Mean", "ReduceMax", "ReduceMin"):
                return "ONNX leaves open what the mean or the extreme of nothing is"
        return ""

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
class OnnxLies(OnnxTarget):
    """Declares shapes that values do not have, or none, and no more than a field is changed beside."""

    name = "onnx-lies"
    about = "ONNX models that declare other shapes than they have, run and compared with ONNX Runtime"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model."""
        model = draw_model(draw)
        lie(model, draw)
        (folder / self.file).write_bytes(model.SerializeToString())


EXTREME = "ONNX leaves open what the largest of numbers is if one is none; ONNX Runtime's answer depends on its place"
RECURRENT = "ONNX Runtime's recurrent layers take NaN for a number"
PLACE = "ONNX Runtime makes a place beyond all integers an integer, which wraps"
LOWEST = "by ONNX's text a Clip without a bound makes infinity the largest number, by its evaluator it does not"
MASKED = "where all scores of a row are -infinity, or what is masked is none, 0 and NaN are both in use"
ALGEBRA = "a sum of infinities, or a running sum, depends on the order in which it is written"
NO_NUMBER = "ONNX leaves open what it is of a value that is no number; ONNX Runtime differs by element type"
OPEN = {
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "MaxRoiPool", "Hardmax", "ArgMax", "ArgMin", "TopK"), EXTREME),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "Max", "Min", "LpPool", "RoiAlign"), EXTREME),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "com.microsoft::DynamicQuantizeLSTM"), RECURRENT),
    **dict.fromkeys(("GridSample", "Resize", "DeformConv"), PLACE),
    **dict.fromkeys(("com.microsoft::QAttention", "com.microsoft::Attention", "Attention"), MASKED),
    **dict.fromkeys(("com.microsoft::GroupQueryAttention", "com.microsoft::MultiHeadAttention"), MASKED),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization"), ALGEBRA),
    **dict.fromkeys(("LayerNormalization", "com.microsoft::SkipLayerNormalization"), ALGEBRA),
    **dict.fromkeys(("Det", "DFT", "STFT", "LRN"), ALGEBRA),
    **dict.fromkeys(("Sign", "LogSoftmax", "Softmax", "DynamicQuantizeLinear", "QuantizeLinear", "Cast"), NO_NUMBER),
    "Clip": LOWEST,
}
"""Ops whose results for values of IEEE 754 may differ, and why; each was looked at by hand."""


@target
class OnnxSpecial(OnnxTarget):
    """Puts NaN, infinities, zeros of both signs and denormals into constants and inputs."""

    name = "onnx-special"
    about = "ONNX models with NaN, infinite and denormal floats, run and compared with ONNX Runtime"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model, and the seed of its inputs."""
        model = draw_model(draw)
        for tensor in model.graph.initializer:
            value = numpy_helper.to_array(tensor)
            if value.dtype.kind == "f" and value.size and draw.random() < 0.5:
                tensor.CopyFrom(numpy_helper.from_array(special(value, draw), tensor.name))
        (folder / self.file).write_bytes(model.SerializeToString())
        (folder / "seed").write_text(str(draw.randrange(1 << 30)))

    def reason_for(self, graph: Graph) -> str:
        """Return also why ops may take values of IEEE 754 otherwise."""
        found = (OPEN[node.op.type] for node in graph if node.op.type in OPEN)
        scattered = any(getattr(node.op, "reduction", "") in ("max", "min") for node in graph)
        return super().reason_for(graph) or next(found, "") or (EXTREME if scattered else "")

    def feeds(self, folder: Path, bound: Graph) -> dict[str, Array]:
        """Return the inputs of a case."""
        draw = random.Random(int((folder / "seed").read_text()))
        fed = draw_feeds(bound)
        return {k: special(v, draw) if v.dtype.kind == "f" and v.size else v for k, v in fed.items()}


@target
class OnnxBytes(OnnxTarget):
    """Changes bytes of the file."""

    name = "onnx-bytes"
    about = "ONNX files with bytes changed, run and compared with ONNX Runtime"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the file."""
        data = draw_model(draw).SerializeToString()
        (folder / self.file).write_bytes(change_bytes(data, draw))


def reason_for_model(model: ModelProto) -> str:
    """Return which rule of ONNX a model breaks that neither Weft nor the oracle checks, or ""."""
    flags = {a.i for node in model.graph.node for a in node.attribute if a.name == "training_mode"}
    if flags - {0, 1}:
        return "ONNX leaves open what a flag means that is neither 0 nor 1"
    imports = _versions(model.opset_import)
    for function in model.functions:
        own = _versions(function.opset_import)
        for node in function.node:
            if _schema(node, own) != _schema(node, imports):
                return "ONNX forbids functions whose opset has another version of an op than the model's opset"
    return ""


def _versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    return {each.domain.replace("ai.onnx", ""): each.version for each in imports}


def _schema(node: NodeProto, versions: Mapping[str, int]) -> int | None:
    """Return the version of an op that an opset has."""
    domain = node.domain.replace("ai.onnx", "")
    try:
        return int(onnx.defs.get_schema(node.op_type, versions.get(domain, 0), domain).since_version)
    except onnx.defs.SchemaError:
        return None


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
