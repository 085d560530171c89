"""GridSample on GPUs: an item reads all channels of one place."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import row_major
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.gpu.integers import INTEGERS
from weft.ops.sample import GridSample
from weft.ops.shape import given


@gpu_op(GridSample)
class GridSampleOnGpu(GpuOp):
    """All modes and paddings, of floats in NCHW; what is no float is moved as bits, since nothing mixes it."""

    computes_double = True
    integers = INTEGERS | {DType.BOOL}

    def rounds(self, op: GridSample, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the number of channels."""
        return given(inputs, 0).shape[1]

    def launches(self, op: GridSample, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item a place."""
        x, grid = given(inputs, 0), given(inputs, 1)
        lengths, places = x.shape[2:], prod(grid.shape[1:-1])
        ints = {"TOTAL": x.shape[0] * places, "PLACES": max(places, 1), "CHANNELS": x.shape[1], "PIXELS": prod(lengths)}
        floats = {"SHIFT": 0.0 if op.align_corners else -0.5}
        for d, (length, step) in enumerate(zip(lengths, row_major(lengths), strict=True)):
            ints |= {f"L{d}": length, f"S{d}": step}
            floats[f"SCALE{d}"] = (length - 1 if op.align_corners else length) / 2
        reads = {"x": x, "grid": grid}
        moved = not x.dtype.is_float
        if moved and op.padding_mode == "zeros":
            reads["fill"] = k.constant("fill", partial(np.zeros, 1, x.dtype.numpy))
        size, local = k.for_items(ints["TOTAL"])
        k.launch(
            "grid_sample", reads=reads, writes={"y": outputs[0]}, ints=ints, floats=floats,
            variant={
                "rank": len(lengths),
                "mode": op.mode,
                "padding": op.padding_mode,
                "corners": bool(op.align_corners),
            },
            grid=size, local=local, kinds=dict.fromkeys({"y", *reads} - {"grid"}, "raw") if moved else None,
            epilogue=not moved,
        )


register_family(
    "grid_sample", "images sampled at places",
    cases=lambda: (
        one_node(GridSample(), (2, 3, 5, 7), (2, 4, 3, 2)),
        one_node(GridSample(mode="cubic", padding_mode="reflection"), (1, 2, 5, 4), (1, 4, 3, 2)),
    ),
)
