"""Ops on GPUs whose elements, moved as bits, follow from their position: Trilu, OneHot and ReverseSequence."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import indices, one_node
from weft.kernels.special import register_family
from weft.ops.create import OneHot
from weft.ops.gpu.integers import INTEGERS
from weft.ops.shape import given, optional
from weft.ops.triangle import ReverseSequence, Trilu


class _ByPosition(GpuOp):
    fuses_into_store = False
    moves_bits = True


@gpu_op(Trilu)
class TriluOnGpu(_ByPosition):
    """One work-item an element; the diagonal may be computed at run time."""

    def launches(self, op: Trilu, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, y = given(inputs, 0), outputs[0]
        diagonal = optional(inputs, 1)
        zero = np.zeros(1, x.dtype.numpy)
        reads = {"x": x, "fill": k.constant("zero", lambda: zero)}
        rows, columns = x.shape[-2:]
        ints = {"TOTAL": prod(x.shape), "ROWS": max(rows, 1), "COLUMNS": max(columns, 1)}
        if diagonal is None or diagonal.constant is not None:
            k_value = 0 if diagonal is None or diagonal.constant is None else int(diagonal.constant.item())
            ints["K"] = max(-rows, min(k_value, columns))
        else:
            reads["diagonal"] = diagonal
        k.launch(
            "trilu", reads=reads, writes={"y": y}, ints=ints, variant={"upper": bool(op.upper)},
            items=ints["TOTAL"], raw=True, epilogue=False,
        )


@gpu_op(OneHot)
class OneHotOnGpu(_ByPosition):
    """One work-item an element of the output."""

    computes_double = True

    def why_not(self, op: OneHot, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse places of types that kernels do not load as numbers."""
        places = given(inputs, 0)
        floats = {DType.FLOAT32, DType.FLOAT16, *((DType.FLOAT64,) if caps.doubles else ())}
        if places.dtype in floats | INTEGERS:
            return None
        return f"GPU kernels do not read places of {places.dtype.value}"

    def launches(self, op: OneHot, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        places, values, y = given(inputs, 0), given(inputs, 2), outputs[0]
        axis = op.axis % len(y.shape)
        ints = {"TOTAL": prod(y.shape), "INNER": max(prod(y.shape[axis + 1 :]), 1), "DEPTH": y.shape[axis]}
        k.launch(
            "one_hot", reads={"places": places, "values": values}, writes={"y": y}, ints=ints,
            items=ints["TOTAL"], kinds={"values": "raw", "y": "raw"}, epilogue=False,
        )


@gpu_op(ReverseSequence)
class ReverseSequenceOnGpu(_ByPosition):
    """One work-item an element of the output."""

    def launches(self, op: ReverseSequence, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, lengths = given(inputs, 0), given(inputs, 1)
        ints = {"TOTAL": prod(x.shape), "INNER": max(prod(x.shape[2:]), 1), "D1": max(x.shape[1], 1)}
        ints["TIME"] = x.shape[op.time_axis]
        k.launch(
            "reverse_sequence", reads={"x": x, "lengths": lengths}, writes={"y": outputs[0]}, ints=ints,
            variant={"time_first": op.time_axis == 0}, items=ints["TOTAL"], raw=True, epilogue=False,
        )


register_family(
    "by_position", "triangles, one-hot vectors and reversed sequences",
    cases=lambda: (
        one_node(Trilu(), (3, 5, 7)),
        one_node(OneHot(axis=0), indices((3, 5), 7), np.array(7), np.array([0, 1], np.float32), constants=(1,)),
        one_node(ReverseSequence(), (5, 3, 2), indices((3,), 5)),
    ),
    templates=("trilu", "one_hot", "reverse_sequence"),
)
