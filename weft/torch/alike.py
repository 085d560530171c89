"""Whether two graphs are the same but for sizes: a network with open sizes then runs both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from weft.frontends.torch.exported import attribute

MOST_ELEMENTS = 4096
"""Constants of more elements are taken for different ones."""


@dataclass(frozen=True)
class Form:
    """A graph as nested tuples without names; sizes are numbers and expressions of torch's symbols."""

    inputs: tuple[Any, ...]
    nodes: tuple[Any, ...]
    numbers: tuple[str, ...]
    """The symbols that are no size of a tensor."""

    @classmethod
    def of(cls, gm: GraphModule, statics: frozenset[int]) -> Form:
        """Return the form of a graph; `statics` are the inputs that are weights."""
        places: dict[Node, int] = {}
        inputs, nodes, held, asked = list[Any](), list[Any](), set[str](), list[str]()
        for k, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
            meta = node.meta.get("val")
            if hasattr(meta, "dtype"):
                places[node] = len(places)
                shape = tuple(_size(d) for d in meta.shape)
                held |= {str(d) for d in shape}
                inputs.append((str(meta.dtype), shape, k in statics))
            else:
                asked.append(str(meta))
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                places[node] = len(places)
                nodes.append((node.op, _content(attribute(gm, str(node.target)))))
            elif node.op == "output" or (node.op == "call_function" and not _is_size(node)):
                places[node] = len(places)
                nodes.append((node.op, str(node.target), _given(node.args, places), _given(node.kwargs, places)))
        return cls(tuple(inputs), tuple(nodes), tuple(a for a in asked if a not in held))


def _content(held: Any) -> Any:
    """Return what tells a constant tensor from others: its elements, if they are few."""
    if not isinstance(held, torch.Tensor) or held.numel() > MOST_ELEMENTS:
        return id(held)
    return str(held.dtype), tuple(held.shape), tuple(held.reshape(-1).tolist())


def _is_size(node: Node) -> bool:
    return type(node.meta.get("val")).__name__ in ("SymInt", "SymFloat", "SymBool", "int", "float", "bool")


def _size(size: Any) -> Any:
    """Return a number as it is, and torch's open size as an expression."""
    return size.node.expr if hasattr(size, "node") else size


def _given(value: Any, places: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return _size(value.meta["val"]) if value not in places else ("node", places[value])
    if isinstance(value, (list, tuple)):
        return tuple(_given(each, places) for each in value)
    if isinstance(value, dict):
        return tuple((key, _given(each, places)) for key, each in value.items())
    return _size(value) if hasattr(value, "node") else value


def substitution(known: Form, other: Form) -> dict[Any, Any] | None:
    """Return the sizes for which a known graph is another one; None if there are none."""
    if known.numbers or other.numbers or len(known.inputs) != len(other.inputs):
        return None
    sizes: dict[Any, Any] = {}
    for (dtype, shape, static), (its_dtype, its_shape, its_static) in zip(known.inputs, other.inputs, strict=True):
        if dtype != its_dtype or static != its_static or len(shape) != len(its_shape):
            return None
        for size, its_size in zip(shape, its_shape, strict=True):
            if getattr(size, "is_Symbol", False):
                sizes.setdefault(size, its_size)
    pairs = ((known.inputs, other.inputs), (known.nodes, other.nodes))
    return sizes if all(_same(a, b, sizes) for a, b in pairs) else None


def _same(known: Any, other: Any, sizes: dict[Any, Any]) -> bool:
    if isinstance(known, Sequence) and not isinstance(known, str):
        return (
            isinstance(other, Sequence) and len(known) == len(other)
            and all(_same(a, b, sizes) for a, b in zip(known, other, strict=True))
        )
    if hasattr(known, "xreplace"):
        return bool(known.xreplace(sizes) == other)
    return type(known) is type(other) and bool(known == other)
