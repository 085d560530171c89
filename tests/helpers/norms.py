"""Norms in parts, as exporters write them, and random networks of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

DIVISORS = ("div", "reciprocal", "one over", "power")
L2_NORMS = ("ReduceL2", "ReduceSumSquare", "product", "power")
ADDED = ("behind", "before", "none")
LIMITS = ("Clip", "Max", "swapped Max", "none")


def number(net: Net, value: float, like: str, *shape: int) -> Array:
    """Return an array of one number in the type of a value."""
    return np.full(shape, value, net.graph.specs[like].dtype.numpy)


def weight(net: Net, like: str, *shape: int) -> Array:
    """Return random numbers about 1 in the type of a value."""
    return np.asarray(1 + net.random(*shape, scale=0.25), net.graph.specs[like].dtype.numpy)


def rms_norm(
    net: Net,
    x: str,
    axes: tuple[int, ...] = (-1,),
    *,
    divisor: str = "reciprocal",
    product: bool = False,
    epsilon: float | None = 1e-5,
    shape: tuple[int, ...] = (),
    swapped: bool = False,
    squared: str = "",
) -> str:
    """Add x over its root mean square in parts; `epsilon` has `shape`; the squares may be of another value."""

    def both(kind: str, a: str, b: str | Array) -> str:
        return net.add(kind, *((b, a) if swapped else (a, b)))

    squared = squared or x
    squares = net.add("Mul", squared, squared) if product else net.add("Pow", squared, number(net, 2, squared))
    value = net.add("ReduceMean", squares, np.array(axes))
    if epsilon is not None:
        value = both("Add", value, number(net, epsilon, value, *shape))
    if divisor == "power":
        return both("Mul", x, net.add("Pow", value, number(net, -0.5, value)))
    root = net.add("Sqrt", value)
    if divisor == "div":
        return net.add("Div", x, root)
    one = number(net, 1, root)
    return both("Mul", x, net.add("Reciprocal", root) if divisor == "reciprocal" else net.add("Div", one, root))


def scaled(net: Net, x: str, *shape: int, swapped: bool = False) -> str:
    """Add x times weights."""
    factor = weight(net, x, *shape)
    return net.add("Mul", *((factor, x) if swapped else (x, factor)))


def layer_norm(
    net: Net,
    x: str,
    axes: tuple[int, ...] = (-1,),
    *,
    twice: bool = False,
    square: bool = False,
    scale: bool = True,
    shift: bool = True,
    divisor: str = "div",
) -> str:
    """Add a layer norm in parts; `twice`: the mean is taken from x once for each use."""
    shape = tuple(net.shape(x)[a] for a in axes)
    mean = net.add("ReduceMean", x, np.array(axes))
    centred = net.add("Sub", x, mean)
    again = net.add("Sub", x, mean) if twice else centred
    squares = net.add("Mul", centred, centred) if square else net.add("Pow", centred, number(net, 2, x))
    shifted = net.add("Add", net.add("ReduceMean", squares, np.array(axes)), number(net, 1e-5, x))
    if divisor == "power":
        y = net.add("Mul", again, net.add("Pow", shifted, number(net, -0.5, x)))
    else:
        root = net.add("Sqrt", shifted)
        inverse = net.add("Reciprocal", root) if divisor == "reciprocal" else net.add("Div", number(net, 1, x), root)
        y = net.add("Div", again, root) if divisor == "div" else net.add("Mul", again, inverse)
    y = net.add("Mul", y, net.random(*shape)) if scale else y
    return net.add("Add", y, net.random(*shape)) if shift else y


def norm_of(net: Net, x: str, axes: tuple[int, ...], form: str, keepdims: int = 1) -> str:
    """Add the 2-norm of x."""
    if form == "ReduceL2":
        return net.add("ReduceL2", x, np.array(axes), keepdims=keepdims)
    if form == "ReduceSumSquare":
        return net.add("Sqrt", net.add("ReduceSumSquare", x, np.array(axes), keepdims=keepdims))
    squares = net.add("Mul", x, x) if form == "product" else net.add("Pow", x, number(net, 2, x))
    return net.add("Sqrt", net.add("ReduceSum", squares, np.array(axes), keepdims=keepdims))


def limited(net: Net, norm: str, limit: str, least: float) -> str:
    """Add a norm that is no less than a number."""
    given = number(net, least, norm)
    if limit == "Clip":
        return net.add("Clip", norm, given)
    return norm if limit == "none" else net.add("Max", *((norm, given) if limit == "Max" else (given, norm)))


def l2_norm(
    net: Net,
    x: str,
    axes: tuple[int, ...] = (-1,),
    *,
    form: str = "ReduceL2",
    limit: str = "Clip",
    least: float = 1e-12,
    expand: bool = False,
) -> str:
    """Add x over its 2-norm in parts."""
    divisor = limited(net, norm_of(net, x, axes, form), limit, least)
    if expand:
        divisor = net.add("Expand", divisor, np.array(net.shape(x)))
    return net.add("Div", x, divisor)


def sum_norm(
    net: Net,
    x: str,
    axes: tuple[int, ...] = (-1,),
    *,
    kind: str = "ReduceMean",
    added: str = "behind",
    epsilon: float = 2.5,
    expand: bool = False,
) -> str:
    """Add x over its sum or mean in parts."""
    divisor = net.add(kind, x, np.array(axes), keepdims=1)
    if added != "none":
        pair = (divisor, number(net, epsilon, x))
        divisor = net.add("Add", *(pair if added == "behind" else pair[::-1]))
    if expand:
        divisor = net.add("Expand", divisor, np.array(net.shape(x)))
    return net.add("Div", x, divisor)


def group_norm(net: Net, x: str, groups: int, *, factor: Array | None, shift: Array | None, like: int = 1) -> str:
    """Add a group norm in parts; `like`: the rank of what a group is normalized as, but for the batch and groups."""
    dims = net.shape(x)
    inner = (-1,) if like == 1 else (dims[1] // groups, -1)
    parts = net.add("Reshape", x, np.array((dims[0], groups, *inner)))
    dtype = net.graph.specs[x].dtype.numpy
    known = np.ones(groups, dtype), net.random(groups).astype(dtype)
    one = net.add("InstanceNormalization", parts, *known, epsilon=0.01)
    y = net.add("Reshape", one, np.array(dims))
    y = y if factor is None else net.add("Mul", y, factor.astype(dtype))
    return y if shift is None else net.add("Add", shift.astype(dtype), y)


# -- random networks ---------------------------------------------------------------------------------------------


@st.composite
def rms_norms(draw: st.DrawFn) -> Graph:
    """Draw a chain of root mean square norms, residual sums and activations."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 4)), 8)
    flags = st.booleans()
    for _ in range(draw(st.integers(1, 3))):
        axes = draw(st.sampled_from([(-1,), (-1,), (-2, -1), (-2,)]))
        before = x
        kind = draw(st.sampled_from(DIVISORS))
        x = rms_norm(net, x, axes, divisor=kind, product=draw(flags), swapped=draw(flags))
        shape = draw(st.sampled_from([None, (), (8,), (1, 8), (net.shape(x)[1], 8)]))
        x = x if shape is None else scaled(net, x, *shape, swapped=draw(flags))
        x = net.add("Add", x, before) if draw(flags) else net.add("Relu", x) if draw(flags) else x
    return ended(draw, net, x)


@st.composite
def layer_norms(draw: st.DrawFn) -> Graph:
    """Draw a chain of layer norms and what is nearly one."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 4)), 8)
    for _ in range(draw(st.integers(1, 2))):
        axes = draw(st.sampled_from([(-1,), (-1,), (-2, -1), (-2,)]))
        flags = {name: draw(st.booleans()) for name in ("twice", "square")}
        affine = {name: axes[-1] == -1 and draw(st.booleans()) for name in ("scale", "shift")}
        y = layer_norm(net, x, axes, divisor=draw(st.sampled_from(DIVISORS)), **flags, **affine)
        x = net.add("Add", x, y) if draw(st.booleans()) else y
    return ended(draw, net, x)


def _dims(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    """Draw a shape of any rank, and the axis of a norm."""
    dims = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    return dims, draw(st.integers(0, len(dims) - 1))


def _axes(draw: st.DrawFn, rank: int, axis: int) -> tuple[int, ...]:
    """Draw how an axis is written; now and then all axes."""
    return draw(st.sampled_from([(axis,), (axis - rank,), (axis,), tuple(range(rank))]))


@st.composite
def l2_norms(draw: st.DrawFn) -> Graph:
    """Draw values over their 2-norms, along axes that have one or not."""
    net, (dims, axis) = Net(draw(st.integers(0, 100))), _dims(draw)
    x = net.input("x", *dims)
    for _ in range(draw(st.integers(1, 2))):
        form, limit = draw(st.sampled_from(L2_NORMS)), draw(st.sampled_from(LIMITS))
        least, expand = draw(st.sampled_from([1e-12, 0.5, -1.0])), draw(st.booleans())
        axes = _axes(draw, len(dims), axis)
        x = l2_norm(net, x, axes, form=form, limit=limit, least=least, expand=expand)
    return ended(draw, net, x)


@st.composite
def sum_norms(draw: st.DrawFn) -> Graph:
    """Draw values over their sums or means; some may be near zero, so most are of positive numbers."""
    net, (dims, axis) = Net(draw(st.integers(0, 100))), _dims(draw)
    x = net.input("x", *dims)
    for _ in range(draw(st.integers(1, 2))):
        x = net.add("Sigmoid", x)
        kind, added = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax"])), draw(st.sampled_from(ADDED))
        epsilon, expand = draw(st.sampled_from([2.5, 1e-6, 1e-40])), draw(st.booleans())
        x = sum_norm(net, x, _axes(draw, len(dims), axis), kind=kind, added=added, epsilon=epsilon, expand=expand)
    return ended(draw, net, x)


@st.composite
def group_norms(draw: st.DrawFn) -> Graph:
    """Draw group norms with factors and shifts of channels, of all, and of what is none."""
    net = Net(draw(st.integers(0, 100)))
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    places = draw(st.sampled_from([(5,), (3, 2), (1, 1)]))
    x = net.input("x", draw(st.integers(1, 2)), groups * each, *places)
    shapes = [None, (), (1,), (groups * each, *(1 for _ in places)), places[-1:]]
    factor, shift = (
        None if shape is None else net.random(*shape) for shape in (draw(st.sampled_from(shapes)) for _ in range(2))
    )
    y = group_norm(net, x, groups, factor=factor, shift=shift, like=draw(st.integers(1, 2)))
    return ended(draw, net, net.add("Relu", y) if draw(st.booleans()) else y)


def deviation(
    net: Net,
    x: str,
    groups: int,
    *,
    keepdims: int = 0,
    square: str = "Mul",
    reshaped: str = "mean",
    epsilon: float = 0.5,
) -> str:
    """Add the deviation of groups of channels of x in parts; `reshaped`: where a mean without its axes gets them."""
    dims, rank = net.shape(x), len(net.shape(x)) + (groups not in (1, net.shape(x)[1]))
    apart = rank > len(dims)
    whole = (dims[0], groups, dims[1] // groups, *dims[2:]) if apart else dims
    parts = net.add("Reshape", x, np.array(whole)) if apart else x
    axes = np.arange(1 if groups == 1 else 2, rank)
    centred = net.add("Sub", parts, net.add("ReduceMean", parts, axes))
    squares = net.add(square, centred, centred if square == "Mul" else np.asarray(2, np.float32))
    value = net.add("ReduceMean", squares, axes, keepdims=keepdims)
    spread = np.array((dims[0], groups, *[1] * (rank - 2)))
    if not keepdims and reshaped == "mean":
        value = net.add("Reshape", value, spread)
    if epsilon:
        value = net.add("Add", value, np.asarray(epsilon, net.graph.specs[x].dtype.numpy))
    value = net.add("Sqrt", value)
    if not keepdims and reshaped == "root":
        value = net.add("Reshape", value, spread)
    value = net.add("Expand", value, np.array(whole))
    return net.add("Reshape", value, np.array(dims)) if apart else value


@st.composite
def group_deviations(draw: st.DrawFn) -> Graph:
    """Draw the deviation of groups of channels in parts, as EvoNorm has it, and what is nearly that."""
    net = Net(draw(st.integers(0, 100)))
    dims = (draw(st.integers(1, 2)), 6, *draw(st.sampled_from([(5, 3), (4,), (1, 1), ()])))
    x = net.add("Sigmoid", net.input("x", *dims))
    groups = draw(st.sampled_from([1, 2, 3, 6] if len(dims) > 2 else [1, 2]))
    keepdims, reshaped = draw(st.integers(0, 1)), draw(st.sampled_from(["mean", "root"]))
    square = draw(st.sampled_from(["Mul", "Pow"]))
    y = deviation(net, x, groups, keepdims=keepdims, square=square, reshaped=reshaped)
    return net.finish(net.add("Div", x, y), *draw(st.sampled_from([(), (x,), (y,)])))
