"""Make one convolution of several of the same image whose results are summed, as networks are trained for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import has_open_size, known
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property
from weft.core.passes.rounding import exceeds, loses_more

SUMS = frozenset({"Add", "Sum"})
"""The ops that make a sum."""

PARALLEL_CONVOLUTIONS_JOINED = Property(
    "no sum of convolutions of the same image that one of them could compute",
    lambda graph: [each.root.name for each in _sums(graph)],
)


@graph_pass(ensures=(PARALLEL_CONVOLUTIONS_JOINED,))
def join_parallel_convolutions(graph: Graph, context: PassContext) -> Graph:
    """Replace a sum of convolutions of the same image by one convolution with the sum of their weights.

    The largest kernel takes in others whose taps fall on pixels that it reads, so it stays as large as it is. No other
    node may read the results, and weights and biases must be constants. Their sums are computed in float64 and rounded
    once, so that they are as accurate as the parts; where the type that stores them would hold them less exactly, the
    convolutions stay. Other terms stay: the image itself and its batch norm are exact factors, which float16 would
    round as weights, and are added as the convolution stores.
    """
    sums = list(_sums(graph))
    if not sums:
        return graph
    out, names, budget = graph.copy(), Names(graph), context.budget
    changed: dict[str, Node] = {}
    gone: set[str] = set()
    for each in sums:
        nbytes = sum(join.host.weight.nbytes for join in each.joins)
        if not context.allows(each.root.name, nbytes, "the new weights"):
            continue
        began = budget.clock()
        computed = [(join, join.computed()) for join in each.joins]
        why = next((why for join, parts in computed if (why := join.why_not(parts, context.stored))), "")
        budget.spend(nbytes, began)
        if why:
            context.leave(each.root.name, why)
            continue
        for join, parts in computed:
            node = join.host.node
            added = [names.fresh(f"{node.name}.{tag}") for tag in parts]
            for name, value in zip(added, parts.values(), strict=True):
                out.constants[name] = value
                out.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
            changed[node.name] = replace(node, inputs=(node.inputs[0], *added))
        _rewire(out, each, changed, gone)
    if not changed:
        return graph
    out.nodes = [changed.get(node.name, node) for node in graph.nodes if node.name not in gone]
    return out


@dataclass(frozen=True, eq=False)
class _Conv:
    """A convolution with constant weights."""

    node: Node
    weight: Array
    bias: Array | None
    group: int
    strides: Shape
    taps: tuple[range, ...]
    """The pixels that each axis of the kernel reads, from where the strides put the window."""

    def holds(self, other: _Conv) -> bool:
        """Tell whether this kernel has the taps of another one of the same image, groups and strides."""
        return all(set(taps) <= set(own) for own, taps in zip(self.taps, other.taps, strict=True))

    def places(self, other: _Conv) -> list[list[int]]:
        """Return where in each axis of this kernel the taps of one lie that it holds."""
        return [[own.index(tap) for tap in each] for each, own in zip(other.taps, self.taps, strict=True)]


@dataclass(frozen=True)
class _Join:
    """A convolution, and the others that it takes in."""

    host: _Conv
    convs: list[_Conv]

    def computed(self) -> dict[str, Array]:
        """Return the new weights and bias by what their names end with."""
        host = self.host
        channels, per_group = host.weight.shape[:2]
        weight, total = host.weight.astype(np.float64), np.zeros(channels)
        with np.errstate(all="ignore"):
            for each in self.convs:
                weight[np.ix_(range(channels), range(per_group), *host.places(each))] += each.weight
            biases = [each.bias for each in (host, *self.convs) if each.bias is not None]
            for bias in biases:
                total += bias
            parts = {"weight": weight, "bias": total} if biases else {"weight": weight}
            return {tag: part.astype(host.weight.dtype) for tag, part in parts.items()}

    def why_not(self, parts: dict[str, Array], stored: DType) -> str:
        """Return why the new weights and bias are no good for a type; nothing if they are."""
        convs = (self.host, *self.convs)
        if not all(np.isfinite(part).all() for part in parts.values()):
            return "the new weights or biases would not be finite"
        if loses_more(parts["weight"], [each.weight for each in convs], stored, summed=True):
            return f"{stored.value} would hold the new weights less exactly than the old ones"
        old = [each.bias for each in convs if each.bias is not None]
        if old and exceeds(parts["bias"], stored) and not any(exceeds(bias, stored) for bias in old):
            return f"the new biases would be beyond what {stored.value} holds"
        return ""


@dataclass(frozen=True)
class _Sum:
    """A sum of which convolutions take in some terms."""

    root: Node
    inner: dict[str, Node]
    """The nodes that make sums of some of the terms, by what they make; each before those that it reads."""
    joins: list[_Join]
    taken: dict[str, Node]
    """The convolutions that go, by what they make."""


def _rewire(graph: Graph, total: _Sum, changed: dict[str, Node], gone: set[str]) -> None:
    """Take the terms that go out of a sum; what is left of it makes the result.

    Sums inside of it may be smaller, if what is left of them is broadcast.
    """
    gone.update(node.name for node in total.taken.values())
    left = dict.fromkeys(total.taken, "")
    for node in (*reversed(total.inner.values()), total.root):
        inputs = tuple(rest for value in node.inputs if (rest := left.get(value, value)))
        if len(inputs) < min(len(node.inputs), 2):
            gone.add(node.name)
            left[node.outputs[0]] = "".join(inputs)
        elif inputs != node.inputs:
            changed[node.name] = new = replace(node, inputs=inputs)
            infer_node(graph, new)
    result = total.root.outputs[0]
    if (last := left.get(result, result)) != result:
        makers = {join.host.node.outputs[0]: join.host.node for join in total.joins} | total.inner
        maker = changed.get(makers[last].name, makers[last])
        changed[maker.name] = replace(maker, outputs=total.root.outputs)


def _sums(graph: Graph) -> Iterator[_Sum]:
    """Yield the sums of which convolutions could take in some terms."""
    if not any(node.op.type == "Conv" for node in graph.nodes):
        return
    makers, readers = graph.producers(), graph.readers()
    inside: set[str] = set()
    for root in reversed(graph.nodes):
        if root.op.type not in SUMS or root.name in inside or not graph.specs[root.outputs[0]].dtype.is_float:
            continue
        inner, terms = _terms(graph, root, makers, readers)
        inside.update(node.name for node in inner.values())
        alone = [makers[value] for value in terms if value in makers and readers[value] == 1]
        joins = _joins([conv for node in alone if (conv := _conv(graph, node)) is not None])
        if joins:
            taken = {conv.node.outputs[0]: conv.node for join in joins for conv in join.convs}
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


def _joins(convs: list[_Conv]) -> list[_Join]:
    """Return which of some convolutions take in others, and these."""
    alike: dict[tuple[str, int, Shape], list[_Conv]] = {}
    for conv in sorted(convs, key=lambda conv: -prod(conv.weight.shape)):
        alike.setdefault((conv.node.inputs[0], conv.group, conv.strides), []).append(conv)
    joins = []
    for left in alike.values():
        while left:
            host, *left = left
            if within := [conv for conv in left if host.holds(conv)]:
                joins.append(_Join(host, within))
                left = [conv for conv in left if conv not in within]
    return joins


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
