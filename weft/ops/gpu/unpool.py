"""MaxRoiPool on GPUs: an item looks through one bin."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.shape import given
from weft.ops.unpool import MaxRoiPool


@gpu_op(MaxRoiPool)
class MaxRoiPoolOnGpu(GpuOp):
    """Maxima of floats, in NCHW."""

    computes_double = True

    def rounds(self, op: MaxRoiPool, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the pixels of the largest bin that there can be."""
        sizes = zip(given(inputs, 0).shape[2:], op.pooled_shape, strict=True)
        return nested_rounds(*(-(-size // bins) + 1 for size, bins in sizes))

    def launches(self, op: MaxRoiPool, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item a bin."""
        x, rois, y = given(inputs, 0), given(inputs, 1), outputs[0]
        ints = dict(zip(("N", "C", "H", "W"), x.shape, strict=True))
        ints |= {"TOTAL": prod(y.shape), "ROWS": op.pooled_shape[0], "COLUMNS": op.pooled_shape[1]}
        k.launch(
            "max_roi_pool", reads={"x": x, "rois": rois}, writes={"y": y}, ints=ints,
            floats={"SCALE": op.spatial_scale}, items=ints["TOTAL"],
        )


register_family(
    "max_roi_pool", "pools of regions",
    cases=lambda: (
        one_node(MaxRoiPool((2, 3)), (1, 3, 6, 7), np.array([[0, 1, 0, 5, 4], [0, 2, 3, 9, 9]], np.float32)),
    ),
)
