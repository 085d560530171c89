"""The op that changes a tensor's layout; backends insert it between ops that need different layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, storage_size
from weft.core.graph.op import Constants, MovingOp, standard_op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import noise, several_nodes
from weft.kernels.special import register_family
from weft.ops.pool import AveragePool, MaxPool
from weft.ops.shape import given, unfit


@standard_op(by_image=True, most_inputs=1, from_optimizing=True)
class Relayout(MovingOp):
    """Change layout and element type; the logical value stays the same (up to rounding)."""

    layout: Layout
    dtype: DType

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if not (x.dtype.is_float and self.dtype.is_float) and x.dtype is not self.dtype:
            raise unfit(f"a Relayout makes no {self.dtype.value} of {x.dtype.value}")
        return (replace(x, dtype=self.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        return given(inputs, 0).astype(self.dtype.numpy)


@gpu_op(Relayout)
class RelayoutOnGpu(GpuOp):
    """Makes one pass over the output's storage."""

    wanted_layout = WantedLayout.EITHER
    fuses_into_store = False
    any_place = True
    loads_by_element = True

    def launches(self, op: Relayout, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the copy, unless the output is an alias of the input."""
        assert inputs[0] is not None
        if k.is_alias(inputs[0], outputs[0]):
            return
        launch_relayout(k, inputs[0], outputs[0])


def launch_relayout(k: KernelBuilder, x: Tensor, y: Tensor) -> None:
    """Launch a copy of `x` to `y`, of the same shape, converting layout and float type."""
    _, c, *rest = y.shape if len(y.shape) >= 2 else (1, 1, y.shape[0] if y.shape else 1)
    hw = prod(rest)
    packed = y.layout.packed and len(y.shape) >= 2
    total = storage_size(y.shape, y.layout) // (4 if packed else 1)
    k.launch(
        "relayout", reads={"x": x}, writes={"y": y}, ints={"C": c, "HW": hw, "TOTAL": total},
        variant={"source": _form(x), "target": _form(y)}, items=total, epilogue=False,
    )


def _form(tensor: Tensor) -> str:
    """Return how the kernel addresses elements: in both packed layouts by vectors, with `PLACE` constants."""
    if len(tensor.shape) < 2:
        return Layout.NCHW.value
    return "packed" if tensor.layout.packed else tensor.layout.value


register_family(
    "relayout", "conversions of layouts",
    cases=lambda: (
        several_nodes(
            "MaxPool and AveragePool of (2, 7, 9, 5)",
            [(MaxPool(kernel_shape=(2, 2)), ("x",), "y"), (AveragePool(kernel_shape=(2, 3)), ("y",), "z")],
            {"x": noise(2, 7, 9, 5)},
        ),
    ),
)
