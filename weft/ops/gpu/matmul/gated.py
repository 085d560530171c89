"""Two products of one value whose results become one as the kernel stores them: the gates of SwiGLU and its like.

The columns of both matrices are put side by side in pairs, so that one item has a number of each product and applies
the steps between them. Half as many numbers are stored, and the first product is neither written nor read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, cast

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step, earlier, pick_operands
from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ExecutionError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gate import BESIDE, Gate
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.output_maps import Pairs
from weft.kernels.self_test_cases import SelfTestCase, noise, noise64, one_node, several_nodes
from weft.kernels.special import register_family
from weft.ops.binary import Add, Mul
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.matmul.few_rows import FEW_ROWS, ProductOfFewRows, launch_few_rows
from weft.ops.gpu.matmul.problem import ProductPlan
from weft.ops.gpu.packing import LateWeights
from weft.ops.matmul import MatMul
from weft.ops.shape import given
from weft.ops.unary import Sigmoid

GATED_PRODUCT = "gated_product"
"""Kernels of two products and a gate; `DeviceCaps.without` names them where they were found wrong."""
PARAMETERS = 5
"""The inputs before the scalars: the value, and of each product the weights and the bias."""


@op_dataclass
class GatedProduct(Op):
    """Two products with constant weights, and element-wise steps that make one value of both; only backends make it.

    The inputs are the value, the first weights and bias, the second weights and bias, and scalars. Either bias may be
    missing. Without the second weights, the first ones and their bias have the columns of both products, one product's
    after the other's. Before the first step, the first product's result is the running value; the operand BESIDE is the
    second one's.
    """

    type: ClassVar[str] = "GatedProduct"
    op_class: ClassVar[OpClass] = "reduction"
    transposed: bool
    """Whether weights have a row for each column of the result."""
    steps: tuple[Step, ...]

    def columns(self, first: Shape, second: Shape | None) -> int:
        """Return the columns of each product, for the shapes of the weights."""
        both = first[0 if self.transposed else 1]
        return both // 2 if second is None else both

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output: the steps change neither the shape nor the type."""
        x, first, second = given(inputs, 0), given(inputs, 1), inputs[3]
        columns = self.columns(first.dims, None if second is None else second.dims)
        return (TensorSpec((*x.shape[:-1], columns), x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, *parameters = inputs[:PARAMETERS]
        assert x is not None
        products = []
        for matrix, bias in zip(*_both(self, parameters), strict=True):
            product = MatMul().reference(x, matrix.T)
            products.append(product if bias is None else product + bias)
        made, read = [products[0]], [products[1], *inputs[1:]]
        for number, step in enumerate(self.steps):
            made.append(cast(Array, step.op.reference(*pick_operands(step, number, read, made))))
        return made[-1]

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations of both products, and one for each element and step."""
        depth = (inputs[0] or (0,))[-1]
        return (4 * depth + len(self.steps)) * prod(outputs[0])


def _both(op: GatedProduct, parameters: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
    """Return the weights of both products, a row for each column of the result, and both biases."""
    first, bias, second, other = parameters
    assert first is not None
    matrix = first if op.transposed else first.T
    if second is not None:
        return [matrix, second if op.transposed else second.T], [_line(bias), _line(other)]
    n = len(matrix) // 2
    line = _line(bias)
    return [matrix[:n], matrix[n:]], [None, None] if line is None else [line[:n], line[n:]]


def _line(bias: Array | None) -> Array | None:
    return None if bias is None else bias.reshape(-1)


def _biases(both: Sequence[Array | None], join: Callable[[Sequence[Array]], Array]) -> Array | None:
    """Return both biases in one array, zeros for one that is missing; None if there is none."""
    there = [bias for bias in both if bias is not None]
    return join([np.zeros_like(there[0]) if bias is None else bias for bias in both]) if there else None


def _in_pairs(both: Sequence[Array]) -> Array:
    """Return the rows of two arrays by turns. Those of transposed matrices are stored as these are."""
    if both[0].ndim == 2 and both[0].T.flags.c_contiguous:
        return np.stack([each.T for each in both], axis=-1).reshape(both[0].shape[1], -1).T
    return np.stack(both, axis=1).reshape(-1, *both[0].shape[1:])


# -- whether it pays -----------------------------------------------------------------------------------------------


def why_not_gated(
    rows: int, depth: int, columns: int, dtype: DType, caps: DeviceCaps, split_products: bool, *, of_one: bool
) -> str | None:
    """Return why two products are not better one launch, as the end of a sentence; None if they are.

    `columns` are those of each, `depth` is K; `of_one` tells whether both are halves of one product, and the gate is a
    launch.
    """
    if GATED_PRODUCT in caps.without:
        return "kernels of two products failed their self-test"
    if depth % PACK or columns % PACK or not depth or not rows:
        return f"its {depth} products of a sum or its {columns} columns are no multiple of {PACK}"
    if rows <= FEW_ROWS:
        return "products of few rows failed their self-test" if ProductOfFewRows.name in caps.without else None
    one = _problem(rows, depth, columns, dtype, caps, split_products)
    try:
        both = replace(one, channels_out=2 * columns)
        apart, joined = CONVOLUTIONS.decide(both if of_one else one), CONVOLUTIONS.decide(replace(both, pairs=True))
    except ExecutionError:
        return "no kernel computes it on this device"
    if not joined.in_microseconds or not apart.in_microseconds:
        return None
    cost = joined.candidates[joined.default].cost
    times, moved = (1, 4) if of_one else (2, 2)
    saved = moved * rows * columns * dtype.itemsize / (caps.likely_units * caps.model.read_bytes)
    most = times * apart.candidates[apart.default].cost + caps.model.between_launches_us + saved
    return None if cost <= most else f"both and the gate would take {cost:.1f} us as one launch, and {most:.1f} as two"


def _problem(
    rows: int, depth: int, columns: int, dtype: DType, caps: DeviceCaps, split_products: bool
) -> ConvProblem:
    """Return one of the products as a convolution of images of one pixel, each of which is a row."""
    x, weight = (rows, depth, 1, 1), (columns, depth, 1, 1)
    window = Conv(kernel_shape=(1, 1)).window(x, weight)
    made = ConvProblem.foreseen(x, weight, window, dtype, Layout.NC4HW4, caps, rows=caps.multiplies(HALVES))
    return replace(made, split_products=split_products)


# -- launches ------------------------------------------------------------------------------------------------------


@gpu_op(GatedProduct)
class GatedProductOnGpu(GpuOp):
    """One launch: of the kernel for few rows, or of a convolution that stores pairs."""

    splits_constants = True
    fuses_into_store = False

    def rounds(self, op: GatedProduct, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return twice the products of an output: tiles are loaded in loops, too."""
        x = given(inputs, 0)
        return 2 * x.shape[-1]

    def launches(self, op: GatedProduct, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch it."""
        x, y = given(inputs, 0), outputs[0]
        matrices, biases = _both(op, [None if t is None else t.constant for t in inputs[1:PARAMETERS]])
        depth, n, gate = x.shape[-1], y.shape[-1], Gate(op.steps, inputs)
        m = prod(x.shape[:-1])
        if m <= FEW_ROWS:
            added = _biases(biases, np.concatenate)
            c = None if added is None else k.constant("gate.biases", lambda: added)
            weights = given(inputs, 1)
            steps = (1, depth) if op.transposed else (n, 1)
            plan = ProductPlan.of(k, (m, n, depth), (x, weights, y), (depth, 1), steps, c=c)
            launch_few_rows(plan, matrices, gate)
            return
        shape, dtype = (2 * n, depth, 1, 1), matrices[0].dtype
        late = LateWeights("in pairs.", shape, dtype, lambda: _in_pairs(matrices).reshape(shape))
        image = replace(x, shape=(m, depth, 1, 1), layout=Layout.NC4HW4)
        target = replace(y, shape=(m, n, 1, 1), layout=Layout.NC4HW4)
        mapped, pairs = k.for_output_map(target, (m, 2 * n, 1, 1), Pairs(gate))
        window = Conv(kernel_shape=(1, 1)).window(image.shape, shape)
        shift = _biases(biases, _in_pairs)
        CONVOLUTIONS.launch(ConvPlan.of(mapped, window, image, pairs, late, shift, pairs=True))


# -- the self-test -------------------------------------------------------------------------------------------------

SILU = (Step(Sigmoid(), (RUNNING,)), Step(Mul(), (RUNNING, earlier(0))))


def _network(m: int, depth: int, columns: int) -> SelfTestCase:
    """Return a case of two products that become one node, unless these kernels are wrong."""
    weights = {"w": noise(depth, columns), "b": noise(columns), "v": noise64(depth, columns).astype(np.float32)}
    gate = Fused(MatMul(), 2, (*SILU, Step(Mul(), (RUNNING, 2))))
    biased = Fused(MatMul(), 2, (Step(Add(), (RUNNING, 2)),))
    return several_nodes(
        f"gate of ({m}, {depth}) with twice ({depth}, {columns})",
        [(biased, ("x", "w", "b"), "u"), (gate, ("x", "v", "u"), "y")],
        {"x": noise(m, depth)}, weights,
    )


def _node(m: int, depth: int, columns: int, precision: Precision) -> SelfTestCase:
    op = GatedProduct(False, (*SILU, Step(Mul(), (RUNNING, BESIDE))))
    given = ((m, depth), (depth, columns), (columns,), (depth, columns), (columns,))
    return one_node(op, *given, constants=(1, 2, 3, 4), precision=precision)


register_family(
    GATED_PRODUCT, "products with gates",
    cases=lambda: (
        _network(1, 132, 20), _network(3, 36, 12), _network(37, 36, 12),
        _network(1, 2052, 20), _network(3, 1036, 12),  # depths at which items load several vectors at a time
        *(_node(70, 72, 40, precision) for precision in (Precision.NORMAL, Precision.LOW)),
    ),
    templates=(ProductOfFewRows.name, TiledConv.name), whole=False, anywhere=True,
    fallback="two products",
)
