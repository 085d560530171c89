"""One op of PyTorch through the table of ATen's ops, without a trace: what Weft computes of a call."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as trees

import weft
from weft.core.graph.graph import Graph
from weft.frontends.torch.builder import Value
from weft.frontends.torch.exported import add_inputs
from weft.frontends.torch.translation import Translation


def graph_of(overload: Any, *args: Any, **kwargs: Any) -> tuple[Graph, list[Any]]:
    """Return the graph of one call, whose tensors are its inputs, and the tensors; UnsupportedOps if Weft has none."""
    graph = torch.fx.Graph()
    leaves, tree = trees.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    holders = []
    for k, tensor in enumerate(tensors):
        holder = graph.placeholder(f"x{k}")
        holder.meta["val"] = tensor
        holders.append(holder)
    given = iter(holders)
    args, kwargs = trees.tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in leaves], tree)
    node = graph.call_function(overload, tuple(args), dict(kwargs))
    with torch.no_grad():
        node.meta["val"] = result = overload(*trees.tree_unflatten(leaves, tree)[0],
                                             **trees.tree_unflatten(leaves, tree)[1])
    translation = Translation("one op")
    add_inputs(translation, holders)
    translation.add([*graph.nodes], lambda name: None)
    translation.raise_refused(1)
    made = translation.values[node]
    results = [made] if isinstance(made, Value) else [*made]
    del result
    return translation.builder.finish({f"y{k}": value for k, value in enumerate(results)}), tensors


def computed(where: str, overload: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Return what Weft computes of one call."""
    graph, tensors = graph_of(overload, *args, **kwargs)
    with weft.load(graph, where, fallback="error") as session:
        return session.run(*tensors)
