"""Normalizations on GPUs: by stored statistics, by the statistics of lines or images, or over adjacent channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps, Size3
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, computed
from weft.kernels.self_test_cases import one_node
from weft.kernels.source import ArgKind
from weft.kernels.special import on_many_units, register_family
from weft.ops.gpu.elementwise import launch_expression
from weft.ops.gpu.move import launch_expand
from weft.ops.gpu.packing import Weights, as_image, seen_as, weights_of
from weft.ops.gpu.reduce import LONG, choose_group, part_axes, walk_rounds, why_not_axes
from weft.ops.gpu.spans import FAMILY, choose_spans
from weft.ops.gpu.teams import WITHOUT_TEAMS, Team, choose_team
from weft.ops.norm import (
    LRN,
    BatchNormalization,
    GroupDeviation,
    GroupNormalization,
    InstanceNormalization,
    L2Normalization,
    LayerNormalization,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
    SumNormalization,
)
from weft.ops.shape import given


@gpu_op(BatchNormalization)
class BatchNormOnGpu(GpuOp):
    """Batch norms that could not be folded: y = x * factor + shift.

    Both are computed from the four parameters: once, or by kernels in each run if a parameter is computed at run time.
    """

    wanted_layout = WantedLayout.EITHER
    packed_family = "elementwise_c4"
    laid_inputs = 1
    computes_double = True

    def launches(self, op: BatchNormalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        y, given = outputs[0], [t for t in inputs[1:5] if t is not None]
        shape = (1, y.shape[1], *[1] * (len(y.shape) - 2)) if len(y.shape) > 1 else given[0].shape
        known, kind = [t.constant for t in given if t.constant is not None], computed(given[0].dtype).numpy
        parameters: Sequence[Weights] = (
            [each.astype(kind) for each in op.factor_and_shift(known)]
            if len(known) == len(given)
            else _launch_factor_and_shift(k, given, op.epsilon)
        )
        names = ("factor", "shift")
        pair = [as_image(k, name, p, shape, y.layout) for name, p in zip(names, parameters, strict=True)]
        launch_expression(k, "({0} * {1} + {2})", [inputs[0], *pair], y)


def _launch_factor_and_shift(k: KernelBuilder, given: Sequence[Tensor], epsilon: float) -> Sequence[Weights]:
    scale, shift, mean, var = given
    factor, moved = (k.scratch(scale.shape, computed(scale.dtype)) for _ in range(2))
    launch_expression(k, "{0} / sqrt({1} + {2})", [scale, var], factor, numbers=[epsilon], epilogue=False)
    launch_expression(k, "{0} - {1} * {2}", [shift, mean, factor], moved, epilogue=False)
    return [factor, moved]


@dataclass(frozen=True, slots=True)
class Lines:
    """What is normalized together, and how: the constants of the walk, and the expressions in the template.

    `parameters` are the arguments "scale" and "shift", each element repeated `inner` times. The term of `centred` lines
    is the square: work-groups that share a line join their sums by that. With `spread` each element becomes the factor
    of its line.
    """

    ints: dict[str, int]
    contiguous: bool = True
    centred: bool = True
    term: str = "v * v"
    factor: str = "1.0 / sqrt(total / TO_REAL(LENGTH) + EPSILON)"
    epsilon: float | None = None
    parameters: dict[str, Tensor] = field(default_factory=dict)
    inner: int = 1
    spread: bool = False

    def sizes(self) -> list[int]:
        """Return the number of elements of each parameter."""
        return [prod(t.shape) for t in self.parameters.values()]

    def side_by_side(self) -> bool:
        """Tell whether lines are contiguous, one after the other, and parameters match them element by element."""
        at, length = self.ints, self.ints["LENGTH"]
        one_run = at["R2"] == length and at["RS2"] == 1 and at["K2"] == prod(at[f"K{d}"] for d in range(3))
        return one_run and at["KS2"] in (0, length) and self.inner == 1 and all(self.sizes())


def _walk(caps: DeviceCaps, shape: Shape, axes: Shape, passes: int = 3) -> int:
    """Return the rounds of an item: by default three passes, for the mean, the variance and the outputs."""
    ints, contiguous = part_axes(shape, axes)
    return walk_rounds(caps, prod(ints[f"K{d}"] for d in range(3)), ints["LENGTH"], contiguous, passes)


def _launch_rows(k: KernelBuilder, x: Tensor, outputs: Sequence[Tensor], lines: Lines, team: Team) -> None:
    """Launch a normalization of contiguous lines."""
    length = lines.ints["LENGTH"]
    sizes = {name: prod(t.shape) for name, t in lines.parameters.items()}
    whole = tuple(name for name, size in sizes.items() if size == length)
    team.launch(
        k, "normalize_rows", {"x": x, **lines.parameters},
        dict(zip(("y", "mean_out", "factor_out"), outputs, strict=False)), lines=prod(x.shape) // length,
        length=length,
        ints={f"{name.upper()}_UNITS": size // team.width for name, size in sizes.items() if name not in whole},
        floats={} if lines.epsilon is None else {"EPSILON": lines.epsilon},
        variant={"centred": lines.centred, "term": lines.term, "factor": lines.factor, "whole": whole},
    )


def launch_lines(k: KernelBuilder, x: Tensor, outputs: Sequence[Tensor], lines: Lines) -> None:
    """Launch a normalization in NCHW; `outputs` are y and, if requested, the means and the factors."""
    count = prod(lines.ints[f"K{d}"] for d in range(3))
    team = None
    if lines.side_by_side() and not lines.spread:
        tensors = (x, outputs[0], *lines.parameters.values())
        team = choose_team(k, tensors, count, lines.ints["LENGTH"], lines.sizes())
    if team is not None:
        _launch_rows(k, x, outputs, lines, team)
        return
    length = lines.ints["LENGTH"]
    short, grid, local = choose_group(k, count, length, lines.contiguous)
    ints = {**lines.ints, "LINES": count}
    reads = {"x": x, **lines.parameters}
    variant: dict[str, Any] = {"centred": lines.centred, "term": lines.term}
    spans = None if short else choose_spans(k.caps, count, length)
    if spans is not None:
        ints |= spans.ints()
        grid = (min(count * spans.count, k.caps.max_grid[0]), 1, 1)
        reads["moments"] = moments = k.scratch((count * spans.count, 2), computed(x.dtype))
        k.launch(
            "line_moments", reads={"x": x}, writes={"moments": moments}, ints=ints, variant=variant, grid=grid,
            local=local, epilogue=False,
        )
    for name, t in lines.parameters.items():
        ints |= {"INNER": lines.inner, f"{name.upper()}_SIZE": max(prod(t.shape), 1)}
    k.launch(
        "normalize_lines", reads=reads,
        writes=dict(zip(("y", "mean_out", "factor_out"), outputs, strict=False)), ints=ints,
        floats={} if lines.epsilon is None else {"EPSILON": lines.epsilon},
        variant={**variant, "short": short, "factor": lines.factor, "spread": lines.spread}, grid=grid,
        local=local,
    )


@gpu_op(LayerNormalization, RMSNormalization)
class LayerNormOnGpu(GpuOp):
    """Normalizes lines of the last axes, in NCHW."""

    any_place = True
    computes_double = True

    def why_not(
        self, op: LayerNormalization | RMSNormalization, inputs: Inputs, outputs: Outputs, caps: DeviceCaps
    ) -> str | None:
        """Refuse a scale of another type, of which the output is."""
        x, scale = given(inputs, 0), given(inputs, 1)
        if x.dtype is scale.dtype:
            return None
        return f"GPU kernels scale in the type of {x.name!r}, {x.dtype.value}; {scale.name!r} is {scale.dtype.value}"

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept: the store converts to fp32."""
        return True

    def rounds(self, op: LayerNormalization | RMSNormalization, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of three passes, or of two without a mean."""
        shape = given(inputs, 0).shape
        axes = tuple(range(op.axis % len(shape), len(shape)))
        return _walk(caps, shape, axes, 3 if isinstance(op, LayerNormalization) else 2)

    def launches(
        self, op: LayerNormalization | RMSNormalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs
    ) -> None:
        """Launch one work-item or work-group a line."""
        x = given(inputs, 0)
        axes = tuple(range(op.axis % len(x.shape), len(x.shape)))
        lines = Lines(
            part_axes(x.shape, axes)[0],
            centred=isinstance(op, LayerNormalization),
            epsilon=op.epsilon,
            parameters={
                name: _spread(k, t, _covered(t.shape, x.shape))
                for name, t in zip(("scale", "shift"), inputs[1:], strict=False)
                if t is not None
            },
        )
        launch_lines(k, x, outputs, lines)


def _covered(shape: Shape, x: Shape) -> Shape:
    """Return the last axes of `x`, from the first one along which an operand of `shape` varies."""
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return x[len(x) - len(shape) + first :]


def _spread(k: KernelBuilder, t: Tensor, shape: Shape) -> Tensor:
    """Return a scale or shift broadcast to `shape`, on the host if it is constant."""
    value = t.constant
    if value is None:
        if prod(t.shape) == prod(shape):
            return t
        whole = k.scratch(shape, t.dtype)
        launch_expand(k, seen_as(t, t.shape[len(t.shape) - len(shape) :]), whole)
        return whole
    own = value.reshape(value.shape[value.ndim - len(shape) :])
    return k.constant(f"{t.name}.{shape}", lambda: np.ascontiguousarray(np.broadcast_to(own, shape)))


_OfImages = InstanceNormalization | GroupNormalization | GroupDeviation


@gpu_op(InstanceNormalization, GroupNormalization, GroupDeviation)
class ImageNormOnGpu(GpuOp):
    """Normalizes images of one channel or of a group of channels, with a scale and a shift for each channel.

    Of a GroupDeviation it stores what such a norm divides by.
    """

    wanted_layout = WantedLayout.EITHER
    packed_family = "normalize_images"
    laid_inputs = 1
    computes_double = True

    def fits_channels(self, op: _OfImages, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept every group that has an element."""
        return len(outputs[0].shape) > 2 and 0 not in outputs[0].shape

    def rounds(self, op: _OfImages, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of three passes over the pixels of channels that are normalized together."""
        assert inputs[0] is not None
        n, c, *rest = inputs[0].shape
        each = _channels_together(op, inputs[0].shape)
        return _walk(caps, (n * (c // each), each * prod(rest)), (1,))

    def launches(self, op: _OfImages, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch a normalization of lines or, in blocks of channels, of images."""
        x, y = given(inputs, 0), outputs[0]
        each = _channels_together(op, x.shape)
        parameters = {
            name: as_image(k, name, weights_of(t), (1, x.shape[1], 1), y.layout)
            for name, t in zip(("scale", "shift"), inputs[1:3], strict=False)
            if t is not None
        }
        if y.layout.packed:
            _launch_images(k, x, y, parameters, each, op.epsilon)
            return
        n, c, *rest = x.shape
        lines = Lines(
            part_axes((n * (c // each), each * prod(rest)), (1,))[0],
            epsilon=op.epsilon,
            parameters=parameters,
            inner=max(prod(rest), 1),
        )
        if isinstance(op, GroupDeviation):
            lines = replace(lines, factor="sqrt(total / TO_REAL(LENGTH) + EPSILON)", spread=True)
        launch_lines(k, x, outputs, lines)


def _channels_together(op: _OfImages, shape: Shape) -> int:
    return 1 if isinstance(op, InstanceNormalization) else shape[1] // op.num_groups


def _launch_images(
    k: KernelBuilder, x: Tensor, y: Tensor, parameters: dict[str, Tensor], each: int, epsilon: float
) -> None:
    """Launch a normalization in NC4HW4: of each channel block, or of the fewest that hold whole groups of `each`.

    A work-group does one of these; where they are few and large, several do. Without parameters each element becomes
    the deviation of its group.
    """
    n, c, *rest = x.shape
    blocks = -(-c // PACK)
    groups = 0 if each == 1 else PACK // gcd(each, PACK)
    parts = max(groups * each // PACK, 1)
    sets = n * -(-blocks // parts)
    most = 256 if parts * prod(rest) >= LONG and not k.caps.software else 64
    local: Size3 = (k.tree_items(most), 1, 1)
    ints = {"HW": prod(rest), "BLOCKS": blocks, "PARTS": parts, "SETS": sets, "IMAGES": n}
    ints |= {} if groups == 0 else {"EACH": each, "CHANNELS": c}
    reads, fours, work_groups = {"x": x, **parameters}, dict[str, ArgKind](), sets
    spans = choose_spans(k.caps, sets, prod(rest), parts)
    if spans is not None:
        work_groups = sets * spans.count
        ints |= spans.ints()
        reads["moments"] = moments = k.scratch((work_groups, 2, PACK), DType.FLOAT32)
        fours["moments"] = "fours"
        k.launch(
            "image_moments", reads={"x": x}, writes={"moments": moments}, ints=ints, variant={"groups": groups},
            grid=(min(work_groups, k.caps.max_grid[0]), 1, 1), local=local, kinds=fours, epilogue=False,
        )
    k.launch(
        "normalize_images", reads=reads, writes={"y": y}, ints=ints, floats={"EPSILON": epsilon},
        variant={"groups": groups, "spread": not parameters}, grid=(min(work_groups, k.caps.max_grid[0]), 1, 1),
        local=local, kinds=fours,
    )


_OneAxis = LpNormalization | L2Normalization | SumNormalization


class _OneNormOnGpu(GpuOp):
    """Divides lines along one axis by their norm or their sum, in NCHW."""

    computes_double = True

    def rounds(self, op: _OneAxis, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of two passes, for the norm and the quotients."""
        assert inputs[0] is not None
        return _walk(caps, inputs[0].shape, (op.axis % len(inputs[0].shape),), 2)

    def _launch(
        self, op: _OneAxis, k: KernelBuilder, x: Tensor | None, outputs: Outputs,
        *, factor: str, term: str = "v * v", epsilon: float | None = None,
    ) -> None:
        """Launch one work-item or work-group a line; `factor` is computed from the `total` of all terms."""
        assert x is not None
        ints, contiguous = part_axes(x.shape, (op.axis % len(x.shape),))
        launch_lines(k, x, outputs, Lines(ints, contiguous, False, term, factor, epsilon))


@gpu_op(LpNormalization)
class LpNormOnGpu(_OneNormOnGpu):
    """A line of zeros stays zeros."""

    def launches(self, op: LpNormalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch with the sum of magnitudes, or the root of that of squares."""
        term, norm = ("fabs(v)", "total") if op.p == 1 else ("v * v", "sqrt(total)")
        # The reciprocal of 2^-128 or less is infinite in f32.
        least = 0.0 if outputs[0].dtype is DType.FLOAT64 or op.p == 2 else 2.0**-128
        self._launch(op, k, inputs[0], outputs, term=term, factor=f"total <= {least} ? 0.0 : 1.0 / {norm}")


class _StoredAnywhere(_OneNormOnGpu):
    """A norm whose result may lie in another value, or be wider."""

    any_place = True

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept: the store converts to fp32."""
        return True


@gpu_op(L2Normalization)
class L2NormOnGpu(_StoredAnywhere):
    """A norm that is less than a limit counts as that."""

    def launches(self, op: L2Normalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch with the limit; a norm that is NaN is not less than anything, and stays."""
        factor = "1.0 / (sqrt(total) < EPSILON ? EPSILON : sqrt(total))"
        self._launch(op, k, inputs[0], outputs, factor=factor, epsilon=op.least)


@gpu_op(SumNormalization)
class SumNormOnGpu(_StoredAnywhere):
    """A sum, or a mean, with a small number."""

    def launches(self, op: SumNormalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch with the elements themselves as terms."""
        total = "total / TO_REAL(LENGTH)" if op.mean else "total"
        self._launch(op, k, inputs[0], outputs, term="v", factor=f"1.0 / ({total} + EPSILON)", epsilon=op.epsilon)


@gpu_op(MeanVarianceNormalization)
class MeanVarianceOnGpu(GpuOp):
    """Normalizes lines along any axes, in NCHW."""

    computes_double = True

    def why_not(self, op: MeanVarianceNormalization, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse axes in too many runs."""
        shape = outputs[0].shape
        return why_not_axes(shape, tuple(a % len(shape) for a in op.axes))

    def rounds(self, op: MeanVarianceNormalization, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of three passes."""
        shape = given(inputs, 0).shape
        return _walk(caps, shape, tuple(a % len(shape) for a in op.axes))

    def launches(self, op: MeanVarianceNormalization, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item or work-group a line."""
        x = given(inputs, 0)
        ints, contiguous = part_axes(x.shape, tuple(a % len(x.shape) for a in op.axes))
        lines = Lines(ints, contiguous, factor="1.0 / (sqrt(total / TO_REAL(LENGTH)) + EPSILON)", epsilon=1e-9)
        launch_lines(k, x, outputs, lines)


@gpu_op(LRN)
class LrnOnGpu(GpuOp):
    """Computes one pixel of four channels in each work-item."""

    wanted_layout = WantedLayout.CHANNELS

    def rounds(self, op: LRN, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the channels around each of four."""
        return PACK * min(op.size, given(inputs, 0).shape[1])

    def launches(self, op: LRN, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch over the pixels of all blocks."""
        x, y = given(inputs, 0), outputs[0]
        n, c, *rest = x.shape
        blocks = -(-c // PACK)
        total = n * blocks * prod(rest)
        k.launch(
            "lrn", reads={"x": x}, writes={"y": y},
            ints={
                "HW": prod(rest), "BLOCKS": blocks, "CHANNELS": c, "TOTAL": total,
                "LOW": min((op.size - 1) // 2, c), "HIGH": min(op.size // 2, c),
            },
            floats={"BIAS": op.bias, "SHARE": op.alpha / op.size, "POWER": -op.beta}, items=total,
        )


register_family(
    "normalize_lines", "normalizations of lines",
    cases=lambda: (
        one_node(LayerNormalization(axis=1), (3, 4, 5), (4, 5), (4, 5), constants=(1, 2)),
        one_node(LayerNormalization(), (5, 197), (197,), constants=(1,)),
        one_node(LpNormalization(axis=1, p=1), (3, 50, 7)),
        one_node(L2Normalization(axis=1, least=5.0), (3, 50, 7)),
        one_node(SumNormalization(axis=1, mean=1, epsilon=2.5), (3, 50, 7)),
        one_node(GroupDeviation(num_groups=2), (3, 70)),
    ),
    forced=WITHOUT_TEAMS,
)
register_family(
    "normalize_images", "normalizations of images",
    cases=lambda: (
        one_node(InstanceNormalization(), (3, 5, 7, 3), (5,), (5,), constants=(1, 2)),
        one_node(GroupNormalization(num_groups=2), (2, 8, 5, 5), (8,), (8,), constants=(1, 2)),
        one_node(GroupNormalization(num_groups=3), (2, 30, 5, 3), (30,), (30,), constants=(1, 2)),
        one_node(GroupNormalization(num_groups=5), (1, 15, 7, 3), (15,), (15,), constants=(1, 2)),
        one_node(GroupDeviation(num_groups=3), (2, 30, 5, 3)),
    ),
    fallback="normalizations of lines",
)
register_family(
    FAMILY, "moments of lines and images that work-groups share",
    cases=lambda: (
        one_node(LayerNormalization(axis=1), (1, 2, 4999), (2, 4999), constants=(1,)),
        one_node(InstanceNormalization(), (1, 5, 107, 83), (5,), (5,), constants=(1, 2)),
        one_node(GroupNormalization(num_groups=1), (2, 10, 61, 53), (10,), (10,), constants=(1, 2)),
        one_node(GroupNormalization(num_groups=2), (1, 14, 61, 41), (14,), (14,), constants=(1, 2)),
    ),
    forced=on_many_units, templates=("line_moments", "image_moments"),
    fallback="norms by a work-group for each line or image",
)
register_family(
    "lrn", "normalizations over channels",
    cases=lambda: (one_node(LRN(size=3, alpha=0.5), (2, 7, 3, 5)),),
)
