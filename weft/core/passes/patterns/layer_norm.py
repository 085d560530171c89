"""Find layer norms among their parts, as exporters write them before opset 17."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.quotients import Quotient, quotients
from weft.core.passes.patterns.reading import Reader, make


@graph_pass()
def fuse_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace (x - mean) / sqrt(variance + epsilon) * scale + shift by a LayerNormalization.

    The parts are ReduceMean, Sub, Pow (or Mul), ReduceMean, Add, Sqrt, a division (see `quotients`) and, if there are a
    scale and a shift, Mul and Add. The means are over the last axes; scale and shift have the shape of these axes.
    """
    if not Reader.has(graph, "ReduceMean"):
        return graph
    # A dead node that reads a value in between would keep the parts, and go with the first norm that is found.
    reader = Reader(without_dead_nodes(graph))
    for found in quotients(reader):
        centred = _centred(reader, found.squared)
        if centred and centred[1] == found.axis and _centred(reader, found.dividend) == centred:
            _put(reader, found, centred[0])
    return reader.finish() if reader.replaced else graph


def _centred(reader: Reader, value: str) -> tuple[str, int] | None:
    """Return x and the first axis of the mean, if a value is x minus its mean."""
    node = reader.maker(value, "Sub")
    mean = node and reader.mean(node.inputs[1])
    return mean if node and mean and mean[0] == node.inputs[0] else None


def _put(reader: Reader, found: Quotient, x: str) -> None:
    """Replace the quotient, the product with the scale, or the sum with the shift behind it."""
    wanted = reader.dims(x)[found.axis :]
    root, scale = _with_parameter(reader, found.node, "Mul", wanted)
    root, shift = _with_parameter(reader, root, "Add", wanted)
    parameters = [scale or reader.one(x), *([shift] if shift else [])]
    op = make("LayerNormalization", axis=-len(wanted), epsilon=found.epsilon)
    reader.put(root, Node(root.name, op, (x, *parameters), root.outputs))


def _with_parameter(reader: Reader, node: Node, kind: str, shape: Shape) -> tuple[Node, str]:
    """Return the reader of a node that applies a constant of this shape, and the constant; else the node, and none."""
    value = node.outputs[0]
    found = reader.only_reader(value, kind)
    parameter = reader.other(found, value) if found else ""
    fits = parameter in reader.graph.constants and reader.dims(parameter) == shape
    return (found, parameter) if found and fits else (node, "")
