"""Find norms among their parts, as exporters write them: values that are divided by a root mean square, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape, to_image, to_rows
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import is_symbolic, known
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, transpose
from weft.core.passes.reader import LEAST, Reader, reader_pass
from weft.core.passes.rounding import exceeds, loses_more
from weft.core.passes.wide_values import NO_LIMIT


@dataclass(frozen=True, slots=True)
class Quotient:
    """A value over the square root of epsilon plus the mean of the squares of `squared` over these axes."""

    node: Node
    """The Div, or the Mul by the inverse of the root."""
    dividend: str
    squared: str
    axes: Shape
    epsilon: float


Over = Callable[[Shape, int], bool]
"""Tells, of the axes of a mean and the rank of a value, whether to look for norms over these axes."""


def over_last_axes(axes: Shape, rank: int) -> bool:
    """Accept the last axes, over which the ops normalize."""
    return axes == tuple(range(rank - len(axes), rank))


def over_channels(axes: Shape, rank: int) -> bool:
    """Accept the channels of images: axis 1, if there are axes behind it."""
    return axes == (1,) and rank > 2


def quotients(reader: Reader, over: Over) -> Iterator[Quotient]:
    """Find the quotients of which the divisor has no other reader, nor any value between the squares and it.

    The divisor is Sqrt(mean + epsilon) in a Div, or what Reciprocal, 1 / or a power of -0.5 makes of it in a Mul.
    Exporters leave out an epsilon that float32 does not tell from 0.
    """
    for node in reader.nodes("ReduceMean"):
        value = node.outputs[0]
        mean = reader.mean(value)
        squared = mean and reader.square_of(mean[0])
        if mean is None or not squared or not over(mean[1], len(reader.dims(squared))):
            continue
        epsilon = 0.0
        shifted = reader.only_reader(value, "Add")
        if shifted is not None:
            number = reader.number(reader.other(shifted, value))
            if number is None:
                continue
            value, epsilon = shifted.outputs[0], number
        found = _divided(reader, value)
        if found and reader.dims(found[0].outputs[0]) == reader.dims(squared) == reader.dims(found[1]):
            yield Quotient(*found, squared, mean[1], epsilon)


def _divided(reader: Reader, square: str) -> tuple[Node, str] | None:
    """Return the node that divides by the square root of a value, and the dividend."""
    power = reader.only_reader(square, "Pow")
    root = reader.only_reader(square, "Sqrt")
    if power and power.inputs[0] == square and reader.number(power.inputs[1]) == -0.5:
        inverse = power.outputs[0]
    elif root:
        divisor = root.outputs[0]
        node = reader.only_reader(divisor, "Div", "Reciprocal")
        if node is None or node.inputs[-1] != divisor:
            return None
        if node.op.type == "Div" and reader.number(node.inputs[0]) != 1:
            return node, node.inputs[0]
        inverse = node.outputs[0]
    else:
        return None
    product = reader.only_reader(inverse, "Mul")
    return (product, reader.other(product, inverse)) if product else None


def full_dims(reader: Reader, value: str, rank: int) -> Shape:
    """Return the shape of a value with an axis for each of `rank`, as it is broadcast."""
    dims = reader.dims(value)
    return (*(1,) * (rank - len(dims)), *dims)


def is_known(reader: Reader, value: str) -> bool:
    """Tell whether a value is a constant that does not follow from open sizes."""
    return value in reader.graph.constants and not is_symbolic(reader.graph.constants[value])


def put_norm(
    reader: Reader, root: Node, kind: str, x: str, axes: Shape, attributes: Mapping[str, float],
    parameters: tuple[str, ...] = (),
) -> None:
    """Replace `root` by a norm of x over these axes, with constants that vary along them at most.

    Norms are over the last axes: for a norm over channels, these are moved there and back.
    """
    rank = len(reader.dims(x))
    op = new_op(kind, axis=-len(axes), **attributes)
    if axes[-1] == rank - 1:
        reader.put(root, Node(root.name, op, (x, *parameters), root.outputs))
        return
    parameters = tuple(p if not reader.dims(p) else _flat(reader, p) for p in parameters)
    turned = tuple(reader.dims(x)[axis] for axis in to_rows(rank))
    rows, normed = (reader.new_value(f"{root.name}.{tag}", turned, x) for tag in ("rows", "normed"))
    name = reader.names.fresh
    reader.put(
        root,
        transpose(name(f"{root.name}.to_rows"), x, to_rows(rank), rows),
        Node(name(f"{root.name}.rows"), op, (rows, *parameters), (normed,)),
        transpose(root.name, normed, to_image(rank), root.outputs[0]),
    )


def _flat(reader: Reader, value: str) -> str:
    return reader.add(value, reader.graph.constants[value].reshape(-1))


# -- layer norms ------------------------------------------------------------------------------------------


@reader_pass("ReduceMean")
def fuse_layer_norm(reader: Reader, context: PassContext) -> None:
    """Replace (x - mean) / sqrt(variance + epsilon) * scale + shift by a LayerNormalization.

    The parts are ReduceMean, Sub, Pow (or Mul), ReduceMean, Add, Sqrt, a division (see `quotients`) and, if there are a
    scale and a shift, Mul and Add. The means are over the last axes; scale and shift have the shape of these axes.
    """
    _fuse_layer_norms(reader, over_last_axes)


def _fuse_layer_norms(reader: Reader, over: Over) -> None:
    for found in quotients(reader, over):
        centred = _centred(reader, found.squared)
        if centred and centred[1] == found.axes and _centred(reader, found.dividend) == centred:
            _put_layer_norm(reader, found, centred[0])


def _centred(reader: Reader, value: str) -> tuple[str, Shape] | None:
    """Return x and the axes of the mean, if a value is x minus its mean."""
    node = reader.maker(value, "Sub")
    mean = node and reader.mean(node.inputs[1])
    return mean if node and mean and mean[0] == node.inputs[0] else None


def _put_layer_norm(reader: Reader, found: Quotient, x: str) -> None:
    """Replace the quotient, the product with the scale, or the sum with the shift behind it."""
    root, scale = _with_parameter(reader, found.node, "Mul", x, found.axes)
    root, shift = _with_parameter(reader, root, "Add", x, found.axes)
    parameters = (scale or reader.one(x), *([shift] if shift else []))
    put_norm(reader, root, "LayerNormalization", x, found.axes, {"epsilon": found.epsilon}, parameters)


def _with_parameter(reader: Reader, node: Node, kind: str, x: str, axes: Shape) -> tuple[Node, str]:
    """Return the reader of a node that applies a constant of the shape of these axes of x, and the constant.

    If there is none, return the node, and no constant.
    """
    value = node.outputs[0]
    found = reader.only_reader(value, kind)
    parameter = reader.other(found, value) if found else ""
    fits = bool(parameter) and is_known(reader, parameter) and _spans(reader, parameter, x, axes)
    return (found, parameter) if found and fits else (node, "")


def _spans(reader: Reader, parameter: str, x: str, axes: Shape) -> bool:
    """Tell whether a parameter has the shape of these axes of x, and is broadcast along no other axis."""
    dims, rank = reader.dims(x), len(reader.dims(x))
    if axes[-1] == rank - 1:
        return reader.dims(parameter) == dims[axes[0] :]
    return full_dims(reader, parameter, rank) == tuple(d if axis in axes else 1 for axis, d in enumerate(dims))


# -- RMS norms --------------------------------------------------------------------------------------------


@reader_pass("ReduceMean")
def fuse_rms_norm(reader: Reader, context: PassContext) -> None:
    """Replace x / sqrt(mean of x * x + epsilon), and a product with constants behind it, by an RMSNormalization.

    The mean is over the last axes, along which the constants may vary. A float16 or bfloat16 x may be cast to float32
    first, and the result back, before or behind the product. In float16 the parts overflow where x is above 255; the
    op computes them in float32.
    """
    _fuse_rms_norms(reader, over_last_axes)


def _fuse_rms_norms(reader: Reader, over: Over) -> None:
    for found in quotients(reader, over):
        if _narrow(reader, found.dividend) == _narrow(reader, found.squared):
            _put_rms_norm(reader, found)


def _narrow(reader: Reader, value: str) -> str:
    """Return what a cast to float32 reads, if it loses nothing; else the value itself."""
    cast = reader.maker(value, "Cast")
    if cast is None or reader.graph.specs[value].dtype is not DType.FLOAT32:
        return value
    source = reader.graph.specs[cast.inputs[0]].dtype
    return cast.inputs[0] if source in (DType.FLOAT16, DType.BFLOAT16) else value


def _put_rms_norm(reader: Reader, found: Quotient) -> None:
    """Replace the quotient, or the product or the cast behind it."""
    x, root, scale = found.squared, found.node, ""
    source = _narrow(reader, x)
    cast = _cast_back(reader, root, source) if source != x else None
    if cast is not None:
        x, root = source, cast
    scaled = reader.only_reader(root.outputs[0], "Mul")
    if scaled is not None and _scales(reader, scaled, root.outputs[0], found.axes):
        scale = reader.other(scaled, root.outputs[0])
        root = scaled
        cast = _cast_back(reader, root, source) if source != x else None
        if cast is not None:
            narrowed = _exact(reader, scale, source)
            if narrowed:
                x, root, scale = source, cast, narrowed
    epsilon = {"epsilon": found.epsilon}
    put_norm(reader, root, "RMSNormalization", x, found.axes, epsilon, (scale or reader.one(x),))


def _cast_back(reader: Reader, node: Node, source: str) -> Node | None:
    """Return the only reader of a node, if it is a cast to the type of `source`."""
    cast = reader.only_reader(node.outputs[0], "Cast")
    specs = reader.graph.specs
    return cast if cast and specs[cast.outputs[0]].dtype is specs[source].dtype else None


def _scales(reader: Reader, product: Node, value: str, axes: Shape) -> bool:
    """Tell whether a product is with a constant that varies along these axes of a value at most."""
    factor, dims = reader.other(product, value), reader.dims(value)
    if not is_known(reader, factor) or reader.dims(product.outputs[0]) != dims:
        return False
    return all(size == 1 or axis in axes for axis, size in enumerate(full_dims(reader, factor, len(dims))))


def _exact(reader: Reader, scale: str, source: str) -> str:
    """Return a constant in the type of `source`; nothing if that does not hold its values."""
    graph = reader.graph
    value, dtype = known(graph.constants[scale]), graph.specs[source].dtype
    if value is None:
        return ""
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype.numpy)
    return reader.add(scale, narrow) if np.array_equal(narrow.astype(value.dtype), value) else ""


# -- norms over the channels of images --------------------------------------------------------------------


@graph_pass()
def fuse_channel_norms(graph: Graph, context: PassContext) -> Graph:
    """Replace layer norms and RMS norms over the channels of images by norms of rows of channels, between transposes.

    No standard pass: a device that has to run the transposes takes longer for them than for the parts.
    """
    # Layer norms first: they divide by a root mean square, too, that of x less its mean.
    for fuse in (_fuse_layer_norms, _fuse_rms_norms):
        reader = Reader(graph)
        fuse(reader, over_channels)
        graph = reader.finish()
    return graph


def with_l2_norms_of_rows(graph: Graph, wanted: Callable[[str], bool]) -> Graph:
    """Return the graph with 2-norms of rows of channels in place of those of channels of wanted values."""
    reader = Reader(graph)
    for node in reader.nodes("weft::L2Normalization"):
        op: Any = node.op
        x = node.inputs[0]
        axes = (op.axis % len(reader.dims(x)),)
        if over_channels(axes, len(reader.dims(x))) and wanted(x):
            put_norm(reader, node, op.type, x, axes, {"least": op.least})
    return reader.finish()


# -- 2-norms, as torch.nn.functional.normalize is exported ------------------------------------------------


@reader_pass("ReduceL2", "ReduceSumSquare", "ReduceSum")
def fuse_l2_norm(reader: Reader, context: PassContext) -> None:
    """Replace x / max(norm of x along one axis, a number) by a `weft::L2Normalization`.

    The norm is a ReduceL2, or the root of a ReduceSumSquare or of a ReduceSum of squares; a Clip, a Max or nothing
    limits it. No part may have another reader, but for the squares.
    """
    for quotient, x, divisor in reader.quotients():
        least, norm = _limited(reader, divisor)
        axes = _norm_of(reader, norm, x)
        if len(axes) == 1:
            op = new_op("weft::L2Normalization", axis=axes[0] - len(reader.dims(x)), least=least)
            reader.put(quotient, Node(quotient.name, op, (x,), quotient.outputs))


def _limited(reader: Reader, value: str) -> tuple[float, str]:
    """Return the number that a value is raised to where it is less, and the value before that; 0 if there is none."""
    node = reader.maker(value, "Clip", "Max")
    if node is None or len(node.inputs) < 2:
        return 0.0, value
    source, least, *more = node.inputs
    if node.op.type == "Clip":  # older files have the largest number where there is no maximum
        more = [high for high in more if high and (reader.number(high) or 0) < NO_LIMIT]
    if node.op.type == "Max" and reader.number(source) is not None:
        source, least = least, source
    number = reader.number(least)
    if number is None or not (number == 0 or number >= LEAST) or any(more) or not reader.is_read_once(source):
        return 0.0, value
    return number, source


def _norm_of(reader: Reader, value: str, x: str) -> Shape:
    """Return the axes along which a value is the 2-norm of x, kept with size 1; none if it is no such norm."""
    root = reader.maker(value, "Sqrt")
    if root is None:
        return reader.reduced(reader.maker(value, "ReduceL2"), x)
    total = root.inputs[0]
    if not reader.is_read_once(total):
        return ()
    node = reader.maker(total, "ReduceSum")
    if node is not None and reader.square_of(node.inputs[0]) == x:
        return reader.reduced(node, node.inputs[0])
    return reader.reduced(reader.maker(total, "ReduceSumSquare"), x)


# -- sums and means, as global response norms are exported ------------------------------------------------


@reader_pass("ReduceSum", "ReduceMean")
def fuse_sum_norm(reader: Reader, context: PassContext) -> None:
    """Replace x / (sum or mean of x along one axis, and a number) by a `weft::SumNormalization`.

    The number may be absent, but is no smaller than what fp32 has a reciprocal of. No part may have another reader.
    """
    for quotient, x, divisor in reader.quotients():
        epsilon, total = _raised(reader, divisor)
        reduction = reader.maker(total, "ReduceSum", "ReduceMean")
        axes = reader.reduced(reduction, x)
        if len(axes) == 1 and (epsilon == 0 or epsilon >= LEAST):
            mean = int(reduction is not None and reduction.op.type == "ReduceMean")
            op = new_op("weft::SumNormalization", axis=axes[0] - len(reader.dims(x)), mean=mean, epsilon=epsilon)
            reader.put(quotient, Node(quotient.name, op, (x,), quotient.outputs))


def _raised(reader: Reader, value: str) -> tuple[float, str]:
    """Return the number that is added to make a value, and the value before that; 0 if there is none."""
    found = reader.with_number(reader.maker(value, "Add"))
    return found if found and reader.is_read_once(found[1]) else (0.0, value)


# -- group norms ------------------------------------------------------------------------------------------


@reader_pass("InstanceNormalization")
def fuse_group_norm(reader: Reader, context: PassContext) -> None:
    """Replace an InstanceNormalization of groups of channels, between two reshapes, by a GroupNormalization.

    A product and a sum behind it that are constants of the channels become its scale and bias, if these lose no more in
    the type that they are stored in than they do apart.
    """
    for norm in reader.nodes("InstanceNormalization"):
        found = _ungrouped(reader, norm)
        given = reader.graph.input_constants(norm)[1:3]
        if found is None or any(each is None for each in given):
            continue
        x, root = found
        groups, channels = reader.dims(norm.inputs[0])[1], reader.dims(x)[1]
        dtype = reader.graph.specs[x].dtype.numpy
        scale, shift = (np.repeat(np.asarray(each, np.float64), channels // groups) for each in given)
        for kind in ("Mul", "Add"):
            behind = reader.only_reader(root.outputs[0], kind)
            factor = None if behind is None else _of_channels(reader, reader.other(behind, root.outputs[0]), x)
            if behind is None or factor is None:
                continue
            scaled, shifted = (scale * factor, shift * factor) if kind == "Mul" else (scale, shift + factor)
            new, *old = (each.astype(dtype) for each in (scaled, scale, factor))
            if loses_more(new, old, context.stored) or exceeds(shifted.astype(dtype), context.stored):
                context.leave(behind.name, f"{context.stored.value} would hold the norm's parameters less exactly")
                break
            root, scale, shift = behind, scaled, shifted
        _put_group_norm(reader, root, x, groups, (scale, shift), norm)


def _ungrouped(reader: Reader, norm: Node) -> tuple[str, Node] | None:
    """Return what is normalized in groups of channels, and the node that makes its shape again; None if it is not."""
    before = reader.maker(norm.inputs[0], *RESHAPES)
    after = reader.only_reader(norm.outputs[0], *RESHAPES)
    if before is None or after is None:
        return None
    x = before.inputs[0]
    dims, grouped = reader.dims(x), reader.dims(norm.inputs[0])
    fixed = len(dims) > 2 and isinstance(dims[1], int) and isinstance(grouped[1], int)
    same = fixed and dims[0] == grouped[0] and reader.dims(after.outputs[0]) == dims
    return (x, after) if same and grouped[1] > 0 and dims[1] % grouped[1] == 0 else None


def _of_channels(reader: Reader, value: str, x: str) -> Array | None:
    """Return a constant that has one number, or one for each channel of x, as an array of these; None for any other."""
    array, dims = reader.graph.constants.get(value), reader.dims(x)
    if array is None or not isinstance(array, np.ndarray) or array.ndim > len(dims):
        return None
    full = (1,) * (len(dims) - array.ndim) + array.shape
    if prod(full) not in (1, full[1]) or full[1] not in (1, dims[1]):
        return None
    return np.asarray(array, np.float64).reshape(-1)


def _put_group_norm(
    reader: Reader, root: Node, x: str, groups: int, parameters: tuple[Array, Array], norm: Node
) -> None:
    dtype, channels = reader.graph.specs[x].dtype.numpy, reader.dims(x)[1]
    names = [
        reader.add(f"{norm.name}.{tag}", np.full(channels, value, dtype))
        for tag, value in zip(("scale", "bias"), parameters, strict=True)
    ]
    op = new_op("GroupNormalization", num_groups=groups, epsilon=norm.op.attributes()["epsilon"])
    reader.put(root, Node(root.name, op, (x, *names), root.outputs))


# -- deviations of groups, as EvoNorm's are exported ------------------------------------------------------


@reader_pass("Expand")
def fuse_group_deviation(reader: Reader, context: PassContext) -> None:
    """Replace the root of a variance of groups of channels that an Expand spreads over the image by one op.

    The parts are ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt and Expand, with reshapes that divide the channels into
    groups and join them again. What reads the spread value fuses into the op: a norm that divides an activation of x.
    """
    for root in reader.nodes("Sqrt"):
        found = _variance(reader, root.inputs[0])
        if found is None:
            continue
        x, groups = _image_of(reader, found)
        spread = groups and _spread(reader, root.outputs[0], (x, found.of), groups)
        if spread:
            op = new_op("weft::GroupDeviation", num_groups=groups, epsilon=found.epsilon)
            reader.put(spread, Node(spread.name, op, (x,), spread.outputs))


@dataclass(frozen=True, slots=True)
class _Variance:
    """The variance of a value along these axes, plus epsilon."""

    of: str
    axes: Shape
    epsilon: float


def _variance(reader: Reader, value: str) -> _Variance | None:
    """Return what a value is the variance of, if each part has one reader."""
    value = _bare(reader, value)
    epsilon, raised = 0.0, reader.maker(value, "Add")
    if raised is not None and reader.is_read_once(value):
        found = reader.with_number(raised)
        if found is None:
            return None
        epsilon, value = found[0], _bare(reader, found[1])
    node = reader.maker(value, "ReduceMean")
    if node is None or epsilon < 0 or not reader.is_read_once(value) or not reader.is_read_once(node.inputs[0]):
        return None
    centred = reader.maker(reader.square_of(node.inputs[0]), "Sub")
    mean = None if centred is None else reader.mean(centred.inputs[1])
    if centred is None or mean is None or mean != (centred.inputs[0], reader.axes(node)):
        return None
    return _Variance(*mean, epsilon)


def _bare(reader: Reader, value: str) -> str:
    """Return what a value was before reshapes of which nothing else reads a part."""
    while reader.is_read_once(value) and (node := reader.maker(value, *RESHAPES)) is not None:
        value = node.inputs[0]
    return value


def _image_of(reader: Reader, found: _Variance) -> tuple[str, int]:
    """Return the image of which the variance is, and the number of groups; 0 if it is not of groups of channels."""
    x, dims = found.of, reader.dims(found.of)
    rest = tuple(range(2, len(dims)))
    if len(dims) < 3 or found.axes not in (rest, (1, *rest)) or not isinstance(dims[1], int):
        return x, 0
    if found.axes != rest:
        return x, 1
    before = reader.maker(x, *RESHAPES)
    if before is None:
        return x, dims[1]
    whole = reader.dims(before.inputs[0])
    channels = whole[1] if len(whole) > 1 else 0
    fits = whole[:1] == dims[:1] and isinstance(channels, int) and dims[1] > 0 and channels % dims[1] == 0
    return (before.inputs[0], dims[1]) if channels and fits else (x, dims[1])


def _spread(reader: Reader, value: str, wholes: tuple[str, str], groups: int) -> Node | None:
    """Return the node that makes a deviation of groups as large as the image of the first of two shapes.

    That is an Expand to either shape, with what makes the first one of it.
    """
    image, grouped = map(reader.dims, wholes)
    node = reader.only_reader(value, "Expand", *RESHAPES)
    while node is not None and node.op.type != "Expand":
        node = reader.only_reader(node.outputs[0], "Expand", *RESHAPES)
    if node is None:
        return None
    before, after = reader.dims(node.inputs[0]), reader.dims(node.outputs[0])
    per_group = (grouped[0], groups, *(1 for _ in grouped[2:]))
    if before != per_group or after != grouped:
        return None
    while reader.dims(node.outputs[0]) != image:
        node = reader.only_reader(node.outputs[0], *RESHAPES)
        if node is None:
            return None
    return node
