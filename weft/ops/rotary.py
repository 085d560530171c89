"""Rotary embeddings: pairs of elements of each head turned by an angle that grows with the position.

J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv 2104.09864.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.composite import Body, Composite
from weft.core.graph.dtypes import DType
from weft.core.graph.op import standard_op
from weft.ops.elementwise import FLOATS, misfit


def rotate(make: Body, x: str, cos: str, sin: str, interleaved: bool) -> str:
    """Return x with its last axis turned; `cos` and `sin` have half as many elements there and broadcast to x.

    Pairs are neighbours where `interleaved`, else an element of the first half and one of the second.
    """
    *lead, size = make.dims(x)
    if interleaved:
        pairs = make.reshape(x, *lead, size // 2, 2)
        axis = len(lead) + 1
        first, second = (make.reshape(p, *lead, size // 2) for p in make.split(pairs, 1, 1))
    else:
        axis = len(lead)
        first, second = make.split(x, size // 2, size // 2)
    real = make.add("Sub", make.add("Mul", cos, first), make.add("Mul", sin, second))
    imaginary = make.add("Add", make.add("Mul", sin, first), make.add("Mul", cos, second))
    if interleaved:
        real, imaginary = (make.reshape(v, *lead, size // 2, 1) for v in (real, imaginary))
    return make.reshape(make.add("Concat", real, imaginary, axis=axis), *lead, size)


@standard_op(op_class="reduction", most_inputs=4, flags=("interleaved",))
class RotaryEmbedding(Composite):
    """Each head turned by its position's angles; inputs X, cos_cache, sin_cache, position_ids.

    X is (batch, heads, rows, elements) or (batch, rows, heads * elements). The caches have a row of half the turned
    elements for each position or, without position_ids, for each row of each image.
    """

    interleaved: int = 0
    num_heads: int = 0
    rotary_embedding_dim: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Look up the angles and turn the elements that are to be turned."""
        x, cos, sin, *rest = inputs
        ids = rest[0] if rest else ""
        shape = make.dims(x)
        if make.dtype(x) not in FLOATS or len(shape) not in (3, 4):
            raise misfit(self, "X must have floats of rank 3 or 4")
        if len(shape) == 3 and (self.num_heads < 1 or shape[2] % self.num_heads):
            raise misfit(self, f"the last axis of {shape} is not {self.num_heads} heads side by side")
        if len(shape) == 3:
            batch, rows, heads, size = (*shape[:2], self.num_heads, shape[2] // self.num_heads)
        else:
            batch, heads, rows, size = shape
        turned = self.rotary_embedding_dim or size
        if turned % 2 or not 0 < turned <= size:
            raise misfit(self, f"{turned} of {size} elements cannot be turned in pairs")
        angles = []
        for cache in (cos, sin):
            value = make.add("Gather", cache, ids) if ids else cache
            if make.dims(value) != (batch, rows, turned // 2) or make.dtype(cache) is not make.dtype(x):
                wanted = f"{(batch, rows, turned // 2)} of {make.dtype(x).value}"
                raise misfit(self, f"a cache gives {make.dims(value)} of {make.dtype(cache).value}, not {wanted}")
            one = (batch, rows, 1, turned // 2) if len(shape) == 3 else (batch, 1, rows, turned // 2)
            angles.append(make.reshape(value, *one))
        whole = make.reshape(x, batch, rows, heads, size) if len(shape) == 3 else x
        first, *kept = make.split(whole, turned, size - turned) if turned < size else (whole,)
        out = rotate(make, first, angles[0], angles[1], bool(self.interleaved))
        if kept:
            out = make.add("Concat", out, *kept, axis=3)
        return [make.reshape(out, *shape)]


@standard_op(
    type="com.microsoft::RotaryEmbedding", op_class="reduction", most_inputs=4,
    flags=("interleaved", "is_packed_batching"),
)
class ContribRotaryEmbedding(Composite):
    """ONNX Runtime's rotary embedding; inputs input, position_ids, cos_cache, sin_cache.

    position_ids has one number, the position of the first row, or one for each row.
    """

    interleaved: int = 0
    num_heads: int = 0
    rotary_embedding_dim: int = 0
    scale: float = 1.0
    is_packed_batching: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, ids, cos, sin = inputs
        if self.is_packed_batching or self.scale != 1:
            raise misfit(self, "packed batches and a scale are not supported: ONNX Runtime's CPU takes neither")
        shape = make.dims(x)
        if len(shape) not in (3, 4):
            raise misfit(self, f"the input must have rank 3 or 4, not {shape}")
        batch, rows = shape[0], shape[1 if len(shape) == 3 else 2]
        heads = self.num_heads
        if len(shape) == 3 and not heads:
            size = self.rotary_embedding_dim or 2 * make.dims(cos)[-1]
            heads = shape[2] // max(size, 1)
        if make.dims(ids) == (1,):
            steps = make.counting(rows, 1, rows)
            row = make.add("Add", make.reshape(make.cast(ids, DType.INT64), 1, 1), steps)
            ids = make.add("Expand", row, make.ints(batch, rows)) if batch > 1 else row
        elif make.dims(ids) != (batch, rows):
            raise misfit(self, f"position_ids are {make.dims(ids)}; (1,) or {(batch, rows)} are possible")
        return [
            make.add(
                "RotaryEmbedding", x, cos, sin, ids,
                interleaved=self.interleaved, num_heads=heads, rotary_embedding_dim=self.rotary_embedding_dim,
            )
        ]


__all__ = ["ContribRotaryEmbedding", "RotaryEmbedding", "rotate"]
