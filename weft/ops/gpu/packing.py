"""Weights and parameters as kernels read them: packed on the host once if constant, by a kernel in each run if not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.conv import Conv
from weft.ops.relayout import launch_relayout


@dataclass(frozen=True, eq=False)
class LateWeights:
    """Constant weights in another order, computed when they are uploaded: plans neither wait for them nor hold them.

    `shape` and `dtype` are those of the array that `make` returns, (channels out, channels in, *taps). `order` tells
    the orders of the same weights apart that an op has at different sizes.
    """

    order: str
    shape: Shape
    dtype: np.dtype[Any]
    make: Callable[[], Array]


Weights = Array | LateWeights | Tensor
"""Constant weights, or a tensor in NCHW of weights that are computed at run time."""


def array_of(weights: Array | LateWeights) -> Array:
    """Return constant weights, computed if they are late."""
    return weights.make() if isinstance(weights, LateWeights) else weights


def part_of(weights: Array | LateWeights, some: slice) -> Array | LateWeights:
    """Return constant weights of some output channels."""
    if not isinstance(weights, LateWeights):
        return weights[some]
    count = len(range(*some.indices(weights.shape[0])))
    return LateWeights(weights.order, (count, *weights.shape[1:]), weights.dtype, lambda: weights.make()[some])


def order_of(weights: Array | LateWeights) -> str:
    """Return the order of late weights, "" for others."""
    return weights.order if isinstance(weights, LateWeights) else ""


def weights_of(tensor: Tensor) -> Weights:
    """Return the value of a constant, or the tensor."""
    return tensor if tensor.constant is None else tensor.constant


def seen_as(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor in NCHW under another shape of as many elements."""
    return replace(tensor, shape=shape, layout=Layout.NCHW)


def as_image(k: KernelBuilder, key: str, value: Weights, shape: Shape, layout: Layout) -> Tensor:
    """Return weights under a shape, stored in a layout; `key` names the constant."""
    if isinstance(value, LateWeights):
        late = value
        spec = TensorSpec(shape, DType.of(late.dtype))
        return k.constant(key, lambda: late.make().reshape(shape), layout, spec)
    if not isinstance(value, Tensor):
        made = value.reshape(shape)
        return k.constant(key, lambda: made, layout)
    flat = seen_as(value, shape)
    if not layout.packed:
        return flat
    packed = k.scratch(shape, value.dtype, layout)
    launch_relayout(k, flat, packed)
    return packed


def pack_in_run(k: KernelBuilder, weight: Tensor, sizes: Shape, step: int = 1) -> Tensor:
    """Return weights that a kernel packs as vectors [tap][in block][out block][4 in][4 out].

    `weight` is (out, in, taps), which are its `sizes`. Zeros fill the blocks, and the (tap, in block) pairs up to a
    multiple of `step`.
    """
    out, inside, taps = sizes
    blocks_in, blocks = -(-inside // PACK), -(-out // PACK)
    total = -(-taps * blocks_in // step) * step * blocks * PACK * PACK
    packed = k.scratch((1, PACK, total // PACK), weight.dtype, Layout.NC4HW4)
    k.launch(
        "pack_weights", reads={"x": seen_as(weight, (prod(sizes),))}, writes={"y": packed},
        ints={"TOTAL": total, "OUT": out, "IN": inside, "TAPS": taps, "BLOCKS": blocks, "BLOCKS_IN": blocks_in},
        items=total, kinds={"y": "linear"}, epilogue=False,
    )
    return packed


register_family(
    "pack_weights", "packing of weights that are computed at run time",
    cases=lambda: (one_node(Conv(kernel_shape=(3, 2)), (1, 5, 7, 6), (6, 5, 3, 2)),),
)
