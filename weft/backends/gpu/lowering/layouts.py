"""Where each value lies: NCHW, or packed in fours. Conversions become `Relayout` nodes, as few as the ops allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from weft.core.contract.lowered import ValueView
from weft.core.contract.session_config import Precision
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Layout, Shape
from weft.core.graph.op import Op, find_op
from weft.kernels.launch import DeviceCaps, Placement, find_gpu_op
from weft.ops.relayout import Relayout

T = TypeVar("T")
LINEAR = Layout.NCHW


def base_op(op: Op) -> Op:
    """Return the op that decides placement: the base of a fused one."""
    return op.base if isinstance(op, Fused) else op


Special = Callable[[Op], bool]
"""Whether a creator of the backend's own makes the executions of an op: they read and write NCHW."""
Planar = Callable[[Graph, Node], bool]
"""Whether a node that works on packed images had rather read its first input, which lies as NCHW, as that."""


def base_inputs(op: Op, inputs: Sequence[T]) -> Sequence[T]:
    """Return the inputs of the base of a fused op: those behind them belong to its steps."""
    return inputs[: op.arity] if isinstance(op, Fused) else inputs


def splits_products(caps: DeviceCaps, precision: Precision) -> bool:
    """Tell whether matrix units may multiply fp32 as sums of halves: at precision NORMAL, where there are any."""
    return precision is Precision.NORMAL and caps.matrix_units and caps.splits_products


def packed_layout(caps: DeviceCaps, precision: Precision) -> Layout:
    """Return how images lie: with channels last where matrix units then load more at a time."""
    faster = precision is Precision.LOW or splits_products(caps, precision)
    return Layout.NHWC4 if caps.channels_last and faster else Layout.NC4HW4


class _Assigner:
    def __init__(
        self, graph: Graph, special: Special, packed: Layout, planar: Planar, without: Collection[str]
    ) -> None:
        self.source, self.special, self.packed, self.planar = graph, special, packed, planar
        self.without = without
        self.out, self.names = graph.copy(), Names(graph)
        self.out.nodes = []
        self.lies = dict.fromkeys(graph.inputs, LINEAR)
        self.twins: dict[tuple[str, Layout], str] = {}
        self.makers: dict[str, Node] = {}
        self.readers = graph.readers()
        self.results = set(graph.outputs)
        self.dropped: set[str] = set()
        """The names of casts that a conversion does on the way."""

    def run(self) -> Graph:
        for node in self.source.nodes:
            layout = self._wanted(node)
            planar = layout.packed and self._takes_planar(node)
            inputs = tuple(
                i if not self._is_activation(i) else self._uncast(i) if planar and k == 0 else self._get(i, layout)
                for k, i in enumerate(node.inputs)
            )
            written = tuple(self._out(o, layout) for o in node.outputs)
            self._emit(replace(node, inputs=inputs, outputs=written), layout)
            for name, twin in zip(node.outputs, written, strict=True):
                if twin != name:
                    self.twins[name, LINEAR] = name
                    self._convert(twin, name, LINEAR, self.readers[name] == 1)
                    self.lies[name] = self.packed  # to its readers inside, who take the twin
        self.out.nodes = [n for n in self.out.nodes if n.name not in self.dropped]
        return self.out

    def _is_activation(self, name: str) -> bool:
        return bool(name) and name not in self.source.constants

    def _wanted(self, node: Node) -> Layout:
        op = None if self.special(node.op) else find_gpu_op(node.op)
        if op is None:
            return LINEAR
        if op.placement is Placement.CHANNELS:
            return self.packed
        if op.placement is not Placement.EITHER or op.packed_family in self.without:
            return LINEAR
        packed = any(self.lies.get(i) is self.packed for i in node.inputs)
        output = self.source.specs[node.outputs[0]].dims
        shapes = [self._operand_shape(i, len(output)) for i in base_inputs(node.op, node.inputs)]
        return self.packed if packed and op.fits_channels(base_op(node.op), shapes, output) else LINEAR

    def _takes_planar(self, node: Node) -> bool:
        """Tell whether a node alone reads a value that lies as NCHW, and had rather do so than have it converted."""
        name = node.inputs[0]
        alone = self._is_activation(name) and self.lies[name] is LINEAR and self.readers[name] == 1
        return alone and self.planar(self.source, node)

    def _operand_shape(self, name: str, rank: int) -> Shape | None:
        """Return the shape in which an op reads a value: constants can be packed as if they had more axes."""
        if not name:
            return None
        dims = self.source.specs[name].dims
        return dims if self._is_activation(name) else (1,) * (rank - len(dims)) + dims

    def _out(self, name: str, layout: Layout) -> str:
        """Return the name under which a node writes: outputs of the part keep theirs for the NCHW form."""
        if name in self.results and layout.packed:
            twin = self.names.fresh(f"{name}.c4")
            self.out.specs[twin] = self.source.specs[name]
            self.twins[name, layout] = twin
            return twin
        return name

    def _emit(self, node: Node, layout: Layout) -> None:
        self.out.nodes.append(node)
        for o in node.outputs:
            if not o:
                continue
            self.makers[o] = node
            self.lies[o] = layout
            if layout.packed:
                self.out.layouts[o] = layout

    def _get(self, name: str, layout: Layout) -> str:
        """Return the name of the value in that layout, converting it the first time."""
        if self.lies[name] is layout:
            return self.twins.get((name, layout), name)
        if (name, layout) not in self.twins:
            twin = self.names.fresh(f"{name}.{'c4' if layout.packed else 'nchw'}")
            self.out.specs[twin] = self.source.specs[name]
            self.twins[name, layout] = twin
            self._convert(name, twin, layout, self.readers[name] == 1)
        return self.twins[name, layout]

    def _uncast(self, name: str) -> str:
        """Return what a value is a cast of, between floats, and drop the cast; else the value's own name."""
        maker = self.makers.get(name)
        if maker is None or maker.op.type != "Cast" or maker.name in self.dropped:
            return name
        if not self.out.specs[maker.inputs[0]].dtype.is_float:
            return name
        self.dropped.add(maker.name)
        return maker.inputs[0]

    def _convert(self, name: str, target: str, layout: Layout, only_reader: bool) -> None:
        """Write the Relayout; a cast that only feeds it is taken along."""
        source = self._uncast(name) if only_reader else name
        relayout = Relayout(layout, self.out.specs[target].dtype)
        node = Node(self.names.fresh(f"Relayout.{target}"), relayout, (source,), (target,))
        self.out.nodes.append(node)
        self.makers[target] = node
        self.lies[target] = layout
        if layout.packed:
            self.out.layouts[target] = layout


def assign_layouts(
    graph: Graph,
    special: Special = lambda op: False,
    packed: Layout = Layout.NC4HW4,
    planar: Planar = lambda graph, node: False,
    without: Collection[str] = (),
) -> Graph:
    """Return the graph with a layout for every value, NCHW or `packed`, and the conversions this needs.

    Inputs and outputs of the part lie as NCHW under their own names. Families of kernels `without` which the device
    does are not asked for.
    """
    assert find_op("Relayout") is Relayout
    return _Assigner(graph, special, packed, planar, without).run()


def find_views(graph: Graph, special: Special = lambda op: False) -> dict[str, ValueView]:
    """Return the values that need no memory of their own, by name, each with its outermost root.

    Channel concats become views where all inputs but the last have a multiple of four channels; reshapes
    and conversions that move nothing become aliases, of an output too: what it is made of then lies there.
    """
    views: dict[str, ValueView] = {}
    produced, results = {o: n for n in graph.nodes for o in n.outputs if o}, set(graph.outputs)
    for node in reversed(graph.nodes):
        if base_op(node.op).type == "Concat" and _is_packed(graph, node.outputs[0]):
            _view_concat(graph, node, produced, views, results)
    fixed = {*graph.outputs, *(view.root for view in views.values())}
    for node in reversed(graph.nodes):
        target, source = node.outputs[0], node.inputs[0] if node.inputs else ""
        lies = ValueView(target) if target in results else views.get(target)
        free = source in produced and source not in views and source not in fixed and not special(node.op)
        if free and lies is not None and not lies.blocks and _moves_nothing(graph, node, views):
            views[source] = lies
    for node in graph.nodes:
        if not special(node.op) and _moves_nothing(graph, node, views) and node.outputs[0] not in results:
            source = node.inputs[0]
            views[node.outputs[0]] = views.get(source, ValueView(source))
    return views


def values_read(graph: Graph, views: Mapping[str, ValueView], special: Special = lambda op: False) -> set[str]:
    """Return the values that kernels read: not those that only aliases are made of."""

    def is_alias(node: Node) -> bool:
        lies = [views.get(name, ValueView(name)) for name in (node.outputs[0], *node.inputs[:1])]
        return not special(node.op) and _moves_nothing(graph, node, views) and lies[0] == lies[-1]

    return {i for node in graph.nodes if not is_alias(node) for i in node.inputs}


def _is_packed(graph: Graph, name: str) -> bool:
    return graph.layouts.get(name, LINEAR).packed


def _view_concat(
    graph: Graph, node: Node, produced: dict[str, Node], views: dict[str, ValueView], results: set[str]
) -> None:
    target = node.outputs[0]
    outer = views.get(target, ValueView(target, 0, -(-graph.specs[target].dims[1] // 4)))
    parts = [i for i in node.inputs if i]
    free = all(i in produced and i not in views and i not in results for i in parts)
    if not free or len(set(parts)) != len(parts) or any(graph.specs[i].dims[1] % 4 for i in parts[:-1]):
        return
    first = outer.first
    for i in parts:
        views[i] = ValueView(outer.root, first, outer.blocks)
        first += -(-graph.specs[i].dims[1] // 4)


def _moves_nothing(graph: Graph, node: Node, views: Mapping[str, ValueView]) -> bool:
    op, form = node.op, find_gpu_op(node.op)
    source = node.inputs[0] if node.inputs else ""
    if source in graph.constants or not source or views.get(source, ValueView("")).blocks:
        return False
    if form is not None and form.placement is Placement.ALIAS:
        return True
    if op.type != "Relayout" or graph.specs[source].dtype is not graph.specs[node.outputs[0]].dtype:
        return False
    _, c, *rest = graph.specs[source].dims if len(graph.specs[source].dims) > 1 else (1, 1, 2)
    return prod(rest) == 1 and c % 4 == 0
