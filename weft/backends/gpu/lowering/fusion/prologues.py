"""Prologues: cheap element-wise steps that a 1 x 1 convolution applies to its image as it loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.backends.gpu.lowering.fusion.epilogues import bound_buffers, moved_operands, type_fits
from weft.backends.gpu.lowering.layout.layouts import (
    IsCustom,
    base_inputs,
    base_op,
    convolves,
    is_of_channels,
    sole_readers,
)
from weft.core.graph.fused_op import RUNNING, Fused, Step, earlier, value_number
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.fused.prologue import PrologueConv, why_no_prologue

CHEAP = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Div", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Mean", "Min",
    "Mul", "Neg", "PRelu", "Reciprocal", "Relu", "Round", "Shrink", "Sign", "Softsign", "Sub", "Sum",
    "ThresholdedRelu", "weft::CompareSelect", "weft::ScaleShift",
})
"""What each group of a convolution may compute again. An image that is rounded to a grid may rather be integers."""


def fuse_prologues(graph: Graph, is_custom: IsCustom, caps: DeviceCaps, split_products: bool) -> Graph:
    """Return the graph with cheap element-wise steps joined to the pointwise convolution that alone reads them."""
    if not convolves(graph):
        return graph
    gone: set[str] = set()
    out = graph.copy()
    for k, node, maker in sole_readers(graph, graph.producers()):
        if maker.name in gone:
            continue
        found = _prologue(graph, maker, node, is_custom, caps, split_products)
        if isinstance(found, str):
            continue
        conv, weights = base_op(node.op), base_inputs(node.op, node.inputs)[1:]
        assert isinstance(conv, Conv)
        arity = 1 + len(weights) + len(found.operands)
        made: Op = PrologueConv(conv, 1 + len(weights), found.steps)
        if isinstance(node.op, Fused):
            made = Fused(made, arity, tuple(moved_operands(step, len(found.operands)) for step in node.op.steps))
        inputs = (found.image, *weights, *found.operands, *node.inputs[1 + len(weights) :])
        out.nodes[k] = replace(node, op=made, inputs=inputs)
        gone.add(maker.name)
    out.nodes = [node for node in out.nodes if node.name not in gone]
    return out


def why_no_prologue_of(
    graph: Graph, maker: Node, node: Node, is_custom: IsCustom, caps: DeviceCaps, split_products: bool
) -> str | None:
    """Return why `node`, the only reader of `maker`, does not compute it as it loads; None if it is no convolution."""
    found = _prologue(graph, maker, node, is_custom, caps, split_products)
    return found or None if isinstance(found, str) else None


def _prologue(
    graph: Graph, maker: Node, node: Node, is_custom: IsCustom, caps: DeviceCaps, split_products: bool
) -> _Found | str:
    """Return `maker` as steps for the convolution `node`, or why not; "" if `node` is no convolution."""
    conv, weights = base_op(node.op), base_inputs(node.op, node.inputs)[1:]
    if not isinstance(conv, Conv) or not weights:
        return ""
    if is_custom(base_op(maker.op)) or is_custom(conv):
        return "one of them is custom, and its creator launches what it likes"
    if any(i and i not in graph.constants for i in weights):
        return "its weights are computed in the run"
    spec, weight = graph.specs[maker.outputs[0]], graph.specs[weights[0]].dims
    found = _Prologue(graph).of(maker, 1 + len(weights))
    if reason := why_no_prologue(conv, spec, weight, len(found.steps) if found else 1, caps, split_products):
        return reason
    if found is None:
        return "not all steps are cheap, on one image and numbers for each channel"
    bound = bound_buffers(graph, (*node.inputs, *found.operands), node.outputs)
    return found if bound <= caps.max_buffers else f"its kernel would bind {bound} buffers"


@dataclass(frozen=True)
class _Found:
    """Steps on an image, and their operands, which become inputs of the node."""

    image: str
    steps: tuple[Step, ...]
    operands: tuple[str, ...]


class _Prologue:
    """Takes a node apart into steps that a convolution can apply as it loads."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.operands: list[str] = []

    def of(self, node: Node, first: int) -> _Found | None:
        """Return the steps of a node, whose operands are inputs from position `first` on; None if it cannot be one."""
        graph, spec = self.graph, self.graph.specs[node.outputs[0]]
        base, inputs = base_op(node.op), base_inputs(node.op, node.inputs)
        read = [i for i in node.inputs if i]
        if not spec.dtype.is_float or not all(type_fits(graph, i, spec.dtype) for i in read):
            return None
        images = {i for i in read if i not in graph.constants and graph.specs[i].dims == spec.dims}
        if len(images) != 1 or len(spec.dims) < 3 or len([o for o in node.outputs if o]) != 1:
            return None
        self.image, self.dims, self.first = images.pop(), spec.dims, first
        made = self._add(base, [(i, None) for i in inputs])
        before = len(self.steps)
        for number, step in enumerate(node.op.steps if isinstance(node.op, Fused) else ()):
            numbers = [value_number(i, number) for i in step.operands]
            values = [None if k is None else k + before for k in numbers]
            named = [node.inputs[i] if k is None else "" for i, k in zip(step.operands, numbers, strict=True)]
            made = made and self._add(step.op, list(zip(named, values, strict=True)))
        return _Found(self.image, tuple(self.steps), tuple(self.operands)) if made else None

    def _add(self, op: Op, operands: Sequence[tuple[str, int | None]]) -> bool:
        """Add a step on named inputs or on values by number, unless it is dear or an operand does not fit."""
        if op.type not in CHEAP:
            return False
        number, read = len(self.steps), []
        for name, value in operands:
            value = 0 if name == self.image else value
            if value is not None:
                read.append(RUNNING if value == number else earlier(value))
            elif not name or not self._fits(name):
                return False
            else:
                read.append(self._operand(name))
        self.steps.append(Step(op, tuple(read)))
        return True

    def _operand(self, name: str) -> int:
        if name not in self.operands:
            self.operands.append(name)
        return self.first + self.operands.index(name)

    def _fits(self, name: str) -> bool:
        """Tell whether an operand is a scalar, or has one element for each channel, or for each channel of an image."""
        dims, whole = self.graph.specs[name].dims, self.dims
        if name in self.graph.constants:
            return is_of_channels(dims, whole)
        return dims == (*whole[:2], *[1] * (len(whole) - 2))
