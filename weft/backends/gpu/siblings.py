"""Convolutions of one image whose channels are then joined become one convolution of all those channels.

Such are the 1 x 1 and 3 x 3 halves of SqueezeNet's fire modules. Weights of smaller windows lie among zeros in the
largest one, which multiplies in vain. Where launches run one after the other, and there is little work, a launch takes
longer than that: on an H200 6 to 10 us of the host's time on OpenCL (SqueezeNet at batch 1 0.260 -> 0.210 ms). Where
those of one level overlap, as on Vulkan, it does not pay (0.186 -> 0.192). As with Winograd's method, what is not
finite spreads to neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np

from weft.backends.gpu.device import GpuDevice
from weft.backends.gpu.layouts import Special, base_inputs, base_op
from weft.core.fused import Fused
from weft.core.graph import Graph, Names, Node
from weft.core.layout import Array, Shape
from weft.core.op import Op
from weft.core.tensor import TensorSpec
from weft.ops.concat import Concat
from weft.ops.conv import Conv
from weft.ops.window import Window

ADDED = 1 << 18
"""Products in vain, for each compute unit, up to which it is done: an H200 takes 1.2 us for so many in fp32."""


@dataclass(frozen=True)
class _Sibling:
    """A convolution whose output is read once, by a join of channels."""

    node: Node
    conv: Conv
    window: Window
    weight: Array
    bias: Array | None
    scalars: tuple[float, ...]
    """What its fused steps read."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what siblings that become one have in common."""
        steps = self.node.op.steps if isinstance(self.node.op, Fused) else ()
        return (self.node.inputs[0], self.window.strides, self.bias is None, steps, self.scalars)

    def offset(self, large: Window) -> Shape:
        """Return where its taps begin in a larger window, so that both read the same."""
        return tuple(p - begin for p, begin in zip(large.begin, self.window.begin, strict=True))

    def widened(self, large: Window) -> Array:
        """Return the weights (co, ci, *kernel) among zeros where their taps are in a larger window."""
        out = np.zeros((*self.weight.shape[:2], *large.kernel), self.weight.dtype)
        each = zip(self.offset(large), self.window.kernel, strict=True)
        out[(slice(None), slice(None), *(slice(first, first + taps) for first, taps in each))] = self.weight
        return out


def merge_siblings(graph: Graph, special: Special, most: int) -> Graph:
    """Return the graph with neighbouring inputs of a join of channels made by one convolution.

    That is done up to `most` products in vain.
    """
    return _Merger(graph, special, most).run()


def products_in_vain(device: GpuDevice) -> int:
    """Return up to how many are cheaper than a launch: none on a CPU, or where launches overlap."""
    return 0 if device.caps.software or device.launches_overlap else ADDED * device.caps.likely_units


class _Merger:
    def __init__(self, graph: Graph, special: Special, most: int) -> None:
        self.source, self.special, self.most = graph, special, most
        self.makers, self.readers = graph.producers(), graph.readers()
        self.out, self.names = graph.copy(), Names(graph)

    def run(self) -> Graph:
        gone: set[str] = set()
        nodes: list[Node] = []
        for node in self.source.nodes:
            nodes += self._join(node, gone) if isinstance(node.op, Concat) and not self.special(node.op) else [node]
        self.out.nodes = [node for node in nodes if node.outputs[0] not in gone]
        return self.out

    def _join(self, join: Node, gone: set[str]) -> list[Node]:
        """Return what takes the place of a join; the names of values that are no longer made come into `gone`."""
        if join.op.axis % len(self.source.specs[join.outputs[0]].dims) != 1:  # type: ignore[attr-defined]
            return [join]
        made: list[Node] = []
        inputs: list[str] = []
        for run in self._runs(join.inputs):
            if len(run) == 1:
                inputs += run
                continue
            whole = len(run) == len(join.inputs)
            made.append(self._one([self._sibling(name) for name in run], join.outputs[0] if whole else ""))  # type: ignore[misc]
            inputs.append(made[-1].outputs[0])
            gone |= set(run)
        return made if made and made[-1].outputs == join.outputs else [*made, replace(join, inputs=tuple(inputs))]

    def _runs(self, inputs: Sequence[str]) -> Iterator[list[str]]:
        """Iterate over the inputs of a join in order, those side by side together that become one convolution."""

        def kind(name: str) -> tuple[object, ...]:
            sibling = self._sibling(name)
            return (name,) if sibling is None else sibling.kind

        for _, names in groupby(inputs, kind):
            run = list(names)
            siblings = [s for s in map(self._sibling, run) if s is not None]
            if len(siblings) == len(run) and self._fits(siblings):
                yield run
            else:
                yield from ([name] for name in run)

    def _sibling(self, name: str) -> _Sibling | None:
        node = self.makers.get(name)
        conv = base_op(node.op) if node is not None else None
        if node is None or not isinstance(conv, Conv) or self.special(conv) or self.special(node.op):
            return None
        x, *own = base_inputs(node.op, node.inputs)
        values = [self.source.constants[i] for i in node.inputs if i in self.source.constants]
        weights, scalars = values[: len(own)], values[len(own) :]
        known = len(values) == len(node.inputs) - 1 and x not in self.source.constants
        if conv.group != 1 or self.readers[name] != 1 or not known or any(s.size != 1 for s in scalars):
            return None
        weight, bias = (*weights, None)[:2]
        assert weight is not None
        window = conv.window(self.source.specs[x].dims, weight.shape)
        sibling = _Sibling(node, conv, window, weight, bias, tuple(float(s.item()) for s in scalars))
        return sibling if prod(window.dilations) == 1 else None

    def _fits(self, siblings: Sequence[_Sibling]) -> bool:
        """Tell whether every window lies inside of the largest one, and little is multiplied in vain."""
        large = _largest(siblings).window
        places = [zip(s.offset(large), s.window.kernel, large.kernel, strict=True) for s in siblings]
        within = all(first >= 0 and first + taps <= most for each in places for first, taps, most in each)
        vain = sum(prod(s.weight.shape[:2]) * (prod(large.kernel) - prod(s.window.kernel)) for s in siblings)
        batch = self.source.specs[siblings[0].node.inputs[0]].dims[0]
        return within and vain * batch * prod(large.outputs) <= self.most

    def _one(self, siblings: Sequence[_Sibling], output: str) -> Node:
        """Return the convolution of all channels, with its weights among the constants."""
        first, large = siblings[0].node, _largest(siblings)
        x, *constants = base_inputs(first.op, first.inputs)
        joined = [np.concatenate([s.widened(large.window) for s in siblings])]
        if len(constants) > 1:
            joined.append(np.concatenate([s.bias for s in siblings if s.bias is not None]))
        made = [self._value(name, value.shape) for name, value in zip(constants, joined, strict=True)]
        self.out.constants |= dict(zip(made, joined, strict=True))
        if not output:
            n, _, *places = self.source.specs[first.outputs[0]].dims
            output = self._value(first.outputs[0], (n, len(joined[0]), *places))
        op: Op = replace(first.op, base=large.conv) if isinstance(first.op, Fused) else large.conv
        return Node(first.name, op, (x, *made, *first.inputs[1 + len(made) :]), (output,))

    def _value(self, like: str, shape: Shape) -> str:
        """Return the name of a new value of another's type."""
        name = self.names.fresh(like)
        self.out.specs[name] = TensorSpec(shape, self.source.specs[like].dtype)
        return name


def _largest(siblings: Sequence[_Sibling]) -> _Sibling:
    return max(siblings, key=lambda sibling: prod(sibling.window.kernel))
