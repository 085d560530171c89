"""ONNX files: bytes and fields changed, loaded and run on a device, compared with ONNX Runtime."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, OperatorSetIdProto, numpy_helper

import weft
from scripts.fuzz.mutate import change_bytes
from scripts.fuzz.numbers import Between, compare
from scripts.fuzz.onnx_cases import (
    call_functions,
    change_fields,
    draw_model,
    lie,
    networks,
    single_ops,
    special,
)
from scripts.fuzz.oracle import Oracle
from scripts.fuzz.rewritten import TINY, kept, with_states_of_floats, without_subnormals
from scripts.fuzz.target import Finding, Target, target
from weft.core.graph.graph import Graph, Node, bind, infer_shapes
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.constants import fold_constants
from weft.errors import ValueNeeded, WeftError
from weft.frontends.onnx import load
from weft.ops.resize import Resize

MOST_ELEMENTS = 1 << 22
MOST_WORK = 10**9
"""Most operations of a model that is run: a larger one shows nothing more and takes long without a GPU."""


EXTREME = "ONNX leaves open what the largest of numbers is if one is none; ONNX Runtime's answer depends on its place"
RECURRENT = "ONNX Runtime's recurrent layers take NaN for a number"
NOWHERE = "a point without a place lies outside of the image; ONNX Runtime computes with it, and ONNX's evaluator fails"
PLACE = "ONNX Runtime makes a place beyond all integers an integer, which wraps"
MASKED = "where all scores of a row are -infinity, or what is masked is none, 0 and NaN are both in use"
ALGEBRA = "a sum of infinities, or a running sum, depends on the order in which it is written"
CROPPED = "ONNX Runtime pads by negative numbers where windows with auto_pad SAME end before their image does, or fails"
RANK = "ONNX leaves open where a score ranks that is no number; ONNX Runtime's answer depends on its place"
NO_NUMBER = "ONNX leaves open which integer a value becomes that is no number"
OPEN = {
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "Hardmax"), EXTREME),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "com.microsoft::DynamicQuantizeLSTM"), RECURRENT),
    **dict.fromkeys(("GridSample", "Resize"), PLACE),
    "RoiAlign": NOWHERE,
    **{f"com.microsoft::{kind}Attention": MASKED for kind in ("", "Q", "MultiHead", "GroupQuery")},
    **dict.fromkeys(("BatchNormalization", "com.microsoft::SkipLayerNormalization", "STFT", "DFT", "LRN"), ALGEBRA),
    **dict.fromkeys(("DynamicQuantizeLinear", "Cast"), NO_NUMBER),
}
"""Ops whose results may differ, where a value is infinite or none, from ONNX Runtime's and from those of ONNX's
evaluator, and why; each was looked at by hand."""
EVALUATED = "right by ONNX's evaluator, from which ONNX Runtime differs"


class OnnxTarget(Target):
    """Loads and runs a model and compares its outputs with the oracle's."""

    file = "model.onnx"
    staged: ClassVar[bool] = False
    """Whether also to run what has sizes that only a run knows: changed fields could make them anything."""

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
            try:
                if large(bound):
                    return "skipped: too large to run"
            except ValueNeeded:
                if not self.staged:
                    return "skipped: only a run would tell how large it is"
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
        between = rounded(bound, feeds)
        theirs = self.oracle.run(path, feeds, nudged(feeds))
        if isinstance(theirs, str):
            return f"skipped: {theirs.partition(':')[0]}"
        try:
            return compare(mine, theirs[0], theirs[1], between)
        except Finding as e:
            evaluated = self.oracle.evaluate(path, feeds, nudged(feeds))
            with suppress(Finding):
                if not isinstance(evaluated, str):
                    word = compare(mine, evaluated[0], evaluated[1], between)
                    return EVALUATED if word == "right" else word
            model, normal = onnx.load(path), {name: kept(value) for name, value in feeds.items()}
            others = [("right with states of floats", with_states_of_floats(model), feeds)]
            if self.device != "cpu":
                others.append((f"right with 0 for numbers below {TINY:.1e}", without_subnormals(model), normal))
            for word, other, fed in others:
                with suppress(Finding):
                    if other is not None and self._is_right(mine, other, fed, between):
                        return word
            reason = reason_for(bound, feeds, (*mine, *theirs[0])) or reason_for_model(model)
            if reason:
                return f"skipped: {reason}"
            ops = ", ".join(sorted({node.op.type for node in bound}))
            raise Finding(f"{e.key} ({ops:.80})", e.text) from e

    def _is_right(self, mine: list[Array], other: ModelProto, fed: Mapping[str, Array], between: Between) -> bool:
        """Return whether ONNX Runtime runs another model and gives these outputs; raise Finding if it gives others."""
        path = self.scratch / "other.onnx"
        onnx.save(other, path)
        theirs = self.oracle.run(path, fed, nudged(fed))
        return not isinstance(theirs, str) and bool(compare(mine, theirs[0], theirs[1], between))

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
    staged = True

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model."""
        model = draw_model(draw)
        lie(model, draw)
        (folder / self.file).write_bytes(model.SerializeToString())


@target
class OnnxFunctions(OnnxTarget):
    """Moves nodes into functions, whose attributes have defaults or come from a caller, in calls of calls and in If."""

    name = "onnx-functions"
    about = "ONNX models whose nodes are moved into functions, run and compared with ONNX Runtime"
    staged = True

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model."""
        model = draw_model(draw)
        call_functions(model, draw)
        (folder / self.file).write_bytes(model.SerializeToString())


@target
class OnnxSpecial(OnnxTarget):
    """Puts NaN, infinities, zeros of both signs and denormals into constants and inputs."""

    name = "onnx-special"
    about = "ONNX models with NaN, infinite and denormal floats, run and compared with ONNX Runtime"
    staged = True

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the model, and the seed of its inputs."""
        model = draw_model(draw)
        for tensor in model.graph.initializer:
            value = numpy_helper.to_array(tensor)
            if value.dtype.kind == "f" and value.size and draw.random() < 0.5:
                tensor.CopyFrom(numpy_helper.from_array(special(value, draw), tensor.name))
        (folder / self.file).write_bytes(model.SerializeToString())
        (folder / "seed").write_text(str(draw.randrange(1 << 30)))

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


def reason_for(bound: Graph, feeds: Mapping[str, Array], results: Iterable[Array]) -> str:
    """Return why a network's numbers may differ from ONNX Runtime's, or ""; each reason was looked at by hand."""
    sizes = dict(bound.specs)
    with suppress(ValueNeeded):
        sizes |= infer_shapes(fold_constants(bound)).specs
    known = {**{k: v for k, v in bound.constants.items() if isinstance(v, np.ndarray)}, **feeds}
    attributes = (np.asarray(v) for node in bound for v in node.op.attributes().values() if isinstance(v, float))
    odd = any(v.dtype.kind == "f" and not np.isfinite(v).all() for v in (*known.values(), *attributes, *results))
    for node in bound:
        kind = node.op.type
        if kind in ("Bernoulli", "Multinomial") or kind.startswith("Random"):
            return "each runtime draws random numbers of its own"
        if any(i in sizes and 0 in sizes[i].shape for i in node.inputs):
            if kind in ("ReduceMean", "Mean", "ReduceMax", "ReduceMin"):
                return "ONNX leaves open what the mean or the extreme of nothing is"
            if OPEN.get(kind) == RECURRENT:
                return "ONNX Runtime leaves what was in memory as the states of a sequence without steps"
            if kind == "Conv" and odd:
                return "padding around nothing is nothing, of which ONNX Runtime multiplies zeros and infinite weights"
        if kind == "com.microsoft::GroupQueryAttention" and _is_padded(node, sizes, known):
            return "what GroupQueryAttention has beyond a sequence's length is nothing that anyone reads"
        if kind == "Pow" and _is_power_of_none(node, known):
            return NO_NUMBER
        if kind == "NonMaxSuppression" and np.isnan(known.get(node.inputs[1], 0)).any():
            return RANK
        if _is_cropped(node, sizes):
            return CROPPED
        scales = (known[i] for i in node.inputs if i in known and known[i].dtype.kind == "f" and not known[i].ndim)
        if "QLinear" in kind and any(not TINY <= abs(float(v)) < np.inf for v in scales):
            return "nothing can be quantised by a scale of zero or one that is no number"
        if isinstance(node.op, Resize) and node.inputs[0] in sizes and sizes[node.inputs[0]].dtype.is_integer:
            least, largest = sizes[node.inputs[0]].dtype.limits
            if not least <= node.op.extrapolation_value <= largest:
                return "ONNX leaves open which integer a number beyond its type becomes"
    if odd:
        return next((OPEN[node.op.type] for node in bound if node.op.type in OPEN), "") or next(
            (EXTREME for node in bound if getattr(node.op, "reduction", "") in ("max", "min")), ""
        )
    return ""


def _is_power_of_none(node: Node, known: Mapping[str, Array]) -> bool:
    """Tell whether integers are raised to floats that make an infinity or NaN of one."""
    base, exponent = (known.get(name) for name in node.inputs[:2])
    if base is None or exponent is None or base.dtype.kind not in "iu" or exponent.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        return not np.isfinite(np.power(base.astype(np.float64), exponent)).all()


def _is_cropped(node: Node, sizes: Mapping[str, TensorSpec]) -> bool:
    """Tell whether windows of a node with auto_pad SAME end before their image does, and so need no padding."""
    op, specs = node.op, [sizes[i] for i in node.inputs if i in sizes]
    if not getattr(op, "auto_pad", "").startswith("SAME") or node.inputs[0] not in sizes:
        return False
    inputs = specs[0].shape[2:]
    kernels = (spec.shape[2:] for spec in specs[1:] if len(spec.shape) == len(specs[0].shape))
    kernel = getattr(op, "kernel_shape", ()) or next(kernels, ())
    ones = (1,) * len(inputs)
    strides, dilations = (getattr(op, name, ()) or ones for name in ("strides", "dilations"))
    each = zip(inputs, kernel, strides, dilations, strict=False)
    return any((-(-int(i) // s) - 1) * s + (k - 1) * d + 1 < int(i) for i, k, s, d in each)


def _is_padded(node: Node, sizes: Mapping[str, TensorSpec], known: Mapping[str, Array]) -> bool:
    """Tell whether a sequence of a GroupQueryAttention is shorter than the rows that it, or its cache, has."""
    lengths, total = (known.get(name) for name in node.inputs[5:7])
    caches = [sizes[name].shape[2] for name in node.outputs[1:2] if name in sizes]
    rows = [int(np.max(total, initial=0)) if total is not None else 0, *(n for n in caches if isinstance(n, int))]
    return lengths is not None and bool((lengths + 1 < max(rows)).any())


def rounded(graph: Graph, feeds: Mapping[str, Array]) -> Between:
    """Return the integers between which the pixels of outputs of antialiased Resize lie, before they are rounded.

    A coordinate in pixels has an error of up to 2^-23 of the length of its axis, a weight that of its coordinate times
    a slope of at most 2, and the factor that makes the sum of weights 1 doubles it: 2^-21 of the length for each pixel
    that is mixed. A product and its sum add less, which the 2 more cover.
    """
    known: dict[str, Array] = {**graph.constants, **feeds}
    found = {}
    for node in graph:
        op, x = node.op, known.get(node.inputs[0]) if node.inputs else None
        if not isinstance(op, Resize) or not op.antialias or op.mode == "nearest" or x is None or x.dtype.kind == "f":
            continue
        if any(name and name not in known for name in node.inputs):
            continue
        rest = [known.get(name) for name in node.inputs[1:]]
        exact = op.reference(x.astype(np.float64), *rest)
        parts = [(op.taps(part, x.shape[part.axis]), x.shape[part.axis]) for part in op.plan(x.shape, rest)]
        mixed = sum(taps.indices.shape[1] * (length + 2) for taps, length in parts)
        error = float(np.abs(x.astype(np.float64)).max(initial=0)) * mixed * 2.0**-21
        for number, name in enumerate(graph.outputs):
            if name == node.outputs[0]:
                found[number] = np.rint(exact - error), np.rint(exact + error)
    return found


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
    """Return the floats changed by rounding errors, each by its own; if they change a result, any rounding may."""
    out = {}
    for name, value in feeds.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        factors = 1 + (2e-3 if value.dtype.itemsize == 2 else 1e-6) * rng.choice((-1, 1), value.shape)
        out[name] = np.asarray(value * factors).astype(value.dtype) if value.dtype.kind == "f" else value
    return out
