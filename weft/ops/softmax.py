"""Ops that normalise along one axis: Softmax, LogSoftmax, Hardmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, OpClass, silent, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, check_type, required_inputs, widen
from weft.ops.reduce import normalize_axis, total


@op_dataclass
class AlongAxis(Op):
    """Normalise along `axis`; with `flatten`, along all axes from `axis` on (ONNX before opset 13)."""

    axis: int = -1
    flatten: bool = False
    op_class: ClassVar[OpClass] = "transcendental"

    def lines(self, x: Array, axis: int) -> Array:
        """Return x normalised along `axis`, which is not empty; float16 arrives as float32."""
        raise NotImplementedError(type(self).__name__)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        (x,) = required_inputs(self, inputs, 1)
        check_type(self, x, FLOATS)
        normalize_axis(self, self.axis, len(x.shape))
        return (x,)

    @silent
    def reference(self, *inputs: Array | None) -> Array:
        x = np.asarray(inputs[0])
        axis = normalize_axis(self, self.axis, x.ndim)
        if x.size == 0:
            return x
        with np.errstate(all="ignore"):
            wide = widen(x)
            if self.flatten:
                out = self.lines(wide.reshape(prod(x.shape[:axis]), -1), 1).reshape(x.shape)
            else:
                out = self.lines(wide, axis)
            return out.astype(x.dtype, copy=False)


@standard_op(not_negative=True)
class Softmax(AlongAxis):
    """Compute exp(x) divided by its sum along the axis."""

    def lines(self, x: Array, axis: int) -> Array:
        powers = np.exp(x - x.max(axis, keepdims=True))
        return np.asarray(powers / total(powers, (axis,)))


@standard_op
class LogSoftmax(AlongAxis):
    """Compute the logarithm of Softmax."""

    def lines(self, x: Array, axis: int) -> Array:
        shifted = x - x.max(axis, keepdims=True)
        return np.asarray(shifted - np.log(total(np.exp(shifted), (axis,))))


@standard_op(op_class="exact")
class Hardmax(AlongAxis):
    """Compute 1 at the first maximum along the axis and 0 elsewhere; NaN counts as larger than all numbers."""

    def lines(self, x: Array, axis: int) -> Array:
        out = np.zeros_like(x)
        np.put_along_axis(out, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
        return out


@decomposition("Hardmax")
def _hardmax(op: Hardmax, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    dims, dtype = make.dims(x), make.dtype(x)
    if 0 in dims:
        return [make.add("Identity", x)]
    axis = normalize_axis(op, op.axis, len(dims))
    if op.flatten:
        rows = prod(dims[:axis])
        x, axis = make.reshape(x, rows, prod(dims) // rows), 1
    depth = make.constant(np.array(make.dims(x)[axis]))
    place = make.add("ArgMax", x, axis=axis, keepdims=0)
    one = make.add("OneHot", place, depth, make.constant(np.array([0, 1], dtype.numpy)), axis=axis)
    return [make.reshape(one, *dims)]
