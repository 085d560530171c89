"""Compute two products of one value and what a gate makes of both, as in SwiGLU, as one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from weft.backends.gpu.lowering.fusion.epilogues import bound_buffers, type_fits
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op
from weft.backends.gpu.lowering.rewrites.changing_graph import Change, ChangingGraph, known_of
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused, Step, earlier, value_number
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import Op
from weft.core.passes.fuse import MOST_STEPS
from weft.core.passes.parts import Interval, interval_of
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gate import BESIDE
from weft.ops.binary import Add
from weft.ops.elementwise import Elementwise
from weft.ops.gpu.matmul.gated import PARAMETERS, GatedProduct, why_not_gated
from weft.ops.matmul import Gemm, MatMul


def fuse_gates(graph: Graph, is_custom: IsCustom, caps: DeviceCaps, split_products: bool) -> Graph:
    """Return the graph with each two products of one value that become one value as one node, where that pays.

    The products have constant weights. Either one kernel applies the gate as it stores the second product, and alone
    reads the first; or they are the halves of one product, which only the gate reads.
    """
    if not any(isinstance(base_op(node.op), MatMul | Gemm) for node in graph):
        return graph
    fuser = GateFuser(graph, is_custom, caps, split_products)
    for node in graph.nodes:
        fuser.look_at(node)
    return fuser.changing.finished()


@dataclass(frozen=True)
class _Product:
    """A product of a value and constant weights, with a bias for each column ("": none), and steps of its result."""

    node: Node
    x: str
    weight: str
    bias: str
    transposed: bool
    first_step: int
    """The first step that is not the sum with the bias."""


@dataclass
class _Program:
    """The steps of a gate, which make one value of the two; `numbers` are those of values by their names."""

    graph: Graph
    dtype: DType
    beside: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    scalars: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add(self, op: Op, operands: Sequence[str], made: str) -> bool:
        """Add a step on named values and scalar constants; False if a kernel cannot do it as it stores."""
        if not isinstance(op, Elementwise) or op.expression(tuple(map(bool, operands))) is None:
            return False
        number, read = len(self.steps), list[int]()
        for name in operands:
            if name in self.numbers:
                read.append(RUNNING if self.numbers[name] == number else earlier(self.numbers[name]))
            elif name == self.beside:
                read.append(BESIDE)
            elif name in self.graph.constants and self.graph.specs[name].size == 1:
                if not type_fits(self.graph, name, self.dtype):
                    return False
                if name not in self.scalars:
                    self.scalars.append(name)
                read.append(PARAMETERS + self.scalars.index(name))
            else:
                return False
        self.steps.append(Step(op, tuple(read)))
        self.numbers[made] = number + 1
        return len(self.steps) <= MOST_STEPS

    def add_steps(self, node: Node, begin: int, base: str) -> bool:
        """Add the fused steps of a node from one on, whose running value then is `base`."""
        steps = node.op.steps if isinstance(node.op, Fused) else ()
        made = {begin: base}
        for number in range(begin, len(steps)):
            operands = list[str]()
            for i in steps[number].operands:
                known = value_number(i, number)
                if known is not None and known < begin:
                    return False  # the product before its bias
                operands.append(node.inputs[i] if known is None else made[known])
            made[number + 1] = f"{node.name}/{number}" if number + 1 < len(steps) else node.outputs[0]
            if not self.add(steps[number].op, operands, made[number + 1]):
                return False
        return True


class GateFuser:
    """Finds gates of products in a graph, and puts one node in the place of each."""

    def __init__(self, graph: Graph, is_custom: IsCustom, caps: DeviceCaps, split_products: bool) -> None:
        self.changing = ChangingGraph(graph)
        self.is_custom, self.caps, self.split_products = is_custom, caps, split_products

    @property
    def graph(self) -> Graph:
        """Return the graph as it is now."""
        return self.changing.graph

    def look_at(self, node: Node) -> None:
        """Put one node in the place of this one and of the products that it is a gate of, if there are such."""
        self.changing.reach(node)
        for change in (self._of_products(node), self._of_halves(node)):
            if isinstance(change, Change):
                self.changing.apply(change)
                return

    def why_not(self, node: Node) -> str:
        """Return why an element-wise node is no gate of the halves of a product that it reads; "" if it reads none."""
        found = self._of_halves(node)
        return found if isinstance(found, str) else ""

    # -- two products ------------------------------------------------------------------------------------------

    def _of_products(self, node: Node) -> Change | str | None:
        """Return the change for a product whose steps read another product of the same value."""
        second = self._product(node) if isinstance(node.op, Fused) else None
        if second is None:
            return None
        for name in dict.fromkeys(_read_by_steps(node)):
            maker = self.changing.makers.get(name)
            first = None if maker is None or not self._is_only_reader(node, name) else self._product(maker)
            if first is None or (first.x, first.transposed) != (second.x, second.transposed):
                continue
            if self.graph.specs[first.weight] != self.graph.specs[second.weight] or first.node is node:
                continue
            beside = f"{node.name}/beside"
            program = self._program(node, beside)
            made = name if first.first_step == _steps(first.node) else f"{first.node.name}/product"
            program.numbers[made] = 0
            fits = program.add_steps(first.node, first.first_step, made)
            if fits and program.add_steps(node, second.first_step, beside):
                weights = (first.weight, first.bias, second.weight, second.bias)
                return self._change(node, (first.node,), first, weights, program)
        return None

    # -- halves of a product -----------------------------------------------------------------------------------

    def _of_halves(self, node: Node) -> Change | str | None:
        """Return the change for an element-wise node that reads both halves of a product, or why there is none."""
        base = base_op(node.op)
        values = list(dict.fromkeys(i for i in node.inputs if i and i not in self.graph.constants))
        if not base.is_elementwise or len(values) != 2 or len(node.outputs) != 1 or self.is_custom(node.op):
            return None
        rank = len(self.graph.specs[values[0]].dims)
        parts: dict[str, Interval] = {}
        for value in values:
            interval = interval_of(self.graph, self.changing.makers.get(value), value, rank - 1) if rank else None
            if interval is None or not self._is_only_reader(node, value):
                return None
            parts[value] = interval
        first, second = sorted(values, key=lambda value: parts[value].start)
        whole = parts[first].value
        columns = self.graph.specs[whole].dims[-1]
        halves = (Interval(whole, 0, columns // 2), Interval(whole, columns // 2, columns))
        maker = self.changing.makers.get(whole)
        if (parts[first], parts[second]) != halves or columns % 2 or maker is None:
            return None
        product = self._product(maker)
        takers = {self.changing.makers[value].name: self.changing.makers[value] for value in values}
        if product is None or product.first_step != _steps(maker) or not self._are_only_readers(takers, whole):
            return None
        program = self._program(node, second)
        program.numbers[first] = 0
        steps = isinstance(node.op, Fused) and len(node.op.steps)
        made = f"{node.name}/base" if steps else node.outputs[0]
        if not program.add(base, base_inputs(node.op, node.inputs), made) or not program.add_steps(node, 0, made):
            return None
        weights = (product.weight, product.bias, "", "")
        return self._change(node, (maker, *takers.values()), product, weights, program)

    # -- parts -------------------------------------------------------------------------------------------------

    def _program(self, node: Node, beside: str) -> _Program:
        return _Program(self.graph, self.graph.specs[node.outputs[0]].dtype, beside)

    def _product(self, node: Node) -> _Product | None:
        """Return the product that a node computes, if its weights are constant and it has one result."""
        op, inputs = base_op(node.op), base_inputs(node.op, node.inputs)
        if self.is_custom(op) or len(node.outputs) != 1 or not isinstance(op, MatMul | Gemm):
            return None
        if isinstance(op, Gemm) and (op.alpha != 1 or op.beta != 1 or op.transA):
            return None
        x, weight, *more = inputs
        specs, held = self.graph.specs, self.graph.constants
        dtype = specs[node.outputs[0]].dtype
        if weight not in held or len(specs[weight].dims) != 2 or x in held or not specs[x].dims:
            return None
        if dtype not in (DType.FLOAT16, DType.FLOAT32) or any(specs[i].dtype is not dtype for i in (x, weight)):
            return None
        transposed = isinstance(op, Gemm) and bool(op.transB)
        columns = specs[weight].dims[0 if transposed else 1]
        bias, first = next(filter(None, more), ""), 0
        steps = node.op.steps if isinstance(node.op, Fused) else ()
        if not bias and steps and isinstance(steps[0].op, Add):
            added = [node.inputs[i] for i in steps[0].operands if i >= 0]
            if len(added) == 1 and self._is_bias(added[0], columns):
                bias, first = added[0], 1
        if bias and not self._is_bias(bias, columns):
            return None
        return _Product(node, x, weight, bias, transposed, first)

    def _is_bias(self, name: str, columns: int) -> bool:
        dims = self.graph.specs[name].dims
        return name in self.graph.constants and bool(dims) and dims[-1] == columns == prod(dims)

    def _is_only_reader(self, node: Node, name: str) -> bool:
        return self._are_only_readers({node.name: node}, name)

    def _are_only_readers(self, nodes: Mapping[str, Node], name: str) -> bool:
        own = sum(node.inputs.count(name) for node in nodes.values())
        return name not in self.graph.outputs and self.changing.readers[name] == own

    def _change(
        self, node: Node, gone: tuple[Node, ...], product: _Product, weights: tuple[str, ...], program: _Program
    ) -> Change | str:
        """Return the change that puts one node in the place of `node` and of others, or why that is no gain."""
        specs = self.graph.specs
        spec, x = specs[node.outputs[0]], specs[product.x]
        inputs = (product.x, *weights, *program.scalars)
        if bound_buffers(self.graph, inputs[:3], node.outputs) > self.caps.max_buffers:
            return "one kernel would bind more buffers than the device does"
        sizes, of_one = (prod(x.dims[:-1]), x.dims[-1], spec.dims[-1]), not weights[2]
        reason = why_not_gated(*sizes, spec.dtype, self.caps, self.split_products, of_one=of_one)
        if reason is not None:
            return reason
        made = Node(node.name, GatedProduct(product.transposed, tuple(program.steps)), inputs, node.outputs)
        return Change((*gone, node), (made,), known_of(self.graph, made))


def _read_by_steps(node: Node) -> tuple[str, ...]:
    """Return what the fused steps of a node read beside its own values."""
    return tuple(i for i in node.inputs[len(base_inputs(node.op, node.inputs)) :] if i)


def _steps(node: Node) -> int:
    return len(node.op.steps) if isinstance(node.op, Fused) else 0
