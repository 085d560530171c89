"""Tensors without memory that describe the values of a graph to a backend."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import Tensor


def describe(graph: Graph, name: str) -> Tensor:
    """Return a tensor without memory that describes a value to a backend."""
    spec = graph.specs[name]
    layout = graph.layouts.get(name, Layout.NCHW)
    return Tensor(name, spec.dims, spec.dtype, layout, constant=graph.constants.get(name), grid=spec.grid)


def described(graph: Graph, node: Node) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return the described inputs and outputs of a node."""
    inputs = [describe(graph, i) if i else None for i in node.inputs]
    return inputs, [describe(graph, o) for o in node.outputs if o]
