"""Constants that follow from sizes which are still open: integers as polynomials, all others as what computes them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.core.graph.op import Op
from weft.core.graph.symbolic import (
    LaterConstant,
    OpenSizes,
    SymbolicInt,
    has_open_size,
    int_array,
    is_symbolic,
    whole,
)

MOST_INTEGERS = 64
"""Most integers of a value that are kept as polynomials."""
INTEGERS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Abs": operator.abs,
    "Identity": lambda x: x,
    "Cast": lambda x: x,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Where": np.where,
    "Min": np.minimum,
    "Max": np.maximum,
}
"""Ops on integers, as numpy computes them on arrays of objects."""
MOVES = frozenset("Concat Expand Gather Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split())
"""Ops that only move elements, so that their references do with any objects; what says where must be numbers."""


@dataclass(frozen=True)
class NamedOp:
    """The op of a node, and its name, for errors: the node is gone when the constant is computed.

    Equal ops are equal whatever their nodes are called, so that what two nodes compute is computed once.
    """

    op: Op
    node: str = field(compare=False)

    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        """Return what the op computes."""
        return self.op.reference(*inputs)


@dataclass(frozen=True)
class _Conversion:
    """Converts each element of a constant by itself."""

    convert: Callable[[Array], Array]

    def reference(self, value: Array) -> Array:
        """Return the converted elements."""
        return self.convert(value)


def converted(value: Any, convert: Callable[[Array], Array], dtype: DType) -> Any:
    """Return a constant with each element converted to another type: now, or when sizes tell its elements."""
    if not isinstance(value, LaterConstant):
        return convert(value)
    return LaterConstant(value._sizes, _Conversion(convert), [value], 0, replace(value.spec, dtype=dtype))


def only_element(value: Any) -> Array | None:
    """Return the number that all elements of a constant are, as a scalar, whatever its open sizes; None if they differ.

    Numbers with other bits, such as two zeros, differ. Nothing is said of constants without elements.
    """
    if isinstance(value, LaterConstant):
        if isinstance(value.op, _Conversion):
            found = only_element(value.inputs[0])
            return None if found is None else value.op.convert(found)
        op = value.op.op
        if op.type == "Expand":
            return only_element(value.inputs[0])
        return np.asarray(op.value, value.dtype) if op.type == "ConstantOfShape" else None
    if is_symbolic(value) or value.size == 0:
        return None
    row = np.ascontiguousarray(value).reshape(-1)
    bits = row.view(f"u{row.dtype.itemsize}")
    return row[:1].reshape(()).copy() if bool((bits == bits[0]).all()) else None


def follows_from_open_sizes(graph: Graph, node: Node) -> bool:
    """Tell whether a node that is to be folded depends on open sizes."""
    if node.op.reads_shape:
        return has_open_size(graph.specs[node.inputs[0]].shape)
    return any(is_symbolic(graph.constants[i]) for i in node.inputs if i)


def fold_symbolic(graph: Graph, node: Node, budget: Budget | None = None) -> list[Any]:
    """Return the outputs of a node that depends on open sizes: integers for shapes at once, others for later.

    The preparation fails for open sizes where these outputs would go beyond the budget.
    """
    specs = [graph.specs[o] for o in node.outputs if o]
    nbytes = sum(spec.size * spec.dtype.itemsize for spec in specs)
    sizes = _sizes(graph, node)
    if budget is not None and not budget.nbytes + nbytes <= budget.limits.folding_bytes:
        raise sizes.fail(f"folding {node.name!r} would go beyond a limit")
    values = [graph.constants.get(i) if i else None for i in node.inputs]
    integers = _integers(graph, node, values, specs)
    if integers is not None:
        return integers
    given = [graph.specs[node.inputs[0]]] if node.op.reads_shape else values
    later = NamedOp(node.op, node.name)
    return [LaterConstant(sizes, later, given, k, spec) for k, spec in enumerate(specs)]


def _sizes(graph: Graph, node: Node) -> OpenSizes:
    held = (v for i in node.inputs if i for v in _held(graph, i))
    return next(held)


def _held(graph: Graph, value: str) -> list[OpenSizes]:
    constant: Any = graph.constants.get(value)
    if isinstance(constant, LaterConstant):
        return [constant._sizes]
    elements = [*graph.specs[value].shape, *(constant.reshape(-1) if is_symbolic(constant) else ())]
    return [e._sizes for e in elements if type(e) is SymbolicInt]


def _integers(graph: Graph, node: Node, values: list[Any], specs: list[Any]) -> list[Any] | None:
    """Return results that are few integers, or a few answers about them; None for others."""
    kind, op = node.op.type, node.op
    if kind == "Shape":
        dims = graph.specs[node.inputs[0]].shape
        named: Any = op
        return [int_array(dims[named._part(len(dims))])]
    if kind == "Size":
        return [_scalar(prod(graph.specs[node.inputs[0]].shape))]
    few = all(all(type(d) is int for d in s.shape) and s.size <= MOST_INTEGERS and not s.dtype.is_float for s in specs)
    if not few or any(isinstance(v, LaterConstant) for v in values):
        return None
    if kind in INTEGERS:
        if kind == "Cast" and specs[0].dtype not in (DType.INT64, DType.INT32):
            return None
        made: Any = INTEGERS[kind](*values)
    elif kind == "Div":
        made = _quotients(*values)
    elif kind == "Mod":
        fmod: Any = op
        made = values[0] - _quotients(*values) * values[1] if fmod.fmod else operator.mod(*values)
    elif kind == "Range":
        made = int_array([values[0].item() + k * values[2].item() for k in range(specs[0].size)])
    elif kind in MOVES and not any(is_symbolic(v) for v in values[1:] if kind != "Concat"):
        made = op.reference(*values)
    else:
        return None
    results = made if isinstance(made, tuple) else (made,)
    return [whole(_objects(each), spec.dtype) for each, spec in zip(results, specs, strict=True)]


def _quotients(above: Array, below: Array) -> Array:
    """Return whole quotients, which ONNX rounds towards zero."""
    over, under = np.broadcast_arrays(above, below)
    out = np.empty(over.shape, object)
    for at in np.ndindex(over.shape):
        a, b = over[at], under[at]
        out[at] = a // b if (a >= 0) == (b > 0) else -(-a // b)
    return out


def _objects(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else _scalar(value)


def _scalar(value: Any) -> Array:
    out = np.empty((), object)
    out[()] = value
    return out
