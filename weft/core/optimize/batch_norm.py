"""Fold an inference batch norm into the convolution before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.graph import Graph, Node
from weft.core.layout import Array


def fold_batch_norm(graph: Graph) -> Graph:
    """Return the graph with every Conv -> BatchNormalization pair as one Conv.

    Exact in real arithmetic: scale and shift go into weights and bias, computed in float64 and rounded
    once. Pairs are left alone where the convolution's result has another reader or a parameter is not
    constant.
    """
    out = graph.copy()
    producers, readers = graph.producers(), graph.readers()
    merged: dict[str, Node] = {}
    dropped: set[str] = set()
    for norm in graph.nodes:
        conv = producers.get(norm.inputs[0]) if norm.op.type == "BatchNormalization" else None
        if conv is None or conv.op.type != "Conv" or readers[conv.outputs[0]] != 1:
            continue
        params = [*norm.inputs[1:5], *(i for i in conv.inputs[1:] if i)]
        if not all(p in graph.constants for p in params):
            continue
        merged[conv.name] = _merge(out, conv, norm)
        dropped.add(norm.name)
    out.nodes = [merged.get(n.name, n) for n in graph.nodes if n.name not in dropped]
    return out


def _merge(graph: Graph, conv: Node, norm: Node) -> Node:
    op: Any = norm.op
    scale, shift, mean, var = (graph.constants[i].astype(np.float64) for i in norm.inputs[1:5])
    weight = graph.constants[conv.inputs[1]]
    has_bias = len(conv.inputs) > 2 and conv.inputs[2]
    bias: Array | float = graph.constants[conv.inputs[2]].astype(np.float64) if has_bias else 0.0
    factor = scale / np.sqrt(var + op.epsilon)
    new_weight = (weight * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
    new_bias = ((bias - mean) * factor + shift).astype(weight.dtype)
    names = []
    for value, tag in ((new_weight, "weight"), (new_bias, "bias")):
        name = graph.fresh_name(f"{conv.name}.{tag}")
        graph.constants[name] = value
        graph.specs[name] = replace(graph.specs[conv.inputs[1]], shape=value.shape)
        names.append(name)
    return replace(conv, inputs=(conv.inputs[0], *names), outputs=norm.outputs[:1])
