"""From a path or bytes to a parsed model whose header makes sense."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from weft.errors import ModelError
from weft.frontends.onnx.wording import listing, quote

LARGEST_FILE = 2**31 - 1
"""Protobuf's own limit; larger weights lie in external data."""

OLDEST_OPSET = 7
NEWEST_OPSET = onnx.defs.onnx_opset_version()
OLDEST_IR = 3
"""The first file format that says which opset its nodes are of."""

NOT_ONNX = "is this an ONNX file? Was it downloaded completely (not a Git LFS pointer)?"


@dataclass(frozen=True)
class Source:
    """A parsed model and where it came from; `folder` is None where there is none for external data."""

    proto: ModelProto
    folder: Path | None
    label: str
    opset: int


def read(model: object) -> Source:
    """Return the parsed model behind a path, bytes or a ModelProto, with its header checked."""
    folder: Path | None = None
    label = "(bytes)"
    if isinstance(model, ModelProto):
        proto, label = model, "(ModelProto)"
    elif isinstance(model, (bytes, bytearray, memoryview)):
        proto = parse(bytes(model), label)
    elif isinstance(model, (str, os.PathLike)):
        path = _path(model)
        proto, folder, label = parse(_file_bytes(path), str(path)), path.absolute().parent, str(path)
    else:
        raise ModelError(
            f"cannot load a model from {type(model).__name__}",
            why="a model is a path, the bytes of an ONNX file, or an onnx.ModelProto",
        )
    return Source(proto, folder, label, check_header(proto, label))


def _path(model: str | os.PathLike[str]) -> Path:
    text = os.fspath(model)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ModelError(f"{text!r} is not a path", why="a path is a text that is not empty")
    return Path(text)


def _file_bytes(path: Path) -> bytes:
    try:
        # The descriptor is checked, not the path, which may mean another file by then; O_NONBLOCK keeps
        # the opening of a pipe from waiting for its other end.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb", closefd=True) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError("the model is not a regular file", where=str(path))
            if status.st_size > LARGEST_FILE:
                raise ModelError(
                    "the model file is too large",
                    where=str(path),
                    why=f"it has {status.st_size:,} bytes; protobuf reads at most {LARGEST_FILE:,}",
                    fix="save the weights as external data (onnx.save with save_as_external_data=True)",
                )
            return file.read(status.st_size)
    except OSError as e:
        raise ModelError("the model file cannot be read", where=str(path), why=e.strerror or str(e)) from e


def parse(data: bytes, label: str) -> ModelProto:
    """Return the parsed bytes; ModelError if they are no protobuf of an ONNX model."""
    if not data:
        raise ModelError("the model file is empty", where=label, fix=NOT_ONNX)
    if len(data) > LARGEST_FILE:
        raise ModelError(
            "the model is too large",
            where=label,
            why=f"it has {len(data):,} bytes; protobuf reads at most {LARGEST_FILE:,}",
            fix="keep the weights in external data beside a model file",
        )
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as e:
        raise ModelError(
            "the model cannot be parsed",
            where=label,
            why=f"its {len(data):,} bytes are not a protobuf message of an ONNX model ({e})",
            fix=NOT_ONNX,
        ) from e
    return proto


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
    twice = [f"{quote(d or 'ai.onnx')}: {sorted(v)}" for d, v in versions.items() if len(v) > 1]
    if twice:
        raise ModelError("the model asks for two opsets of one domain", where=label, why=listing(twice))
    if "" not in versions:
        others = listing([quote(d) for d in versions]) or "none"
        raise ModelError(
            "the model does not say which ONNX opset it uses",
            where=label,
            why=f"no opset_import has the domain '' or 'ai.onnx'; those there: {others}",
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
