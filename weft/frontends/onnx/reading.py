"""From the bytes of a file to a parsed model whose header makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from weft.core.graph.layout import Array
from weft.core.host.shared_arrays import shared_arrays
from weft.core.host.threads import in_threads
from weft.core.registry.foreign import HEAD, TAIL, recognise
from weft.errors import ModelError, listing
from weft.frontends.files_beside import folders_of
from weft.frontends.onnx.files import LARGEST_FILE, ModelFile
from weft.frontends.onnx.protobuf import cut
from weft.frontends.wording import quote

OLDEST_OPSET = 7
NEWEST_OPSET = onnx.defs.onnx_opset_version()
OLDEST_IR = 3
"""The first file format that says which opset its nodes are of."""

NOT_ONNX = "is this an ONNX file? Was it downloaded completely?"


@dataclass(frozen=True)
class Source:
    """A parsed model and where it came from."""

    proto: ModelProto
    folders: tuple[Path, ...]
    """Where external data may lie: the folder of the path, and that of the file behind its links; () without a path."""
    label: str
    opset: int
    data: Mapping[int, Array]
    """Raw data of large initialisers, by index: it is cut out of `proto`, so that it is not copied twice."""


def read(model: object) -> Source:
    """Return the parsed model of a file, bytes or a ModelProto, with its header checked."""
    folders: tuple[Path, ...] = ()
    label = "(bytes)"
    data: Mapping[int, Array] = {}
    if isinstance(model, ModelProto):
        proto, label = model, "(ModelProto)"
    elif isinstance(model, (bytes, bytearray, memoryview)):
        proto, data = parse(memoryview(bytes(model)), label)
    elif isinstance(model, ModelFile):
        folders, label = folders_of(model.path.absolute()), str(model.path)
        proto, data = parse(model.data, label)
    else:
        raise ModelError(
            f"cannot load a model from {type(model).__name__}",
            why="a model is a path, the bytes of an ONNX file, or an onnx.ModelProto",
            fix="pass one of these, or to weft.load a weft.Network or an optimised network (weft.optimize)",
        )
    check_text(proto, label)
    return Source(proto, folders, label, check_header(proto, label), data)


def parse(data: memoryview, label: str) -> tuple[ModelProto, Mapping[int, Array]]:
    """Return the parsed bytes and the large data that `cut` took out; ModelError if they are no protobuf of a model."""
    if len(data) > LARGEST_FILE:
        raise ModelError(
            "the model is too large",
            where=label,
            why=f"it has {len(data):,} bytes; protobuf reads at most {LARGEST_FILE:,}",
            fix="keep the weights in external data beside a model file",
        )
    proto, without = ModelProto(), cut(data)
    try:
        proto.ParseFromString(without.model)
    except DecodeError as e:
        check_kind(data, label)
        raise ModelError(
            "the model cannot be parsed",
            where=label,
            why=f"its {len(data):,} bytes are not a protobuf message of an ONNX model ({e})",
            fix=NOT_ONNX,
        ) from None
    if not proto.HasField("graph"):
        check_kind(data, label)
    views = [np.frombuffer(view, np.uint8) for view in without.data.values()]
    return proto, dict(zip(without.data, in_threads(shared_arrays.copy, views, len(data)), strict=True))


def check_kind(data: memoryview, label: str) -> None:
    """Raise ModelError if the bytes begin like those of another kind of file, saying which."""
    foreign = recognise(bytes(data[:HEAD]), bytes(data[-TAIL:]))
    if foreign is not None:
        raise foreign.refusal(label)


def check_text(proto: ModelProto, label: str) -> None:
    """Raise ModelError if a name is not text: protobuf returns bytes for a string that is not UTF-8."""
    for text in _texts(proto):
        if not isinstance(text, str):
            raise ModelError(
                "a name in the model is not UTF-8 text", where=label, why=str(text)[:100], fix=NOT_ONNX
            )


def _texts(proto: ModelProto) -> Iterator[object]:
    graph = proto.graph
    yield graph.name
    nodes = chain(graph.node, *(function.node for function in proto.functions))
    for node in nodes:
        yield from (node.op_type, node.name, node.domain, node.overload, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name, attribute.t.name)
    for value in chain(graph.input, graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
    for function in proto.functions:
        yield from (function.name, function.domain, function.overload)
        yield from chain(function.input, function.output, function.attribute)
    for entry in chain(proto.opset_import, *(function.opset_import for function in proto.functions)):
        yield entry.domain


def check_header(proto: ModelProto, label: str) -> int:
    """Return the opset of the model's ONNX nodes; ModelError if the header makes no sense."""
    if not proto.ir_version or not proto.HasField("graph"):
        missing = "file format version (ir_version)" if not proto.ir_version else "graph"
        raise ModelError("this is not an ONNX model", where=label, why=f"it has no {missing}", fix=NOT_ONNX)
    if not OLDEST_IR <= proto.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"the ONNX file format version (ir_version) {proto.ir_version} is not supported",
            where=label,
            why=f"versions {OLDEST_IR} to {onnx.IR_VERSION} are, with onnx {onnx.__version__}",
            fix="install a newer onnx package"
            if proto.ir_version > onnx.IR_VERSION
            else "export the model again",
        )
    return _opset(proto, label)


def _opset(proto: ModelProto, label: str) -> int:
    versions: dict[str, set[int]] = {}
    for entry in proto.opset_import:
        versions.setdefault(domain_of(entry.domain), set()).add(entry.version)
    if len(versions.get("", ())) > 1:
        raise ModelError(
            "the model asks for two opsets of one domain",
            where=label,
            why=f"'ai.onnx': {sorted(versions[''])}",
            fix="export the model again",
        )
    if "" not in versions:
        others = listing([quote(d) for d in versions]) or "none"
        raise ModelError(
            "the model does not say which ONNX opset it uses",
            where=label,
            why=f"no opset_import has the domain '' or 'ai.onnx'; those there: {others}",
            fix="export the model again",
        )
    (opset,) = versions[""]
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        newer = opset > NEWEST_OPSET
        raise ModelError(
            f"ONNX opset {opset} is not supported",
            where=f"{label}, domain 'ai.onnx'",
            why=f"opsets {OLDEST_OPSET} to {NEWEST_OPSET} are, with onnx {onnx.__version__}",
            fix="install a newer onnx package" if newer else "convert the model with onnx.version_converter",
        )
    return opset


def domain_of(domain: str) -> str:
    """Return the domain by one name: that of ONNX itself is ''."""
    return "" if domain == "ai.onnx" else domain
