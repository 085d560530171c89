"""Store values that were rounded to a grid of eight bits as the integers that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_inputs, base_op
from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Fused
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.quantisation import Grid
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import find_gpu_op
from weft.ops.quantize import FakeQuantize
from weft.ops.relayout import Relayout

MOVES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Slice", "Split"})
"""Ops that move elements as they lie in memory: what they read and make is stored alike."""
KEEPS = frozenset({"MaxPool", "Relayout"})
"""Ops whose kernels read and store by themselves, and whose results are numbers that they read."""
STORED = (DType.FLOAT32, DType.FLOAT16)


def stores_integers(graph: Graph) -> bool:
    """Tell whether values of a graph are rounded to a grid of eight bits."""
    return any((grid := _rounds(node)) is not None and grid.dtype.bits == 8 for node in graph.nodes)


def store_quantised(graph: Graph, is_custom: IsCustom, caps: DeviceCaps) -> Graph:
    """Return the graph with values on a grid stored as int8, where all kernels that read and make them can.

    A kernel takes the integers for the numbers that they stand for, so it computes the same. The last step of a node
    whose result is stored so is what its store does anyway.
    """
    grids = _grids(graph)
    if not grids or not caps.int8_storage:
        return graph
    stored = _agreed(graph, grids, is_custom, caps)
    if not stored:
        return graph
    out = graph.copy()
    for value in stored:
        out.specs[value] = TensorSpec(graph.specs[value].shape, DType.INT8, grids[value])
    for k, node in enumerate(out.nodes):
        if isinstance(node.op, Fused) and node.outputs[0] in stored and _rounds(node) and not node.op.second_outputs:
            out.nodes[k] = _without_last_step(node)
    return _rounded_by_relayouts(out)


def _steps_fit(node: Node, inputs: Sequence[Tensor | None], shape: Shape) -> bool:
    """Tell whether the constants that steps of a node read are scalars, or have a number for each channel or column.

    Kernels of integers store rows of columns as images of one pixel.
    """
    added = inputs[len(base_inputs(node.op, inputs)) :]
    sizes = {t.constant.size for t in added if t is not None and t.constant is not None}
    return base_op(node.op).is_elementwise or sizes <= {1, shape[1 if len(shape) > 2 else -1], shape[-1]}


def _rounded_by_relayouts(graph: Graph) -> Graph:
    """Let a conversion of layouts that stores integers round what a node of its own would round before it."""
    makers, readers, gone = graph.producers(), graph.readers(), set[str]()
    for k, node in enumerate(graph.nodes):
        maker = makers.get(node.inputs[0]) if isinstance(node.op, Relayout) else None
        rounds = maker is not None and isinstance(maker.op, FakeQuantize) and readers[maker.outputs[0]] == 1
        if maker is not None and rounds and graph.specs[node.outputs[0]].grid is not None:
            graph.nodes[k] = replace(node, inputs=maker.inputs)
            gone.add(maker.outputs[0])
    graph.nodes = [node for node in graph.nodes if node.outputs[0] not in gone]
    return graph


def _rounds(node: Node) -> Grid | None:
    """Return the grid to which a node rounds its result as its last step."""
    op = node.op
    if isinstance(op, Fused):
        last = op.steps[-1]
        return last.op.grid if isinstance(last.op, FakeQuantize) and last.operands == (RUNNING,) else None
    return op.grid if isinstance(op, FakeQuantize) else None


def _without_last_step(node: Node) -> Node:
    op = node.op
    assert isinstance(op, Fused)
    return replace(node, op=replace(op, steps=op.steps[:-1]) if len(op.steps) > 1 else op.base)


def _grids(graph: Graph) -> dict[str, Grid]:
    """Return the values that kernels make on a grid of eight bits."""
    found: dict[str, Grid] = {}
    for node in graph.nodes:
        grid = _rounds(node)
        if grid is None and node.op.type in MOVES | KEEPS and node.inputs:
            read = {found.get(i) for i in node.inputs if i not in graph.constants}
            grid = read.pop() if len(read) == 1 else None
        if grid is not None and grid.dtype.bits == 8:
            found |= {o: grid.signed for o in node.outputs[:1] if graph.specs[o].dtype in STORED}
    return found


def _agreed(graph: Graph, grids: Iterable[str], is_custom: IsCustom, caps: DeviceCaps) -> set[str]:
    """Return which values all kernels that make or read them take as integers."""
    stored = {*grids}.difference(graph.outputs, graph.inputs, graph.aliases, graph.aliases.values())
    while True:
        refused = {value for node in graph.nodes for value in _refused(graph, node, stored, is_custom, caps)}
        if not refused:
            return stored
        stored -= refused


def _refused(graph: Graph, node: Node, stored: set[str], is_custom: IsCustom, caps: DeviceCaps) -> list[str]:
    """Return the values among `stored` that the kernels of a node do not read or make as integers."""
    own = [v for v in (*node.inputs, *node.outputs) if v in stored]
    if not own:
        return []
    form = None if is_custom(node.op) else find_gpu_op(node.op)
    if form is None:
        return own
    if node.op.type in MOVES:
        values = [v for v in (*node.inputs, *node.outputs) if v and not graph.specs[v].dtype.is_integer]
        return own if any(v not in stored for v in values) else []
    inputs, outputs = described(graph, node)
    read = [t is not None and t.name in stored for t in base_inputs(node.op, inputs)]
    if not _steps_fit(node, inputs, outputs[0].shape):
        return own
    if not all(t is None or t.dtype.is_float for t in (*inputs, *outputs)):
        return own
    if form.takes_integers(base_op(node.op), base_inputs(node.op, inputs), outputs, read, caps):
        return []
    return own
