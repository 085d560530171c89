"""Put an element-wise node before a reshape of what it reads: then it can be computed where that is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.lowering.rewrites.changing_graph import ChangingGraph, known_of
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.moves import reshape as reshape_of
from weft.kernels.gpu_op import WantedLayout, find_gpu_op


@dataclass(frozen=True)
class Joinable:
    """A node and the element-wise one that may be computed where it stores what that reads, and the nodes around."""

    maker: Node
    node: Node
    also_read: tuple[str, ...]
    """Values that are read besides what `maker` makes, all but constants at least."""
    gone: tuple[Node, ...]
    """The nodes in whose place this one and the reshapes are."""
    known: Graph
    """The specs and constants of what all of these nodes read and make."""
    before: tuple[Node, ...] = ()
    """Reshapes of what is also read: they cost nothing, because kernels store that as rows."""
    after: tuple[Node, ...] = ()
    """The reshape of what the node makes, if what it read was reshaped."""


def is_reshape(node: Node, is_custom: IsCustom) -> bool:
    """Tell whether a node only gives a value another shape, which takes no launch."""
    form = None if is_custom(node.op) else find_gpu_op(node.op)
    return form is not None and form.wanted_layout is WantedLayout.ALIAS and len(node.outputs) == 1


def before_reshape(graph: ChangingGraph, reshape: Node, node: Node, is_custom: IsCustom) -> Joinable | str:
    """Return an element-wise node on what is reshaped, in place of one on the reshaped value; its result is reshaped.

    Return why there is none if the node would mean something else before the reshape. The graph stays as it is.
    """
    (read,), source = reshape.outputs, reshape.inputs[0]
    maker = graph.makers.get(source)
    if maker is None:
        return f"{source!r}, which {reshape.op.type} reshapes, is an input of this part of the network"
    rows = _rows_also_read(graph, reshape, node, is_custom)
    if isinstance(rows, str):
        return rows
    known, fresh, result = known_of(graph.graph, maker, reshape, node), graph.names.fresh, node.outputs[0]
    dims = known.specs[source].dims
    renamed, reshapes = {read: source}, []
    for name in rows:
        inner = renamed[name] = fresh(f"{name}.before")
        known.specs[inner] = TensorSpec(dims, known.specs[name].dtype)
        reshapes.append(reshape_of(known, graph.names, inner, name, inner))
    made = fresh(f"{result}.before")
    known.specs[made] = TensorSpec(dims, known.specs[result].dtype)
    inputs = tuple(renamed.get(i, i) for i in node.inputs)
    after = replace(reshape, name=fresh(f"{node.name}.reshape"), inputs=(made, *reshape.inputs[1:]), outputs=(result,))
    last = graph.readers[read] == node.inputs.count(read)
    return Joinable(
        maker,
        replace(node, inputs=inputs, outputs=(made,)),
        also_read=tuple(rows),
        gone=(node, reshape) if last else (node,),
        known=known,
        before=tuple(reshapes),
        after=(after,),
    )


def _rows_also_read(graph: ChangingGraph, reshape: Node, node: Node, is_custom: IsCustom) -> list[str] | str:
    """Return what a node reads besides a reshaped value and constants that fit before the reshape, too: all are rows.

    If it reads or makes anything else, return why it cannot be computed before the reshape.
    """
    specs, read, source = graph.graph.specs, reshape.outputs[0], reshape.inputs[0]
    dims, before, result = specs[read].dims, specs[source].dims, specs[node.outputs[0]]
    if result.dims != dims:
        return f"its result is {result}, and what it reads is {specs[read]}"
    rows = []
    for name in (i for i in dict.fromkeys(node.inputs) if i and i != read):
        if name in graph.graph.constants and _is_alike(specs[name].dims, dims, before):
            continue
        if specs[name].dims != dims or not _is_in_rows(graph, name, is_custom):
            return f"it also reads {name!r}, which does not fit {source!r}, of which that is a {reshape.op.type}"
        rows.append(name)
    if len(node.outputs) > 1:
        return f"the kernel of {base_op(node.op).type} stores {len(node.outputs)} values already"
    return rows


def _is_in_rows(graph: ChangingGraph, value: str, is_custom: IsCustom) -> bool:
    """Tell whether the kernel that makes a value stores it as rows, never in blocks of channels."""
    maker = graph.makers.get(value)
    form = None if maker is None or is_custom(maker.op) else find_gpu_op(base_op(maker.op))
    return form is not None and form.wanted_layout in (WantedLayout.LINEAR, WantedLayout.ALIAS)


def _is_alike(constant: Shape, dims: Shape, before: Shape) -> bool:
    """Tell whether a constant is broadcast to two shapes alike: it is a scalar, or these have its axes at their end."""
    first = next((a for a, d in enumerate(constant) if d != 1), len(constant))
    rank = len(constant) - first
    return len(constant) <= len(before) and (rank == 0 or dims[-rank:] == before[-rank:])
