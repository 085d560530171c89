"""Find deviations of groups of channels that are spread over images, as EvoNorm's are exported."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.op import new_op
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES
from weft.core.passes.reader import Reader


@graph_pass()
def fuse_group_deviation(graph: Graph, context: PassContext) -> Graph:
    """Replace the root of a variance of groups of channels that an Expand spreads over the image by one op.

    The parts are ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt and Expand, with reshapes that divide the channels into
    groups and join them again. What reads the spread value fuses into the op: a norm that divides an activation of x.
    """
    if not Reader.has(graph, "Expand"):
        return graph
    reader = Reader(graph)
    for root in reader.nodes("Sqrt"):
        found = _variance(reader, root.inputs[0])
        if found is None:
            continue
        x, groups = _ungrouped(reader, found)
        spread = groups and _spread(reader, root.outputs[0], (x, found.of), groups)
        if spread:
            op = new_op("weft::GroupDeviation", num_groups=groups, epsilon=found.epsilon)
            reader.put(spread, Node(spread.name, op, (x,), spread.outputs))
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Variance:
    """The variance of a value along these axes, plus epsilon."""

    of: str
    axes: Shape
    epsilon: float


def _variance(reader: Reader, value: str) -> _Variance | None:
    """Return what a value is the variance of, if each part has one reader."""
    value = _bare(reader, value)
    epsilon, raised = 0.0, reader.maker(value, "Add")
    if raised is not None and reader.is_read_once(value):
        found = reader.with_number(raised)
        if found is None:
            return None
        epsilon, value = found[0], _bare(reader, found[1])
    node = reader.maker(value, "ReduceMean")
    if node is None or epsilon < 0 or not reader.is_read_once(value) or not reader.is_read_once(node.inputs[0]):
        return None
    centred = reader.maker(reader.square_of(node.inputs[0]), "Sub")
    mean = None if centred is None else reader.mean(centred.inputs[1])
    if centred is None or mean is None or mean != (centred.inputs[0], reader.axes(node)):
        return None
    return _Variance(*mean, epsilon)


def _bare(reader: Reader, value: str) -> str:
    """Return what a value was before reshapes of which nothing else reads a part."""
    while reader.is_read_once(value) and (node := reader.maker(value, *RESHAPES)) is not None:
        value = node.inputs[0]
    return value


def _ungrouped(reader: Reader, found: _Variance) -> tuple[str, int]:
    """Return the image of which the variance is, and the number of groups; 0 if it is not of groups of channels."""
    x, dims = found.of, reader.dims(found.of)
    rest = tuple(range(2, len(dims)))
    if len(dims) < 3 or found.axes not in (rest, (1, *rest)) or not isinstance(dims[1], int):
        return x, 0
    if found.axes != rest:
        return x, 1
    before = reader.maker(x, *RESHAPES)
    if before is None:
        return x, dims[1]
    whole = reader.dims(before.inputs[0])
    channels = whole[1] if len(whole) > 1 else 0
    fits = whole[:1] == dims[:1] and isinstance(channels, int) and dims[1] > 0 and channels % dims[1] == 0
    return (before.inputs[0], dims[1]) if channels and fits else (x, dims[1])


def _spread(reader: Reader, value: str, wholes: tuple[str, str], groups: int) -> Node | None:
    """Return the node that makes a deviation of groups as large as the image of the first of two shapes.

    That is an Expand to either shape, with what makes the first one of it.
    """
    image, grouped = map(reader.dims, wholes)
    node = reader.only_reader(value, "Expand", *RESHAPES)
    while node is not None and node.op.type != "Expand":
        node = reader.only_reader(node.outputs[0], "Expand", *RESHAPES)
    if node is None:
        return None
    before, after = reader.dims(node.inputs[0]), reader.dims(node.outputs[0])
    per_group = (grouped[0], groups, *(1 for _ in grouped[2:]))
    if before != per_group or after != grouped:
        return None
    while reader.dims(node.outputs[0]) != image:
        node = reader.only_reader(node.outputs[0], *RESHAPES)
        if node is None:
            return None
    return node
