"""Reductions over axes on GPUs, the positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, Placement, Size3, gpu_op
from weft.ops.gpu.move import row_major
from weft.ops.gpu.pool import launch_global
from weft.ops.reduce import (
    ArgMax,
    ArgMin,
    CumProd,
    CumSum,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
    Reduction,
)

SHORT = 32
"""The most elements that one work-item reads in a row; more are divided among a work-group."""
MANY = 1024
"""Outputs that fill a device at one work-item each."""
LONG = 4096
"""From this many elements a work-group uses as many work-items as it may."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A reduction as kernel text: the term of each element v, how terms join, and what is stored of acc."""

    term: str = "v"
    finish: str = "acc"
    join: str = "{0} + {1}"
    start: str = "0.0"
    shifted: bool = False


RECIPES: dict[type[Reduction], Recipe] = {
    ReduceSum: Recipe(),
    ReduceMean: Recipe(finish="acc / TO_F32(LENGTH)"),
    ReduceProd: Recipe(join="{0} * {1}", start="1.0"),
    ReduceL1: Recipe("fabs(v)"),
    ReduceL2: Recipe("v * v", "sqrt(acc)"),
    ReduceSumSquare: Recipe("v * v"),
    ReduceLogSum: Recipe(finish="log(acc)"),
    ReduceLogSumExp: Recipe("exp(v - shift)", "log(acc) + shift", shifted=True),
    ReduceMax: Recipe(join="fmax({0}, {1})", start="-INFINITY_F"),
    ReduceMin: Recipe(join="fmin({0}, {1})", start="INFINITY_F"),
}


def part_axes(shape: Shape, axes: Shape) -> tuple[dict[str, int], bool]:
    """Return how kernels walk a reduction of up to rank 6, and whether its last reduced axis is contiguous.

    The constants are LENGTH (elements of a line), K0 K1 K2 and KS0 KS1 KS2 (sizes and steps over the lines)
    and R. and RS. (within a line). Adjacent axes of one kind are merged, so at most three remain.
    """
    joined: list[tuple[bool, int, int]] = []
    for axis, (size, step) in enumerate(zip(shape, row_major(shape), strict=True)):
        reduced = axis in axes
        if size == 1:
            continue
        if joined and joined[-1][0] is reduced:
            joined[-1] = (reduced, joined[-1][1] * size, step)
        else:
            joined.append((reduced, size, step))
    ints = {"LENGTH": prod(shape[a] for a in axes)}
    for letter, kind in (("K", False), ("R", True)):
        groups = [(size, step) for reduced, size, step in joined if reduced is kind]
        groups = [(1, 0)] * (3 - len(groups)) + groups
        for number, (size, step) in enumerate(groups):
            # An empty axis is never walked, but kernels divide by its size.
            ints |= {f"{letter}{number}": max(size, 1), f"{letter}S{number}": step}
    return ints, bool(joined) and joined[-1][0]


def choose_group(k: KernelBuilder, lines: int, length: int, contiguous: bool) -> tuple[bool, Size3, Size3]:
    """Return whether one work-item should reduce a whole line, and the grid and local size for that choice.

    Adjacent work-items read adjacent elements: of one line if it is contiguous, else of one line each.
    """
    if length <= SHORT or (lines >= MANY and not contiguous):
        return True, *k.for_items(lines)
    local = 256 if length >= LONG and not k.caps.software else 64
    return False, (max(1, min(lines, k.caps.max_grid[0])), 1, 1), (k.tree_items(local), 1, 1)


@gpu_op(*RECIPES)
class ReduceOnGpu(GpuOp):
    """One kernel for all ten reductions; means and maxima of whole images can run in NC4HW4."""

    placement = Placement.EITHER
    packed_family = "pool_global"

    def fits_channels(self, op: Reduction, inputs: Sequence[Shape | None], output: Shape) -> bool:
        """Accept only reductions that must be over the spatial axes, like a global pool."""
        x = inputs[0]
        if not isinstance(op, (ReduceMean, ReduceMax)) or x is None or len(x) < 3 or 0 in x:
            return False
        if op.keepdims:
            return output == x[:2] + (1,) * (len(x) - 2)
        return [at for at in combinations(range(len(x)), 2) if (x[at[0]], x[at[1]]) == output] == [(0, 1)]

    def launches(
        self, op: Reduction, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the walk over the lines."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        if y.layout.packed:
            launch_global(k, x, y, "max" if isinstance(op, ReduceMax) else "average")
            return
        given = inputs[1] if len(inputs) > 1 else None
        axes = op.resolve(None if given is None else given.constant, len(x.shape))
        ints, contiguous = part_axes(x.shape, axes)
        ints["OUTPUTS"] = prod(y.shape)
        short, grid, local = choose_group(k, ints["OUTPUTS"], ints["LENGTH"], contiguous)
        recipe = RECIPES[type(op)]
        variant: dict[str, Any] = {field: getattr(recipe, field) for field in Recipe.__slots__}
        k.launch(
            "reduce",
            reads={"x": x},
            writes={"y": y},
            ints=ints,
            variant={**variant, "short": short},
            grid=grid,
            local=local,
        )


@gpu_op(ArgMax, ArgMin)
class ArgExtremeOnGpu(GpuOp):
    """Finds extremes of lines along one axis, in NCHW."""

    fuses_into_store = False
    integers = frozenset({DType.INT64})

    def why_not(
        self,
        op: ArgMax | ArgMin,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        caps: DeviceCaps,
    ) -> str | None:
        """Refuse integers, since f32 cannot represent all of them."""
        x = inputs[0]
        assert x is not None
        return None if x.dtype.is_float else f"GPU kernels compare in float32; {x.name!r} is {x.dtype.value}"

    def launches(
        self,
        op: ArgMax | ArgMin,
        k: KernelBuilder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> None:
        """Launch one work-item or work-group a line."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        axis = op.axis % len(x.shape)
        length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        lines = prod(x.shape) // length
        short, grid, local = choose_group(k, lines, length, inner == 1)
        k.launch(
            "arg_extreme",
            reads={"x": x},
            writes={"y": y},
            ints={"LENGTH": length, "INNER": inner, "LINES": lines},
            variant={"short": short, "greatest": isinstance(op, ArgMax), "last": bool(op.select_last_index)},
            grid=grid,
            local=local,
            epilogue=False,
        )


@gpu_op(CumSum, CumProd)
class ScanOnGpu(GpuOp):
    """Scans lines along one axis, one work-item each, in NCHW."""

    def why_not(
        self,
        op: CumSum | CumProd,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        caps: DeviceCaps,
    ) -> str | None:
        """Refuse an axis that is computed at run time."""
        axis = inputs[1]
        return "its axis is computed at run time" if axis is None or axis.constant is None else None

    def rounds(self, op: CumSum | CumProd, inputs: Sequence[Tensor | None]) -> int:
        """Return the number of elements of a line."""
        x, axis = inputs[0], inputs[1]
        assert x is not None and axis is not None and axis.constant is not None
        return x.shape[int(axis.constant.item()) % len(x.shape)]

    def launches(
        self,
        op: CumSum | CumProd,
        k: KernelBuilder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> None:
        """Launch one work-item a line."""
        x, axis = inputs[0], inputs[1]
        assert x is not None and axis is not None and axis.constant is not None
        at = int(axis.constant.item()) % len(x.shape)
        length, inner = x.shape[at], prod(x.shape[at + 1 :])
        lines = prod(x.shape) // max(length, 1)
        grid, local = k.for_items(lines)
        k.launch(
            "scan",
            reads={"x": x},
            writes={"y": outputs[0]},
            ints={"LENGTH": length, "INNER": max(inner, 1), "LINES": lines},
            variant={
                "start": f"{float(op.first)}",
                "join": "+" if isinstance(op, CumSum) else "*",
                "reverse": bool(op.reverse),
                "exclusive": bool(op.exclusive),
            },
            grid=grid,
            local=local,
        )
