"""ONNX Runtime's own ops (`com.microsoft`) that files of older exporters have: distances, and forms of ONNX's ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.graph.composite import Body, Composite, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.op import standard_op
from weft.errors import ValueNeeded
from weft.ops.elementwise import misfit


@standard_op(type="com.microsoft::CDist", op_class="reduction", most_inputs=2, least_inputs=2)
class CDist(Composite):
    """The distance of each row of A to each of B; `metric` is "euclidean" or its square, "sqeuclidean"."""

    metric: str = "sqeuclidean"

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Add the squares of both, less twice their product, as ONNX Runtime does."""
        a, b = inputs
        if self.metric not in ("euclidean", "sqeuclidean"):
            raise misfit(self, f"metric is {self.metric[:60]!r}; ONNX Runtime has euclidean and sqeuclidean")
        shapes = make.dims(a), make.dims(b)
        if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
            raise misfit(self, f"it needs two lists of rows of one length, not {shapes[0]} and {shapes[1]}")
        last = make.ints(1)
        squares = [make.add("ReduceSumSquare", each, last, keepdims=0) for each in (a, b)]
        both = make.add("Add", make.reshape(squares[0], -1, 1), squares[1])
        product = make.add("Gemm", a, b, alpha=-2.0, transB=1)
        found = make.add("Max", make.add("Add", product, both), make.number(0.0, a))  # rounding may go below zero
        return [make.add("Sqrt", found) if self.metric == "euclidean" else found]


@standard_op(type="com.microsoft::ExpandDims", op_class="exact", most_inputs=2, least_inputs=2, shaped_by=(1,))
class ExpandDims(Composite):
    """X with an axis more, of size 1, before the axis that a scalar gives; inputs X, axis."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, axis = inputs
        value, rank = make.known(axis), len(make.dims(x))
        if make.dims(axis) not in ((), (1,)):
            raise misfit(self, f"the axis of {make.dims(axis)} is no scalar")
        if value is None:
            raise ValueNeeded("the shape of the result depends on an axis computed at run time", index=1)
        at = int(value.reshape(-1)[0])
        if not -rank - 1 <= at <= rank:
            raise misfit(self, f"axis {at} is none of a tensor of rank {rank} with one axis more")
        at += rank + 1 if at < 0 else 0
        return [make.reshape(x, *make.dims(x)[:at], 1, *make.dims(x)[at:])]


@standard_op(type="com.microsoft::MatMulInteger16", op_class="exact", most_inputs=2, least_inputs=2)
class MatMulInteger16(Composite):
    """The product of matrices of int16, in int32; inputs A, B."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        if any(make.dtype(each) is not DType.INT16 for each in inputs):
            raise misfit(self, "both matrices must be of int16")
        return [make.add("MatMul", *(make.cast(each, DType.INT32) for each in inputs))]


@standard_op(
    type="com.microsoft::ConvTransposeWithDynamicPads", op_class="reduction", most_inputs=4, least_inputs=2,
    shaped_by=(2,),
)
class ConvTransposeWithDynamicPads(Composite):
    """A transposed convolution whose pads are an input; inputs X, W, Pads, B."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, w, pads, b = padded(inputs, 4)
        value = make.known(pads) if pads else None
        if pads and value is None:
            raise ValueNeeded("the shape of the result depends on pads computed at run time", index=2)
        names = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides")
        how: dict[str, Any] = {name: getattr(self, name) for name in names}
        given = () if value is None else tuple(int(n) for n in value.reshape(-1))
        return [make.add("ConvTranspose", x, w, *([b] if b else []), pads=given, **how)]


@standard_op(type="com.microsoft::Pad", op_class="exact", most_inputs=3, least_inputs=2, shaped_by=(1,))
class ContribPad(Composite):
    """ONNX's Pad, whose pads may also be a row, of shape (1, 2 * rank); inputs data, pads, constant_value."""

    mode: str = "constant"

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, pads, value = padded(inputs, 3)
        shape = make.dims(pads)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
            raise misfit(self, f"pads of {shape} are neither a list nor one row")
        return [make.add("Pad", x, make.reshape(pads, shape[-1]), *([value] if value else []), mode=self.mode)]


@standard_op(
    type="com.microsoft::Range", op_class="exact", most_inputs=3, keeps_types=True, wide_inputs=(0, 1, 2),
    least_inputs=2, shaped_by=(0, 1, 2),
)
class ContribRange(Composite):
    """ONNX's Range, in steps of 1 where no delta is given; inputs start, limit, delta."""

    # As of ONNX's Range: how many numbers there are follows from all bits of the inputs.

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        start, limit, delta = padded(inputs, 3)
        return [make.add("Range", start, limit, delta or make.number(1, start))]


__all__ = ["CDist", "ContribPad", "ContribRange", "ConvTransposeWithDynamicPads", "ExpandDims", "MatMulInteger16"]
