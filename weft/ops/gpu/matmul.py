"""MatMul and Gemm on GPUs: a tiled kernel, and one for few rows times constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import GpuOp, KernelBuilder, gpu_op
from weft.ops.conv import Conv
from weft.ops.gpu.conv.gemm import ConvPlan, launch_ungrouped
from weft.ops.gpu.move import row_major
from weft.ops.matmul import Gemm, MatMul

FEW_ROWS = 4
ITEMS = 8
"""The items along either side of a tile."""
EACH = (4, 2)
"""Rows and columns of an item: as many as still make FULL tiles a compute unit."""
FULL = 2


@dataclass(frozen=True)
class Product:
    """y[batch, m, n] = alpha * sum over k of a[batch, m, k] * b[batch, k, n] + beta * c[m, n].

    Steps are in elements: (row, column) of each matrix, and one for each axis of `batch`.
    """

    m: int
    n: int
    k: int
    a: Tensor
    b: Tensor
    y: Tensor
    a_steps: tuple[int, int]
    b_steps: tuple[int, int]
    batch: Shape = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    alpha: float = 1.0
    beta: float = 1.0
    c: Tensor | None = None


@gpu_op(MatMul)
class MatMulOnGpu(GpuOp):
    """Numpy's matmul, with broadcast batch axes."""

    splits_constants = True

    def rounds(self, op: MatMul, inputs: Sequence[Tensor | None]) -> int:
        """Return twice the products of an output: tiles are loaded in loops, too."""
        a = inputs[0]
        assert a is not None
        return 2 * a.shape[-1]

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept few rows: more of them go to kernels for matrix units."""
        return _few_rows(output)

    def launches(
        self, op: MatMul, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Bring one-dimensional operands to matrices and launch."""
        a, b = inputs[0], inputs[1]
        assert a is not None and b is not None
        a_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
        b_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        rank = max(len(a_shape), len(b_shape)) - 2
        a_lead, b_lead = _lead(a_shape, rank), _lead(b_shape, rank)
        batch = tuple(max(p, q) if 0 not in (p, q) else 0 for p, q in zip(a_lead, b_lead, strict=True))
        a_batch, b_batch = _batch_steps(a_shape, a_lead), _batch_steps(b_shape, b_lead)
        m, depth, n = a_shape[-2], a_shape[-1], b_shape[-1]
        if not any(b_batch) and (len(a_shape) <= 2 or a_lead == batch):
            # One matrix b for all: the batch is more rows.
            m, batch, a_batch, b_batch = m * prod(batch), (), (), ()
        product = Product(m, n, depth, a, b, outputs[0], (depth, 1), (n, 1), batch, a_batch, b_batch)
        launch_product(k, product)


def _few_rows(output: TensorSpec) -> bool:
    return prod(output.dims[:-1]) <= FEW_ROWS


def _lead(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank + 2 - len(shape)) + tuple(shape[:-2])


def _batch_steps(shape: Shape, lead: Shape) -> tuple[int, ...]:
    steps = row_major((*lead, *shape[-2:]))[: len(lead)]
    return tuple(0 if size == 1 else s for size, s in zip(lead, steps, strict=True))


@gpu_op(Gemm)
class GemmOnGpu(GpuOp):
    """alpha * A B + beta * C with either matrix transposed."""

    splits_constants = True

    def rounds(self, op: Gemm, inputs: Sequence[Tensor | None]) -> int:
        """Return twice the products of an output: tiles are loaded in loops, too."""
        a = inputs[0]
        assert a is not None
        return 2 * a.shape[0 if op.transA else 1]

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept few rows: more of them go to kernels for matrix units."""
        return _few_rows(output)

    def launches(self, op: Gemm, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Launch with the strides that the transposes mean."""
        a, b = inputs[0], inputs[1]
        c = inputs[2] if len(inputs) > 2 else None
        assert a is not None and b is not None
        y = outputs[0]
        m, n = y.shape
        depth = a.shape[0] if op.transA else a.shape[1]
        a_steps = (1, m) if op.transA else (depth, 1)
        b_steps = (1, depth) if op.transB else (n, 1)
        launch_product(k, Product(m, n, depth, a, b, y, a_steps, b_steps, (), (), (), op.alpha, op.beta, c))


def launch_product(k: KernelBuilder, p: Product) -> None:
    """Launch the kernel that fits; constant weights beyond a kernel argument's range go piece by piece."""
    if p.b.constant is not None and not p.batch:
        if _launch_as_convolution(k, p):
            return
        few = p.m <= FEW_ROWS and p.a_steps == (p.k, 1) and "matmul_rows" not in k.caps.without
        row_bytes = max(p.k, 1) * p.b.dtype.itemsize + PACK * 4
        most = max(k.caps.max_buffer_range // row_bytes, 1)
        matrix = p.b.constant.reshape(-1, p.k) if p.b_steps == (1, p.k) else p.b.constant.reshape(p.k, -1).T
        for first in range(0, p.n, most):
            count = min(most, p.n - first)
            if few:
                _launch_rows(k, p, matrix, first, count)
            else:
                part = k.constant(f"columns.{first}", matrix[first : first + count].T.copy)
                _launch_tiles(k, p, part, (count, 1), first, count)
    else:
        _launch_tiles(k, p, p.b, p.b_steps, 0, p.n)


def _launch_as_convolution(k: KernelBuilder, p: Product) -> bool:
    """Launch as a convolution of images of one pixel, if the product is one; tell whether it was.

    A row-major matrix whose columns are a multiple of four lies in memory as such images do in NC4HW4.
    """
    assert p.b.constant is not None
    bias = None if p.c is None else p.c.constant
    plain = p.a_steps == (p.k, 1) and p.k % PACK == 0 and p.n % PACK == 0 and p.m > FEW_ROWS
    if not plain or (p.c is not None and (bias is None or bias.size != p.n)) or not k.joins_channels(p.n):
        return False
    weight = p.b.constant.reshape(p.n, p.k) if p.b_steps == (1, p.k) else p.b.constant.reshape(p.k, p.n).T
    x = replace(p.a, shape=(p.m, p.k, 1, 1), layout=Layout.NC4HW4)
    y = replace(p.y, shape=(p.m, p.n, 1, 1), layout=Layout.NC4HW4)
    weight = weight if p.alpha == 1 else (weight.astype(np.float32) * p.alpha).astype(weight.dtype)
    bias = bias if bias is None or p.beta == 1 else (bias.astype(np.float32) * p.beta).astype(bias.dtype)
    shift = None if bias is None else bias.reshape(-1)
    launch_ungrouped(ConvPlan(k, Conv(kernel_shape=(1, 1)), x, y, weight.reshape(p.n, p.k, 1, 1), shift))
    return True


def _addend(k: KernelBuilder, p: Product) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the argument for C and its steps, 0 where it is repeated."""
    if p.c is None:
        return {}, {}
    shape = (1,) * (2 - len(p.c.shape)) + tuple(p.c.shape)
    return {"c": p.c}, {"CM": 0 if shape[0] == 1 else shape[1], "CN": 0 if shape[1] == 1 else 1}


def _launch_rows(k: KernelBuilder, p: Product, matrix: Array, first: int, count: int) -> None:
    """Launch one group per output column for at most FEW_ROWS rows; weights lie as rows of vectors along k."""
    vectors = -(-p.k // PACK)
    weights = k.constant(
        f"rows.{first}", lambda: matrix[first : first + count].reshape(count, p.k, 1), Layout.NC4HW4
    )
    addend, steps = _addend(k, p)
    k.launch(
        "matmul_rows",
        reads={"a": p.a, "w": weights, **addend},
        writes={"y": p.y},
        ints={"K": p.k, "VECTORS": vectors, "FIRST": first, "COUNT": count, "N": p.n, **steps},
        floats={"ALPHA": p.alpha, "BETA": p.beta},
        variant={"rows": p.m, "quads": p.k % PACK == 0},
        grid=(min(count, k.caps.max_grid[0]), 1, 1),
        local=(k.tree_items(), 1, 1),
    )


def _launch_tiles(k: KernelBuilder, p: Product, b: Tensor, b_steps: tuple[int, int], first: int, count: int) -> None:
    """Launch tiles of 8 x 8 items."""
    addend, steps = _addend(k, p)
    batches = prod(p.batch)
    each = choose_each(k, p.m, count, batches)
    tiles_m, tiles_n = -(-p.m // (ITEMS * each)), -(-count // (ITEMS * each))
    ints = {
        "M": p.m, "N": p.n, "K": p.k, "FIRST": first, "COUNT": count, "TILES_M": tiles_m, "TILES_N": tiles_n,
        "TILES": tiles_m * tiles_n * batches, "AM": p.a_steps[0], "AK": p.a_steps[1],
        "BK": b_steps[0], "BN": b_steps[1], **steps,
    }  # fmt: skip
    for d, size in enumerate(p.batch):
        ints |= {f"D{d}": size, f"AB{d}": p.a_batch[d], f"BB{d}": p.b_batch[d]}
    k.launch(
        "matmul",
        reads={"a": p.a, "b": b, **addend},
        writes={"y": p.y},
        ints=ints,
        floats={"ALPHA": p.alpha, "BETA": p.beta},
        variant={"batch": len(p.batch), "each": each},
        grid=(max(1, min(ints["TILES"], k.caps.max_grid[0])), 1, 1),
        local=(ITEMS, ITEMS, 1),
    )


def choose_each(k: KernelBuilder, rows: int, columns: int, batches: int) -> int:
    """Return the rows and columns that one item should compute: fewer where large tiles would leave units idle."""

    def tiles(each: int) -> int:
        return -(-rows // (ITEMS * each)) * -(-columns // (ITEMS * each)) * batches

    wanted = 0 if k.caps.software else FULL * k.caps.compute_units
    return next((each for each in EACH if tiles(each) >= wanted), EACH[-1])
