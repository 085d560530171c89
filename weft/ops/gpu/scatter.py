"""ScatterElements, ScatterND and TensorScatter on GPUs.

Without a reduction the data is copied and an item writes each update: of two for one place either may win, as ONNX
says. With one, an item an element of the data looks at all updates that may be for it: no two write one place, and
sums are those of the reference, in its order. A TensorScatter takes one launch, whether it copies or not.

Where the result lies in the memory of the data, nothing is copied.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import indices, one_node
from weft.kernels.source import RAW_KINDS
from weft.kernels.special import register_family
from weft.ops.gather import ScatterElements, ScatterND
from weft.ops.gpu.integers import INTEGERS
from weft.ops.gpu.move import Strides, elements_at_once, launch_move
from weft.ops.key_cache import TensorScatter
from weft.ops.shape import given, optional

JOINS = {"add": "{0} + {1}", "mul": "{0} * {1}", "max": "fmax({0}, {1})", "min": "fmin({0}, {1})"}


class _Scatter(GpuOp):
    fuses_into_store = False
    moves_bits = True
    computes_double = True

    def why_not(
        self, op: ScatterElements | ScatterND, inputs: Inputs, outputs: Outputs, caps: DeviceCaps
    ) -> str | None:
        """Refuse to reduce other types than floats and integers; float64 is reduced where the device computes in it."""
        x = given(inputs, 0)
        computed = {DType.FLOAT32, DType.FLOAT16, DType.BOOL, *INTEGERS, *((DType.FLOAT64,) if caps.doubles else ())}
        if op.reduction != "none" and x.dtype not in computed:
            return f"GPU kernels reduce floats that they compute in, integers and bools; {x.name!r} is {x.dtype.value}"
        return None

    def launch(
        self, k: KernelBuilder, op: ScatterElements | ScatterND, tensors: tuple[Tensor, Tensor, Tensor, Tensor],
        ints: dict[str, int], variant: dict[str, int],
    ) -> None:
        """Launch the copy and the writes, or the reduction; `tensors` are x, places, updates and y."""
        x, places, updates, y = tensors
        reduces = op.reduction != "none"
        if not reduces and not k.is_alias(x, y):
            launch_move(k, x, y, (prod(x.shape),), Strides((1,)), Strides((1,)))
        if not prod(updates.shape) and not reduces:
            return
        total = prod(x.shape if reduces else updates.shape)
        k.launch(
            "scatter_reduce" if reduces else "scatter",
            reads={**({"x": x} if reduces else {}), "places": places, "updates": updates},
            writes={"y": y if reduces else _part(y, updates)}, ints={**ints, "TOTAL": total},
            variant={**variant, **(_join(op, x) if reduces else {})}, items=total, raw=not reduces,
            epilogue=False,
        )


def _part(y: Tensor, update: Tensor) -> Tensor:
    """Return what stands for the elements of `y` that an update replaces, as many as it has."""
    return replace(y, shape=update.shape)


def _join(op: ScatterElements | ScatterND, x: Tensor) -> dict[str, int | str]:
    """Return how the template joins an element with an update."""
    truth = x.dtype is DType.BOOL
    kind = {"whole": truth or x.dtype.is_integer, "wide": x.dtype is DType.UINT64}
    join = {"add": "max", "mul": "min"}.get(op.reduction, op.reduction) if truth else op.reduction
    return {"join": join, "floats": JOINS[op.reduction], **kind}


@gpu_op(ScatterElements)
class ScatterElementsOnGpu(_Scatter):
    """Updates along one axis."""

    def rounds(self, op: ScatterElements, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return how many updates an element looks at."""
        updates = given(inputs, 2)
        return 0 if op.reduction == "none" else updates.shape[op.axis]

    def launches(self, op: ScatterElements, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, places, updates = given(inputs, 0), given(inputs, 1), given(inputs, 2)
        rank = len(x.shape)
        ints: dict[str, int] = {}
        steps = zip(row_major(x.shape), row_major(updates.shape), strict=True)
        for d, (step, own) in enumerate(steps):
            ints |= {f"D{d}": max(x.shape[d], 1), f"U{d}": updates.shape[d]}
            ints |= {f"S{d}": step} if op.reduction == "none" else {f"V{d}": own}
        if op.reduction == "none":
            ints |= {f"U{d}": max(size, 1) for d, size in enumerate(updates.shape)}
        self.launch(k, op, (x, places, updates, outputs[0]), ints, {"depth": rank, "axis": op.axis % rank})


@gpu_op(ScatterND)
class ScatterNDOnGpu(_Scatter):
    """Slices at indices along several axes."""

    def rounds(self, op: ScatterND, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return how many updates an element looks at."""
        places = given(inputs, 1)
        return 0 if op.reduction == "none" else prod(places.shape[:-1])

    def launches(self, op: ScatterND, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, places, updates = given(inputs, 0), given(inputs, 1), given(inputs, 2)
        depth = places.shape[-1]
        ints = {"INNER": max(prod(x.shape[depth:]), 1)}
        for d, step in enumerate(row_major(x.shape)[:depth]):
            ints |= {f"D{d}": max(x.shape[d], 1)} | ({f"S{d}": step} if op.reduction == "none" else {})
        if op.reduction != "none":
            ints["COUNT"] = prod(places.shape[:-1])
        self.launch(k, op, (x, places, updates, outputs[0]), ints, {"depth": depth, "axis": -1})


@gpu_op(TensorScatter)
class TensorScatterOnGpu(GpuOp):
    """Rows at computed places along one axis."""

    fuses_into_store = False
    moves_bits = True
    any_place = True

    def rounds(self, op: TensorScatter, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return how many bits are looked at of a place beyond 32 bits."""
        return 32 if op.mode == "circular" else 0

    def launches(self, op: TensorScatter, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the update if the result lies in the cache, else over the result."""
        x, update, y = given(inputs, 0), given(inputs, 1), outputs[0]
        first = optional(inputs, 2)
        axis = op.axis % len(x.shape)
        parts = prod(x.shape[1:axis])  # for which there is one first row
        if first is None:
            first, parts = k.constant("first", lambda: np.zeros(1, np.int64)), prod(x.shape[:axis])
        size, length, inner = x.shape[axis], update.shape[axis], prod(x.shape[axis + 1 :])
        in_place = k.is_alias(x, y)
        moved = (update, y) if in_place else (x, update, y)
        at_once = elements_at_once(k.caps, x.dtype.itemsize, [(inner, 1, 1)]) if k.lies_plain(*moved) else 1
        total = prod((update if in_place else y).shape) // at_once
        if not total:
            return
        kind = RAW_KINDS.get(at_once * x.dtype.itemsize, "raw")
        k.launch(
            "tensor_scatter", reads={**({} if in_place else {"x": x}), "update": update, "first": first},
            writes={"y": _part(y, update) if in_place else y},
            ints={
                "SIZE": size, "LENGTH": length, "INNER": inner // at_once, "PARTS": parts, "TOTAL": total,
            },
            variant={"in_place": in_place, "circular": op.mode == "circular"}, items=total, raw=True,
            kinds={**dict.fromkeys(("x", "update", "y"), kind), "first": "linear"}, epilogue=False,
        )


register_family(
    "scatter", "scatters",
    cases=lambda: (
        one_node(ScatterElements(axis=1), (3, 7), indices((3, 1), 7), (3, 1)),
        one_node(ScatterElements(reduction="add"), (5, 3), indices((2, 3), 5), (2, 3)),
        one_node(ScatterND(), (5, 3), indices((1, 1), 5), (1, 3)),
        one_node(ScatterND(reduction="max"), (5, 3), indices((4, 1), 5), (4, 3)),
    ),
    templates=("scatter", "scatter_reduce"),
)
register_family(
    "tensor_scatter", "writes into caches",
    cases=lambda: (
        one_node(TensorScatter(), (2, 3, 5, 4), (2, 3, 2, 4), np.array([1, 3])),
        one_node(TensorScatter(mode="circular", axis=1), (2, 5, 3), (2, 2, 3), np.array([4, 8])),
    ),
)
