"""A product of matrices as a problem for the chooser, and a plan: that problem with its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Shape
from weft.core.graph.tensor import Tensor
from weft.core.passes.rounding import loses_more
from weft.kernels.chooser import Facts
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder


@dataclass(frozen=True)
class ProductProblem:
    """The facts of y[batch, m, n] = alpha * sum over k of a[batch, m, k] * b[batch, k, n] + beta * c[m, n].

    Steps are in elements: (row, column) of each matrix, and one for each axis of `batch`.
    """

    m: int
    n: int
    k: int
    a_steps: tuple[int, int]
    b_steps: tuple[int, int]
    first: tuple[int, int]
    """The places of the first elements of a and b."""
    batch: Shape
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    weights: bool
    """Whether b is one constant matrix."""
    bias: bool
    """Whether c is missing, or one constant number for each column."""
    adds: bool
    """Whether there is a c."""
    holds_scale: bool
    """Whether the type of constant weights, and of c, can hold them with alpha and beta in them."""
    joins_channels: bool
    """Whether fused steps also work if columns become channels (`KernelBuilder.joins_channels`)."""
    double: bool
    """Whether it is computed in float64."""
    halves: bool
    """Whether all matrices are fp16."""
    plain: tuple[bool, bool]
    """Whether the elements of a and b lie where the steps say; else only `load` of a template finds them."""
    fours: bool
    """Whether four adjacent results can be stored at once."""
    caps: DeviceCaps

    def facts(self) -> Facts:
        """Return the facts by which tuning tables find a problem."""
        sizes = {"M": self.m, "N": self.n, "K": self.k, "weights": self.weights, "bias": self.bias}
        unusual = {} if self.fours is (self.n % PACK == 0) else {"fours": self.fours}
        unusual |= {f"plain_{name}": False for name, plain in zip("ab", self.plain, strict=True) if not plain}
        return {**sizes, **self.steps(self.b_steps), **unusual}

    def steps(self, b_steps: tuple[int, int]) -> dict[str, int]:
        """Return the constants by which kernels walk the batch and both matrices; b may be packed in other steps."""
        ints = {"A0": self.first[0], "B0": self.first[1]}
        ints |= {"AM": self.a_steps[0], "AK": self.a_steps[1], "BK": b_steps[0], "BN": b_steps[1]}
        for d, size in enumerate(self.batch):
            ints |= {f"D{d}": size, f"AB{d}": self.a_batch[d], f"BB{d}": self.b_batch[d]}
        return ints


@dataclass(frozen=True)
class ProductPlan:
    """A product's problem with its tensors."""

    k: KernelBuilder
    problem: ProductProblem
    a: Tensor
    b: Tensor
    y: Tensor
    c: Tensor | None
    alpha: float
    beta: float

    @classmethod
    def of(
        cls, k: KernelBuilder, sizes: tuple[int, int, int], tensors: tuple[Tensor, Tensor, Tensor],
        a_steps: tuple[int, int], b_steps: tuple[int, int], batch: Shape = (), a_batch: tuple[int, ...] = (),
        b_batch: tuple[int, ...] = (), *, first: tuple[int, int] = (0, 0),
        scale: tuple[float, float] = (1.0, 1.0), c: Tensor | None = None,
    ) -> ProductPlan:
        """Return the plan of a product of sizes m, n and k; `tensors` are a, b and y, `scale` is alpha and beta."""
        (m, n, depth), (a, b, y) = sizes, tensors
        bias = c is None or (c.constant is not None and c.constant.shape in ((n,), (1, n)))
        weights = b.constant is not None and not batch and depth > 0  # without rows there is nothing to pack
        joins, double = k.joins_channels(n), y.dtype is DType.FLOAT64
        halves = a.dtype is b.dtype is y.dtype is DType.FLOAT16
        problem = ProductProblem(
            m=m, n=n, k=depth, a_steps=a_steps, b_steps=b_steps, first=first, batch=batch, a_batch=a_batch,
            b_batch=b_batch, weights=weights, bias=bias, adds=c is not None,
            holds_scale=_holds(b, scale[0]) and _holds(c, scale[1]), joins_channels=joins, double=double,
            halves=halves, plain=(k.lies_plain(a), k.lies_plain(b)),
            fours=n % PACK == 0 and k.lies_plain(y, count=PACK), caps=k.caps,
        )
        return cls(k, problem, a, b, y, c, *scale)

    def matrix(self) -> Array:
        """Return the constant weights transposed: a row for each column of the result."""
        p, value = self.problem, self.b.constant
        assert value is not None
        return value.reshape(-1, p.k) if p.b_steps == (1, p.k) else value.reshape(p.k, -1).T

    def addend(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the argument for c and its steps, 0 where it is repeated."""
        if self.c is None:
            return {}, {}
        shape = (1,) * (2 - len(self.c.shape)) + tuple(self.c.shape)
        return {"c": self.c}, {"CM": 0 if shape[0] == 1 else shape[1], "CN": 0 if shape[1] == 1 else 1}

    def pieces(self, matrices: int = 1) -> Iterator[tuple[int, int]]:
        """Iterate over (first, count) of columns such that each piece's weights fit one kernel argument.

        `matrices` is how many have a row in it for each column.
        """
        p = self.problem
        row_bytes = matrices * (max(p.k, 1) * self.b.dtype.itemsize + PACK * 4)
        most = max(p.caps.max_buffer_range // row_bytes, 1)
        return ((first, min(most, p.n - first)) for first in range(0, p.n, most))


def _holds(tensor: Tensor | None, factor: float) -> bool:
    """Tell whether the type of a constant can hold it times a number as exactly as the constant itself."""
    value = None if tensor is None else tensor.constant
    if value is None or factor == 1 or value.dtype == np.float64:
        return True
    wide = value.astype(np.float32)
    with np.errstate(all="ignore"):
        product = wide * np.float32(factor)
    return bool(np.isfinite(product).all()) and not loses_more(product, [wide], DType.of(value.dtype))


def why_not_packed(problem: ProductProblem) -> str | None:
    """Return why the second matrix cannot be packed beforehand, as vectors of four."""
    if problem.double:
        return "it is computed in float64"
    return None if problem.weights else "its second matrix is computed at run time, or there are several"
