"""Pad on GPUs: raw elements in NCHW, or whole pixels in NC4HW4."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Shape, row_major
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.pad import Pad, Pads
from weft.ops.shape import given
from weft.ops.shape import ints as as_ints

Walk = list[tuple[int, int, int, int]]
"""For each axis: its size in the input, the step between elements, and the elements added before and after."""


@gpu_op(Pad)
class PadOnGpu(GpuOp):
    """All four modes; each work-item computes one element or pixel of the output."""

    wanted_layout = WantedLayout.EITHER
    fuses_into_store = False
    moves_bits = True
    any_place = True
    laid_inputs = 1

    def fits_channels(self, op: Pad, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept pads that leave batch and channels as they are, and zeros behind the last channel.

        Equal sizes alone do not show that. Zeros are what a block has there in any case.
        """
        x, value = (*inputs, None)[0], (*inputs, None, None)[2]
        if x is None or len(x.shape) < 3 or 0 in x.shape:
            return False
        images, (before, after) = _pads(op, inputs)[:2]
        zeros = op.mode == "constant" and (value is None or (value.constant is not None and not value.constant.any()))
        return images == (0, 0) == (before, 0 if zeros else after) and after >= 0

    def launches(self, op: Pad, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the output's axes, those without pads merged."""
        x, y = given(inputs, 0), outputs[0]
        value, pads = (*inputs, None)[2], _pads(op, inputs)
        computed = value is not None and value.constant is None
        fill = np.asarray(0 if value is None or value.constant is None else value.constant.reshape(()), x.dtype.numpy)
        packed = y.layout.packed
        blocks = -(-y.shape[1] // PACK) if packed else 1
        spatial = y.shape[2:] if packed else y.shape
        wider = packed and y.shape[1] != x.shape[1]
        walk = join_axes(x.shape[2:], pads[2:]) if packed else join_axes(x.shape, pads)
        ints = {"TOTAL": prod(spatial) * blocks * (y.shape[0] if packed else 1), **_constants(op.mode, walk)}
        reads, floats = {"x": x}, {}
        if packed:
            ints |= {"BLOCKS": blocks, "HW": prod(spatial)}
            ints |= {"HELD": -(-x.shape[1] // PACK)} if wider else {}
        if op.mode == "constant" and value is not None and computed:
            reads["fill"] = value
        elif op.mode == "constant" and packed:
            floats = {"FILL": float(fill)}
        elif op.mode == "constant":
            reads["fill"] = k.constant("fill", lambda: fill.reshape(1))
        k.launch(
            "pad", reads=reads, writes={"y": y}, ints=ints, floats=floats,
            variant={"rank": len(walk), "mode": op.mode, "packed": packed, "wider": wider}, items=ints["TOTAL"],
            raw=not packed, epilogue=False,
        )


def _pads(op: Pad, inputs: Inputs) -> Pads:
    """Return the elements added before and after each axis."""
    x, given, _, axes = (*inputs, None, None)[:4]
    assert x is not None and given is not None and given.constant is not None
    known = None if axes is None or axes.constant is None else as_ints(axes.constant)
    return op.pairs(len(x.shape), as_ints(given.constant), known)


def join_axes(shape: Shape, pads: Pads) -> Walk:
    """Return the axes of a padded tensor, adjacent ones without pads merged."""
    joined: Walk = []
    for size, step, (before, after) in zip(shape, row_major(shape), pads, strict=True):
        if joined and (before, after) == (0, 0) == joined[-1][2:]:
            joined[-1] = (joined[-1][0] * size, step, 0, 0)
        else:
            joined.append((size, step, before, after))
    return joined or [(1, 1, 0, 0)]


def _constants(mode: str, walk: Walk) -> dict[str, int]:
    """Return the constants of the template; negative pads crop before the others add."""
    ints = {"X0": 0}
    for d, (size, step, before, after) in enumerate(walk):
        left = size + min(before, 0) + min(after, 0)
        ints["X0"] += max(-before, 0) * step
        ints |= {f"D{d}": size + before + after, f"N{d}": left, f"B{d}": max(before, 0), f"S{d}": step}
        period = max(left if mode == "wrap" else 2 * left - 2, 1)
        if mode in ("reflect", "wrap"):
            ints[f"M{d}"] = -(-max(before, 0) // period) * period
    return ints


register_family(
    "pad", "pads",
    cases=lambda: (
        one_node(Pad(mode="reflect"), (2, 5, 6), np.array([0, 1, 2, 0, 3, 1]), constants=(1,)),
        one_node(Pad(), (1, 6, 5, 3), np.array([0, 0, 1, 2, 0, 0, 2, 1]), constants=(1,)),
        one_node(Pad(), (2, 6, 5, 3), np.array([0, 0, 0, 0, 0, 7, 1, 0]), constants=(1,)),
    ),
)
