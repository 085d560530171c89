"""Products with weights of four bits in blocks: read as they lie by few rows, and made floats for many."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, power_of_two
from weft.kernels.self_test_cases import SelfTestCase, indices, noise, one_node
from weft.kernels.special import register_family
from weft.ops.gpu.matmul.matmul import PRODUCTS
from weft.ops.gpu.matmul.problem import ProductPlan
from weft.ops.quantize import MatMulNBits
from weft.ops.shape import given, optional

CHUNK = 32
"""Weights that an item loads at once: 16 bytes."""
COLUMNS = 4
"""Columns that a group computes, so that its items load a row once for all of them."""
MOST_ROWS = 16
"""Rows that are multiplied by weights as they lie."""
MOST_ITEMS = 64
NBITS = "matmul_nbits"


@gpu_op(MatMulNBits)
class MatMulNBitsOnGpu(GpuOp):
    """Weights stay packed in memory; for many rows, each run makes them floats in scratch memory."""

    def why_not(self, op: MatMulNBits, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse other than four bits, odd blocks, an order of blocks, and parameters that a run computes."""
        if op.bits != 4 or op.block_size % CHUNK or op.K % op.block_size:
            return f"its kernels read {CHUNK} weights of four bits at once, in whole blocks"
        if optional(inputs, 4) is not None:
            return "its weights have an order of blocks (g_idx)"
        if any(t is not None and t.constant is None for t in inputs[1:]):
            return "its weights or scales are computed in the run"
        if NBITS in caps.without:
            return "its kernel failed its self-test"
        weights = given(inputs, 1)
        if prod(weights.shape) > caps.max_buffer_range:
            return f"its weights take {prod(weights.shape)} bytes; a kernel argument may span {caps.max_buffer_range}"
        return None

    def rounds(self, op: MatMulNBits, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return twice the products of an output."""
        return 2 * op.K

    def launches(self, op: MatMulNBits, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch few rows on packed weights, else a kernel that unpacks them, and a product."""
        a, y = given(inputs, 0), outputs[0]
        rows, bias = prod(a.shape[:-1]), optional(inputs, 5)
        packed, ints, zeros = _parameters(k, op, inputs)
        if rows <= MOST_ROWS:
            chunks = op.K // CHUNK
            many = power_of_two(rows) if k.sizes_change else rows
            groups = -(-op.N // COLUMNS)
            k.launch(
                NBITS,
                reads={"a": a, **packed, **({} if bias is None else {"bias": bias})}, writes={"y": y},
                ints={
                    **ints, "N": op.N, "CHUNKS": chunks, "CHUNKS_OF_BLOCK": op.block_size // CHUNK, "GROUPS": groups,
                    **({"M": rows} if many > rows or k.sizes_change else {}),
                },
                variant={
                    "rows": many, "columns": COLUMNS, "zeros": zeros, "ragged": many > rows or k.sizes_change,
                },
                kinds={"b": "raw16"},
                grid=(min(groups, k.caps.max_grid[0]), 1, 1),
                local=(min(k.tree_items(MOST_ITEMS), power_of_two(chunks)), 1, 1),
            )
            return
        floats = k.scratch((op.N, op.K), a.dtype)
        total = op.N * op.K // (2 * PACK)
        k.launch(
            "unpack_nbits", reads=packed, writes={"y": floats},
            ints={**ints, "TOTAL": total, "WORDS_OF_BLOCK": op.block_size // (2 * PACK)}, variant={"zeros": zeros},
            kinds={"b": "raw4"}, items=total, epilogue=False,
        )
        sizes = rows, op.N, op.K
        PRODUCTS.launch(ProductPlan.of(k, sizes, (a, floats, y), (op.K, 1), (1, op.K), c=bias))


def _parameters(k: KernelBuilder, op: MatMulNBits, inputs: Inputs) -> tuple[dict[str, Tensor], dict[str, int], str]:
    """Return the weights, scales and zero points as arguments, their sizes, and how zero points lie."""
    names = {"b": 1, "scales": 2, "middle": 3}
    given_ = {name: optional(inputs, place) for name, place in names.items()}
    reads = {}
    for name, t in given_.items():
        if t is not None and t.constant is not None:
            value = t.constant
            spec = TensorSpec((value.size,), DType.of(value.dtype))
            reads[name] = k.constant(name, lambda v=value: v.reshape(-1), Layout.NCHW, spec)  # type: ignore[misc]
    middle = given_["middle"]
    zeros = "" if middle is None else "packed" if middle.dtype is DType.UINT8 else "floats"
    return reads, {"K": op.K, "BLOCKS": op.blocks}, zeros


def _case(rows: int, n: int, k: int, block: int, zeros: str) -> SelfTestCase:
    blocks = k // block
    packed = indices((n, blocks, block // 2), 256).astype(np.uint8)
    scales = np.abs(noise(n, blocks)) / 8 + 0.01
    middle = {
        "": None, "packed": indices((n, -(-blocks // 2)), 256).astype(np.uint8), "floats": 8 + noise(n, blocks),
    }[zeros]
    op = MatMulNBits(K=k, N=n, bits=4, block_size=block)
    constants = (1, 2) if middle is None else (1, 2, 3)
    return one_node(op, noise(rows, k), packed, scales, middle, constants=constants)


register_family(
    NBITS, "products with weights of four bits",
    cases=lambda: (
        _case(1, 7, 96, 32, ""), _case(3, 8, 128, 64, "packed"), _case(2, 5, 2176, 128, "floats"),
        _case(19, 8, 64, 32, "packed"),
    ),
    templates=(NBITS, "unpack_nbits"),
)
