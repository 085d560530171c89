"""The TensorFlow Lite front end: `load` turns a file into a graph of Weft's ops.

A file passes through these modules. Each trusts only what the ones before it have checked:

    flatbuffer  bytes -> tables, vectors and texts, every offset checked; `flexbuffer` for the options of custom ops
    model       tables -> tensors, operators, subgraphs and signatures; `schema` has names and options, as data
    weights     buffers -> arrays: mapped, packed, sparse, or in files beside the model
    building    operators -> nodes, each by the importer that `registry` has for its op; `importers` are those of
                Weft, a matter a file, and `node` is what they work with

Tensors keep the layout of the file, channels last. An importer of an op that Weft computes with channels first puts
transposes around it; of two that meet the second is not written, and the passes move the others to the edges.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.errors import ModelError
from weft.frontends.files_beside import FilesBeside, folders_of, map_model
from weft.frontends.tflite import importers  # noqa: F401  (registers them)
from weft.frontends.tflite.building import Source, build
from weft.frontends.tflite.model import read_model
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import tflite_op
from weft.frontends.tflite.weights import Costs, Weights

__all__ = ["TFLiteNode", "load", "tflite_op"]


def load(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview, *, signature: str | None = None,
    limits: Limits | None = None,
) -> Graph:
    """Return the graph of a TensorFlow Lite model: a path, or the bytes of a file.

    `signature` is the name of one of its signatures; by default the graph is its first subgraph. Raise UnsupportedOps
    with every node that Weft cannot take, ConfigError for a signature that is not there, and ModelError for whatever
    else is wrong with the file, or if it goes beyond the limits of nodes or of bytes of constants.
    """
    given = limits or Limits()
    data: Array
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        data, label, name = map_model(path), str(path), path.stem
        folders = folders_of(path.absolute())
    else:
        data, label, name, folders = np.frombuffer(bytes(model), np.uint8), "(bytes)", "model", ()
    try:
        read = read_model(data, label, given)
        costs = Costs(given, label)
        return build(Source(read, Weights(read, FilesBeside(folders), costs), costs), signature, name)
    except RecursionError as e:
        fix = "get the file again: it is damaged"
        raise ModelError("the model's tables are nested too deep", where=label, fix=fix) from e
