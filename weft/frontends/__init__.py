"""The front ends that Weft brings: ONNX and TensorFlow Lite files, PyTorch's programs, and networks built or saved."""

from __future__ import annotations

import importlib
from typing import Any

from weft.core.graph.graph import Graph
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.front_ends import FrontEnd, ReadOptions

SAVED = ".weft"
"""The suffix of a saved optimised network."""

# Each imports what it needs when it is first used, because onnx takes longer to import than all of Weft.


def _read_onnx(model: Any, options: ReadOptions) -> Graph:
    from weft.frontends.onnx import load

    return load(model, limits=options.limits)


def _read_tflite(model: Any, options: ReadOptions) -> Graph:
    from weft.frontends.tflite import load

    return load(model, signature=options.signature, limits=options.limits)


def _read_network(model: Any, options: ReadOptions) -> Graph:
    _register_ops()
    graph: Graph = model.to_graph()
    return graph


def _read_graph(model: Any, options: ReadOptions) -> Graph:
    _register_ops()
    graph: Graph = model
    return graph


def _read_exported(model: Any, options: ReadOptions) -> Graph:
    from weft.frontends.torch.exported import read

    _register_ops()
    return read(model, options.limits)


def _read_saved(model: Any, options: ReadOptions) -> OptimizedNetwork:
    _register_ops()
    return model if isinstance(model, OptimizedNetwork) else OptimizedNetwork.load(model, backends=options.backends)


def _register_ops() -> None:
    importlib.import_module("weft.ops")


PROTO = ("onnx.onnx_ml_pb2.ModelProto", "onnx.onnx_pb2.ModelProto", "onnx.ModelProto")
"""The full names of onnx's class of a parsed model, whose module depends on onnx's version."""

FRONT_ENDS = (
    FrontEnd("ONNX", _read_onnx, (".onnx", ""), (bytes, bytearray, memoryview, *PROTO)),
    FrontEnd("TensorFlow Lite", _read_tflite, (".tflite",), signatures=True),
    FrontEnd("saved networks", _read_saved, (SAVED,), (OptimizedNetwork,), OptimizedNetwork),
    FrontEnd("networks built by hand", _read_network, types=("weft.frontends.builder.network.Network",)),
    FrontEnd("PyTorch's programs", _read_exported, types=("torch.export.exported_program.ExportedProgram",)),
    FrontEnd("graphs", _read_graph, types=(Graph,)),
)
"""The front ends that Weft brings."""
