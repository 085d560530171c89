"""Convolutions of one image whose channels are then joined become one convolution of all those channels.

Such are the 1 x 1 and 3 x 3 halves of SqueezeNet's fire modules. The weights of each lie among zeros in a window around
all, which multiplies in vain. Where launches run one after the other, and there is little work, a launch takes
longer than that: on an H200 6 to 10 us of the host's time on OpenCL (SqueezeNet at batch 1 0.260 -> 0.210 ms). Where
those of one level overlap, as on Vulkan, it does not pay (0.186 -> 0.192). As with Winograd's method, what is not
finite spreads to neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.lowering.layouts import Special, base_inputs, base_op
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.ops.concat import Concat
from weft.ops.conv import Conv
from weft.ops.window import Window

ADDED = 1 << 18
"""Products in vain, for each compute unit, up to which it is done: an H200 takes 1.2 us for so many in fp32."""
REUSED = 64
"""Pixels with which each weight is multiplied at least, if some are in vain: else to read them is what takes time."""


@dataclass(frozen=True)
class MergedConv(Conv):
    """A convolution some of whose weights are zeros, outside of the window of what it was made of."""

    type: ClassVar[str] = "Conv"
    vain: int = 0
    """Products with such zeros."""

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return those of the convolutions that it was made of."""
        return super().flops(inputs, outputs) - 2 * self.vain


@dataclass(frozen=True)
class _Sibling:
    """A convolution whose output is read once, by a join of channels."""

    node: Node
    conv: Conv
    window: Window
    weight: Array
    bias: Array | None
    scalars: tuple[object, ...]
    """The types and bytes of what its fused steps read."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what siblings that become one have in common."""
        steps = self.node.op.steps if isinstance(self.node.op, Fused) else ()
        return (self.node.inputs[0], self.window.strides, self.bias is None, steps, self.scalars)

    @property
    def strides(self) -> Shape:
        """Return the strides, also those that are never taken."""
        return self.conv.strides or (1,) * self.window.rank

    def offset(self, around: Window) -> Shape:
        """Return where its taps begin in a window around it, so that both read the same."""
        return tuple(p - begin for p, begin in zip(around.begin, self.window.begin, strict=True))


def merge_siblings(graph: Graph, special: Special, most: int | None) -> Graph:
    """Return the graph with neighbouring inputs of a join of channels made by one convolution.

    That is done up to `most` products in vain; where it is None, not at all.
    """
    return graph if most is None else _Merger(graph, special, most).run()


def products_in_vain(device: GpuDevice) -> int | None:
    """Return up to how many are cheaper than a launch: none on a CPU; None where launches overlap."""
    if device.launches_overlap:
        return None
    return 0 if device.caps.software else ADDED * device.caps.likely_units


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
        assert isinstance(join.op, Concat)
        if join.op.axis % len(self.source.specs[join.outputs[0]].dims) != 1:
            return [join]
        made: list[Node] = []
        inputs: list[str] = []
        for part in self._parts(join.inputs):
            if isinstance(part, str):
                inputs.append(part)
                continue
            whole = len(part) == len(join.inputs)
            made.append(self._one(part, join.outputs[0] if whole else ""))
            inputs.append(made[-1].outputs[0])
            gone |= {s.node.outputs[0] for s in part}
        return made if inputs == list(join.outputs) else [*made, replace(join, inputs=tuple(inputs))]

    def _parts(self, names: Sequence[str]) -> Iterator[str | list[_Sibling]]:
        """Iterate over the inputs of a join: those side by side that become one convolution, and others' names."""
        run: list[_Sibling] = []
        for name in (*names, ""):
            sibling = self._sibling(name)
            if run and (sibling is None or sibling.kind != run[0].kind or not self._fits([*run, sibling])):
                yield run if len(run) > 1 else run[0].node.outputs[0]
                run = []
            if sibling is not None:
                run.append(sibling)
            elif name:
                yield name

    def _sibling(self, name: str) -> _Sibling | None:
        node = self.makers.get(name)
        if node is None or self.readers[name] != 1 or self.special(node.op):
            return None
        conv, constants = base_op(node.op), self.source.constants
        if type(conv) is not Conv or conv.group != 1 or self.special(conv):
            return None
        (x, *own), given = base_inputs(node.op, node.inputs), [i for i in node.inputs if i]
        weights = [constants[i] for i in own if i in constants]
        read = [constants.get(i) for i in node.inputs[1 + len(own) :]]
        if any(i not in constants for i in given[1:]) or any(c is not None and c.size != 1 for c in read):
            return None
        scalars = tuple(None if c is None else (c.dtype, c.tobytes()) for c in read)
        window = conv.window(self.source.specs[x].dims, weights[0].shape)
        sibling = _Sibling(node, conv, window, weights[0], weights[1] if len(weights) > 1 else None, scalars)
        return sibling if prod(window.dilations) == 1 else None

    def _fits(self, siblings: Sequence[_Sibling]) -> bool:
        """Tell whether little is multiplied in vain."""
        vain = self._in_vain(siblings)
        return not vain or (vain <= self.most and self._pixels(siblings) >= REUSED)

    def _pixels(self, siblings: Sequence[_Sibling]) -> int:
        return self.source.specs[siblings[0].node.inputs[0]].dims[0] * prod(siblings[0].window.outputs)

    def _in_vain(self, siblings: Sequence[_Sibling]) -> int:
        taps = prod(_around(siblings).kernel)
        zeros: int = sum(prod(s.weight.shape[:2]) * (taps - prod(s.window.kernel)) for s in siblings)
        return zeros * self._pixels(siblings)

    def _one(self, siblings: Sequence[_Sibling], output: str) -> Node:
        """Return the convolution of all channels, with its weights among the constants."""
        first, around = siblings[0].node, _around(siblings)
        inputs, weight = list(first.inputs), _joined(siblings, around)
        inputs[1] = self._value(inputs[1], weight.shape)
        self.out.constants[inputs[1]] = weight
        biases = [s.bias for s in siblings if s.bias is not None]
        if biases:
            inputs[2] = self._value(inputs[2], weight.shape[:1])
            self.out.constants[inputs[2]] = np.concatenate(biases)
        if not output:
            n, _, *places = self.source.specs[first.outputs[0]].dims
            output = self._value(first.outputs[0], (n, len(weight), *places))
        made = MergedConv(
            kernel_shape=around.kernel,
            pads=(*around.begin, *around.end),
            strides=tuple(map(max, *(s.strides for s in siblings))),
            vain=self._in_vain(siblings),
        )
        op: Op = replace(first.op, base=made) if isinstance(first.op, Fused) else made
        return Node(first.name, op, tuple(inputs), (output,))

    def _value(self, like: str, shape: Shape) -> str:
        """Return the name of a new value of another's type."""
        name = self.names.fresh(like)
        self.out.specs[name] = TensorSpec(shape, self.source.specs[like].dtype)
        return name


def _around(siblings: Sequence[_Sibling]) -> Window:
    """Return the smallest window that sees, at each output, what all of them see.

    Of its padding the end is that of the window which reaches farthest, and so the outputs are as many.
    """
    windows = [s.window for s in siblings]
    begin = tuple(map(max, *(w.begin for w in windows)))
    last = [max(windows, key=lambda w: w.kernel[axis] - w.begin[axis]) for axis in range(len(begin))]
    kernel = tuple(b + w.kernel[axis] - w.begin[axis] for axis, (b, w) in enumerate(zip(begin, last, strict=True)))
    return replace(windows[0], kernel=kernel, begin=begin, end=tuple(w.end[axis] for axis, w in enumerate(last)))


def _joined(siblings: Sequence[_Sibling], around: Window) -> Array:
    """Return the weights (co, ci, *kernel) of all, each among zeros where its taps are in the window around them."""
    first, channels = siblings[0].weight, sum(len(s.weight) for s in siblings)
    out, begin = np.zeros((channels, first.shape[1], *around.kernel), first.dtype), 0
    for s in siblings:
        places = (slice(at, at + taps) for at, taps in zip(s.offset(around), s.window.kernel, strict=True))
        out[(slice(begin, begin + len(s.weight)), slice(None), *places)] = s.weight
        begin += len(s.weight)
    return out
