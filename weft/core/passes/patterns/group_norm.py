"""Find group norms among their parts: exporters write them as an InstanceNormalization between two reshapes."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES
from weft.core.passes.reader import Reader
from weft.core.passes.rounding import exceeds, loses_more


@graph_pass()
def fuse_group_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace an InstanceNormalization of groups of channels, between two reshapes, by a GroupNormalization.

    A product and a sum behind it that are constants of the channels become its scale and bias, if these lose no more in
    the type that they are stored in than they do apart.
    """
    if not Reader.has(graph, "InstanceNormalization"):
        return graph
    reader = Reader(graph)
    for norm in reader.nodes("InstanceNormalization"):
        found = _ungrouped(reader, norm)
        given = reader.graph.input_constants(norm)[1:3]
        if found is None or any(each is None for each in given):
            continue
        x, root = found
        groups, channels = reader.dims(norm.inputs[0])[1], reader.dims(x)[1]
        dtype = reader.graph.specs[x].dtype.numpy
        scale, shift = (np.repeat(np.asarray(each, np.float64), channels // groups) for each in given)
        for kind in ("Mul", "Add"):
            behind = reader.only_reader(root.outputs[0], kind)
            factor = None if behind is None else _of_channels(reader, reader.other(behind, root.outputs[0]), x)
            if behind is None or factor is None:
                continue
            scaled, shifted = (scale * factor, shift * factor) if kind == "Mul" else (scale, shift + factor)
            new, *old = (each.astype(dtype) for each in (scaled, scale, factor))
            if loses_more(new, old, context.stored) or exceeds(shifted.astype(dtype), context.stored):
                context.leave(behind.name, f"{context.stored.value} would hold the norm's parameters less exactly")
                break
            root, scale, shift = behind, scaled, shifted
        _put(reader, root, x, groups, (scale, shift), norm)
    return reader.finish()


def _ungrouped(reader: Reader, norm: Node) -> tuple[str, Node] | None:
    """Return what is normalized in groups of channels, and the node that makes its shape again; None if it is not."""
    before = reader.maker(norm.inputs[0], *RESHAPES)
    after = reader.only_reader(norm.outputs[0], *RESHAPES)
    if before is None or after is None:
        return None
    x = before.inputs[0]
    dims, grouped = reader.dims(x), reader.dims(norm.inputs[0])
    fixed = len(dims) > 2 and isinstance(dims[1], int) and isinstance(grouped[1], int)
    same = fixed and dims[0] == grouped[0] and reader.dims(after.outputs[0]) == dims
    return (x, after) if same and grouped[1] > 0 and dims[1] % grouped[1] == 0 else None


def _of_channels(reader: Reader, value: str, x: str) -> Array | None:
    """Return a constant that has one number, or one for each channel of x, as an array of these; None for any other."""
    array, dims = reader.graph.constants.get(value), reader.dims(x)
    if array is None or not isinstance(array, np.ndarray) or array.ndim > len(dims):
        return None
    full = (1,) * (len(dims) - array.ndim) + array.shape
    if prod(full) not in (1, full[1]) or full[1] not in (1, dims[1]):
        return None
    return np.asarray(array, np.float64).reshape(-1)


def _put(reader: Reader, root: Node, x: str, groups: int, parameters: tuple[Array, Array], norm: Node) -> None:
    dtype, channels = reader.graph.specs[x].dtype, reader.dims(x)[1]
    names = [reader.names.fresh(f"{norm.name}.{tag}") for tag in ("scale", "bias")]
    for name, value in zip(names, parameters, strict=True):
        reader.graph.constants[name] = np.ascontiguousarray(np.broadcast_to(value, (channels,))).astype(dtype.numpy)
        reader.graph.specs[name] = TensorSpec((channels,), dtype)
    op = new_op("GroupNormalization", num_groups=groups, epsilon=norm.op.attributes()["epsilon"])
    reader.put(root, Node(root.name, op, (x, *names), root.outputs))
