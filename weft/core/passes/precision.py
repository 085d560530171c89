"""Store floats as fp32 or fp16 inside the network; its inputs and outputs keep their own types, bfloat16 among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.later_constants import converted
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, new_op
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.widened import Widened
from weft.core.host.derived_arrays import derived_arrays
from weft.core.host.shared_arrays import SHARED_FROM
from weft.core.host.threads import in_threads
from weft.core.passes.casts import WIDER_FLOATS
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property
from weft.core.passes.wide_values import (
    RELATIVE,
    limits_alone,
    makes_wide,
    masks,
    spreads,
    wide_and_extreme,
)

CASTS = frozenset({"Cast", "CastLike"})
MIXING = frozenset({"MatMul", "Einsum", "Transpose", "Reshape", "Squeeze", "Unsqueeze"})
"""What reads the shares of a softmax in an attention."""
EXACT = {
    to: frozenset(t for t in DType if t is to or t is DType.BOOL or (t.is_integer and t.bits <= 8) or t in held)
    for to, held in (
        (DType.FLOAT16, {t for t in DType if t.is_small_float} - {DType.FLOAT8E8M0}),
        (DType.BFLOAT16, {t for t in DType if t.is_small_float}),
    )
}
"""The types of which a narrow float holds all numbers."""
PIECE = 1 << 20
"""Elements that a thread converts at a time: a network may have one large constant."""
LARGEST, INFINITE = 0x7BFF, 0x7C00
"""The bits of the largest finite number and of infinity in fp16, without the sign; the bits of NaN are larger."""
OTHERS = {
    DType.FLOAT32: frozenset({DType.FLOAT16, DType.BFLOAT16}),
    DType.FLOAT16: frozenset({DType.FLOAT32, DType.BFLOAT16}),
}


def _stored_otherwise(graph: Graph, dtype: DType) -> list[str]:
    others, edge = OTHERS[dtype], {*graph.inputs, *graph.outputs}
    kept = _nodes_that_keep(graph, dtype)
    for node in (n for n in graph.nodes if n.name in kept):
        edge.update(node.inputs[k] for k in kept[node.name].inputs)
        edge.update(node.outputs if kept[node.name].outputs else ())
    # A graph may keep specs of values that do not exist, such as an output of a Split that no node reads.
    values = dict.fromkeys(v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v)
    return [v for v in values if v not in edge and graph.specs[v].dtype in others]


FLOATS_AS_FLOAT32 = Property("floats are stored as float32", lambda graph: _stored_otherwise(graph, DType.FLOAT32))
FLOATS_AS_FLOAT16 = Property("floats are stored as float16", lambda graph: _stored_otherwise(graph, DType.FLOAT16))


@graph_pass(ensures=(FLOATS_AS_FLOAT32,))
def store_as_float32(graph: Graph, context: PassContext) -> Graph:
    """Store floats as float32 inside the network, with casts at its edges, so that passes compute in float32.

    The network's own casts to narrower floats round to them, unless these will be stored as float16: `narrowing_casts`.
    """
    narrowing = narrowing_casts(graph) if context.stored is DType.FLOAT32 else frozenset()
    return _stored(graph, DType.FLOAT32, context, narrowing)


@graph_pass(ensures=(FLOATS_AS_FLOAT16,))
def store_as_float16(graph: Graph, context: PassContext) -> Graph:
    """Store floats as float16 inside the network, with casts at its edges: precision LOW."""
    return _stored(graph, DType.FLOAT16, context)


def narrowing_casts(graph: Graph) -> frozenset[str]:
    """Return the names of casts to float16 and bfloat16 that may change numbers which something in the graph reads.

    A cast whose result only leaves the network does not count: its output has that type anyway. Nor does a cast that
    undoes casts to wider types, or that stands between a softmax and a product: the attention that they are part of is
    computed as a whole, and keeps these numbers.
    """
    makers = graph.producers()
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for i in dict.fromkeys(node.inputs):
            readers.setdefault(i, []).append(node)
    found = set()
    for node in graph.nodes:
        if node.op.type not in CASTS or graph.specs[node.outputs[0]].dtype not in EXACT:
            continue
        to, source = graph.specs[node.outputs[0]].dtype, node.inputs[0]
        maker = makers.get(source)
        while maker is not None and maker.op.type in CASTS and _is_exact(graph, maker):
            source = maker.inputs[0]
            maker = makers.get(source)
        reading = readers.get(node.outputs[0], [])
        is_share = maker is not None and maker.op.type == "Softmax" and all(n.op.type in MIXING for n in reading)
        if reading and not is_share and graph.specs[source].dtype not in EXACT[to]:
            found.add(node.name)
    return frozenset(found)


def _is_exact(graph: Graph, cast: Node) -> bool:
    """Tell whether a cast loses nothing."""
    source, to = (graph.specs[value].dtype for value in (cast.inputs[0], cast.outputs[0]))
    return source is to or to in WIDER_FLOATS.get(source, ()) or source in EXACT.get(to, ())


def _stored(graph: Graph, dtype: DType, context: PassContext, narrowing: frozenset[str] = frozenset()) -> Graph:
    after = set_storage(graph, dtype, narrowing, for_now=context.stored is not dtype)
    for node in after.nodes if after is not graph else ():
        for value in node.outputs:
            # Some outputs have a fixed type, such as the mean of a LayerNormalization.
            made = after.specs[value].dtype if value else dtype
            if node.op.type != "Cast" and made in OTHERS[dtype]:
                context.leave(value, f"{node.op.type} always makes it as {made.value}")
    return after


def set_storage(
    graph: Graph, dtype: DType, narrowing: frozenset[str] = frozenset(), *, for_now: bool = False
) -> Graph:
    """Return the graph with every fp32, fp16 and bfloat16 value stored as `dtype`, and casts at its edges.

    Explicit casts between these types become casts to `dtype`, and those named in `narrowing` round to the type that
    they name. Ops compute in fp32 either way. What an op that keeps its types reads and makes has its own type there,
    and is cast before and after. So is what an op makes in one type whatever it reads, and, if `dtype` is float16, so
    are the values of `wide_values`; `masks` among them are clipped to what float16 holds before they are cast. Large
    constants of float16 that are float32 `for_now` become `Widened`.
    """
    others = OTHERS[dtype]
    if not any(s.dtype in others for s in graph.specs.values()):
        return graph
    out = graph.copy()
    kept = _nodes_that_keep(graph, dtype)
    clipped = masks(graph) if dtype is DType.FLOAT16 else frozenset()
    names, given = Names(graph), set(graph.inputs)
    read = {i for n in graph.nodes for k, i in enumerate(n.inputs) if k not in kept.get(n.name, _NONE).inputs}
    narrow = [i for i in graph.inputs if graph.specs[i].dtype in others and i in read]
    inside = {i: _name(out, i, dtype, names) for i in narrow}
    made = [o for o in graph.outputs if graph.specs[o].dtype in others and o not in given]
    outside = {o: _name(out, o, dtype, names) for o in made}
    renamed = inside | outside
    out.nodes = [_cast(out, f"{i}.{dtype.value}", i, new, dtype, names) for i, new in inside.items()]
    floats = {name: value for name, value in graph.constants.items() if graph.specs[name].dtype in others}
    held = {name: value for name, value in floats.items() if name in read or name in renamed}
    stored_values = _converted(list(held.values()), dtype, for_now)
    limits = limits_alone(graph) if dtype is DType.FLOAT16 else frozenset()
    for name, array in zip(held, stored_values, strict=True):
        stored = renamed.get(name, name)
        out.constants[stored] = _limit(held[name]) if name in limits and not is_symbolic(held[name]) else array
        out.specs[stored] = replace(graph.specs[name], dtype=dtype)
    exact = {i: i for i in (*graph.inputs, *(floats.keys() - held.keys()))}
    exact |= {o: o for o in graph.outputs if o in graph.constants}
    """The names of values in their own types, where there are any."""
    for node in graph.nodes:
        keeps = kept.get(node.name, _NONE)
        inputs, outputs = [renamed.get(i, i) for i in node.inputs], [renamed.get(o, o) for o in node.outputs]
        for k in sorted(keeps.inputs):
            value = node.inputs[k]
            if value and graph.specs[value].dtype in others:
                if value not in exact:
                    exact[value] = _exact(graph, out, value, inputs[k], names)
                inputs[k] = exact[value]
        if node.name in narrowing:
            out.nodes += _narrow(out, node, inputs[0], outputs[0], graph.specs[node.outputs[0]].dtype, names)
            continue
        op = node.op if keeps.outputs else _retarget(node.op, others, dtype)
        typed = replace(node, op=op, inputs=tuple(inputs), outputs=tuple(outputs))
        infer_node(out, typed)
        behind = []
        for k, value in enumerate(node.outputs):
            # What keeps its type, or always has it, as the mean of a LayerNormalization, is cast for its readers.
            kind = out.specs[outputs[k]].dtype if value else dtype
            if kind not in others or graph.specs[value].dtype not in others:
                continue
            own = value if value in graph.outputs else _name(out, value, kind, names)
            if value in read:
                source = own
                if value in clipped and kind is DType.FLOAT32:
                    source = _name(out, f"{value}.clipped", kind, names, like=value)
                    behind.append(_clip(out, own, source, names))
                behind.append(_cast(out, f"{value}.{dtype.value}", source, outputs[k], dtype, names))
            exact[value] = outputs[k] = own
        node = replace(typed, outputs=tuple(outputs))
        out.nodes += [node, *behind]
    if dtype is DType.FLOAT16:  # what keeps its type
        out.constants = {n: v.wide if isinstance(v, Widened) else v for n, v in out.constants.items()}
    out.overflowing = graph.overflowing | {exact[v] for v in graph.overflowing & exact.keys()}
    for name, new in outside.items():
        if name not in graph.constants and exact.get(name) != name:
            kind = graph.specs[name].dtype
            out.nodes.append(_cast(out, f"{name}.{kind.value}", new, name, kind, names))
    return out


@dataclass(frozen=True)
class _Keeps:
    """The positions of a node's inputs that keep their own types, and whether its outputs do."""

    inputs: frozenset[int] = frozenset()
    outputs: bool = False


_NONE = _Keeps()


def _nodes_that_keep(graph: Graph, dtype: DType) -> dict[str, _Keeps]:
    """Return the nodes of which some inputs or outputs are not stored as `dtype`, by name."""
    wide, extreme = wide_and_extreme(graph) if dtype is DType.FLOAT16 else (frozenset[str](), frozenset[str]())
    found = {}
    for node in graph.nodes:
        every = frozenset(range(len(node.inputs)))
        is_wide = not wide.isdisjoint(node.outputs)
        is_relative = node.op.type in RELATIVE
        can_make = spreads(node) or is_relative
        read = wide if node.op.is_elementwise else graph.overflowing | extreme if is_relative else graph.overflowing
        if node.op.keeps_types or (is_wide and (can_make or makes_wide(graph, node))):
            found[node.name] = _Keeps(every, outputs=True)
        elif not read.isdisjoint(node.inputs):
            found[node.name] = _Keeps(every)
        elif wide and node.op.wide_inputs:
            found[node.name] = _Keeps(every.intersection(node.op.wide_inputs))
        elif dtype is DType.FLOAT16 and node.op.exact_parameters:
            exact = (k for k in node.op.exact_parameters if k in every and node.inputs[k] in graph.constants)
            found[node.name] = _Keeps(frozenset(exact))
    return found


def _exact(graph: Graph, out: Graph, value: str, stored: str, names: Names) -> str:
    """Return the name of a value in its own type: of a constant as it was, else of a cast that is added."""
    kind = graph.specs[value].dtype
    name = _name(out, value, kind, names)
    out.specs[name] = graph.specs[value]
    if value in graph.constants:
        out.constants[name] = graph.constants[value]
    else:
        out.nodes.append(_cast(out, f"{value}.{kind.value}", stored, name, kind, names))
    return name


def _converted(values: Sequence[Array], dtype: DType, for_now: bool) -> list[Array]:
    """Return constants in another type: those that were converted before and are in use, and new ones.

    Large ones that are float32 `for_now` are converted once something reads them.
    """
    convert = to_float16 if dtype is DType.FLOAT16 else _wide
    made: list[Any] = [None] * len(values)
    pieces: list[tuple[Array, Array]] = []
    for k, value in enumerate(values):
        if is_symbolic(value):
            made[k] = converted(value, convert, dtype)
        elif isinstance(value, Widened):
            made[k] = np.ascontiguousarray(value.narrow)
        elif for_now and value.dtype == np.float16 and value.nbytes >= SHARED_FROM:
            made[k] = Widened(value)
        elif (found := derived_arrays.find(dtype, [value])) is not None:
            made[k] = found[0]
        else:
            made[k] = np.empty(value.shape, dtype.numpy)
            flat, target = np.ascontiguousarray(value).reshape(-1), made[k].reshape(-1)
            starts = range(0, flat.size, PIECE)
            pieces += [(target[at : at + PIECE], flat[at : at + PIECE]) for at in starts]

    def fill(piece: tuple[Array, Array]) -> None:
        piece[0][...] = convert(piece[1])

    in_threads(fill, pieces, sum(target.nbytes for target, _ in pieces))
    for value, new in zip(values, made, strict=True):
        if not is_symbolic(value) and not isinstance(value, Widened) and not isinstance(new, Widened):
            derived_arrays.note(dtype, [value], [new])
            if dtype is DType.FLOAT32 and value.dtype == np.float16:
                derived_arrays.note(DType.FLOAT16, [new], [value])  # fp32 holds it: the way back makes the same bits
    return made


def _wide(value: Array) -> Array:
    return value.astype(np.float32)


def _limit(value: Array) -> Array:
    """Return a limit in fp16; infinite if it is beyond, or a fused kernel would limit what fp16 alone cannot hold."""
    with np.errstate(over="ignore"):
        return value.astype(np.float16)


def to_float16(value: Array) -> Array:
    """Return the value in fp16. Finite numbers stay finite, or a mask of -3e38 would make a softmax NaN."""
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    if half.size and not are_finite_halves(half):
        value = value.astype(np.float32, copy=False)
        most = np.finfo(np.float16).max
        half = np.where(np.isfinite(value), np.clip(value, -most, most), value).astype(np.float16)
    return half


def are_finite_halves(half: Array, *, but_lowest: bool = False) -> bool:
    """Tell whether some fp16 numbers, at least one, are finite, or, `but_lowest`, minus infinity.

    Their bits tell: as integers, those of negative numbers are the larger ones, or without a sign, negative.
    """
    bits = half.view(np.uint16)
    return bool(bits.view(np.int16).max() < INFINITE and bits.max() < (INFINITE | 0x8000) + but_lowest)


def magnitude(half: Array) -> Array:
    """Return the bits of fp16 numbers without the sign: as integers they have the order of the magnitudes."""
    bits: Array = half.view(np.uint16) & 0x7FFF
    return bits


def _name(graph: Graph, value: str, dtype: DType, names: Names, *, like: str = "") -> str:
    name = names.fresh(f"{value}.{dtype.value}")
    graph.specs[name] = replace(graph.specs[like or value], dtype=dtype)
    return name


def _clip(graph: Graph, source: str, target: str, names: Names) -> Node:
    """Return a node that keeps float32 numbers between the ends of float16."""
    most = float(np.finfo(np.float16).max)
    ends = []
    for end in (-most, most):
        ends.append(names.fresh(f"{target}.end"))
        graph.constants[ends[-1]] = np.array(end, np.float32)
        graph.specs[ends[-1]] = TensorSpec((), DType.FLOAT32)
    return Node(names.fresh(f"Clip.{target}"), new_op("Clip"), (source, *ends), (target,))


def _cast(graph: Graph, name: str, source: str, target: str, to: DType, names: Names) -> Node:
    node = Node(names.fresh(f"Cast.{name}"), new_op("Cast", to=to), (source,), (target,))
    graph.specs[target] = replace(graph.specs[source], dtype=to)
    return node


def _narrow(graph: Graph, node: Node, source: str, target: str, held: DType, names: Names) -> list[Node]:
    """Return nodes that round a value of any type to the numbers of a narrower one, stored as float32."""
    nodes = []
    if graph.specs[source].dtype is not DType.FLOAT32:
        wide = _name(graph, source, DType.FLOAT32, names)
        nodes.append(_cast(graph, f"{node.name}.{DType.FLOAT32.value}", source, wide, DType.FLOAT32, names))
        source = wide
    nodes.append(replace(node, op=new_op("weft::Narrow", held=held), inputs=(source,), outputs=(target,)))
    infer_node(graph, nodes[-1])
    return nodes


def _retarget(op: Op, others: frozenset[DType], dtype: DType) -> Op:
    fields = op.attributes()
    meant = {field: dtype for field in ("to", "dtype", "output_dtype") if fields.get(field) in others}
    return replace(op, **meant) if meant else op
