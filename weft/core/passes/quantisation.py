"""Let values carry their quantisation: a pair of nodes that quantises a value and reads it again becomes one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.op import new_op
from weft.core.graph.quantisation import Grid
from weft.core.graph.symbolic import known
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.aliases import Aliases
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES

FAKE = "weft::FakeQuantize"
QUANTIZE = frozenset({"QuantizeLinear", "com.microsoft::QuantizeLinear"})
DEQUANTIZE = frozenset({"DequantizeLinear", "com.microsoft::DequantizeLinear"})
MOVES = RESHAPES | {"Transpose", "MaxPool", "Identity"}
"""Ops that return some of the numbers of their first input, which need not be floats."""
MOST_BITS = 16
LEAST = 2.0**-126
"""Kernels multiply by the reciprocal of a scale, which is no number for less."""


@graph_pass(rounds=2)
def carry_quantisation(graph: Graph, context: PassContext) -> Graph:
    """Replace a QuantizeLinear and the DequantizeLinear that reads it by one element-wise FakeQuantize.

    It computes the same and fuses into the node before it. Moves and max pools between the two are done on floats. A
    FakeQuantize of numbers that have its scale and zero point already is removed. Scales and zero points must be
    constants of one element; others stay, and the journal says why.
    """
    if not any(node.op.type in DEQUANTIZE for node in graph.nodes):
        return graph
    return _Carrier(graph, context).run()


def grid_of(graph: Graph, node: Node) -> Grid | None:
    """Return the grid of a QuantizeLinear or DequantizeLinear; None if scales vary in a run, lie in blocks or are odd.

    `DequantizeLinear` of constants may have a scale for each index of its axis.
    """
    op: Any = node.op
    if op.block_size or getattr(op, "precision", None) not in (None, DType.FLOAT32):
        return None
    scale = known(graph.constants.get(node.inputs[1]))
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = known(graph.constants.get(zero_name)) if zero_name else None
    if scale is None or (zero_name and zero is None) or scale.dtype.kind != "f" or scale.ndim > 1 or not scale.size:
        return None
    value = node.outputs[0] if node.op.type in QUANTIZE else node.inputs[0]
    dtype, rank = graph.specs[value].dtype, len(graph.specs[value].shape)
    if not dtype.is_integer or dtype.bits > MOST_BITS or not (scale >= LEAST).all():
        return None
    return Grid.of(dtype, scale, zero, op.axis % max(rank, 1))


class _Carrier:
    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph, self.context = graph, context
        self.out, self.names, self.aliases = graph.copy(), Names(graph), Aliases(graph)
        self.out.nodes = []
        self.floats: dict[str, tuple[str, Grid]] = {}
        """For integers: the floats that they stand for, not rounded yet, and their grid."""
        self.grids: dict[str, Grid] = {}
        """The grids of floats."""
        self.fakes: dict[tuple[str, Grid], str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._add(self.aliases.read(node))
        self.out.nodes = self.aliases.finish(self.out.nodes)
        return without_dead_nodes(self.out)

    def _add(self, node: Node) -> None:
        kind = node.op.type
        if kind in DEQUANTIZE and node.inputs[0] in self.floats:
            if self._read(node):
                return
        elif kind in QUANTIZE:
            self._note(node)
        elif kind == FAKE:
            op: Any = node.op
            if self.grids.get(node.inputs[0]) == op.grid and self.aliases.join(node.outputs[0], node.inputs[0]):
                return
            self.grids[node.outputs[0]] = op.grid
        elif kind in MOVES and len(node.outputs) == 1:
            source = node.inputs[0]
            if source in self.floats and self._moved(node):
                return
            if source in self.grids:
                self.grids[node.outputs[0]] = self.grids[source]
        elif kind == "Relu" and node.inputs[0] in self.grids:
            least, most = self.grids[node.inputs[0]].limits
            if least <= 0 <= most:
                self.grids[node.outputs[0]] = self.grids[node.inputs[0]]
        elif kind == "Concat":
            grids = {self.grids.get(i) for i in node.inputs}
            if len(grids) == 1 and (grid := grids.pop()) is not None:
                self.grids[node.outputs[0]] = grid
        self.out.nodes.append(node)

    def _note(self, node: Node) -> None:
        """Note what a QuantizeLinear makes."""
        grid = grid_of(self.graph, node)
        if grid is None or not grid.is_single:
            self.context.leave(node.name, "its scale or zero point is computed in a run, or there are several")
        elif self.out.specs[node.inputs[0]].dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16):
            self.floats[node.outputs[0]] = node.inputs[0], grid

    def _read(self, node: Node) -> bool:
        """Make a FakeQuantize in place of a DequantizeLinear, or take one that is there; tell whether one is right."""
        source, grid = self.floats[node.inputs[0]]
        y = node.outputs[0]
        if grid_of(self.graph, node) != grid:
            return False
        if self.out.specs[y].dtype is not self.out.specs[source].dtype:
            return False
        if self.grids.get(source) == grid and self.aliases.join(y, source):
            return True
        made = self.fakes.get((source, grid))
        if made is not None and self.aliases.join(y, made):
            return True
        fake = new_op(FAKE, scale=grid.scale[0], zero=grid.zero[0], to=grid.dtype)
        self.out.nodes.append(Node(node.name, fake, (source,), (y,)))
        self.fakes[source, grid], self.grids[y] = y, grid
        return True

    def _moved(self, node: Node) -> bool:
        """Move floats in place of integers, and quantise them behind that; tell whether that is done."""
        source, grid = self.floats[node.inputs[0]]
        if node.outputs[0] in self.graph.outputs:
            return False
        made = self.names.fresh(f"{node.outputs[0]}.floats")
        moved = replace(node, inputs=(source, *node.inputs[1:]), outputs=(made,))
        infer_node(self.out, moved)
        self.out.nodes.append(moved)
        self.floats[node.outputs[0]] = made, grid
        if self.grids.get(source) == grid:
            self.grids[made] = grid
        scale, zero = self._parameters(grid, self.out.specs[source].dtype)
        back = Node(self.names.fresh(f"{node.name}.back"), new_op("QuantizeLinear"), (made, scale, zero), node.outputs)
        self.out.nodes.append(back)
        return True

    def _parameters(self, grid: Grid, dtype: DType) -> tuple[str, str]:
        """Return the names of new constants for a scale and a zero point."""
        scale, zero = self.names.fresh("scale"), self.names.fresh("zero")
        self.out.constants[scale] = np.asarray(grid.scale[0], dtype.numpy)
        self.out.constants[zero] = np.asarray(grid.zero[0], grid.dtype.numpy)
        self.out.specs[scale], self.out.specs[zero] = TensorSpec((), dtype), TensorSpec((), grid.dtype)
        return scale, zero
