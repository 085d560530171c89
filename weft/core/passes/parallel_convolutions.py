"""Make one convolution of several of the same image whose results are summed, as networks are trained for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import has_open_size, known
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property

SUMS = frozenset({"Add", "Sum"})

PARALLEL_CONVOLUTIONS_JOINED = Property(
    "no sum of convolutions of the same image that one of them could compute",
    lambda graph: [each.root.name for each in _sums(graph)],
)


@graph_pass(ensures=(PARALLEL_CONVOLUTIONS_JOINED,))
def join_parallel_convolutions(graph: Graph, context: PassContext) -> Graph:
    """Replace a sum of convolutions of the same image by one convolution with the sum of their weights.

    The largest kernel takes in others whose taps fall on pixels that it reads, so it stays as large as it is; and also
    the image itself, the image times a constant for each channel, and its batch norm. Other terms of the sum stay. No
    other node may read what goes, and weights and biases must be constants. Their sums are computed in float64 and
    rounded once.
    """
    out, names, budget = graph.copy(), Names(graph), context.budget
    changed: dict[str, Node] = {}
    gone: set[str] = set()
    for each in _sums(graph):
        nbytes = sum(join.host.weight.nbytes for join in each.joins)
        if not budget.allows((), nbytes):
            context.leave(each.root.name, "the new weights would go beyond the limits of folding")
            continue
        began = budget.clock()
        computed = [(join.host.node, join.computed()) for join in each.joins]
        budget.spend(nbytes, began)
        if not all(np.isfinite(part).all() for _, parts in computed for part in parts.values()):
            context.leave(each.root.name, "the new weights or biases would not be finite")
            continue
        for node, parts in computed:
            added = [names.fresh(f"{node.name}.{tag}") for tag in parts]
            for name, value in zip(added, parts.values(), strict=True):
                out.constants[name] = value
                out.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
            changed[node.name] = replace(node, inputs=(node.inputs[0], *added))
        _rewire(each, changed, gone)
    if not changed:
        return graph
    out.nodes = [changed.get(node.name, node) for node in graph.nodes if node.name not in gone]
    return out


@dataclass(frozen=True)
class _Conv:
    """A convolution with constant weights."""

    node: Node
    weight: Array
    bias: Array | None
    group: int
    strides: Shape
    taps: tuple[range, ...]
    """The pixels that each axis of the kernel reads, from where the strides put the window."""

    def places(self, taps: tuple[range, ...]) -> tuple[list[int], ...] | None:
        """Return where in each axis of the kernel these taps lie; None if the kernel does not read some of them."""
        if any(tap not in own for each, own in zip(taps, self.taps, strict=True) for tap in each):
            return None
        return tuple([own.index(tap) for tap in each] for each, own in zip(taps, self.taps, strict=True))

    @property
    def centre(self) -> tuple[range, ...]:
        """Return the taps of a kernel that reads nothing but the pixel that it computes."""
        return (range(1),) * len(self.taps)


@dataclass(frozen=True)
class _Scaled:
    """An image times a factor for each channel, plus a shift."""

    factor: Array
    shift: Array | None


@dataclass(frozen=True)
class _Join:
    """A convolution, and the other terms of a sum that it takes in."""

    host: _Conv
    convs: list[_Conv] = field(default_factory=list)
    scaled: list[_Scaled] = field(default_factory=list)

    def computed(self) -> dict[str, Array]:
        """Return the new weights and bias by what their names end with."""
        host = self.host
        channels, per_group = host.weight.shape[:2]
        weight, bias = host.weight.astype(np.float64), np.zeros(channels)
        with np.errstate(all="ignore"):
            for each in self.convs:
                weight[np.ix_(range(channels), range(per_group), *host.places(each.taps) or ())] += each.weight
            for scaled in self.scaled:
                centre = (place[0] for place in host.places(host.centre) or ())
                weight[(np.arange(channels), np.arange(channels) % per_group, *centre)] += scaled.factor
            biases = [each.bias for each in (host, *self.convs)] + [each.shift for each in self.scaled]
            given = [each for each in biases if each is not None]
            bias = sum((each.astype(np.float64) for each in given), bias)
            parts = {"weight": weight, "bias": bias} if given else {"weight": weight}
            return {tag: part.astype(host.weight.dtype) for tag, part in parts.items()}


@dataclass(frozen=True)
class _Sum:
    """A sum of which convolutions take in some terms."""

    root: Node
    inner: dict[str, Node]
    """The nodes that make sums of some of the terms, by what they make; each before those that it reads."""
    joins: list[_Join]
    taken: dict[str, Node | None]
    """The terms that go, and what makes them, if nothing else reads them."""


def _rewire(total: _Sum, changed: dict[str, Node], gone: set[str]) -> None:
    """Take the terms that go out of a sum; what is left of it makes the result."""
    gone.update(node.name for node in total.taken.values() if node is not None)
    left = dict.fromkeys(total.taken, "")
    for node in (*reversed(total.inner.values()), total.root):
        inputs = tuple(rest for value in node.inputs if (rest := left.get(value, value)))
        if len(inputs) < min(len(node.inputs), 2):
            gone.add(node.name)
            left[node.outputs[0]] = "".join(inputs)
        elif inputs != node.inputs:
            changed[node.name] = replace(node, inputs=inputs)
    result = total.root.outputs[0]
    if (last := left.get(result, result)) != result:
        makers = {join.host.node.outputs[0]: join.host.node for join in total.joins} | total.inner
        maker = changed.get(makers[last].name, makers[last])
        changed[maker.name] = replace(maker, outputs=total.root.outputs)


def _sums(graph: Graph) -> Iterator[_Sum]:
    """Yield the sums of which convolutions could take in some terms."""
    makers, readers = graph.producers(), graph.readers()
    inside: set[str] = set()
    for root in reversed(graph.nodes):
        if root.op.type not in SUMS or root.name in inside or not graph.specs[root.outputs[0]].dtype.is_float:
            continue
        inner, terms = _terms(graph, root, makers, readers)
        inside.update(node.name for node in inner.values())
        joins, taken = _joins(graph, root, terms, makers, readers)
        if joins:
            yield _Sum(root, inner, joins, taken)


def _terms(
    graph: Graph, root: Node, makers: dict[str, Node], readers: dict[str, int]
) -> tuple[dict[str, Node], list[str]]:
    """Return the sums of the same size inside of a sum by what they make, and the terms of all."""
    dims = graph.specs[root.outputs[0]].dims
    inner: dict[str, Node] = {}
    terms = []
    values = [*reversed(root.inputs)]
    while values:
        value = values.pop()
        node = makers.get(value)
        alike = graph.specs[value].dims == dims
        if node is not None and node.op.type in SUMS and readers[value] == 1 and alike:
            inner[value] = node
            values += reversed(node.inputs)
        elif alike:
            terms.append(value)
    return inner, terms


def _joins(
    graph: Graph, root: Node, terms: list[str], makers: dict[str, Node], readers: dict[str, int]
) -> tuple[list[_Join], dict[str, Node | None]]:
    """Return the convolutions of a sum that take in other terms, and these terms with the nodes that go with them."""
    alone = {value: makers[value] for value in terms if value in makers and readers[value] == 1}
    convs = [conv for node in alone.values() if (conv := _conv(graph, node)) is not None]
    convs.sort(key=lambda conv: -prod(conv.weight.shape))
    joins: list[_Join] = []
    taken: dict[str, Node | None] = {}
    for host in convs:
        if host.node.outputs[0] in taken:
            continue
        join, image = _Join(host), host.node.inputs[0]
        for conv in convs:
            value = conv.node.outputs[0]
            alike = conv.node.inputs[0] == image and (conv.group, conv.strides) == (host.group, host.strides)
            if conv is not host and value not in taken and alike and host.places(conv.taps) is not None:
                join.convs.append(conv)
                taken[value] = conv.node
        at_pixels = prod(host.strides) == 1 and host.places(host.centre) is not None
        if at_pixels and graph.specs[image].dims == graph.specs[root.outputs[0]].dims:
            rest = [value for value in terms if value not in taken]
            found = {value: each for value in rest if (each := _scaled(graph, value, image, alone.get(value)))}
            join.scaled.extend(found[value] for value in rest if value in found)
            taken |= {value: alone.get(value) for value in found}
        if join.convs or join.scaled:
            joins.append(join)
    return joins, taken


def _conv(graph: Graph, node: Node) -> _Conv | None:
    """Return a convolution that can be joined with others, if a node is one."""
    op: Any = node.op
    if op.type != "Conv" or node.inputs[0] in graph.constants:
        return None
    weight, bias = (*(known(graph.constants.get(i)) for i in node.inputs[1:]), None)[:2]
    window = op.window(graph.specs[node.inputs[0]].dims, graph.specs[node.inputs[1]].dims)
    if weight is None or (bias is None and any(node.inputs[2:])) or has_open_size(window.begin):
        return None
    each = zip(window.kernel, window.dilations, window.begin, strict=True)
    taps = tuple(range(-begin, size * step - begin, step) for size, step, begin in each)
    return _Conv(node, weight, bias, op.group, window.strides, taps)


def _scaled(graph: Graph, value: str, image: str, maker: Node | None) -> _Scaled | None:
    """Return what a term makes of an image, if it is the image itself or scales its channels; `maker` only makes it."""
    dims = graph.specs[image].dims
    if value == image:
        return _Scaled(np.ones(dims[1]), None)
    if maker is None or image not in maker.inputs:
        return None
    if maker.op.type == "BatchNormalization" and maker.inputs[0] == image:
        parameters = [known(graph.constants.get(i)) for i in maker.inputs[1:]]
        if any(each is None for each in parameters):
            return None
        op: Any = maker.op
        with np.errstate(all="ignore"):
            return _Scaled(*op.factor_and_shift(parameters))
    if maker.op.type != "Mul" or maker.inputs[0] == maker.inputs[1]:
        return None
    factor = known(graph.constants.get(maker.inputs[maker.inputs[0] == image]))
    full = () if factor is None else (1,) * (len(dims) - factor.ndim) + factor.shape
    if factor is None or full not in ((1,) * len(dims), (1, dims[1], *(1,) * (len(dims) - 2))):
        return None
    return _Scaled(np.broadcast_to(factor.reshape(-1), (dims[1],)), None)
