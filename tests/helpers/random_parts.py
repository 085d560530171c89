"""Random networks of what is divided, stacked, reshaped or written in parts, and put together again."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

Draw = st.DrawFn


def cut(net: Net, x: str, start: int, stop: int, *, axis: int = 1, step: int = 1) -> str:
    """Add a slice of one axis."""
    return net.add("Slice", x, *(np.array([v]) for v in (start, stop, axis, step)))


def total(net: Net, x: str, axis: int, keepdims: int = 0) -> str:
    """Add a sum over one axis."""
    return net.add("ReduceSum", x, np.array([axis]), keepdims=keepdims)


def elements(dims: tuple[int, ...], depth: int, **ranges: tuple[int, int]) -> Array:
    """Return the indices of a box along the first axes, an axis for each; `a1=(1, 3)` is a part of axis 1."""
    spans = [np.arange(*ranges.get(f"a{axis}", (0, dims[axis]))) for axis in range(depth)]
    return np.stack(np.meshgrid(*spans, indexing="ij"), -1)


def _broadcast(draw: Draw, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to another one, most often without some of its sizes."""
    kept = [size if draw(st.booleans()) else 1 for size in dims]
    return tuple(kept[draw(st.sampled_from([0, 0, 1, len(kept)])) :])


def _bounds(draw: Draw, size: int) -> list[tuple[int, int]]:
    """Draw how an axis is divided into parts."""
    inner = draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=3, unique=True))
    ends = [0, *sorted(inner), size]
    return [*pairwise(ends)]


@st.composite
def stacked_sums(draw: Draw) -> Graph:
    """Draw sums of what is stacked, perhaps multiplied before; along another axis, too, and of more than one value."""
    net = Net(draw(st.integers(0, 100)))
    dims = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)))
    count, axis = draw(st.sampled_from([2, 2, 3, 4, 5])), draw(st.integers(0, len(dims)))
    parts = [net.add("Relu", net.input(f"x{k}", *dims)) for k in range(count)]
    if draw(st.integers(0, 3)):
        parts = [net.add("Unsqueeze", x, np.array([axis])) for x in parts]
    elif axis < len(dims) and draw(st.booleans()):
        parts = [net.add("ReduceMax", x, np.array([axis])) for x in parts]
    else:
        axis = min(axis, len(dims) - 1)
    joined = net.add("Concat", *parts, axis=axis)
    for _ in range(draw(st.integers(1, 2))):
        y, own = joined, net.shape(joined)
        if draw(st.booleans()):
            factor = _broadcast(draw, own)
            by: str | Array = net.random(*factor) if draw(st.booleans()) else net.add("Exp", net.random(*factor))
            y = net.add("Mul", *draw(st.permutations([y, by])))
        where = axis if draw(st.integers(0, 4)) else draw(st.integers(0, len(own) - 1))
        kind = draw(st.sampled_from(["ReduceSum", "ReduceSum", "ReduceSum", "ReduceMean"]))
        axes = np.array([where, (where + 1) % len(own)][: draw(st.sampled_from([1, 1, 1, min(2, len(own))]))])
        last = net.add(kind, y, axes, keepdims=draw(st.integers(0, 1)))
    return ended(draw, net, last)


@st.composite
def partial_sums(draw: Draw) -> Graph:
    """Draw Concats of some channels of an image plus a value, and the rest of it, in this order or another."""
    net = Net(draw(st.integers(0, 100)))
    channels, at = draw(st.integers(2, 6)), 0
    x = net.conv(net.input("x", draw(st.integers(1, 2)), 2, 3, 2), channels)
    x = net.add("Relu", x) if draw(st.integers(0, 5)) == 0 else x
    axis = draw(st.sampled_from([1, 1, 1, 2]))
    at = draw(st.integers(1, net.shape(x)[axis] - 1))
    sizes = [at, net.shape(x)[axis] - at]
    if draw(st.booleans()):
        first = net.add("Split", x, np.array(sizes), axis=axis, outputs=2)
        parts = [first, f"{first}.1"]
    else:
        parts = [cut(net, x, 0, at, axis=axis), cut(net, x, at, sum(sizes), axis=axis)]
    which = draw(st.sampled_from([0, 0, 0, 1]))
    dims = net.shape(parts[which])
    added = net.input("s", *(dims if draw(st.integers(0, 3)) else _broadcast(draw, dims)))
    parts[which] = net.add("Add", *draw(st.permutations([parts[which], added])))
    parts = parts if draw(st.integers(0, 5)) else parts[::-1]
    return ended(draw, net, net.add("Concat", *parts, axis=axis))


@st.composite
def joined_parts(draw: Draw) -> Graph:
    """Draw Concats of parts of values, most often of all of them in order, among others."""
    net = Net(draw(st.integers(0, 100)))
    dims = tuple(draw(st.lists(st.sampled_from([4, 5]), min_size=1, max_size=3)))
    x, axis = net.add("Relu", net.input("x", *dims)), draw(st.integers(0, len(dims) - 1))
    read = list[str]()
    for source in draw(st.lists(st.sampled_from([x, net.add("Neg", x)]), min_size=1, max_size=3)):
        bounds = _bounds(draw, dims[axis])
        if draw(st.booleans()):
            sizes = np.array([stop - start for start, stop in bounds])
            first = net.add("Split", source, sizes, axis=axis, outputs=len(bounds))
            parts = [first, *(f"{first}.{k}" for k in range(1, len(bounds)))]
        else:
            step = draw(st.sampled_from([1, 1, 1, 2]))
            parts = [cut(net, source, start, stop, axis=axis, step=step) for start, stop in bounds]
        parts = parts if draw(st.integers(0, 2)) else draw(st.permutations(parts))
        read += draw(st.sampled_from([parts, parts, parts, parts[:-1], parts[1:]]))
    return ended(draw, net, net.add("Concat", *(read or [x]), axis=axis - len(dims) if draw(st.booleans()) else axis))


@st.composite
def biased_scores(draw: Draw) -> Graph:
    """Draw values that are reshaped, to which a few biases are added, and that are reshaped again."""
    net = Net(draw(st.integers(0, 100)))
    apart = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=4)))
    at = draw(st.integers(1, len(apart) - 1))
    flat = [prod(apart[:at]), prod(apart[at:])]
    y = net.add("Reshape", net.add("Relu", net.input("x", *flat)), np.array(apart))
    rows = tuple(size if k < at else 1 for k, size in enumerate(apart))
    columns = tuple(1 if k < at else size for k, size in enumerate(apart))
    for k in range(draw(st.sampled_from([1, 2, 2, 2, 3, 5]))):
        dims = draw(st.sampled_from([rows, columns, apart, _broadcast(draw, apart), columns[at:]]))
        bias: str | Array = net.input(f"bias{k}", *dims) if draw(st.integers(0, 3)) else net.random(*dims)
        y = net.add("Add", *draw(st.permutations([y, bias])))
    back = flat if draw(st.integers(0, 4)) else flat[::-1]
    return ended(draw, net, net.add("Reshape", y, np.array(back)))


@st.composite
def scattered_boxes(draw: Draw) -> Graph:
    """Draw scatters that write a box of elements, in order or not, along one axis or two."""
    net = Net(draw(st.integers(0, 100)))
    dims = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3)))
    depth = draw(st.integers(1, len(dims)))
    box = {}
    for axis in draw(st.lists(st.integers(0, depth - 1), max_size=2)):
        first = draw(st.integers(0, dims[axis] - 1))
        box[f"a{axis}"] = (first, draw(st.integers(first + 1, dims[axis])))
    places = elements(dims, depth, **box)
    if draw(st.booleans()):
        places = places - np.array(dims[:depth])
    if draw(st.integers(0, 3)) == 0:
        places = places[::-1] if draw(st.booleans()) else np.swapaxes(places, 0, places.ndim - 2)
    places = places.reshape(-1, depth) if draw(st.booleans()) else places
    x, y = net.add("Relu", net.input("x", *dims)), net.input("y", *places.shape[:-1], *dims[depth:])
    reduction = draw(st.sampled_from(["none", "none", "none", "add"]))
    return ended(draw, net, net.add("ScatterND", x, np.ascontiguousarray(places), y, reduction=reduction))


@st.composite
def undone_reshapes(draw: Draw) -> Graph:
    """Draw element-wise nodes of reshaped values, scalars and constants, whose results are reshaped back or not."""
    net = Net(draw(st.integers(0, 100)))
    inner = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=4)))
    at = draw(st.integers(1, len(inner) - 1))
    outer = (*inner[: at - 1], inner[at - 1] * inner[at], *inner[at + 1 :])
    x = net.add("Relu", net.input("x", *outer))
    for _ in range(draw(st.integers(1, 3))):
        y = net.add("Reshape", x, np.array(inner))
        for _ in range(draw(st.integers(1, 2))):
            shape = _broadcast(draw, inner)
            other: str | Array = net.random(*draw(st.sampled_from([(), (1,), shape, shape, shape, shape])))
            if draw(st.integers(0, 3)) == 3:
                other = net.add("Reshape", net.add("Neg", x), np.array(inner))
            y = net.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), *draw(st.permutations([y, other])))
        x = net.add("Reshape", y, np.array(outer if draw(st.integers(0, 5)) else (prod(outer),)))
        if net.shape(x) != outer:
            break
        x = net.add("Softmax", x) if draw(st.booleans()) else x
    return ended(draw, net, x)


@st.composite
def expands(draw: Draw) -> Graph:
    """Draw an element-wise node of a whole value and of one that is expanded, which others may read, too."""
    net, dims = Net(draw(st.integers(0, 100))), (2, 3, 4)
    x = net.add("Sigmoid", net.input("x", *dims))
    small = net.input("s", *_broadcast(draw, dims)[draw(st.integers(0, 2)) :])
    spread = net.add("Expand", small, np.array(dims))
    y = net.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), *draw(st.permutations([x, spread])))
    return net.finish(y, *draw(st.sampled_from([(), (net.add("Relu", x),), (x,), (spread,)])))
