"""Merge convolutions of one image whose outputs are joined along the channels into one convolution.

An example are the 1 x 1 and 3 x 3 halves of SqueezeNet's fire modules. The weights of each are padded with zeros to a
window around all of them, which adds products with zeros. Where launches run one after the other, and there is
little work, a launch costs more than these (`MergeFigures.idle_products`; SqueezeNet at batch 1 gained a fifth on
OpenCL). Where launches of one level overlap, as on Vulkan, merging does not pay. As with Winograd's algorithm, values
that are not finite spread to their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_model import AlgorithmFigures
from weft.ops.concat import Concat
from weft.ops.conv import Conv
from weft.ops.window import Window


@dataclass(frozen=True)
class MergedConv(Conv):
    """A merged convolution, whose weights are padded with zeros to a common window."""

    type: ClassVar[str] = "Conv"
    padding_products: int = 0
    """Products with such zeros."""

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations of the convolutions that were merged."""
        return super().flops(inputs, outputs) - 2 * self.padding_products


@dataclass(frozen=True)
class _Sibling:
    """A convolution whose only reader joins channels."""

    node: Node
    conv: Conv
    window: Window
    weight: Array
    bias: Array | None
    scalars: tuple[object, ...]
    """The types and bytes of the scalars that its fused steps read."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what siblings must have in common to be merged."""
        steps = self.node.op.steps if isinstance(self.node.op, Fused) else ()
        return (self.node.inputs[0], self.window.strides, self.bias is None, steps, self.scalars)

    @property
    def strides(self) -> Shape:
        """Return the strides of the op, also along axes with one output."""
        return self.conv.strides or (1,) * self.window.rank

    def offset(self, around: Window) -> Shape:
        """Return where the taps of the sibling begin in the common window, so that both read the same pixels."""
        return tuple(p - begin for p, begin in zip(around.begin, self.window.begin, strict=True))


@dataclass(frozen=True, slots=True)
class _Cover:
    """What decides whether siblings are merged: it grows with each, without a look at those before."""

    window: Window
    """The smallest that covers, at each output, the windows of all siblings."""
    weights: int
    """How many weights each tap has."""
    wanted: int
    """How many weights are not padding."""

    @classmethod
    def of(cls, sibling: _Sibling) -> _Cover:
        """Return the cover of one sibling."""
        weights = prod(sibling.weight.shape[:2])
        return cls(sibling.window, weights, weights * prod(sibling.window.kernel))

    def __or__(self, other: _Cover) -> _Cover:
        """Return the cover of both; along each axis the end padding is that of what reaches farthest.

        That keeps the number of outputs.
        """
        a, b = self.window, other.window
        begin = tuple(map(max, a.begin, b.begin))
        behind = [[taps - before for taps, before in zip(w.kernel, w.begin, strict=True)] for w in (a, b)]
        kernel = tuple(before + max(taps) for before, *taps in zip(begin, *behind, strict=True))
        end = tuple(e if t >= u else f for e, f, t, u in zip(a.end, b.end, *behind, strict=True))
        window = replace(a, kernel=kernel, begin=begin, end=end)
        return _Cover(window, self.weights + other.weights, self.wanted + other.wanted)

    @property
    def zeros(self) -> int:
        """Return how many weights are padding."""
        return self.weights * prod(self.window.kernel) - self.wanted


@dataclass(frozen=True)
class MergeFigures(AlgorithmFigures, section="merge_convolutions"):
    """When products with zeros are cheaper than a launch."""

    idle_products: int
    """Products with zeros, for each unit, that cost less than a launch."""
    reused_pixels: int
    """Such products are cheap only if each weight is multiplied with at least so many pixels."""


def merge_where_faster(graph: Graph, is_custom: IsCustom, device: GpuDevice) -> Graph:
    """Return the graph with those convolutions merged that a device computes faster as one."""
    reused = device.caps.model.of(MergeFigures).reused_pixels
    return merge_siblings(graph, is_custom, cheap_zero_products(device), reused)


def merge_siblings(graph: Graph, is_custom: IsCustom, most: int | None, reused: int = 0) -> Graph:
    """Return the graph with neighbouring inputs of a concat of channels made by one convolution.

    Each merge may add up to `most` products with zeros, if each weight is used for at least `reused` pixels: with
    fewer, reading the padded weights takes the time. With `most` None nothing is merged.
    """
    return graph if most is None else _Merger(graph, is_custom, most, reused).run()


def cheap_zero_products(device: GpuDevice) -> int | None:
    """Return how many products with zeros cost less than a launch: 0 on a CPU; None where launches overlap."""
    if device.launches_overlap:
        return None
    return device.caps.model.of(MergeFigures).idle_products * device.caps.likely_units


class _Merger:
    def __init__(self, graph: Graph, is_custom: IsCustom, most: int, reused: int) -> None:
        self.source, self.is_custom, self.most, self.reused = graph, is_custom, most, reused
        self.makers, self.readers = graph.producers(), graph.readers()
        self.out, self.names = graph.copy(), Names(graph)

    def run(self) -> Graph:
        gone: set[str] = set()
        nodes: list[Node] = []
        for node in self.source.nodes:
            nodes += self._join(node, gone) if isinstance(node.op, Concat) and not self.is_custom(node.op) else [node]
        self.out.nodes = [node for node in nodes if node.outputs[0] not in gone]
        return self.out

    def _join(self, join: Node, gone: set[str]) -> list[Node]:
        """Return the nodes that replace a join; `gone` receives the names of values that are no longer made."""
        assert isinstance(join.op, Concat)
        if join.op.axis % len(self.source.specs[join.outputs[0]].dims) != 1:
            return [join]
        made: list[Node] = []
        inputs: list[str] = []
        for part in self._parts(join.inputs):
            if isinstance(part, str):
                inputs.append(part)
                continue
            siblings, cover = part
            whole = len(siblings) == len(join.inputs)
            made.append(self._one(siblings, cover, join.outputs[0] if whole else ""))
            inputs.append(made[-1].outputs[0])
            gone |= {s.node.outputs[0] for s in siblings}
        return made if inputs == list(join.outputs) else [*made, replace(join, inputs=tuple(inputs))]

    def _parts(self, names: Sequence[str]) -> Iterator[str | tuple[list[_Sibling], _Cover]]:
        """Yield the inputs of a join in order: siblings that are merged, with their cover, and the names of others."""
        run: list[_Sibling] = []
        cover: _Cover | None = None
        for name in (*names, ""):
            sibling = self._sibling(name)
            own = _Cover.of(sibling) if sibling is not None else None
            wider = cover | own if cover and own and sibling and sibling.kind == run[0].kind else None
            if wider is None or not self._fits(run[0], wider):
                if cover is not None:
                    yield (run, cover) if len(run) > 1 else run[0].node.outputs[0]
                run, wider = [], own
            cover = wider
            if sibling is not None:
                run.append(sibling)
            elif name:
                yield name

    def _sibling(self, name: str) -> _Sibling | None:
        node = self.makers.get(name)
        if node is None or self.readers[name] != 1 or self.is_custom(node.op):
            return None
        conv, constants = base_op(node.op), self.source.constants
        if type(conv) is not Conv or conv.group != 1 or self.is_custom(conv):
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

    def _fits(self, first: _Sibling, cover: _Cover) -> bool:
        """Tell whether merging siblings adds few enough products with zeros."""
        pixels = self._pixels(first)
        return not cover.zeros or (cover.zeros * pixels <= self.most and pixels >= self.reused)

    def _pixels(self, sibling: _Sibling) -> int:
        return self.source.specs[sibling.node.inputs[0]].dims[0] * prod(sibling.window.outputs)

    def _one(self, siblings: Sequence[_Sibling], cover: _Cover, output: str) -> Node:
        """Return the merged convolution; its weights and biases are added to the constants."""
        first, around = siblings[0].node, cover.window
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
            padding_products=cover.zeros * self._pixels(siblings[0]),
        )
        op: Op = replace(first.op, base=made) if isinstance(first.op, Fused) else made
        return Node(first.name, op, tuple(inputs), (output,))

    def _value(self, like: str, shape: Shape) -> str:
        """Return the name of a new value with the type of another."""
        name = self.names.fresh(like)
        self.out.specs[name] = TensorSpec(shape, self.source.specs[like].dtype)
        return name


def _joined(siblings: Sequence[_Sibling], around: Window) -> Array:
    """Return the weights (co, ci, *kernel) of all siblings, each padded with zeros to the common window."""
    first, channels = siblings[0].weight, sum(len(s.weight) for s in siblings)
    out, begin = np.zeros((channels, first.shape[1], *around.kernel), first.dtype), 0
    for s in siblings:
        places = (slice(at, at + taps) for at, taps in zip(s.offset(around), s.window.kernel, strict=True))
        out[(slice(begin, begin + len(s.weight)), slice(None), *places)] = s.weight
        begin += len(s.weight)
    return out
