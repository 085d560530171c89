"""Resize on GPUs: tables hold the positions and weights of each axis; the op's reference uses the same tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import indices, one_node, several_nodes
from weft.kernels.special import register_family
from weft.ops.gpu.integers import INTEGERS, launch_conversion
from weft.ops.resize import Resize, Sampling, Taps
from weft.ops.shape import given
from weft.ops.unary import Cast


@gpu_op(Resize)
class ResizeOnGpu(GpuOp):
    """All modes; each work-item computes one element or pixel of the output."""

    wanted_layout = WantedLayout.EITHER
    fuses_into_store = False
    moves_bits = True
    computes_double = True

    def why_not(self, op: Resize, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse to interpolate other types than numbers, and parameters that are computed at run time."""
        x = given(inputs, 0)
        mixed = {DType.FLOAT32, DType.FLOAT16, *((DType.FLOAT64,) if caps.doubles else ()), *INTEGERS}
        if op.mode != "nearest" and x.dtype not in mixed:
            kinds = "integers and floats that the device computes in"
            return f"GPU kernels interpolate {kinds}; {x.name!r} is {x.dtype.value}"
        if op.mode != "nearest" and x.dtype.is_integer and not caps.rounds_products:
            return "its compiler rounds a product and a sum once, which shows where results are rounded to integers"
        if any(t is not None and t.constant is None for t in inputs[1:]):
            return "its scales, sizes or region are computed at run time"
        return None

    def rounds(self, op: Resize, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the elements that an output is mixed of."""
        x = given(inputs, 0)
        if op.mode == "nearest" or any(t is not None and t.constant is None for t in inputs[1:]):
            return 0
        if not op.antialias:
            return nested_rounds(*(2 * op.reach for _ in op.sampled(x.shape, _parameters(inputs))))
        widths = [op.taps(part, x.shape[part.axis]).indices.shape[1] for part in _plan(op, inputs)]
        return nested_rounds(*(max(widths) for _ in widths))

    def fits_channels(self, op: Resize, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept resizes that leave batch and channels unchanged; equal sizes alone do not show that."""
        x = inputs[0]
        if x is None or len(x.shape) < 3 or x.shape[:2] != outputs[0].shape[:2]:
            return False
        return min(op.sampled(x.shape, _parameters(inputs)), default=2) >= 2

    def launches(self, op: Resize, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the output's axes; neighbours that are not sampled count as one. Integers become floats."""
        x, y = given(inputs, 0), outputs[0]
        parts = _plan(op, inputs)
        tables = tuple(op.taps(part, x.shape[part.axis]) for part in parts)
        resampling = Resampling(op, x, y, parts, tables)
        if resampling.nearest or not x.dtype.is_integer:
            _launch(k, resampling)
            return
        floats, mixed = k.scratch(x.shape, DType.FLOAT32), k.scratch(y.shape, DType.FLOAT32)
        launch_conversion(k, "integers_to_float", x, floats, {"most": ""}, epilogue=False)
        # Rounding shows the last bit of what it rounds: towards zero, of 102 everywhere sums in another order make 101.
        _launch(k, replace(resampling, x=floats, y=mixed, in_order=True))
        launch_conversion(k, "float_to_integers", mixed, y, {"truth": False, "saturates": True}, epilogue=False)


@dataclass(frozen=True)
class Resampling:
    """A resize with known shapes: how each axis is sampled, and the tables for that."""

    op: Resize
    x: Tensor
    y: Tensor
    parts: tuple[Sampling, ...]
    tables: tuple[Taps, ...]
    in_order: bool = False
    """Whether to mix the axes one after the other, as the reference does, and round as it does."""

    @property
    def packed(self) -> bool:
        """Tell whether it works on pixels in NC4HW4."""
        return self.y.layout.packed

    @property
    def nearest(self) -> bool:
        """Tell whether each output copies one input."""
        return self.op.mode == "nearest" or not self.parts

    @property
    def width(self) -> int:
        """Return how many inputs along an axis an output is mixed of, at most."""
        return max((t.indices.shape[1] for t in self.tables), default=1)

    @property
    def cropped(self) -> bool:
        """Tell whether some outputs lie outside the input."""
        return any(t.outside.any() for t in self.tables)

    def axes(self) -> list[tuple[int | None, int, int]]:
        """Return (axis if it is sampled, size in the output, step in the input); adjacent other axes are merged."""
        first = 2 if self.packed else 0
        sampled = {part.axis for part in self.parts}
        joined: list[tuple[int | None, int, int]] = []
        for axis, step in enumerate(row_major(self.x.shape[first:]), start=first):
            size = self.y.shape[axis]
            if axis in sampled:
                joined.append((axis, size, step))
            elif joined and joined[-1][0] is None:
                joined[-1] = (None, joined[-1][1] * size, step)
            else:
                joined.append((None, size, step))
        return joined or [(None, 1, 1)]

    def arguments(self, k: KernelBuilder, numbers: dict[int, int]) -> dict[str, Tensor]:
        """Return the tables as constants, named by the axes' numbers in the kernel."""
        reads = {}
        for part, taps in zip(self.parts, self.tables, strict=True):
            number, key = numbers[part.axis], f"{part}.{self.x.shape[part.axis]}.{self.width}"
            taps = taps.widened(self.width)
            reads[f"p{number}"] = k.constant(f"indices.{key}", partial(_indices, taps))
            if not self.nearest:
                reads[f"w{number}"] = k.constant(f"weights.{key}", partial(np.ravel, taps.weights))
        if self.cropped and self.nearest and not self.packed:
            fill = np.full(1, self.op.extrapolation_value, self.x.dtype.numpy)
            reads["fill"] = k.constant("fill", lambda: fill)
        return reads


def _launch(k: KernelBuilder, r: Resampling) -> None:
    axes = r.axes()
    numbers = {axis: d for d, (axis, _, _) in enumerate(axes) if axis is not None}
    count = prod(size for _, size, _ in axes)
    ints = {"TOTAL": count}
    for d, (_, size, step) in enumerate(axes):
        ints |= {f"D{d}": size, f"S{d}": step}
    if r.packed:
        blocks = -(-r.y.shape[1] // PACK)
        ints |= {"TOTAL": r.y.shape[0] * blocks * count, "BLOCKS": blocks, "HW": count}
    raw = r.nearest and not r.packed
    k.launch(
        "resize", reads={"x": r.x, **r.arguments(k, numbers)}, writes={"y": r.y}, ints=ints,
        floats={"FILL": r.op.extrapolation_value} if r.cropped and not raw else {},
        variant={
            "rank": len(axes),
            "sampled": tuple(str(d) for d in sorted(numbers.values())),
            "taps": r.width,
            "nearest": r.nearest,
            "rounded": r.in_order and bool(r.op.antialias),
            "in_order": tuple(str(numbers[part.axis]) for part in r.parts) if r.in_order else (),
            "cropped": r.cropped,
            "packed": r.packed,
        },
        items=ints["TOTAL"], raw=raw, epilogue=False,
    )


def _plan(op: Resize, inputs: Inputs) -> tuple[Sampling, ...]:
    return op.plan(given(inputs, 0).shape, _parameters(inputs))


def _parameters(inputs: Inputs) -> list[Array | None]:
    return [None if t is None else t.constant for t in inputs[1:]]


def _indices(taps: Taps) -> Array:
    """Return the positions as one list of int32, -1 where an output lies outside the input."""
    return np.where(taps.outside[:, None], -1, taps.indices).astype(np.int32).reshape(-1)


register_family(
    "resize", "resizes",
    cases=lambda: tuple(
        one_node(Resize(mode=mode), (1, 6, 7, 5), None, None, np.array([1, 6, 9, 4]), constants=(3,))
        for mode in ("nearest", "linear", "cubic")
    ),
)
register_family(
    "rounded_products", "interpolations of integers",
    cases=lambda: (
        several_nodes(
            "Resize of integers, (1, 1, 7, 5) to (1, 1, 13, 9)",
            [(Resize(mode="linear"), ("x", "", "", "sizes"), "r"), (Cast(to=DType.FLOAT32), ("r",), "y")],
            {"x": indices((1, 1, 7, 5), 256).astype(np.uint8)}, {"sizes": np.array([1, 1, 13, 9])},
        ),
    ),
    claimed=lambda caps: caps.rounds_products, withdraw=lambda caps: replace(caps, rounds_products=False),
    templates=("resize",), whole=False,
)
