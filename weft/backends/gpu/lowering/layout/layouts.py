"""Assign a layout to each value, NCHW or packed in fours, with as few conversions (`Relayout` nodes) as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from weft.core.contract.lowered import ValueView
from weft.core.contract.session_config import Precision
from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import PACK, Layout, Shape, row_major
from weft.core.graph.op import Op, find_op
from weft.core.graph.tensor import Tensor
from weft.core.placement.in_place import why_apart
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import WantedLayout, find_gpu_op
from weft.kernels.matrix_shapes import HALVES
from weft.ops.conv import Conv
from weft.ops.relayout import Relayout

T = TypeVar("T")
LINEAR = Layout.NCHW


def base_op(op: Op) -> Op:
    """Return the op that decides the layout: the base of a fused one."""
    return op.base if type(op) is Fused else op


IsCustom = Callable[[Op], bool]
"""Tells whether an op is custom: an execution that `addCreator` registered runs it, which reads and writes NCHW."""
Planar = Callable[[Graph, Node], bool]
"""Tells whether a node that works on packed images prefers to read its first input as NCHW, as it is stored."""


def convolves(graph: Graph) -> bool:
    """Tell whether a graph has a convolution; many rewrites are about these alone."""
    return any(isinstance(base_op(node.op), Conv) for node in graph)


def sole_readers(graph: Graph, makers: Mapping[str, Node]) -> Iterator[tuple[int, Node, Node]]:
    """Yield the place and the node of each that alone reads the first of its inputs, and the node that makes that."""
    readers = graph.readers()
    for place, node in enumerate(graph.nodes):
        read = node.inputs[0] if node.inputs else ""
        maker = makers.get(read)
        if maker is not None and readers[read] == 1:
            yield place, node, maker


def base_inputs(op: Op, inputs: Sequence[T]) -> Sequence[T]:
    """Return the inputs of the base of a fused op: those behind them belong to its steps."""
    return inputs[: op.arity] if type(op) is Fused else inputs


def is_of_channels(dims: Shape, shape: Shape) -> bool:
    """Tell whether a constant that is broadcast to `shape` is a scalar or has one number for each channel."""
    full = (1,) * (len(shape) - len(dims)) + dims
    return prod(dims) == 1 or all(d == (shape[a] if a == 1 else 1) for a, d in enumerate(full))


def base_outputs(op: Op, outputs: Sequence[T]) -> Sequence[T]:
    """Return the outputs of the base of a fused op, of which the first is what its last step makes."""
    return outputs[: len(outputs) - len(op.second_outputs)] if isinstance(op, Fused) else outputs


def splits_products(caps: DeviceCaps, precision: Precision) -> bool:
    """Tell whether matrix units may multiply fp32 as sums of halves: at precision NORMAL, where there are any."""
    return precision is Precision.NORMAL and caps.multiplies(HALVES) and caps.splits_products


def packed_layout(caps: DeviceCaps, precision: Precision) -> Layout:
    """Return the layout of images: channels last if matrix units can then load more at a time."""
    faster = precision is Precision.LOW or splits_products(caps, precision)
    return Layout.NHWC4 if caps.channels_last and faster else Layout.NC4HW4


class _Assigner:
    def __init__(
        self, graph: Graph, is_custom: IsCustom, packed: Layout, planar: Planar, without: Collection[str]
    ) -> None:
        self.source, self.is_custom, self.packed, self.planar = graph, is_custom, packed, planar
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
                i
                if not self._is_activation(i)
                else self._uncast(i)
                if planar and k == 0
                else self._get(i, layout if self._is_laid(node, k) else LINEAR)
                for k, i in enumerate(node.inputs)
            )
            written = tuple(self._out(o, layout) for o in node.outputs)
            self._emit(replace(node, inputs=inputs, outputs=written), layout)
            for name, twin in zip(node.outputs, written, strict=True):
                if twin != name:
                    self.twins[name, LINEAR] = name
                    self._convert(twin, name, LINEAR, self.readers[name] == 1)
                    self.lies[name] = self.packed  # to its readers inside, who take the twin
        gone = {o for node in self.out.nodes if node.name in self.dropped for o in node.outputs}
        self.out.nodes = [n for n in self.out.nodes if n.name not in self.dropped]
        self.out.layouts = {name: layout for name, layout in self.out.layouts.items() if name not in gone}
        return self.out

    def _is_activation(self, name: str) -> bool:
        return bool(name) and name not in self.source.constants

    def _wanted(self, node: Node) -> Layout:
        op = None if self.is_custom(node.op) else find_gpu_op(node.op)
        if op is None:
            return LINEAR
        if op.wanted_layout is WantedLayout.CHANNELS:
            return self.packed
        packed = self.lies.get(node.inputs[0] if node.inputs else "") is self.packed
        if packed and "block_copy" not in self.without and blocks_taken(self.source, node):
            return self.packed
        if op.wanted_layout is not WantedLayout.EITHER or op.packed_family in self.without:
            return LINEAR
        packed = any(self.lies.get(i) is self.packed for i in node.inputs)
        specs = [self.source.specs[i] for i in (*node.inputs, *node.outputs) if i]
        packed = packed and all(s.dtype is not DType.FLOAT64 for s in specs)  # no kernel computes with fours of these
        if not packed:
            return LINEAR
        inputs, outputs = described(self.source, node)
        fits = op.fits_channels(base_op(node.op), base_inputs(node.op, inputs), base_outputs(node.op, outputs))
        added = inputs[len(base_inputs(node.op, inputs)) :]
        known = [t.shape for t in added if t is not None and t.constant is not None]
        fits = fits and all(is_of_channels(dims, outputs[0].shape) for dims in known)
        return self.packed if fits else LINEAR

    def _is_laid(self, node: Node, position: int) -> bool:
        """Tell whether a node reads an input in its layout; the operands of fused steps are in it."""
        form = None if self.is_custom(node.op) else find_gpu_op(node.op)
        fused = position >= len(base_inputs(node.op, node.inputs))
        return form is None or fused or form.is_laid(position)

    def _takes_planar(self, node: Node) -> bool:
        """Tell whether a node is the only reader of an NCHW value, and prefers it to a converted one."""
        name = node.inputs[0]
        alone = self._is_activation(name) and self.lies[name] is LINEAR and self.readers[name] == 1
        return alone and self.planar(self.source, node)

    def _out(self, name: str, layout: Layout) -> str:
        """Return the name under which a node writes a value: a graph output keeps its name for its NCHW form."""
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
        """Return the name of the value in that layout; the first call converts it."""
        if self.lies[name] is layout:
            return self.twins.get((name, layout), name)
        if (name, layout) not in self.twins:
            twin = self.names.fresh(f"{name}.{'c4' if layout.packed else 'nchw'}")
            self.out.specs[twin] = self.source.specs[name]
            self.twins[name, layout] = twin
            self._convert(name, twin, layout, self.readers[name] == 1)
        return self.twins[name, layout]

    def _uncast(self, name: str) -> str:
        """Drop the cast between floats that makes a value, and return what it converts; the value if there is none."""
        maker = self.makers.get(name)
        if maker is None or maker.op.type != "Cast" or maker.name in self.dropped:
            return name
        if not self.out.specs[maker.inputs[0]].dtype.is_float:
            return name
        self.dropped.add(maker.name)
        del self.out.specs[name]
        self.out.layouts.pop(name, None)
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
    graph: Graph, is_custom: IsCustom = lambda op: False, packed: Layout = Layout.NC4HW4,
    planar: Planar = lambda graph, node: False, without: Collection[str] = (),
) -> Graph:
    """Return the graph with a layout for every value, NCHW or `packed`, and the conversions this needs.

    Inputs and outputs of the part are stored as NCHW under their own names. `without` names the families of kernels
    that must not be used.
    """
    assert find_op("Relayout") is Relayout
    forms = (find_gpu_op(node.op) for node in graph if not is_custom(node.op))
    if not graph.layouts and all(form is None or form.wanted_layout is not WantedLayout.CHANNELS for form in forms):
        return graph.copy()  # no value is packed, so nothing that only follows a packed one is either
    return _Assigner(graph, is_custom, packed, planar, without).run()


def find_views(graph: Graph, is_custom: IsCustom = lambda op: False) -> dict[str, ValueView]:
    """Return the values that need no memory of their own, by name, each with its outermost root.

    Inputs of a channel concat become views of its output if all but the last have a multiple of four channels, and so
    does a concat of inputs that lie side by side in a larger one: concats that grow share one memory.
    Reshapes and conversions that move nothing become aliases; the source of a graph output is stored in that output.
    Outputs in `Graph.aliases`, which are legal ones, lie in their inputs.
    """
    views = {output: ValueView(source) for output, source in graph.aliases.items()}
    produced, results = {o: n for n in graph.nodes for o in n.outputs if o}, set(graph.outputs)
    for node in reversed(graph.nodes):
        if base_op(node.op).type == "Concat" and _is_packed(graph, node.outputs[0]):
            _view_concat(graph, node, produced, views, results)
    for node in graph.nodes:
        if not is_custom(node.op) and _is_packed(graph, node.outputs[0]):
            _view_blocks(graph, node, views, results)
    fixed = {*graph.outputs, *(view.root for view in views.values())}
    for node in reversed(graph.nodes):
        target, source = node.outputs[0], node.inputs[0] if node.inputs else ""
        lies = ValueView(target) if target in results else views.get(target)
        free = source in produced and source not in views and source not in fixed and not is_custom(node.op)
        if free and lies is not None and not lies.blocks and _moves_nothing(graph, node, views):
            views[source] = lies
    for node in graph.nodes:
        if not is_custom(node.op) and _moves_nothing(graph, node, views) and node.outputs[0] not in results:
            source = node.inputs[0]
            views[node.outputs[0]] = views.get(source, ValueView(source))
    return views


def legal_aliases(graph: Graph, is_custom: IsCustom) -> dict[str, str]:
    """Return the aliases that still hold after the rewrites; a custom op's execution may not write in place."""
    if not graph.aliases:
        return {}
    apart = {*why_apart(graph), *(o for node in graph.nodes if is_custom(node.op) for o in node.outputs)}
    return {output: source for output, source in graph.aliases.items() if output not in apart}


def blocks_taken(graph: Graph, node: Node) -> list[int] | None:
    """Return the first channel block of each output of a node that only takes whole blocks of its first input."""
    return None if "" in node.outputs else first_blocks(node.op, *described(graph, node))


def first_blocks(op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[int] | None:
    """Return the first channel block of each output of an op that only takes whole blocks of its first input.

    None for any other op. Channels that end with the input's may be no multiple of four.
    """
    form = find_gpu_op(op)
    if form is None or not form.moves_bits or form.wanted_layout is WantedLayout.EITHER or type(op) is Fused:
        return None
    maps = form.moved_from(op, inputs, outputs)
    x = inputs[0]
    if x is None or maps is None or len(maps) != len(outputs) or len(x.shape) < 3 or 0 in x.shape:
        return None
    firsts, steps = [], row_major(x.shape)
    for y, places in zip(outputs, maps, strict=True):
        if 0 in y.shape or (y.shape[0], *y.shape[2:]) != (x.shape[0], *x.shape[2:]):
            return None
        offset = int(places.of(np.zeros(1, np.int64))[0])
        first, inside = divmod(offset, steps[1])
        if inside or first % PACK or (y.shape[1] % PACK and first + y.shape[1] != x.shape[1]):
            return None
        if places != IndexMap.by_steps(y.shape, steps, offset):
            return None
        firsts.append(first // PACK)
    return firsts


def values_read(graph: Graph, views: Mapping[str, ValueView], is_custom: IsCustom = lambda op: False) -> set[str]:
    """Return the values that a kernel reads; a value that is only aliased is not among them."""

    def is_alias(node: Node) -> bool:
        lies = [views.get(name, ValueView(name)) for name in (node.outputs[0], *node.inputs[:1])]
        return not is_custom(node.op) and _moves_nothing(graph, node, views) and lies[0] == lies[-1]

    return {i for node in graph.nodes if not is_alias(node) for i in node.inputs}


def _is_packed(graph: Graph, name: str) -> bool:
    return graph.layouts.get(name, LINEAR).packed


def _view_concat(
    graph: Graph, node: Node, produced: dict[str, Node], views: dict[str, ValueView], results: set[str]
) -> None:
    target = node.outputs[0]
    outer = views.get(target, ValueView(target, 0, -(-graph.specs[target].dims[1] // PACK)))
    parts = [i for i in node.inputs if i]
    if len(set(parts)) != len(parts) or any(graph.specs[i].dims[1] % PACK for i in parts[:-1]):
        return
    if target not in views and target not in results and (whole := _side_by_side(graph, parts, views)) is not None:
        views[target] = whole
        return
    if not all(i in produced and i not in views and i not in results for i in parts):
        return
    first = outer.first
    for i in parts:
        views[i] = ValueView(outer.root, first, outer.blocks)
        first += -(-graph.specs[i].dims[1] // PACK)


def _view_blocks(graph: Graph, node: Node, views: dict[str, ValueView], results: set[str]) -> None:
    """Let values that are channel blocks of another one lie in it."""
    source = node.inputs[0] if node.inputs else ""
    if not source or source in graph.constants or not _is_packed(graph, source):
        return
    outer = views.get(source, ValueView(source, 0, -(-graph.specs[source].dims[1] // PACK)))
    blocks = outer.blocks or -(-graph.specs[source].dims[1] // PACK)
    for name, first in zip(node.outputs, blocks_taken(graph, node) or (), strict=False):
        if name not in views and name not in results:
            views[name] = ValueView(outer.root, outer.first + first, blocks)


def _side_by_side(graph: Graph, parts: Sequence[str], views: Mapping[str, ValueView]) -> ValueView | None:
    """Return where all parts of a concat lie, if a larger concat has put them side by side already."""
    begin = views.get(parts[0])
    if begin is None:
        return None
    first = begin.first
    for part in parts:
        if views.get(part) != ValueView(begin.root, first, begin.blocks):
            return None
        first += -(-graph.specs[part].dims[1] // PACK)
    return begin if begin.blocks else None


def _moves_nothing(graph: Graph, node: Node, views: Mapping[str, ValueView]) -> bool:
    op, form = node.op, find_gpu_op(node.op)
    source = node.inputs[0] if node.inputs else ""
    if source in graph.constants or not source or views.get(source, ValueView("")).blocks:
        return False
    if form is not None and form.wanted_layout is WantedLayout.ALIAS:
        return True
    if op.type != "Relayout" or graph.specs[source].dtype is not graph.specs[node.outputs[0]].dtype:
        return False
    _, c, *rest = graph.specs[source].dims if len(graph.specs[source].dims) > 1 else (1, 1, 2)
    return prod(rest) == 1 and c % PACK == 0
