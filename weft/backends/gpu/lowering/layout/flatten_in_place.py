"""Flatten images for a product in the order in which they lie in memory, and put its weights in that order.

LeNet and its like flatten the image behind their last convolution. Rows in NCHW would be a copy, because kernels store
an image's channels in blocks of four or one behind the other. A sum does not depend on the order of what it adds, so
the weights, which are constants, are moved instead, once.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.lowering.rewrites.before_reshape import is_reshape
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.symbolic import int_array, known
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.kernels.gpu_op import WantedLayout, find_gpu_op
from weft.ops.matmul import Gemm, MatMul
from weft.ops.shape import Reshape, Transpose

KINDS = frozenset({DType.FLOAT32, DType.FLOAT16})
MOST_BYTES = 32 << 20
"""The weights are copied while a network loads. More than this takes longer than what it saves in 10,000 runs."""


def flatten_in_place(graph: Graph, is_custom: IsCustom, layout: Layout) -> Graph:
    """Return the graph with images flattened as `layout` stores them where a product reads that, or the same graph."""
    makers, readers, results = graph.producers(), graph.readers(), set(graph.outputs)
    packed = _packed_for_sure(graph, is_custom)

    def image_of(node: Node) -> str | None:
        """Return the image whose flattened rows a product multiplies by constant weights."""
        op, name = base_op(node.op), node.inputs[0] if node.inputs else ""
        if is_custom(op) or not isinstance(op, (Gemm, MatMul)) or (isinstance(op, Gemm) and op.transA):
            return None
        weights, rows = known(graph.constants.get(node.inputs[1])), graph.specs[name]
        if weights is None or weights.ndim != 2 or weights.nbytes > MOST_BYTES or len(rows.dims) != 2:
            return None
        while (maker := makers.get(name)) is not None and is_reshape(maker, is_custom):
            if readers[name] > 1 or name in results:
                return None
            name = maker.inputs[0]
        if name == node.inputs[0] or name not in packed or graph.specs[name].dtype not in KINDS:
            return None
        images, *sizes = graph.specs[name].dims
        if not all(isinstance(size, int) for size in sizes) or (images, prod(sizes)) != rows.dims:
            return None
        return name if sizes[0] % PACK == 0 and prod(sizes[1:]) > 1 else None

    found = {node.name: image for node in graph.nodes if (image := image_of(node)) is not None}
    if not found:
        return graph
    out, names = graph.copy(), Names(graph)
    out.nodes = []
    for node in graph.nodes:
        out.nodes += _in_place(out, node, found[node.name], layout, names) if node.name in found else [node]
    return without_dead_nodes(out)


def _packed_for_sure(graph: Graph, is_custom: IsCustom) -> set[str]:
    """Return the values that convolutions and the like make, which store blocks whoever reads them.

    A step of one operand stores its result as it reads that.
    """
    packed: set[str] = set()
    for node in graph.nodes:
        form = None if is_custom(node.op) else find_gpu_op(node.op)
        wanted = None if form is None else form.wanted_layout
        passed_on = wanted is WantedLayout.EITHER and len(node.inputs) == 1 and node.inputs[0] in packed
        if wanted is WantedLayout.CHANNELS or passed_on:
            packed.add(node.outputs[0])
    return packed


def _in_place(graph: Graph, node: Node, image: str, layout: Layout, names: Names) -> list[Node]:
    """Return the moves to rows in the order of memory, and the product with its weights in that order."""
    images, channels, *places = graph.specs[image].dims
    last = layout is Layout.NHWC4
    blocks, order = ((channels,), (1, 0)) if last else ((channels // PACK, PACK), (0, 2, 1))
    split = (*blocks, prod(places))
    moved = tuple(split[axis] for axis in order)
    made = (
        ("split", Reshape(), split, (int_array((images, *split)),)),
        ("moved", Transpose(perm=(0, *(axis + 1 for axis in order))), moved, ()),
        ("rows", Reshape(), (prod(split),), (int_array((images, prod(split))),)),
    )
    nodes, name = [], image
    for tag, move, dims, shape in made:
        read = [name, *(_constant(graph, f"{node.name}.shape", names, each) for each in shape)]
        name = names.fresh(f"{node.name}.{tag}")
        graph.specs[name] = TensorSpec((images, *dims), graph.specs[image].dtype)
        nodes.append(Node(name, move, tuple(read), (name,)))
    weights, columns = graph.constants[node.inputs[1]], graph.specs[node.outputs[0]].dims[-1]
    op = base_op(node.op)
    if isinstance(op, Gemm) and op.transB:
        turned = weights.reshape(columns, *split).transpose(0, *(axis + 1 for axis in order))
    else:
        turned = weights.reshape(*split, columns).transpose(*order, len(order))
    weights_name = _constant(graph, f"{node.inputs[1]}.moved", names, turned.reshape(weights.shape))
    return [*nodes, replace(node, inputs=(name, weights_name, *node.inputs[2:]))]


def _constant(graph: Graph, base: str, names: Names, value: Array) -> str:
    """Add a constant; return its name."""
    name = names.fresh(base)
    graph.constants[name] = value
    graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
    return name
