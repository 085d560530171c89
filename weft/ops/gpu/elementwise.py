"""Element-wise ops: one template, filled with the op's expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import SCALARS, KernelBuilder, computed
from weft.kernels.self_test_cases import one_node
from weft.kernels.source import ArgKind
from weft.kernels.special import in_place_of, on_many_units, register_family
from weft.ops.binary import Add, Mul, PRelu
from weft.ops.elementwise import Elementwise
from weft.ops.norm import BatchNormalization
from weft.ops.shape import given
from weft.ops.unary import Erf, Relu

VECTORS = frozenset({DType.FLOAT32, DType.FLOAT16})
"""Types of which kernels access four elements at once."""


@gpu_op(Elementwise)
class ElementwiseOnGpu(GpuOp):
    """Broadcasts in either layout; scalar constants become constants of the kernel."""

    wanted_layout = WantedLayout.EITHER
    packed_family = "elementwise_c4"
    any_place = True
    loads_by_element = True
    floats = frozenset({DType.BFLOAT16})
    computes_double = True

    def why_not(self, op: Elementwise, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse ops without an expression."""
        if op.expression(tuple(t is not None for t in inputs)) is None:
            return f"{op.type} with these attributes and types has no GPU expression"
        return None

    def fits_channels(self, op: Elementwise, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept operands that are broadcast along whole axes: batch, channels, or all spatial ones."""
        output = outputs[0].shape
        return len(output) >= 3 and all(x is None or fits_packed(_packed_shape(x, output), output) for x in inputs)

    def launches(self, op: Elementwise, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        expr = op.expression(tuple(t is not None for t in inputs))
        assert expr is not None
        launch_expression(k, expr.text, inputs, outputs[0], numbers=expr.numbers)


@gpu_op(PRelu)
class PReluOnGpu(ElementwiseOnGpu):
    """Slopes that broadcast."""

    def why_not(self, op: Elementwise, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse slopes by channel without axes of their own: kernels broadcast."""
        x, slope = given(inputs, 0), given(inputs, 1)
        if PRelu.by_channel(x.shape, slope.shape):
            return f"the slope {slope.name!r} does not broadcast"
        return super().why_not(op, inputs, outputs, caps)


def _packed_shape(x: Tensor, output: Shape) -> Shape:
    """Return the shape in which an operand is read beside an output: constants are packed with leading axes added."""
    return x.shape if x.constant is None else (1,) * (len(output) - len(x.shape)) + x.shape


def fits_packed(shape: Shape, output: Shape) -> bool:
    """Tell whether an operand of `shape` can be read in NC4HW4 beside an output of that shape."""
    if len(shape) != len(output):
        return False
    whole = all(a == b for a, b in zip(shape[2:], output[2:], strict=True))
    return whole or all(a == 1 for a in shape[2:])


def launch_expression(
    k: KernelBuilder, expr: str, inputs: Inputs, y: Tensor, *, numbers: Sequence[float] = (), epilogue: bool = True
) -> None:
    """Launch `expr` of the inputs ({0}, {1} ...), broadcast to the shape of `y`, in the layout of `y`.

    Behind the inputs it may have `numbers`, so that one kernel serves all values of them. `epilogue` says whether `y`
    is the node's output, which gets its fused steps.
    """
    kind = computed(y.dtype)
    inputs = [*inputs, *(_number(i, number, kind) for i, number in enumerate(numbers))]
    floats = {
        f"K{i}": float(t.constant.reshape(()))
        for i, t in enumerate(inputs)
        if t is not None and t.constant is not None and t.constant.size == 1 and SCALARS not in k.caps.without
    }
    reads = {f"x{i}": t for i, t in enumerate(inputs) if t is not None and f"K{i}" not in floats}
    if y.layout.packed:
        _launch_packed(k, expr, len(inputs), reads, floats, y)
    else:
        _launch_linear(k, expr, len(inputs), reads, floats, y, epilogue)


def _number(position: int, value: float, kind: DType) -> Tensor:
    """Return a constant of one element."""
    tensor = Tensor(f"number{position}", (1,), kind)
    with np.errstate(over="ignore"):
        tensor.constant = np.full(1, value, kind.numpy)
    return tensor


def _launch_packed(
    k: KernelBuilder, expr: str, count: int, reads: dict[str, Tensor], floats: dict[str, float], y: Tensor
) -> None:
    n, c, *rest = y.shape
    hw = prod(rest)
    modes = []
    packed = {}
    for name, t in reads.items():
        t = _packed_constant(k, t, y.shape) if t.constant is not None and t.memory is None else t
        packed[name] = t
        spatial = "1" if prod(t.shape[2:]) == 1 and hw != 1 else "p"
        modes.append(
            f"{name}:{'0' if t.shape[0] == 1 else 'n'}:{'s' if t.shape[1] == 1 and c > 1 else 'c'}:{spatial}"
        )
    total = n * -(-c // 4) * hw
    k.launch(
        "elementwise_c4", reads=packed, writes={"y": y}, ints={"HW": hw, "BLOCKS": -(-c // 4), "TOTAL": total},
        floats=floats, variant={"expr": expr, "modes": tuple(modes), "count": count}, items=total,
    )


def _packed_constant(k: KernelBuilder, t: Tensor, output: Shape) -> Tensor:
    value = t.constant
    assert value is not None
    shape = (1,) * (len(output) - value.ndim) + value.shape
    return k.constant(f"{t.name}.c4", lambda: value.reshape(shape), Layout.NC4HW4)


def collapse(shapes: Sequence[Shape], output: Shape) -> tuple[list[list[int]], list[int]]:
    """Return the operands' strides and the output's sizes over as few axes as broadcasting allows.

    Adjacent axes merge if each operand is either indexed along both or repeated along both.
    """
    full = [(1,) * (len(output) - len(s)) + tuple(s) for s in shapes]
    axes: list[list[int]] = []
    patterns: list[tuple[bool, ...]] = []
    for a, size in enumerate(output):
        if size == 1:
            continue
        pattern = tuple(s[a] != 1 for s in full)
        if patterns and patterns[-1] == pattern:
            axes[-1].append(a)
        else:
            axes.append([a])
            patterns.append(pattern)
    sizes = [prod(output[a] for a in group) for group in axes]
    strides = []
    for k in range(len(full)):
        row, step = [0] * len(axes), 1
        for g in reversed(range(len(axes))):
            if patterns[g][k]:
                row[g] = step
                step *= sizes[g]
        strides.append(row)
    return strides, sizes


def prefers_fours(caps: DeviceCaps) -> bool:
    """Tell whether a work-item should compute four elements; a CPU's compiler vectorizes over work-items instead."""
    return not caps.software and "elementwise_wide" not in caps.without


def _names_in_fours(
    k: KernelBuilder, reads: dict[str, Tensor], y: Tensor, strides: list[list[int]], sizes: list[int]
) -> tuple[str, ...]:
    """Return which operands, and "y", can be accessed in vectors of four; none if the output cannot."""
    last = sizes[-1] if sizes else 1
    if last % PACK or not all(t.dtype in VECTORS for t in (*reads.values(), y)) or not prefers_fours(k.caps):
        return ()
    in_rows = {name: t for (name, t), row in zip(reads.items(), strides, strict=True) if row[-1] == 1}
    return ("y", *in_rows) if k.lies_plain(y, *in_rows.values(), count=PACK) else ()


def broadcast_ints(reads: Mapping[str, Tensor], y: Tensor) -> tuple[dict[str, int], int]:
    """Return the sizes of the axes D. and the strides NAME_S. of the operands, and the number of axes."""
    strides, sizes = collapse([t.shape for t in reads.values()], y.shape)
    steps = (row or [0] for row in strides)
    ints = _axis_ints([max(size, 1) for size in sizes or [1]], dict(zip(reads, steps, strict=True)))
    return ints, max(len(sizes), 1)


def _axis_ints(sizes: Sequence[int], strides: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the constants of axes, numbered from the last one on.

    A batch of one has no axis of its own, and the others keep their names: which of them vary is known by these.
    """
    ints = {f"D{d}": size for d, size in enumerate(reversed(sizes))}
    for name, row in strides.items():
        ints |= {f"{name}_S{d}": step for d, step in enumerate(reversed(row))}
    return ints


def _launch_linear(
    k: KernelBuilder, expr: str, count: int, reads: dict[str, Tensor], floats: dict[str, float], y: Tensor,
    epilogue: bool,
) -> None:
    strides, sizes = collapse([t.shape for t in reads.values()], y.shape)
    plain = all(row == strides[0] and len(sizes) == 1 and row[0] == 1 for row in strides) if strides else True
    fours = _names_in_fours(k, reads, y, strides, sizes)
    total = prod(y.shape)
    if fours:
        total //= PACK
        sizes[-1] //= PACK
        for name, row in zip(reads, strides, strict=True):
            if name in fours:  # the last step stays 1: one element becomes one vector
                row[:-1] = [step // PACK for step in row[:-1]]
    ints = {"TOTAL": total}
    if not plain:
        ints |= _axis_ints(sizes, dict(zip(reads, strides, strict=True)))
    kind: ArgKind = "fours"
    k.launch(
        "elementwise", reads=reads, writes={"y": y}, ints=ints, floats=floats,
        variant={
            "expr": expr,
            "names": tuple(reads),
            "rank": 0 if plain else len(sizes),
            "count": count,
            "wide": bool(fours),
            "fours": tuple(name for name in reads if name in fours),
        },
        items=total, kinds=dict.fromkeys(fours, kind), epilogue=epilogue,
    )
register_family(
    "elementwise", "element-wise kernels",
    cases=lambda: (
        one_node(Add(), (7, 13), (7, 13)),
        one_node(Mul(), (2, 3, 1, 5), (7, 1)),
        one_node(Erf(), (5, 11)),
        one_node(Relu(), (37,)),
    ),
    forced=in_place_of("elementwise_wide"),
)
register_family(
    "elementwise_wide", "element-wise kernels in vectors",
    cases=lambda: (
        one_node(Add(), (8, 12), (8, 12)),
        one_node(Mul(), (3, 4, 16), (4, 1)),
        one_node(Erf(), (5, 12)),
    ),
    templates=("elementwise",), whole=False, forced=on_many_units, fallback="element-wise kernels of one element",
)
register_family(
    "elementwise_c4", "element-wise kernels of images",
    cases=lambda: (
        one_node(Add(), (2, 5, 7, 3), (2, 5, 7, 3)),
        one_node(Mul(), (2, 6, 3, 5), (1, 6, 1, 1)),
        one_node(
            BatchNormalization(), (2, 7, 5), (7,), (7,), (7,), np.full(7, 2, np.float32), constants=(1, 2, 3, 4)
        ),
    ),
    fallback="element-wise kernels",
)
