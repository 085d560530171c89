"""Store floats as fp32 or fp16 inside the network; its inputs and outputs keep their own types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, find_op
from weft.core.host.threads import in_threads
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property
from weft.errors import WeftError

LARGEST, INFINITE = 0x7BFF, 0x7C00
"""The bits of the largest finite number and of infinity in fp16, without the sign; those of NaN are larger."""
OTHER = {DType.FLOAT32: DType.FLOAT16, DType.FLOAT16: DType.FLOAT32}


def _stored_otherwise(graph: Graph, dtype: DType) -> list[str]:
    other, edge = OTHER[dtype], {*graph.inputs, *graph.outputs}
    # A graph may keep specs of values that are gone: an output of a Split that nobody reads, for one.
    values = dict.fromkeys(v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v)
    return [v for v in values if v not in edge and graph.specs[v].dtype is other]


FLOATS_AS_FLOAT32 = Property("floats are stored as float32", lambda graph: _stored_otherwise(graph, DType.FLOAT32))
FLOATS_AS_FLOAT16 = Property("floats are stored as float16", lambda graph: _stored_otherwise(graph, DType.FLOAT16))


@graph_pass(ensures=(FLOATS_AS_FLOAT32,))
def store_as_float32(graph: Graph, context: PassContext) -> Graph:
    """Store floats as float32 inside the network, with casts at its edges, so that rewrites compute in it."""
    return _stored(graph, DType.FLOAT32, context)


@graph_pass(ensures=(FLOATS_AS_FLOAT16,))
def store_as_float16(graph: Graph, context: PassContext) -> Graph:
    """Store floats as float16 inside the network, with casts at its edges: precision LOW."""
    return _stored(graph, DType.FLOAT16, context)


def _stored(graph: Graph, dtype: DType, context: PassContext) -> Graph:
    after = set_storage(graph, dtype)
    for node in after.nodes if after is not graph else ():
        for value in node.outputs:
            # The mean of a LayerNormalization, for one, has a type of its own.
            if value and node.op.type != "Cast" and after.specs[value].dtype is OTHER[dtype]:
                context.leave(value, f"{node.op.type} makes it as {OTHER[dtype].value}, whatever it reads")
    return after


def set_storage(graph: Graph, dtype: DType) -> Graph:
    """Return the graph with every fp32 and fp16 value stored as `dtype`, and casts at its edges.

    Explicit casts between the two become casts to `dtype`. Ops compute in fp32 either way.
    """
    other = OTHER[dtype]
    if not any(s.dtype is other for s in graph.specs.values()):
        return graph
    out = graph.copy()
    names, given = Names(graph), set(graph.inputs)
    read = {i for n in graph.nodes for i in n.inputs}
    narrow = [i for i in graph.inputs if graph.specs[i].dtype is other and i in read]
    inside = {i: _name(out, i, dtype, names) for i in narrow}
    made = [o for o in graph.outputs if graph.specs[o].dtype is other and o not in given]
    outside = {o: _name(out, o, dtype, names) for o in made}
    renamed = inside | outside
    out.nodes = [_cast(out, f"{i}.{dtype.value}", i, new, dtype, names) for i, new in inside.items()]
    held = {name: value for name, value in graph.constants.items() if value.dtype == other.numpy}
    nbytes = sum(value.nbytes for value in held.values())
    stored_values = in_threads(_narrow if dtype is DType.FLOAT16 else _wide, list(held.values()), nbytes)
    for name, value in zip(held, stored_values, strict=True):
        stored = renamed.get(name, name)
        out.constants[stored] = value
        out.specs[stored] = replace(graph.specs[name], dtype=dtype)
    for node in graph.nodes:
        node = replace(
            node,
            op=_retarget(node, other, dtype),
            inputs=tuple(renamed.get(i, i) for i in node.inputs),
            outputs=tuple(renamed.get(o, o) for o in node.outputs),
        )
        infer_node(out, node)
        out.nodes.append(node)
    cast = [(name, new) for name, new in outside.items() if name not in graph.constants]
    out.nodes += [_cast(out, f"{name}.{other.value}", new, name, other, names) for name, new in cast]
    return out


def _wide(value: Array) -> Array:
    return value.astype(np.float32)


def _narrow(value: Array) -> Array:
    """Return the value in fp16; what is finite stays so, or masks such as -3e38 would make NaN of a softmax."""
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    if half.size and magnitude(half).max() >= INFINITE:
        most = np.finfo(np.float16).max
        half = np.where(np.isfinite(value), np.clip(value, -most, most), value).astype(np.float16)
    return half


def magnitude(half: Array) -> Array:
    """Return the bits of fp16 numbers without the sign, which are in the order of the magnitudes."""
    bits: Array = half.view(np.uint16) & 0x7FFF
    return bits


def _name(graph: Graph, value: str, dtype: DType, names: Names) -> str:
    name = names.fresh(f"{value}.{dtype.value}")
    graph.specs[name] = replace(graph.specs[value], dtype=dtype)
    return name


def _cast(graph: Graph, name: str, source: str, target: str, to: DType, names: Names) -> Node:
    cast = find_op("Cast")
    if cast is None:
        raise WeftError("no Cast op is registered", fix="import weft.ops")
    node = Node(names.fresh(f"Cast.{name}"), cast(to=to), (source,), (target,))  # type: ignore[call-arg]
    graph.specs[target] = replace(graph.specs[source], dtype=to)
    return node


def _retarget(node: Node, other: DType, dtype: DType) -> Op:
    fields = node.op.attributes()
    for field in ("to", "dtype"):
        if fields.get(field) is other:
            return replace(node.op, **{field: dtype})
    return node.op
