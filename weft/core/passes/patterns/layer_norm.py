"""Find layer norms among their parts, as exporters write them before opset 17."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.reading import Reader, make


@graph_pass()
def fuse_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace (x - mean) / sqrt(variance + epsilon) * scale + shift by a LayerNormalization.

    The parts are ReduceMean, Sub, Pow (or Mul), ReduceMean, Add, Sqrt, Div, Mul and, if there is a shift, Add. The
    means are over the last axes; scale and shift have the shape of these axes.
    """
    if not Reader.has(graph, "Sqrt"):
        return graph
    reader = Reader(graph)
    for root in reader.nodes("Sqrt"):
        found = _variance(reader, root)
        if found is None:
            continue
        x, axis, epsilon = found
        for quotient in reader.readers(root.outputs[0], "Div"):
            if quotient.inputs[1] == root.outputs[0] and _centred(reader, quotient.inputs[0]) == (x, axis):
                _put(reader, quotient, x, axis, epsilon)
    return reader.finish()


def _variance(reader: Reader, root: Node) -> tuple[str, int, float] | None:
    """Return x, the first normalized axis, and epsilon, if the Sqrt takes the variance of x plus epsilon."""
    shifted = reader.with_number(reader.maker(root.inputs[0], "Add"))
    mean = shifted and reader.mean(shifted[1])
    if shifted is None or mean is None:
        return None
    square = reader.maker(mean[0], "Pow", "Mul")
    if square is None:
        return None
    centred, power = square.inputs
    twice = power == centred if square.op.type == "Mul" else reader.number(power) == 2
    found = _centred(reader, centred) if twice else None
    return (*found, shifted[0]) if found is not None and found[1] == mean[1] else None


def _centred(reader: Reader, value: str) -> tuple[str, int] | None:
    """Return x and the first axis of the mean, if a value is x minus its mean."""
    node = reader.maker(value, "Sub")
    mean = node and reader.mean(node.inputs[1])
    return mean if node and mean and mean[0] == node.inputs[0] else None


def _put(reader: Reader, quotient: Node, x: str, axis: int, epsilon: float) -> None:
    """Replace the product with the scale, or the sum with the shift behind it."""
    scaled = reader.only_reader(quotient.outputs[0], "Mul")
    scale = scaled and reader.other(scaled, quotient.outputs[0])
    wanted = reader.dims(x)[axis:]
    if scaled is None or not scale or not _is_parameter(reader, scale, wanted):
        return
    root, inputs = scaled, [x, scale]
    total = reader.only_reader(scaled.outputs[0], "Add")
    if total is not None:
        shift = reader.other(total, scaled.outputs[0])
        if _is_parameter(reader, shift, wanted):
            root, inputs = total, [x, scale, shift]
    op = make("LayerNormalization", axis=axis - len(reader.dims(x)), epsilon=epsilon)
    reader.put(root, Node(root.name, op, tuple(inputs), root.outputs))


def _is_parameter(reader: Reader, value: str, shape: Shape) -> bool:
    return value in reader.graph.constants and reader.dims(value) == shape
