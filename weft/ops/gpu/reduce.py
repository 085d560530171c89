"""Reductions over axes on GPUs, the positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Shape, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps, Size3
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import SECTOR, KernelBuilder, power_of_two, rounds_in_parts, tree_items
from weft.kernels.self_test_cases import indices, one_node
from weft.kernels.special import register_family
from weft.ops.gpu.integers import INTEGERS, halves
from weft.ops.gpu.pool import launch_global
from weft.ops.reduce import (
    ArgMax,
    ArgMin,
    CumProd,
    CumSum,
    LinearRecurrence,
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
    bounds,
)
from weft.ops.shape import given, optional

SHORT = 32
"""The most elements that one work-item reads in a row; more are divided among a work-group."""
MANY = 1024
"""Outputs that fill a device at one work-item each."""
MOST_RUNS = 3
"""Runs of axes of one kind that kernels walk."""
LONG = 4096
"""From this many elements a work-group uses as many work-items as it may."""
AHEAD = 8
"""Elements that an item loads before it joins them, where a work-group has several adjacent outputs."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A reduction as kernel text: the term of each element v, how terms join, and what is stored of acc."""

    term: str = "v"
    finish: str = "acc"
    join: str = "{0} + {1}"
    start: str = "0.0"
    shifted: bool = False


@dataclass(frozen=True, slots=True)
class IntegerRecipe:
    """A reduction of integers in the words of its template."""

    term: str = "value"
    join: str = "add"
    mean: bool = False


INTEGER_RECIPES: dict[type[Reduction], IntegerRecipe] = {
    ReduceSum: IntegerRecipe(),
    ReduceMean: IntegerRecipe(mean=True),
    ReduceProd: IntegerRecipe(join="multiply"),
    ReduceL1: IntegerRecipe("size"),
    ReduceSumSquare: IntegerRecipe("square"),
    ReduceMax: IntegerRecipe(join="max"),
    ReduceMin: IntegerRecipe(join="min"),
}
RECIPES: dict[type[Reduction], Recipe] = {
    ReduceSum: Recipe(),
    ReduceMean: Recipe(finish="acc / TO_REAL(LENGTH)"),
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
    """Return how kernels walk a reduction of a value in NCHW, and whether its last reduced axis is contiguous.

    The constants are LENGTH (elements of a line), K0 K1 K2 and KS0 KS1 KS2 (sizes and steps over the lines)
    and R. and RS. (within a line). See `why_not_axes`.
    """
    return _walk(_Runs.of(shape, axes, row_major(shape)), prod(shape[a] for a in axes))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Axes as (size, step), those merged that lie in memory as one: kept ones in order, reduced ones by their steps."""

    kept: Sequence[tuple[int, int]]
    reduced: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, shape: Shape, axes: Shape, steps: Sequence[int]) -> _Runs:
        """Return the runs of a value whose axes have these steps."""
        every = [(axis in axes, size, step) for axis, (size, step) in enumerate(zip(shape, steps, strict=True))]
        kept = [(size, step) for reduced, size, step in every if size != 1 and not reduced]
        reduced = [(size, step) for reduced, size, step in every if size != 1 and reduced]
        return cls(_merged(kept), _merged(sorted(reduced, key=lambda run: -run[1])))

    @property
    def most(self) -> int:
        """Return the number of runs of the kind of which there are more."""
        return max(len(self.kept), len(self.reduced))


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for size, step in runs:
        if joined and joined[-1][1] == size * step:
            joined[-1] = (joined[-1][0] * size, step)
        else:
            joined.append((size, step))
    return joined


def _walk(runs: _Runs, length: int) -> tuple[dict[str, int], bool]:
    ints = {"LENGTH": length}
    for letter, each in (("K", runs.kept), ("R", runs.reduced)):
        for number, (size, step) in enumerate([(1, 0)] * (MOST_RUNS - len(each)) + list(each)):
            # An empty axis is never walked, but kernels divide by its size.
            ints |= {f"{letter}{number}": max(size, 1), f"{letter}S{number}": step}
    return ints, bool(runs.reduced) and runs.reduced[-1][1] == 1


def why_not_axes(shape: Shape, axes: Shape) -> str | None:
    """Return why kernels do not walk a reduction: no axes up to rank 6 are more than three runs of one kind."""
    if _Runs.of(shape, axes, row_major(shape)).most <= MOST_RUNS:
        return None
    return f"axes {list(axes)} of {list(shape)} are more than three runs; GPU kernels reduce three"


def _apart(op: Reduction, make: Body, node: Node) -> Sequence[str]:
    """Return the root of squares of integers in float64, and a reduction of scattered axes as one of the last ones."""
    x, axes = (*node.inputs, "")[:2]
    kind, dims = make.dtype(x), make.dims(x)
    if isinstance(op, ReduceL2) and kind.is_integer:
        squares = make.all("ReduceSumSquare", *node.inputs, made=1, **op.attributes())[0]
        return [make.cast(make.add("Sqrt", make.cast(squares, DType.FLOAT64)), kind)]
    reduced = op.resolve(make.known(axes) if axes else None, len(dims))
    if why_not_axes(dims, reduced) is None:
        return []
    kept = tuple(a for a in range(len(dims)) if a not in reduced)
    turned = make.add("Transpose", x, perm=(*kept, *reduced))
    last = make.ints(*range(len(kept), len(dims)))
    return [make.reshape(make.add(op.type, turned, last, keepdims=0), *make.graph.specs[node.outputs[0]].dims)]


for _kind in RECIPES:
    decomposition(_kind.type)(_apart)


def _is_short(lines: int, length: int, contiguous: bool) -> bool:
    return length <= SHORT or (lines >= MANY and not contiguous)


def _most_items(caps: DeviceCaps, length: int) -> int:
    return 256 if length >= LONG and not caps.software else 64


def walk_rounds(caps: DeviceCaps, lines: int, length: int, contiguous: bool, passes: int = 1) -> int:
    """Return the rounds of an item that goes over its share of lines in so many passes; see `choose_group`."""
    if _is_short(lines, length, contiguous):
        return passes * rounds_in_parts(length)
    items = tree_items(caps, _most_items(caps, length))
    return passes * (rounds_in_parts(-(-length // items)) + items.bit_length()) * max(-(-lines // caps.max_grid[0]), 1)


def choose_group(k: KernelBuilder, lines: int, length: int, contiguous: bool) -> tuple[bool, Size3, Size3]:
    """Return whether one work-item should reduce a whole line, and the grid and local size for that choice.

    Adjacent work-items read adjacent elements: of one line if it is contiguous, else of one line each.
    """
    if _is_short(lines, length, contiguous):
        return True, *k.for_items(lines)
    items = k.tree_items(_most_items(k.caps, length))
    return False, (max(1, min(lines, k.caps.max_grid[0])), 1, 1), (items, 1, 1)


@gpu_op(*RECIPES)
class ReduceOnGpu(GpuOp):
    """One kernel for floats, one for integers and bools; means and maxima of whole images can run in NC4HW4."""

    computes_double = True
    wanted_layout = WantedLayout.EITHER
    packed_family = "pool_global"
    any_place = True
    integers = INTEGERS | {DType.BOOL}
    laid_inputs = 1

    def why_not(self, op: Reduction, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse roots of integers, and axes in too many runs."""
        x, axes = given(inputs, 0), optional(inputs, 1)
        if not x.dtype.is_float and type(op) not in INTEGER_RECIPES:
            return f"GPU kernels compute {op.type} in float32; {x.name!r} is {x.dtype.value}"
        return why_not_axes(x.shape, op.resolve(None if axes is None else axes.constant, len(x.shape)))

    def fits_channels(self, op: Reduction, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept only reductions over all spatial axes, like a global pool."""
        x, axes = (*inputs, None)[:2]
        if not isinstance(op, (ReduceMean, ReduceMax)) or x is None or len(x.shape) < 3 or 0 in x.shape:
            return False
        return op.resolve(None if axes is None else axes.constant, len(x.shape)) == tuple(range(2, len(x.shape)))

    def rounds(self, op: Reduction, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of each pass, and of a division of integers, bit by bit."""
        assert inputs[0] is not None
        ints, contiguous = part_axes(inputs[0].shape, self._axes(op, inputs))
        lines = prod(ints[f"K{d}"] for d in range(3))
        bits = 64 if isinstance(op, ReduceMean) and inputs[0].dtype.is_integer else 0
        return bits + walk_rounds(caps, lines, ints["LENGTH"], contiguous, 2 if RECIPES[type(op)].shifted else 1)

    @staticmethod
    def _axes(op: Reduction, inputs: Inputs) -> Shape:
        axes = optional(inputs, 1)
        return op.resolve(None if axes is None else axes.constant, len(given(inputs, 0).shape))

    def launches(self, op: Reduction, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, y = given(inputs, 0), outputs[0]
        if y.layout.packed:
            launch_global(k, x, y, "max" if isinstance(op, ReduceMax) else "average")
            return
        axes = self._axes(op, inputs)
        if x.dtype.is_float:
            launch_recipe(k, RECIPES[type(op)], x, y, axes)
        else:
            _launch_integers(k, op, x, y, part_axes(x.shape, axes))


def launch_recipe(k: KernelBuilder, recipe: Recipe, x: Tensor, y: Tensor, axes: Shape) -> None:
    """Launch a reduction of floats over some axes, in the order in which its elements lie in memory."""
    x, ints, contiguous = _walk_in_memory(k, x, axes)
    outputs = prod(y.shape)
    short, grid, local = choose_group(k, outputs, ints["LENGTH"], contiguous)
    shared = Adjacent.choose(k.caps, ints, outputs, x.dtype)
    if shared:
        short, local = False, (shared.items, 1, 1)
        grid = (min(-(-outputs // shared.outputs), k.caps.max_grid[0]), 1, 1)
    words: dict[str, Any] = {field: getattr(recipe, field) for field in Recipe.__slots__}
    words |= {"adjacent": shared.outputs if shared else 1, "ahead": AHEAD if shared else 1}
    k.launch(
        "reduce", reads={"x": x}, writes={"y": y}, ints={**ints, "OUTPUTS": outputs},
        variant={**words, "short": short}, grid=grid, local=local,
    )


def _walk_in_memory(k: KernelBuilder, x: Tensor, axes: Shape) -> tuple[Tensor, dict[str, int], bool]:
    """Return a tensor, how kernels walk it, and whether elements of a line lie together; see `part_axes`."""
    in_memory, steps, first = k.by_steps(x)
    runs = _Runs.of(x.shape, axes, steps)
    if runs.most > MOST_RUNS:
        ints, contiguous = part_axes(x.shape, axes)
        return x, {**ints, "FIRST": 0}, contiguous
    ints, contiguous = _walk(runs, prod(x.shape[a] for a in axes))
    return in_memory, {**ints, "FIRST": first}, contiguous


@dataclass(frozen=True, slots=True)
class Adjacent:
    """A work-group of `items` that computes several adjacent `outputs`, so that it reads what lies together at once."""

    outputs: int
    items: int

    @classmethod
    def choose(cls, caps: DeviceCaps, ints: Mapping[str, int], outputs: int, dtype: DType) -> Adjacent | None:
        """Return as many as a memory access has, or as leave a work-group for each compute unit.

        None where elements of an output lie together, where there are few, and on CPUs.
        """
        if caps.software or ints["LENGTH"] <= SHORT or ints["KS2"] != 1:
            return None
        adjacent = SECTOR // dtype.itemsize
        while adjacent > 1 and (adjacent > ints["K2"] or outputs < adjacent * caps.likely_units):
            adjacent //= 2
        each = min(tree_items(caps, 256) // adjacent, power_of_two(-(-ints["LENGTH"] // AHEAD)))
        return cls(adjacent, adjacent * each) if adjacent > 1 and each > 1 else None


def _launch_integers(
    k: KernelBuilder, op: Reduction, x: Tensor, y: Tensor, walk: tuple[dict[str, int], bool]
) -> None:
    """Launch a reduction of integers or bools."""
    ints, contiguous = walk
    outputs = prod(y.shape)
    short, grid, local = choose_group(k, outputs, ints["LENGTH"], contiguous)
    recipe, (least, most) = INTEGER_RECIPES[type(op)], bounds(x.dtype.numpy)
    start = {"add": 0, "multiply": 1, "max": int(least), "min": int(most)}[recipe.join]
    low, high = halves(start)
    words = {field: getattr(recipe, field) for field in IntegerRecipe.__slots__}
    k.launch(
        "reduce_integers", reads={"x": x}, writes={"y": y},
        ints={**ints, "OUTPUTS": outputs, "START": low, "START_HIGH": high},
        variant={**words, "short": short, "wide": x.dtype is DType.UINT64}, grid=grid, local=local,
        epilogue=False,
    )


@gpu_op(ArgMax, ArgMin)
class ArgExtremeOnGpu(GpuOp):
    """Finds extremes of lines along one axis, in NCHW."""

    fuses_into_store = False
    integers = INTEGERS
    computes_double = True

    def rounds(self, op: ArgMax | ArgMin, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of the only pass."""
        x = given(inputs, 0)
        length, inner = x.shape[op.axis], prod(x.shape[op.axis % len(x.shape) + 1 :])
        return walk_rounds(caps, prod(x.shape) // max(length, 1), length, inner == 1)

    def launches(self, op: ArgMax | ArgMin, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item or work-group a line."""
        x, y = given(inputs, 0), outputs[0]
        axis = op.axis % len(x.shape)
        length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        lines = prod(x.shape) // length
        short, grid, local = choose_group(k, lines, length, inner == 1)
        k.launch(
            "arg_extreme", reads={"x": x}, writes={"y": y},
            ints={"LENGTH": length, "INNER": inner, "LINES": lines},
            variant={
                "short": short,
                "greatest": isinstance(op, ArgMax),
                "last": bool(op.select_last_index),
                "floats": x.dtype.is_float,
            },
            grid=grid, local=local, epilogue=False,
        )


@gpu_op(CumSum, CumProd)
class ScanOnGpu(GpuOp):
    """Scans lines along one axis, in NCHW: a work-item or, of few long lines, a work-group each."""

    integers = INTEGERS
    computes_double = True

    def rounds(self, op: CumSum | CumProd, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds over a line, or of two passes over an item's part of it."""
        shape, axis = _scanned(inputs)
        length = max(shape) if axis is None else shape[axis]
        if not _in_teams(shape, axis):
            return length
        items = tree_items(caps, _most_items(caps, length))
        return 2 * -(-length // items) + items.bit_length()

    def launches(self, op: CumSum | CumProd, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item or work-group a line; a kernel may have to read which axis that is."""
        x, whole = inputs[0], outputs[0].dtype.is_integer
        assert x is not None and inputs[1] is not None
        shape, axis = _scanned(inputs)
        total, longest = prod(shape), max(shape) if axis is None else shape[axis]
        lines = total // max(min(shape) if axis is None else longest, 1)
        ints, reads, rank = {"START": op.first} if whole else {}, {"x": x}, 0
        if axis is None:
            rank, reads["which"] = len(shape), inputs[1]
            ints |= {"TOTAL": total, **{f"D{d}": size for d, size in enumerate(shape)}}
        else:
            ints |= {"LENGTH": longest, "INNER": max(prod(shape[axis + 1 :]), 1), "LINES": lines}
        grid, local = k.for_items(lines)
        team = _in_teams(shape, axis)
        if team:
            grid = (min(lines, k.caps.max_grid[0]), 1, 1)
            local = (k.tree_items(_most_items(k.caps, longest)), 1, 1)
        k.launch(
            "scan", reads=reads, writes={"y": outputs[0]}, ints=ints,
            variant={
                "rank": rank,
                "start": f"{float(op.first)}",
                "join": "+" if isinstance(op, CumSum) else "*",
                "team": team,
                "whole": whole,
                "reverse": bool(op.reverse),
                "exclusive": bool(op.exclusive),
            },
            grid=grid, local=local, epilogue=not whole,
        )


def _scanned(inputs: Inputs) -> tuple[Shape, int | None]:
    """Return the shape, with at least one axis, and the axis of the lines; None if a run computes it."""
    x, axis = given(inputs, 0), given(inputs, 1)
    shape = x.shape or (1,)
    if len(shape) == 1:
        return shape, 0
    return shape, None if axis.constant is None else int(axis.constant.item()) % len(shape)


def _in_teams(shape: Shape, axis: int | None) -> bool:
    """Tell whether work-groups share lines: long ones, of which there are too few to fill a device."""
    length = max(shape) if axis is None else shape[axis]
    return length > SHORT and prod(shape) // length < MANY


@gpu_op(LinearRecurrence)
class LinearRecurrenceOnGpu(GpuOp):
    """Goes through each line along one axis, in NCHW: a work-item each."""

    any_place = True
    computes_double = True

    def rounds(self, op: LinearRecurrence, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds over a line."""
        return given(inputs, 0).shape[op.axis]

    def launches(self, op: LinearRecurrence, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch a work-item a line."""
        factors, terms, start = inputs
        assert factors is not None and terms is not None and start is not None
        shape, axis = factors.shape, op.axis % len(factors.shape)
        lines = prod(start.shape)
        k.launch(
            "linear_recurrence", reads={"factors": factors, "terms": terms, "start": start},
            writes={"y": outputs[0]},
            ints={"LENGTH": shape[axis], "INNER": max(prod(shape[axis + 1 :]), 1), "LINES": lines}, items=lines,
        )


register_family(
    "reduce", "reductions",
    cases=lambda: (
        one_node(ReduceSum(), (5, 300), np.array([1]), constants=(1,)),
        one_node(ReduceMax(), (7, 3, 9, 5), np.array([0, 2]), constants=(1,)),
        one_node(ReduceLogSumExp(), (70, 11), np.array([0]), constants=(1,)),
        one_node(ReduceLogSumExp(), (77, 3001), np.array([0]), constants=(1,)),
        one_node(ReduceSum(), (3, 300, 101), np.array([1]), constants=(1,)),
    ),
)
register_family(
    "integer_reductions", "reductions of integers",
    cases=lambda: (
        one_node(ReduceSum(), indices((5, 300), 99), np.array([1]), constants=(1,)),
        one_node(ReduceMax(), indices((7, 3, 9), 99).astype(np.int32), np.array([1]), constants=(1,)),
    ),
    templates=("reduce_integers",),
)
register_family(
    "arg_extreme", "places of extremes",
    cases=lambda: (one_node(ArgMax(), (1003,)), one_node(ArgMax(axis=1), (3, 5, 7))),
)
register_family(
    "scan", "running sums",
    cases=lambda: (one_node(CumSum(reverse=1), (3, 5, 7), np.array(1), constants=(1,)),),
)
register_family(
    "linear_recurrence", "linear recurrences",
    cases=lambda: (one_node(LinearRecurrence(axis=1), (3, 37, 5), (3, 37, 5), (3, 5)),),
)
