"""Einsum: sums of products over labels; taken apart into products of matrices where a device lacks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import NUMERIC, check_type, widen
from weft.ops.shape import one_type, sized, unfit

MOST_LABELS = 52
"""As many as numpy's einsum has: an ellipsis stands for one label an axis."""
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Equation:
    """An equation for given shapes: the labels of each operand's axes and of the result's, and the size of each.

    The axes that an ellipsis stands for have the labels ".0", ".1" ... counted from the back.
    """

    terms: tuple[Labels, ...]
    result: Labels
    sizes: dict[str, int]


@standard_op(op_class="reduction")
class Einsum(Op):
    """Sums of products over the labels that the result lacks, as `equation` says; any number of inputs."""

    equation: str

    def read(self, shapes: Sequence[Shape]) -> Equation:
        """Return the equation for operands of these shapes; ModelError if it does not fit them."""
        text = "".join(self.equation.split())
        left, arrow, right = text.partition("->")
        terms = left.split(",")
        if len(terms) != len(shapes):
            raise unfit(f"equation {self.equation!r} has {len(terms)} terms for {len(shapes)} inputs")
        labelled = [self._labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
        sizes: dict[str, int] = {}
        for labels, shape in zip(labelled, shapes, strict=True):
            for label, size in zip(labels, shape, strict=True):
                if sizes.get(label, 1) == 1:
                    sizes[label] = size
                elif size not in (1, sizes[label]):
                    raise unfit(f"label {label!r} of {self.equation!r} has the sizes {sizes[label]} and {size}")
        dots = sorted((label for label in sizes if label[0] == "."), key=lambda label: -int(label[1:]))
        if arrow:
            result = self._labels(right, right.count("...") * len(dots) + len(right.replace("...", "")))
        else:
            counts = Counter(label for labels in labelled for label in labels)
            result = (*dots, *sorted(c for c, n in counts.items() if n == 1 and c[0] != "."))
        if len(set(result)) < len(result) or not {*result} <= sizes.keys() or len(sizes) > MOST_LABELS:
            raise unfit(f"the result of equation {self.equation!r} has a label twice, or one that no input has")
        return Equation(tuple(labelled), result, sizes)

    def _labels(self, term: str, rank: int) -> Labels:
        before, dots, after = term.partition("...")
        letters, count = before + after, rank - len(before) - len(after)
        if not all("A" <= c <= "Z" or "a" <= c <= "z" for c in letters) or count < 0 or (count and not dots):
            raise unfit(f"term {term!r} of equation {self.equation!r} does not name {rank} axes")
        return (*before, *(f".{k}" for k in reversed(range(count))), *after)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        specs = [spec for spec in inputs if spec is not None]
        if not specs or len(specs) < len(inputs):
            raise unfit(f"equation {self.equation!r} needs all of its inputs")
        for spec in specs:
            check_type(self, spec, NUMERIC)
        equation = self.read([spec.dims for spec in specs])
        return (sized([equation.sizes[label] for label in equation.result], one_type(*specs)),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each product, as if all were formed at once."""
        sizes = self.read([shape for shape in inputs if shape is not None]).sizes
        return 2 * prod(sizes.values())

    def reference(self, *inputs: Array | None) -> Array:
        arrays = [np.asarray(x) for x in inputs]
        equation = self.read([x.shape for x in arrays])
        number = {label: k for k, label in enumerate(equation.sizes)}
        operands: list[Any] = []
        for x, labels in zip(arrays, equation.terms, strict=True):
            operands += [widen(x), [number[label] for label in labels]]
        out = np.einsum(*operands, [number[label] for label in equation.result], optimize=len(arrays) > 2)
        return np.ascontiguousarray(out, arrays[0].dtype).reshape(out.shape)


@decomposition("Einsum")
def _einsum(op: Einsum, make: Body, node: Node) -> Sequence[str]:
    equation: Equation = op.read([make.dims(i) for i in node.inputs])
    if 0 in equation.sizes.values():  # sums of nothing
        out = make.graph.specs[node.outputs[0]]
        return [make.zeros(out.dtype, *out.dims)]
    work, kind = _Contraction(make, equation), make.dtype(node.inputs[0])
    # Products and sums have no shorter integers; the lower bits of longer ones are the same.
    inside = DType.INT32 if kind.is_integer and kind.bits < DType.INT32.bits else kind
    read = [make.cast(value, inside) for value in node.inputs]
    operands = [work.plain(value, labels) for value, labels in zip(read, equation.terms, strict=True)]
    value, labels = operands.pop(0)
    while operands:
        needed = {label for _, others in operands[1:] for label in others} | {*equation.result}
        value, labels = work.product((value, labels), operands.pop(0), needed)
    value, labels = work.sum_out(value, labels, {*equation.result})
    value = work.ordered(value, labels, tuple(label for label in equation.result if label in labels))
    value = make.reshape(value, *(equation.sizes[label] for label in equation.result))
    return [make.cast(value, kind)]


class _Contraction:
    """Adds the nodes of an equation, two operands at a time."""

    def __init__(self, make: Body, equation: Equation) -> None:
        self._make, self._sizes = make, equation.sizes

    def plain(self, value: str, labels: Labels) -> tuple[str, Labels]:
        """Return an operand without axes of size 1 that are repeated, and its diagonal where a label is twice."""
        dims = self._make.dims(value)
        kept = [k for k, label in enumerate(labels) if dims[k] == self._sizes[label]]
        value = self._make.reshape(value, *(dims[k] for k in kept))
        labels = tuple(labels[k] for k in kept)
        while len(set(labels)) < len(labels):
            label = next(c for c, n in Counter(labels).items() if n > 1)
            first, second, *_ = (k for k, c in enumerate(labels) if c == label)
            rest = [k for k in range(len(labels)) if k not in (first, second)]
            value = self._transposed(value, (*rest, first, second))
            size, sizes = self._sizes[label], [self._sizes[labels[k]] for k in rest]
            value = self._make.reshape(value, *sizes, size * size)
            ends = (self._make.ints(n) for n in (0, size * size, len(rest), size + 1))
            value = self._make.add("Slice", value, *ends)
            labels = (*(labels[k] for k in rest), label)
        return value, labels

    def sum_out(self, value: str, labels: Labels, needed: set[str]) -> tuple[str, Labels]:
        """Return an operand summed over the labels that nothing needs."""
        axes = [k for k, label in enumerate(labels) if label not in needed]
        if axes:
            value = self._make.add("ReduceSum", value, self._make.ints(*axes), keepdims=0)
        return value, tuple(label for label in labels if label in needed)

    def product(self, a: tuple[str, Labels], b: tuple[str, Labels], needed: set[str]) -> tuple[str, Labels]:
        """Return the product of two operands, summed over what they share and nothing else needs."""
        a, b = self.sum_out(*a, needed | {*b[1]}), self.sum_out(*b, needed | {*a[1]})
        batch = tuple(c for c in a[1] if c in b[1] and c in needed)
        inner = tuple(c for c in a[1] if c in b[1] and c not in needed)
        rows = tuple(c for c in a[1] if c not in b[1])
        columns = tuple(c for c in b[1] if c not in a[1])
        left = self.ordered(*a, (*batch, *rows, *inner))
        right = self.ordered(*b, (*batch, *inner, *columns))
        n, m, k, l = (prod(self._sizes[c] for c in group) for group in (batch, rows, inner, columns))  # noqa: E741
        kind = "MatMul" if inner else "Mul"
        value = self._make.add(kind, self._make.reshape(left, n, m, k), self._make.reshape(right, n, k, l))
        labels = (*batch, *rows, *columns)
        return self._make.reshape(value, *(self._sizes[c] for c in labels)), labels

    def ordered(self, value: str, labels: Labels, wanted: Labels) -> str:
        """Return an operand with its axes in another order."""
        return self._transposed(value, tuple(labels.index(label) for label in wanted))

    def _transposed(self, value: str, perm: tuple[int, ...]) -> str:
        return value if perm == tuple(sorted(perm)) else self._make.add("Transpose", value, perm=perm)
