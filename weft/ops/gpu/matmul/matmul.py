"""MatMul and Gemm on GPUs, and the algorithms that compete for products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import Shape
from weft.core.graph.tensor import TensorSpec
from weft.kernels.chooser import Chooser, Rivals
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.ops.gpu.matmul.as_convolution import ProductAsConvolution
from weft.ops.gpu.matmul.few_rows import FEW_ROWS, ProductOfFewRows
from weft.ops.gpu.matmul.integers import launch_integers, takes_integers
from weft.ops.gpu.matmul.matrix import MatrixProduct
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem
from weft.ops.gpu.matmul.thin import ThinProduct
from weft.ops.gpu.matmul.tiled import TiledProduct
from weft.ops.gpu.matmul.whole import WHOLE, launch_whole
from weft.ops.matmul import Gemm, MatMul
from weft.ops.shape import given, optional

PRODUCTS = Chooser[ProductProblem, ProductPlan](
    Rivals("product as a convolution", (ProductAsConvolution(),)),
    Rivals("matmul_rows", (ProductOfFewRows(),)),
    Rivals("matmul_thin", (ThinProduct(),)),
    Rivals(
        "matmul", (TiledProduct(), MatrixProduct()), ProductProblem.facts,
        in_microseconds=lambda problem: not problem.caps.software,
    ),
)
"""Chooses the algorithm of a product, in this order of preference; tuning has a say among tiles."""


@gpu_op(MatMul)
class MatMulOnGpu(GpuOp):
    """Numpy's matmul, with broadcast batch axes."""

    splits_constants = True
    computes_double = True
    integers = WHOLE

    def why_not(self, op: MatMul, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse constants of integers that exceed a kernel argument."""
        return _why_not_whole(inputs, caps)

    def takes_place(
        self, op: MatMul, position: int, shape: Shape, places: IndexMap, constant: Sequence[bool]
    ) -> bool:
        """Accept any unless the second matrix is constant: kernels for such products fetch rows at once."""
        return not constant[1]

    def rounds(self, op: MatMul, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return twice the products of an output: tiles are loaded in loops, too."""
        a = given(inputs, 0)
        return 2 * a.shape[-1]

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept few rows: more of them go to kernels for matrix units."""
        return _few_rows(output)

    def takes_integers(
        self, op: MatMul, inputs: Inputs, outputs: Outputs, read: Sequence[bool], caps: DeviceCaps
    ) -> bool:
        """Accept rows of integers times weights that are integers, too."""
        return takes_integers(inputs, outputs, read, 1, caps)

    def launches(self, op: MatMul, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Make matrices of one-dimensional operands, and launch."""
        a, b = given(inputs, 0), given(inputs, 1)
        if a.quantised is not None:
            launch_integers(k, a, outputs[0], b, 1, None)
            return
        a, a_all, a_first = k.by_steps(a)
        b, b_all, b_first = k.by_steps(b)
        a_shape, a_all = (a.shape, a_all) if len(a.shape) > 1 else ((1, *a.shape), (0, *a_all))
        b_shape, b_all = (b.shape, b_all) if len(b.shape) > 1 else ((*b.shape, 1), (*b_all, 0))
        rank = max(len(a_shape), len(b_shape)) - 2
        a_lead, b_lead = _lead(a_shape, rank), _lead(b_shape, rank)
        batch = tuple(max(p, q) if 0 not in (p, q) else 0 for p, q in zip(a_lead, b_lead, strict=True))
        a_batch, b_batch = _batch_steps(a_lead, a_all), _batch_steps(b_lead, b_all)
        m, depth, n = a_shape[-2], a_shape[-1], b_shape[-1]
        a_steps, b_steps = (a_all[-2], a_all[-1]), (b_all[-2], b_all[-1])
        row_step = _row_step(a_shape[:-1], a_all[:-1])
        if not any(b_batch) and row_step is not None and a_lead == batch:
            # All of the batch share one matrix b, so the batch is just more rows.
            a_steps, m = (row_step, a_steps[1]), m * prod(batch)
            batch, a_batch, b_batch = (), (), ()
        steps = a_steps, b_steps, batch, a_batch, b_batch
        _launch(ProductPlan.of(k, (m, n, depth), (a, b, outputs[0]), *steps, first=(a_first, b_first)))


def _why_not_whole(inputs: Inputs, caps: DeviceCaps) -> str | None:
    """Return why a product of integers does not run: it binds constants whole, of which others pass pieces."""
    for t in inputs:
        if t is not None and t.dtype.is_integer and prod(t.shape) * t.dtype.itemsize > caps.max_buffer_range:
            return f"{t.name!r} has {prod(t.shape)} integers; a kernel argument may span {caps.max_buffer_range} bytes"
    return None


def _launch(plan: ProductPlan) -> None:
    if plan.y.dtype.is_integer:
        launch_whole(plan)
    else:
        PRODUCTS.launch(plan)


def _few_rows(output: TensorSpec) -> bool:
    return prod(output.dims[:-1]) <= FEW_ROWS


def _lead(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank + 2 - len(shape)) + tuple(shape[:-2])


def _batch_steps(lead: Shape, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps of axes of a batch, 0 where a matrix is repeated; the last two of `steps` are the matrix's."""
    every = (0,) * (len(lead) + 2 - len(steps)) + steps
    return tuple(0 if size == 1 else step for size, step in zip(lead, every, strict=False))


def _row_step(shape: Shape, steps: tuple[int, ...]) -> int | None:
    """Return how far all rows of a batch are apart, None if they are not equally; the last axis is that of rows."""
    rows, found = 1, None
    for size, step in zip(reversed(shape), reversed(steps), strict=True):
        if size == 1:
            continue
        found = step if found is None else found
        if step != rows * found:
            return None
        rows *= size
    return steps[-1] if found is None else found


@gpu_op(Gemm)
class GemmOnGpu(GpuOp):
    """alpha * A B + beta * C with either matrix transposed."""

    splits_constants = True
    computes_double = True
    integers = WHOLE

    def why_not(self, op: Gemm, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse factors of integers, which are floats, and constants of integers that exceed a kernel argument."""
        added = len(inputs) > 2 and inputs[2] is not None
        if outputs[0].dtype.is_integer and (op.alpha != 1 or (added and op.beta != 1)):
            return f"GPU kernels do not scale integers by {op.alpha:g} and {op.beta:g}"
        return _why_not_whole(inputs, caps)

    def rounds(self, op: Gemm, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return twice the products of an output: tiles are loaded in loops, too."""
        a = given(inputs, 0)
        return 2 * a.shape[0 if op.transA else 1]

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept few rows: more of them go to kernels for matrix units."""
        return _few_rows(output)

    def takes_integers(
        self, op: Gemm, inputs: Inputs, outputs: Outputs, read: Sequence[bool], caps: DeviceCaps
    ) -> bool:
        """Accept rows of integers times weights that are integers, too."""
        return not op.transA and takes_integers(inputs, outputs, read, 0 if op.transB else 1, caps)

    def launches(self, op: Gemm, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch with the strides of the transposed matrices."""
        first = given(inputs, 0)
        if first.quantised is not None:
            added = optional(inputs, 2)
            bias = None if added is None or added.constant is None or op.beta == 0 else added.constant * op.beta
            launch_integers(k, first, outputs[0], given(inputs, 1), 0 if op.transB else 1, bias, op.alpha)
            return
        a, b = inputs[0], inputs[1]
        c = inputs[2] if len(inputs) > 2 and op.beta != 0 else None  # 0 times NaN would be NaN
        assert a is not None and b is not None
        y = outputs[0]
        m, n = y.shape
        depth = a.shape[0] if op.transA else a.shape[1]
        a_steps = (1, m) if op.transA else (depth, 1)
        b_steps = (1, depth) if op.transB else (n, 1)
        scale = op.alpha, op.beta
        _launch(ProductPlan.of(k, (m, n, depth), (a, b, y), a_steps, b_steps, scale=scale, c=c))
