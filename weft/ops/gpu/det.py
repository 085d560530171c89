"""Det on GPUs: an item eliminates one matrix, in scratch memory."""

from __future__ import annotations

from math import prod

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, computed, nested_rounds
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.det import Det
from weft.ops.shape import given


@gpu_op(Det)
class DetOnGpu(GpuOp):
    """Matrices of floats."""

    computes_double = True

    def rounds(self, op: Det, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the steps of an elimination, as if none were left out."""
        size = given(inputs, 0).shape[-1]
        return size**2 + nested_rounds(size, 3 * size) + nested_rounds(size, size, size)

    def launches(self, op: Det, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item a matrix."""
        x, y = given(inputs, 0), outputs[0]
        total = prod(y.shape)
        k.launch(
            "det", reads={"x": x}, writes={"y": y, "work": k.scratch(x.shape, computed(x.dtype))},
            ints={"TOTAL": total, "SIZE": x.shape[-1]}, items=total,
        )


register_family("det", "determinants", cases=lambda: (one_node(Det(), (3, 5, 5)),))
