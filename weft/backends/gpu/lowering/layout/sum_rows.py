"""Compute element-wise nodes of images with the channels last where a product that makes an operand does so already.

In ConvNeXt and its like, the result of a product, rows of channels, is transposed and added to an image that a
convolution reads. Rows of channels are an image in NHWC4 as they are, so the sum is better taken of rows: it then is
part of the product's launch. The pass `move_transposes_down` does so where all operands are transposed. Here, others
may be images, which must be read as rows: other devices would have to run a transpose for that.
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import PACK, to_image, to_rows
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.moves import order_of, transpose
from weft.kernels.gpu_op import WantedLayout, find_gpu_op


def sum_rows(graph: Graph, is_custom: IsCustom) -> Graph:
    """Return the graph with element-wise nodes computed on rows of channels where that saves launches, or the same."""
    return _Turned(graph, is_custom).run()


class _Turned:
    def __init__(self, graph: Graph, is_custom: IsCustom) -> None:
        self.source, self.is_custom = graph, is_custom
        self.makers, self.readers = graph.producers(), graph.readers()
        self.reads: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                self.reads.setdefault(name, []).append(node)

    def run(self) -> Graph:
        if not any(node.op.type == "Transpose" for node in self.source.nodes):
            return self.source
        self.out, self.names = self.source.copy(), Names(self.source)
        self.rows: dict[str, str] = {}
        """The values that are there as rows of channels, and their names as such."""
        self.out.nodes = []
        turned = False
        for node in self.source.nodes:
            if self._is_turned(node):
                self._turn(node)
                turned = True
            else:
                self._note(node)
                self.out.nodes.append(node)
        return without_dead_nodes(self.out) if turned else self.source

    def _note(self, node: Node) -> None:
        order = order_of(self.source, node)
        if order is not None and order == to_image(len(order)):
            self.rows[node.outputs[0]] = node.inputs[0]

    def _is_turned(self, node: Node) -> bool:
        """Tell whether a node is better computed on rows of channels."""
        if not node.op.is_elementwise or self.is_custom(node.op) or len(node.outputs) != 1:
            return False
        spec = self.source.specs[node.outputs[0]]
        if len(spec.dims) < 3 or spec.dims[1] % PACK or 0 in spec.dims:
            return False
        values = [i for i in node.inputs if i and i not in self.source.constants]
        if any(self.source.specs[i].dims != spec.dims for i in values):
            return False
        if any(self.source.specs[i].size != 1 for i in node.inputs if i in self.source.constants):
            return False
        return any(map(self._joins, values)) and all(map(self._is_image, values)) and self._is_read_as_image(node)

    def _joins(self, value: str) -> bool:
        """Tell whether a value is the transposed result of a node that could take over what is done with it."""
        maker = self.makers.get(value)
        if maker is None or value not in self.rows or self.readers[value] != 1 or maker.op.type != "Transpose":
            return False
        above = maker.inputs[0]
        while self.readers[above] == 1 and (made := self.makers.get(above)) is not None and not self.is_custom(made.op):
            operands = [i for i in made.inputs if i and i not in self.source.constants]
            form = find_gpu_op(base_op(made.op))
            if not made.op.is_elementwise or len(operands) != 1:
                return form is not None and form.fuses_into_store and form.wanted_layout is WantedLayout.LINEAR
            above = operands[0]
        return False

    def _is_image(self, value: str) -> bool:
        """Tell whether a value is there as rows, or made by a node that stores images, which can be in NHWC4."""
        maker = self.makers.get(value)
        return value in self.rows or (maker is not None and self._stores_images(maker.op))

    def _is_read_as_image(self, node: Node) -> bool:
        """Tell whether all readers of a result read an image, or rows, or are element-wise themselves."""
        name = node.outputs[0]
        if name in self.source.outputs:
            return False
        order = to_rows(len(self.source.specs[name].dims))
        readers = self.reads.get(name, [])
        return all(
            self._stores_images(each.op) or each.op.is_elementwise or order_of(self.source, each) == order
            for each in readers
        )

    def _stores_images(self, op: Op) -> bool:
        form = None if self.is_custom(op) else find_gpu_op(base_op(op))
        return form is not None and form.wanted_layout is WantedLayout.CHANNELS

    def _turn(self, node: Node) -> None:
        """Add the node on rows, and a transpose of its result to where that was."""
        target = node.outputs[0]
        inputs = tuple(i if not i or i in self.source.constants else self._as_rows(i) for i in node.inputs)
        rows = self._rows_of(target)
        self.out.nodes.append(replace(node, inputs=inputs, outputs=(rows,)))
        name, order = self.names.fresh(f"{node.name}.image"), to_image(len(self.source.specs[target].dims))
        self.out.nodes.append(transpose(name, rows, order, target))
        self.rows[target] = rows

    def _as_rows(self, value: str) -> str:
        if value not in self.rows:
            rows, order = self._rows_of(value), to_rows(len(self.source.specs[value].dims))
            self.out.nodes.append(transpose(self.names.fresh(f"{value}.to_rows"), value, order, rows))
            self.rows[value] = rows
        return self.rows[value]

    def _rows_of(self, value: str) -> str:
        spec, name = self.source.specs[value], self.names.fresh(f"{value}.rows")
        dims = tuple(spec.dims[axis] for axis in to_rows(len(spec.dims)))
        self.out.specs[name] = TensorSpec(dims, spec.dtype)
        return name
