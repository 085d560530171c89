"""ONNX Runtime's own ops (`com.microsoft`) in files of its optimiser: norms, activations, a product, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from weft.core.graph.composite import Body, Composite, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.op import OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.ops.elementwise import FLOATS, misfit
from weft.ops.shape import one_axis

INT_TYPES = (DType.INT32, DType.INT64)


@standard_op(op_class="reduction", most_inputs=2)
class SimplifiedLayerNormalization(Composite):
    """RMSNormalization under ONNX Runtime's name, which lies in ONNX's domain; inputs X, scale."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, scale = inputs
        attributes: dict[str, Any] = {"axis": self.axis, "epsilon": self.epsilon, "stash_type": self.stash_type}
        normed = make.add("RMSNormalization", x, scale, **attributes)
        if self.outputs < 2:
            return [normed]
        rank = len(make.dims(x))
        return [normed, _factor(make, _widened(make, x), one_axis(self.axis, rank) - rank, self.epsilon)]


def _widened(make: Body, x: str) -> str:
    """Return x as the floats that statistics have."""
    return x if make.dtype(x) is DType.FLOAT64 else make.cast(x, DType.FLOAT32)


def _factor(make: Body, x: str, axis: int, epsilon: float) -> str:
    """Return one over the root mean square of the axes from `axis` on, which counts from the end."""
    mean = make.add("ReduceMean", make.add("Mul", x, x), make.ints(*range(axis, 0)))
    return make.add("Reciprocal", make.add("Sqrt", make.add("Add", mean, make.number(epsilon, x))))


@op_dataclass
class _SkipNorm(Composite):
    """The sum of an input, a skip connection and a bias, normalized; outputs the norm, mean, factor, the sum."""

    op_class: ClassVar[OpClass] = "reduction"
    epsilon: float = 1e-12

    def total(self, make: Body, x: str, skip: str, bias: str) -> str:
        """Return the sum."""
        if make.dtype(x) not in FLOATS or not 2 <= len(make.dims(x)) <= 3:
            raise misfit(self, f"the input must have floats of rank 2 or 3, not {make.dims(x)}")
        total = make.add("Add", x, skip)
        total = make.add("Add", total, bias) if bias else total
        if make.dims(total) != make.dims(x):
            raise misfit(self, f"a skip of {make.dims(skip)} does not fit {make.dims(x)}")
        return total


@standard_op(type="com.microsoft::SkipLayerNormalization", most_inputs=5)
class SkipLayerNormalization(_SkipNorm):
    """LayerNormalization of a sum over the last axis; inputs input, skip, gamma, beta, bias."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, skip, gamma, beta, bias = padded(inputs, 5)
        total = self.total(make, x, skip, bias)
        parameters = (gamma, beta) if beta else (gamma,)
        normed = make.add("LayerNormalization", total, *parameters, epsilon=self.epsilon)
        if self.outputs < 2:
            return [normed]
        # Apart from the norm, so that nobody computes what is not read: most files have only the norm and the sum.
        wide = self.total(make, *(_widened(make, name) if name else "" for name in (x, skip, bias)))
        mean = make.add("ReduceMean", wide, make.ints(-1))
        return [normed, mean, _factor(make, make.add("Sub", wide, mean), -1, self.epsilon), total]


@standard_op(type="com.microsoft::SkipSimplifiedLayerNormalization", most_inputs=4)
class SkipSimplifiedLayerNormalization(_SkipNorm):
    """RMSNormalization of a sum over the last axis; inputs input, skip, gamma, bias. Its mean is 0."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, skip, gamma, bias = padded(inputs, 4)
        total = self.total(make, x, skip, bias)
        normed = make.add("RMSNormalization", total, gamma, epsilon=self.epsilon)
        if self.outputs < 2:
            return [normed]
        wide = self.total(make, *(_widened(make, name) if name else "" for name in (x, skip, bias)))
        mean = make.zeros(make.dtype(wide), *make.dims(total)[:-1], 1)
        return [normed, mean, _factor(make, wide, -1, self.epsilon), total]


@standard_op(type="com.microsoft::EmbedLayerNormalization", op_class="reduction", most_inputs=9)
class EmbedLayerNormalization(Composite):
    """Embeddings of words, positions and segments, added and normalized; outputs the norm, mask_index, the sum.

    Inputs input_ids, segment_ids, word_embedding, position_embedding, segment_embedding, gamma, beta, mask,
    position_ids. mask_index has the number of ones in each row of the mask.
    """

    epsilon: float = 1e-12
    mask_index_type: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        ids, segments, words, positions, kinds, gamma, beta, mask, places = padded(inputs, 9)
        if len(make.dims(ids)) != 2 or make.dtype(ids) not in INT_TYPES:
            raise misfit(self, f"input_ids must be (batch, rows) integers, not {make.dims(ids)}")
        batch, rows = make.dims(ids)
        at = make.add("Gather", positions, places) if places else make.part(positions, 0, 0, rows)
        total = make.add("Add", make.add("Gather", words, ids), at)
        if kinds:
            total = make.add("Add", total, make.add("Gather", kinds, segments))
        normed = make.add("LayerNormalization", total, gamma, beta, epsilon=self.epsilon)
        if mask:
            # Floats count exactly to 2^24, which is more than a row has.
            counts = make.add("ReduceSum", make.cast(mask, DType.FLOAT32), make.ints(1), keepdims=0)
            index = make.cast(counts, DType.INT32)
        else:
            index = make.zeros(DType.INT32, batch) if self.outputs > 1 else ""
        return [normed, index, total]


@standard_op(type="com.microsoft::QEmbedLayerNormalization", op_class="reduction", most_inputs=18, keeps_types=True)
class QEmbedLayerNormalization(Composite):
    """EmbedLayerNormalization with quantised tables; inputs as there up to the mask, then scales and zero points.

    Those are of words, positions, segments, gamma and beta: five scales, then five zero points.
    """

    epsilon: float = 1e-12

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        ids, segments, *rest = padded(inputs, 18)
        tables, mask, scales, zeros = rest[:5], rest[5], rest[6:11], rest[11:]
        floats = []
        for table, scale, zero in zip(tables, scales, zeros, strict=True):
            read = [make.reshape(name) for name in (scale, zero) if name]
            floats.append(make.add("DequantizeLinear", table, *read) if table else "")
        attributes: dict[str, Any] = {"epsilon": self.epsilon, "outputs": self.outputs}
        return make.all(EmbedLayerNormalization.type, ids, segments, *floats, mask, made=3, **attributes)


@op_dataclass
class _Activation(Composite):
    op_class: ClassVar[OpClass] = "transcendental"


@standard_op(type="com.microsoft::BiasGelu", most_inputs=2)
class BiasGelu(_Activation):
    """Gelu of A plus a bias; inputs A, B."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        return [make.add("Gelu", make.add("Add", *inputs))]


@standard_op(type="com.microsoft::Gelu", most_inputs=1)
class ContribGelu(_Activation):
    """Gelu with the error function."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        return [make.add("Gelu", *inputs)]


@standard_op(type="com.microsoft::FastGelu", most_inputs=2)
class FastGelu(_Activation):
    """Gelu with tanh of X plus a bias; inputs X, bias."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, bias = padded(inputs, 2)
        return [make.add("Gelu", make.add("Add", x, bias) if bias else x, approximate="tanh")]


@standard_op(type="com.microsoft::GemmFastGelu", op_class="reduction", most_inputs=3)
class GemmFastGelu(_Activation):
    """Gelu with tanh of a matrix product plus a bias; inputs X, W, bias."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, w, bias = padded(inputs, 3)
        y = make.add("MatMul", x, w)
        return [make.add("Gelu", make.add("Add", y, bias) if bias else y, approximate="tanh")]


@standard_op(type="com.microsoft::QuickGelu", most_inputs=1)
class QuickGelu(_Activation):
    """x * sigmoid(alpha * x)."""

    alpha: float = 1.702

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        return [make.add("Swish", *inputs, alpha=self.alpha)]


@standard_op(type="com.microsoft::BiasSplitGelu", most_inputs=2)
class BiasSplitGelu(_Activation):
    """The first half of X plus a bias, times Gelu of the second half, along the last axis; inputs X, bias."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, bias = inputs
        half = make.dims(x)[-1] // 2
        if make.dims(x)[-1] != 2 * half or make.dims(bias) != (2 * half,):
            raise misfit(self, f"X of {make.dims(x)} and a bias of {make.dims(bias)} are not two halves")
        first, second = make.split(make.add("Add", x, bias), half, half)
        return [make.add("Mul", first, make.add("Gelu", second))]


@standard_op(type="com.microsoft::BiasAdd", op_class="arithmetic", most_inputs=3)
class BiasAdd(Composite):
    """X plus a bias plus a skip connection; inputs X, bias, skip."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, bias, skip = inputs
        return [make.add("Add", make.add("Add", x, bias), skip)]


@standard_op(
    type="com.microsoft::FusedMatMul", op_class="reduction", most_inputs=2,
    flags=("transA", "transB", "transBatchA", "transBatchB"),
)
class FusedMatMul(Composite):
    """alpha times a matrix product, with matrices transposed on request; inputs A, B.

    `transBatchA` and `transBatchB` say that the rows of a matrix lie before the axes of the batch.
    """

    alpha: float = 1.0
    transA: int = 0
    transB: int = 0
    transBatchA: int = 0
    transBatchB: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        a, b = inputs
        a = self._turned(make, a, bool(self.transA), bool(self.transBatchA))
        b = self._turned(make, b, bool(self.transB), bool(self.transBatchB))
        y = make.add("MatMul", a, b)
        return [y if self.alpha == 1 else make.add("Mul", y, make.number(self.alpha, y))]

    def _turned(self, make: Body, value: str, matrix: bool, batch: bool) -> str:
        rank = len(make.dims(value))
        order = [*range(rank)]
        if batch and rank > 2:
            order = [*order[1:-1], 0, rank - 1]
        if matrix and rank > 1:
            order[-2:] = order[:-3:-1]
        return value if order == [*range(rank)] else make.add("Transpose", value, perm=tuple(order))


@standard_op(type="com.microsoft::TransposeMatMul")
class TransposeMatMul(FusedMatMul):
    """The older name of FusedMatMul."""


__all__ = [
    "BiasAdd", "BiasGelu", "BiasSplitGelu", "ContribGelu", "EmbedLayerNormalization", "FastGelu", "FusedMatMul",
    "GemmFastGelu", "QEmbedLayerNormalization", "QuickGelu", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "TransposeMatMul",
]
