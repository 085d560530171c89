"""Add a padded value to a whole rather than a value to a part of it: residuals of blocks that get wider."""

from __future__ import annotations

from functools import partial

from weft.core.graph.composite import Body, with_bodies
from weft.core.graph.graph import Graph, Node
from weft.core.graph.symbolic import has_open_size
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.parts import axis_of, interval_of


@graph_pass()
def pad_partial_sums(graph: Graph, context: PassContext) -> Graph:
    """Replace a Concat of x's first channels plus s, and the rest of x, by x plus s padded with zeros.

    x is an image that a convolution makes: it need not be divided, and the convolution adds as it stores. No other node
    may read the parts or their sum.
    """
    makers, readers = graph.producers(), graph.readers()
    found = {n.name: each for n in graph.nodes if (each := _sum(graph, makers, readers, n)) is not None}
    if not found:
        return graph
    return without_dead_nodes(with_bodies(graph, {name: partial(_padded, *each) for name, each in found.items()}))


def _padded(whole: str, added: str, make: Body) -> str:
    dims, before = make.dims(whole), make.dims(added)
    ends = make.ints(*(0 for _ in dims), *(size - own for size, own in zip(dims, before, strict=True)))
    return make.add("Add", whole, make.add("Pad", added, ends))


def _sum(graph: Graph, makers: dict[str, Node], readers: dict[str, int], concat: Node) -> tuple[str, str] | None:
    """Return a value and what is added to its first channels, if a Concat makes such a sum."""
    if concat.op.type != "Concat" or len(concat.inputs) != 2 or any(readers[i] != 1 for i in concat.inputs):
        return None
    total, rest = concat.inputs
    sums, dims = makers.get(total), graph.specs[total].dims
    if axis_of(concat, len(dims)) != 1:
        return None
    behind = interval_of(graph, makers.get(rest), rest, 1)
    if sums is None or sums.op.type != "Add" or behind is None or not graph.specs[total].dtype.is_float:
        return None
    maker = makers.get(behind.value)
    if maker is None or maker.op.type != "Conv":
        return None
    whole = graph.specs[behind.value].dims
    # Of images alone: what is stored element by element is joined without a launch.
    if len(whole) < 4 or whole != graph.specs[concat.outputs[0]].dims or whole[1:2] == dims[1:2]:
        return None
    for first, added in (sums.inputs, sums.inputs[::-1]):
        part = interval_of(graph, makers.get(first), first, 1)
        if part is None or part.value != behind.value or readers[first] != 1 or graph.specs[added].dims != dims:
            continue
        covers = (part.start, part.stop, behind.stop) == (0, behind.start, whole[1])
        if covers and not has_open_size((whole[1], dims[1])):
            return behind.value, added
    return None
