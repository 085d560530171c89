"""The ONNX front end: `load` turns a model file into a graph of Weft's ops in their newest form.

A file passes through these modules. Each trusts only what the ones before it have checked:

    files       path -> bytes
    reading     bytes -> protobuf: size, header, opsets
    functions   calls of model-local functions are expanded, then `bodies` expands ops that ONNX defines by others;
                `instances` renames the values of both
    tensors     initialisers -> arrays, inputs -> specs; `external` maps the files beside the model
    building    nodes -> ops: `schemas` checks each against its opset, `importers` lifts it to the newest
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core.graph.limits import Limits
from weft.errors import ConfigError, ModelError
from weft.frontends.onnx.files import read_file

if TYPE_CHECKING:
    from onnx import ModelProto

    from weft.core.graph.graph import Graph
    from weft.frontends.onnx.reading import Source

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | bytes | ModelProto, *, name: str | None = None, limits: Limits | None = None
) -> Graph:
    """Return the graph of an ONNX model: a path, the bytes of a file, or a parsed model.

    `name` is the graph's; by default that in the file, else the file's. Sizes that the file leaves open
    are symbols in the specs of the inputs; `weft.core.graph.graph.bind` gives them values. Raise UnsupportedOps
    with every node that Weft cannot take, and ModelError for whatever else is wrong with the file, or if it goes
    beyond the limits of nodes or of bytes of constants.
    """
    # Read the file before importing onnx: reading releases the GIL, importing does not.
    try:
        held = read_file(model) if isinstance(model, (str, os.PathLike)) else model
    except ModelError:
        _importers()  # a missing package is reported before a missing file
        raise
    read, build = _importers()
    source = read(held)
    del held  # the weights were copied
    return build(source, name, limits or Limits())


def _importers() -> tuple[Callable[[object], Source], Callable[[Source, str | None, Limits], Graph]]:
    """Return `read` and `build`; ConfigError where what they import is not installed."""
    try:
        from weft.frontends.onnx.building import build
        from weft.frontends.onnx.reading import read
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in ("onnx", "google"):
            raise
        raise ConfigError(
            "ONNX models cannot be read",
            why=f"the Python package {e.name!r} is not installed",
            fix="pip install onnx",
        ) from e
    return read, build
