"""Products of quantised rows and weights as convolutions of integers, of images of one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import Inputs, Outputs
from weft.kernels.launch import KernelBuilder
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.integers.weights import integers_of, why_not_integers
from weft.ops.gpu.conv.problem import ConvPlan


def takes_integers(inputs: Inputs, outputs: Outputs, read: Sequence[bool], axis: int, caps: DeviceCaps) -> bool:
    """Tell whether rows that are stored as integers are multiplied as such.

    `inputs` are rows, weights and a bias for each column, if there is one; `axis` is that of the weights that has the
    columns of the result. Rows must have the bytes of images of one pixel.
    """
    a, w = inputs[:2]
    if a is None or w is None or not read[0] or len(w.shape) != 2 or len(a.shape) < 2:
        return False
    bias = inputs[2] if len(inputs) > 2 else None
    columns, plain = w.shape[axis], w.shape[1 - axis] % PACK == w.shape[axis] % PACK == 0
    single = bias is None or bias.shape in ((columns,), (1, columns))
    return plain and single and prod(outputs[0].shape) > 0 and why_not_integers(w, bias, axis, caps) is None


def launch_integers(
    k: KernelBuilder, a: Tensor, y: Tensor, w: Tensor, axis: int, bias: Array | None, scale: float = 1.0
) -> None:
    """Launch the product of quantised rows and constant weights, times `scale`, plus a bias."""
    assert a.quantised is not None and w.constant is not None and w.grid is not None
    columns, depth, rows = w.shape[axis], w.shape[1 - axis], prod(a.shape[:-1])
    weights = (w.constant if axis == 0 else w.constant.T).reshape(columns, depth, 1, 1)
    integers = integers_of(w, weights, a.quantised, axis, scale)
    x = replace(a, shape=(rows, depth, 1, 1), layout=Layout.NC4HW4)
    made = replace(y, shape=(rows, columns, 1, 1), layout=Layout.NC4HW4)
    window = Conv(kernel_shape=(1, 1)).window(x.shape, weights.shape)
    shift = None if bias is None else bias.reshape(-1)
    CONVOLUTIONS.launch(ConvPlan.of(k, window, x, made, integers.late, shift, integers=integers))
