"""Find RMS norms among their parts, as exporters write them before opset 23."""

from __future__ import annotations

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.symbolic import known
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.quotients import (
    Over,
    Quotient,
    full_dims,
    is_known,
    over_last_axes,
    put_norm,
    quotients,
)
from weft.core.passes.reader import Reader


@graph_pass()
def fuse_rms_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace x / sqrt(mean of x * x + epsilon), and a product with constants behind it, by an RMSNormalization.

    The mean is over the last axes, along which the constants may vary. A float16 or bfloat16 x may be cast to float32
    first, and the result back, before or behind the product. In float16 the parts overflow where x is above 255; the
    op computes them in float32.
    """
    return with_rms_norms(graph, over_last_axes)


def with_rms_norms(graph: Graph, over: Over) -> Graph:
    """Return the graph with RMS norms over such axes in place of their parts."""
    if not Reader.has(graph, "ReduceMean"):
        return graph
    reader = Reader(graph)
    for found in quotients(reader, over):
        if _narrow(reader, found.dividend) == _narrow(reader, found.squared):
            _put(reader, found)
    return reader.finish()


def _narrow(reader: Reader, value: str) -> str:
    """Return what a cast to float32 reads, if it loses nothing; else the value itself."""
    cast = reader.maker(value, "Cast")
    if cast is None or reader.graph.specs[value].dtype is not DType.FLOAT32:
        return value
    source = reader.graph.specs[cast.inputs[0]].dtype
    return cast.inputs[0] if source in (DType.FLOAT16, DType.BFLOAT16) else value


def _put(reader: Reader, found: Quotient) -> None:
    """Replace the quotient, or the product or the cast behind it."""
    x, root, scale = found.squared, found.node, ""
    source = _narrow(reader, x)
    cast = _cast_back(reader, root, source) if source != x else None
    if cast is not None:
        x, root = source, cast
    scaled = reader.only_reader(root.outputs[0], "Mul")
    if scaled is not None and _scales(reader, scaled, root.outputs[0], found.axes):
        scale = reader.other(scaled, root.outputs[0])
        root = scaled
        cast = _cast_back(reader, root, source) if source != x else None
        if cast is not None:
            narrowed = _exact(reader, scale, source)
            if narrowed:
                x, root, scale = source, cast, narrowed
    epsilon = {"epsilon": found.epsilon}
    put_norm(reader, root, "RMSNormalization", x, found.axes, epsilon, (scale or reader.one(x),))


def _cast_back(reader: Reader, node: Node, source: str) -> Node | None:
    """Return the only reader of a node, if it is a cast to the type of `source`."""
    cast = reader.only_reader(node.outputs[0], "Cast")
    specs = reader.graph.specs
    return cast if cast and specs[cast.outputs[0]].dtype is specs[source].dtype else None


def _scales(reader: Reader, product: Node, value: str, axes: Shape) -> bool:
    """Tell whether a product is with a constant that varies along these axes of a value at most."""
    factor, dims = reader.other(product, value), reader.dims(value)
    if not is_known(reader, factor) or reader.dims(product.outputs[0]) != dims:
        return False
    return all(size == 1 or axis in axes for axis, size in enumerate(full_dims(reader, factor, len(dims))))


def _exact(reader: Reader, scale: str, source: str) -> str:
    """Return a constant in the type of `source`; nothing if that does not hold its values."""
    graph = reader.graph
    value, dtype = known(graph.constants[scale]), graph.specs[source].dtype
    if value is None:
        return ""
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype.numpy)
    return reader.add(scale, narrow) if np.array_equal(narrow.astype(value.dtype), value) else ""
