"""`Builder`: makes the nodes of a graph for the rules of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, find_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError, ValueNeeded
from weft.frontends.torch.rules import Unsupported

SMALL = 64
"""Constants of up to so many elements are in a graph once."""
Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Value:
    """A value of the graph: its name, element type, and shape, in which None is a size that is not known yet.

    A size of a shape that is no number is a value, too: an int64 of no dimensions.
    """

    name: str
    dtype: DType
    shape: Sizes

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


Size = int | Value
Scalar = bool | int | float
Operand = Value | Scalar


class Builder:
    """Adds nodes to a graph; `out` is what torch says of the result of the op that is being translated."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name, [], [])
        self.out: Value = Value("", DType.FLOAT32, ())
        """Element type and shape of the result; for several, of the first."""
        self.outs: list[Value] = []
        """Those of all results."""
        self._names, self._labels = Names(self.graph), Names(self.graph)
        """Those of values, and those of nodes: they may be the same."""
        self._known: dict[tuple[DType, Sizes, bytes], Value] = {}
        self._node, self._value = "", ""

    # -- what rules call -------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Value | None, dtype: DType | None = None, shape: Sizes | None = None,
           **attributes: Any) -> Value:
        """Add a node with one result, of the type of the first input and the shape of `out` unless said."""
        return self.ops(kind, *inputs, dtypes=[dtype], shapes=[shape], **attributes)[0]

    def ops(self, kind: str, *inputs: Value | None, dtypes: Sequence[DType | None], shapes: Sequence[Sizes | None],
            **attributes: Any) -> list[Value]:
        """Add a node with as many results as there are types; see `op`."""
        found = find_op(kind)
        assert found is not None, kind
        first = next((i for i in inputs if i is not None), self.out)
        op = found(**attributes)
        known = self._inferred(op, inputs)
        if known is None:
            known = [
                (dtype or first.dtype, self.out.shape if shape is None else shape)
                for dtype, shape in zip(dtypes, shapes, strict=True)
            ]
        values = [Value(self._names.fresh(self._value), *of) for of, _ in zip(known, dtypes, strict=False)]
        node = self._labels.fresh(self._node)
        given = ["" if i is None else i.name for i in inputs]
        while given and not given[-1]:
            given.pop()
        self.graph.nodes.append(Node(node, op, tuple(given), tuple(v.name for v in values)))
        return values

    def _inferred(self, op: Op, inputs: Sequence[Value | None]) -> list[tuple[DType, Sizes]] | None:
        """Return types and shapes of a node's results, None where sizes are open; Unsupported if it takes none such."""
        if any(i is not None and None in i.shape for i in inputs):
            return None
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        specs = [None if i is None else TensorSpec(i.shape, i.dtype) for i in given]  # type: ignore[arg-type]
        constants = [None if i is None else self.graph.constants.get(i.name) for i in given]
        try:
            made = op.inferred(specs, constants)
        except ValueNeeded:
            return None
        except ModelError as e:
            raise Unsupported(f"{op.type} of Weft does not take this: {e.short}") from e
        return [(spec.dtype, spec.dims) for spec in made]

    def input(self, name: str, shape: Sequence[int | str], dtype: DType) -> Value:
        """Add an input of the graph."""
        name = self._names.fresh(name)
        self.graph.inputs.append(name)
        self.graph.specs[name] = TensorSpec(tuple(shape), dtype)
        return Value(name, dtype, tuple(d if isinstance(d, int) else None for d in shape))

    def constant(self, array: Array, name: str = "") -> Value:
        """Return a constant with the value of an array."""
        dtype = DType.of(array.dtype)
        key = (dtype, array.shape, array.tobytes()) if array.size <= SMALL and not name else None
        if key is not None and key in self._known:
            return self._known[key]
        made = Value(self._names.fresh(name or "constant"), dtype, array.shape)
        self.graph.constants[made.name] = array
        self.graph.specs[made.name] = TensorSpec(array.shape, dtype)
        if key is not None:
            self._known[key] = made
        return made

    def scalar(self, value: Scalar, dtype: DType) -> Value:
        """Return a constant of no dimensions."""
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(value).astype(dtype.numpy))

    def ints(self, values: Sequence[Size]) -> Value:
        """Return a row of int64: sizes, axes, pads."""
        if not any(isinstance(v, Value) for v in values):
            return self.constant(np.array(values, np.int64).reshape(len(values)))
        axes = self.constant(np.zeros(1, np.int64))
        rows = [
            self.op("Unsqueeze", self.cast(v, DType.INT64), axes, shape=(1,)) if isinstance(v, Value)
            else self.constant(np.array([v], np.int64))
            for v in values
        ]
        return rows[0] if len(rows) == 1 else self.op("Concat", *rows, axis=0, shape=(len(rows),))

    def cast(self, value: Value, dtype: DType) -> Value:
        """Return a value in another element type."""
        return value if value.dtype is dtype else self.op("Cast", value, to=dtype, dtype=dtype, shape=value.shape)

    def as_type(self, value: Operand, dtype: DType) -> Value:
        """Return a tensor, a number or a size in an element type."""
        return self.cast(value, dtype) if isinstance(value, Value) else self.scalar(value, dtype)

    def size(self, value: Value, axis: int) -> Size:
        """Return the size of an axis: a number, or a value of the graph."""
        known = value.shape[axis]
        if known is not None:
            return known
        axis %= value.rank
        row = self.op("Shape", value, start=axis, end=axis + 1, dtype=DType.INT64, shape=(1,))
        return self.op("Squeeze", row, self.ints([0]), shape=())

    def shape_of(self, value: Value) -> Value:
        """Return the sizes of a value as a row of int64."""
        if None not in value.shape:
            return self.ints([d for d in value.shape if d is not None])
        return self.op("Shape", value, dtype=DType.INT64, shape=(value.rank,))

    def reshape(self, value: Value, sizes: Sequence[Size], shape: Sizes | None = None) -> Value:
        """Return the elements under other sizes, one of which may be -1; `shape` is `out`'s unless said."""
        shape = self.out.shape if shape is None else shape
        if len(shape) == len(sizes):  # what is known is a number, and one unknown size is what is left
            sizes = [given if known is None else known for given, known in zip(sizes, shape, strict=True)]
        if value.shape == shape and None not in shape:
            return value
        unknown = [k for k, size in enumerate(sizes) if isinstance(size, Value)]
        if len(unknown) == 1 and -1 not in sizes and 0 not in sizes:
            sizes = [-1 if k == unknown[0] else size for k, size in enumerate(sizes)]
        return self.op("Reshape", value, self.ints(sizes), shape=shape, allowzero=int(0 in sizes))

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value with its axes in another order."""
        axes = [a % value.rank for a in axes]
        if axes == sorted(axes):
            return value
        return self.op("Transpose", value, perm=tuple(axes), shape=tuple(value.shape[a] for a in axes))

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value with axes of size one more; `axes` are their places in the result."""
        rank = value.rank + len(axes)
        places = {a % rank for a in axes}
        if not places:
            return value
        sizes = iter(value.shape)
        shape = tuple(1 if k in places else next(sizes) for k in range(rank))
        return self.op("Unsqueeze", value, self.ints(sorted(places)), shape=shape)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value without axes of size one."""
        places = {a % value.rank for a in axes}
        if not places:
            return value
        shape = tuple(d for k, d in enumerate(value.shape) if k not in places)
        return self.op("Squeeze", value, self.ints(sorted(places)), shape=shape)

    def expand(self, value: Value, sizes: Sequence[Size] | Value, shape: Sizes | None = None) -> Value:
        """Return a value broadcast to sizes; `shape` is `out`'s unless said."""
        shape = self.out.shape if shape is None else shape
        if value.shape == shape and None not in shape:
            return value
        return self.op("Expand", value, sizes if isinstance(sizes, Value) else self.ints(sizes), shape=shape)

    def slice(self, value: Value, axis: int, start: Size, end: Size, step: int = 1) -> Value:
        """Return a part of an axis."""
        axis %= value.rank
        shape = list(value.shape)
        size = shape[axis]
        if size is not None and not isinstance(start, Value) and not isinstance(end, Value):
            places = range(*slice(start, end, step).indices(size))
            if places == range(size):
                return value
            shape[axis] = len(places)
        else:
            shape[axis] = None
        given = [self.ints([v]) for v in (start, end, axis, step)]
        return self.op("Slice", value, *given, shape=tuple(shape))

    # -- what a translation calls ------------------------------------------------------------------------

    def begin(self, node: str, value: str, outs: list[Value]) -> None:
        """Name what is added from now on, and say what torch knows of the results."""
        self._node, self._value, self.outs = node, value, outs
        self.out = outs[0] if outs else Value("", DType.FLOAT32, ())

    def finish(self, outputs: Mapping[str, Value]) -> Graph:
        """Return the graph with outputs under these names; one that is no node's result, or shown twice, is copied."""
        made, names = {o for n in self.graph.nodes for o in n.outputs}, dict[str, str]()
        for name, value in outputs.items():
            if value.name not in made or value.name in names:
                self.begin(name, name, [])
                value = self.op("Identity", value, shape=value.shape)
            if value.name != name:
                name = self._names.fresh(name)
            names[value.name] = name
            self.graph.outputs.append(name)
        self.graph.nodes = [
            replace(node, inputs=tuple(names.get(i, i) for i in node.inputs),
                    outputs=tuple(names.get(o, o) for o in node.outputs))
            for node in self.graph.nodes
        ]
        return self.graph


def axes_of(axes: int | Sequence[int] | None, rank: int) -> list[int]:
    """Return axes from 0 on; all of them for None and for an empty list, as torch's reductions mean it."""
    if axes is None or (isinstance(axes, Sequence) and not axes):
        return list(range(rank))
    return [a % rank if rank else 0 for a in ([axes] if isinstance(axes, int) else axes)]


def static(value: Value, what: str) -> tuple[int, ...]:
    """Return a shape of numbers; Unsupported if a size is open. `what` follows "needs"."""
    if None in value.shape:
        raise Unsupported(f"needs {what} of fixed sizes")
    return tuple(d for d in value.shape if d is not None)
