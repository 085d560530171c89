"""How each op computes where sizes have capacities: as it is, with padding hidden, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import LaterConstant
from weft.core.placement.capacity.axes import Axes, Axis, NoCapacity, is_padded, padded_to, regrouped
from weft.core.placement.open_network import Placed

if TYPE_CHECKING:
    from weft.core.placement.capacity.builder import Builder

ROWS = frozenset(
    "RotaryEmbedding com.microsoft::RotaryEmbedding com.microsoft::MatMulNBits com.microsoft::GatherBlockQuantized "
    "com.microsoft::SimplifiedLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization "
    "com.microsoft::SkipLayerNormalization com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::QuickGelu "
    "SimplifiedLayerNormalization L2Normalization SumNormalization".split()
)
"""Ops that compute each row of the last axis by itself, and give each output the other axes of the first input."""
RESHAPES = frozenset("Reshape Flatten Squeeze Unsqueeze".split())
NEUTRAL: Mapping[str, float] = {
    "ReduceSum": 0.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceSumSquare": 0.0, "ReduceLogSum": 0.0, "ReduceProd": 1.0,
    "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceLogSumExp": -np.inf, "ReduceMean": 0.0,
    "ArgMax": -np.inf, "ArgMin": np.inf, "CumSum": 0.0,
}  # fmt: skip
"""What padding is replaced by, so that the op does not see it."""


NORMS = frozenset("LayerNormalization RMSNormalization".split())
"""Ops that normalise along the axes from `axis` on."""


Rule = Callable[["Builder", Node], None]
RULES: dict[str, Rule] = {}
"""By op type."""


def _rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _ints(build: Builder, name: str) -> list[Any]:
    """Return the integers of a constant, which may be open."""
    value = build.source.constants.get(name)
    if value is None or isinstance(value, LaterConstant):
        raise NoCapacity("where a node reads follows from values that a run computes")
    return list(value.reshape(-1))


@_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(build: Builder, node: Node) -> None:
    x = build.read(node.inputs[0])
    parts = [p for axis in build.axes[x] for p in axis]
    axes = regrouped(parts, [build.polynomial(d) for d in build.source.specs[node.outputs[0]].dims])
    dims = build.extents(axes)
    build.keep(node, (x, build.make.ints(*dims)), axes, op=new_op("Reshape", allowzero=int(0 in dims)))
    zero = {build.axes[x][k] for k in build.zeros.get(x, ())}
    build.zeros[node.outputs[0]] = {k for k, axis in enumerate(axes) if axis in zero}


@_rule("Expand")
def _expand(build: Builder, node: Node) -> None:
    x = build.read(node.inputs[0])
    wanted = build.open_axes(build.source.specs[node.outputs[0]].dims)
    ahead = len(wanted) - len(build.axes[x])
    axes = (*wanted[:ahead], *(a or w for a, w in zip(build.axes[x], wanted[ahead:], strict=True)))
    build.keep(node, (x, build.make.ints(*build.extents(axes))), axes)


@_rule("Identity", "Dropout")
def _identity(build: Builder, node: Node) -> None:
    if len(node.outputs) > 1:
        raise NoCapacity(f"{node.op.type} has a mask as an output")
    x = build.read(node.inputs[0])
    build.become(node, x, build.axes[x])


@_rule("Transpose")
def _transpose(build: Builder, node: Node) -> None:
    x = build.read(node.inputs[0])
    order = [*node.op.order(len(build.axes[x]))]  # type: ignore[attr-defined]
    build.keep(node, (x,), tuple(build.axes[x][k] for k in order))
    build.zeros[node.outputs[0]] = {order.index(k) for k in build.zeros.get(x, ())}


@_rule("Split")
def _split(build: Builder, node: Node) -> None:
    x, *sizes = (build.read(i) for i in node.inputs if i)
    axis = _axis_of(node, build.axes[x])
    if is_padded(build.axes[x][axis]):
        raise NoCapacity("a size that grows is split")
    each = [build.axis(build.source.specs[o].dims[axis]) for o in node.outputs]
    axes = [(*build.axes[x][:axis], part, *build.axes[x][axis + 1 :]) for part in each]
    build.keep(node, (x, *sizes), *axes)


def _axis_of(node: Node, axes: Axes) -> int:
    axis: int = node.op.axis  # type: ignore[attr-defined]
    return axis % max(len(axes), 1)


@_rule("Concat")
def _concat(build: Builder, node: Node) -> None:
    inputs = [build.read(i) for i in node.inputs]
    axis = _axis_of(node, build.axes[inputs[0]])
    parts = [build.axes[i][axis] for i in inputs]
    whole = build.axis(build.source.specs[node.outputs[0]].dims[axis])
    rest = build.broadcast([(*build.axes[i][:axis], (), *build.axes[i][axis + 1 :]) for i in inputs])
    axes = (*rest[:axis], whole, *rest[axis + 1 :])
    if not any(map(is_padded, parts)):
        build.keep(node, inputs, axes)
        return
    rows = build.extents(((whole),))[0]
    lengths = [build.live(part) for part in parts]
    if axis and not is_padded(rest[0]) and build.extents((parts[0],)) == (rows,):
        # What is put behind the first value is written where its live elements end.
        new = inputs[1]
        if len(inputs) > 2:
            ends = build.extents(parts[1:])
            new = build.added("Concat", (*rest[:axis], (sum(ends),), *rest[axis + 1 :]), *inputs[1:], axis=axis)
            if any(map(is_padded, parts[1:])):
                raise NoCapacity("several sizes that grow are joined")
        (batch,) = build.extents((rest[0],))
        at = build.fed(("end", parts[0], batch), (batch,), DType.INT64, lengths[0])
        build.keep(node, (inputs[0], new, at), axes, op=new_op("TensorScatter", axis=axis))
        build.appends += 1
        return
    ends = build.extents(tuple(parts))
    begins = np.concatenate([[0], np.cumsum(ends)[:-1]])

    def places(numbers: Sequence[int]) -> Array:
        found = [begin + np.arange(length(numbers)) for begin, length in zip(begins, lengths, strict=True)]
        return padded_to(np.concatenate(found), (rows,))

    every = build.added("Concat", (*rest[:axis], (int(sum(ends)),), *rest[axis + 1 :]), *inputs, axis=axis)
    at = build.fed(("places", node.name), (rows,), DType.INT64, places)
    build.keep(node, (every, at), axes, op=new_op("Gather", axis=axis))


@_rule("Slice")
def _slice(build: Builder, node: Node) -> None:
    x, (output,) = build.read(node.inputs[0]), node.outputs
    given = [_ints(build, i) if i else None for i in (*node.inputs[1:], "", "")[:4]]
    starts, ends = given[0] or [], given[1] or []
    axes = [int(a) for a in given[2]] if given[2] is not None else [*range(len(starts))]
    steps = [int(s) for s in given[3]] if given[3] is not None else [1] * len(starts)
    wanted, rank = build.source.specs[output].dims, len(build.axes[x])
    plain: list[tuple[int, int, int, int]] = []
    for start, end, axis, step in zip(starts, ends, (a % rank for a in axes), steps, strict=True):
        before, after = build.axes[x][axis], build.axis(wanted[axis])
        if before == after and step == 1:
            continue
        begin, stop = build.polynomial(start), build.polynomial(end)
        if isinstance(begin, int) and isinstance(stop, int) and not (is_padded(before) or is_padded(after)):
            plain.append((axis, begin, stop, step))
            continue
        held = (*build.axes[x][:axis], after, *build.axes[x][axis + 1 :])
        if begin == 0 and step == 1 and build.extents((before,)) == build.extents((after,)):
            x = build.added("Identity", held, x)
            continue
        x = build.added("Gather", held, x, _places(build, start, step, before, after, (node.name, axis)), axis=axis)
    if plain:
        rows = zip(*((begin, stop, axis, step) for axis, begin, stop, step in plain), strict=True)
        out = [*build.axes[x]]
        for axis, *_ in plain:
            out[axis] = build.axis(wanted[axis])
        build.keep(node, (x, *(build.make.ints(*row) for row in rows)), tuple(out))
    else:
        build.become(node, x, build.axes[x])


def _places(build: Builder, start: Any, step: int, before: Axis, after: Axis, key: object) -> str:
    """Return an input that says which elements of an axis a slice reads."""
    build.one_size(before) if is_padded(before) else None
    first, whole, count = build.at(start), build.live(before), build.live(after)
    (most,), (rows,) = build.extents((before,)), build.extents((after,))

    def made(numbers: Sequence[int]) -> Array:
        begin = numbers[first] if type(first) is Placed else int(first)
        begin = max(begin + whole(numbers) if begin < 0 else begin, 0)
        return padded_to(np.clip(begin + step * np.arange(count(numbers)), 0, max(most - 1, 0)), (rows,))

    return build.fed(("slice", key), (rows,), DType.INT64, made)


@_rule("Gather")
def _gather(build: Builder, node: Node) -> None:
    x, places = (build.read(i) for i in node.inputs)
    axis = _axis_of(node, build.axes[x])
    axes = (*build.axes[x][:axis], *build.axes[places], *build.axes[x][axis + 1 :])
    if is_padded(build.axes[x][axis]):  # a negative place counts from the last live element
        length = build.live(build.axes[x][axis])
        end = build.fed(("size", build.axes[x][axis]), (), build.make.dtype(places), length)
        held = build.axes[places]
        zero = build.make.constant(np.zeros((), build.make.dtype(places).numpy))
        back = build.added("Add", held, places, end)
        places = build.added("Where", held, build.added("Less", held, places, zero), back, places)
    build.keep(node, (x, places), axes)


@_rule("MatMul")
def _matmul(build: Builder, node: Node) -> None:
    a, b = (build.read(i) for i in node.inputs)
    left, right = build.axes[a], build.axes[b]
    inner = max(len(right) - 2, 0)
    if left[-1] != right[inner]:
        raise NoCapacity("a product of values whose inner sizes grow apart")
    if is_padded(left[-1]) and inner not in build.zeros.get(b, ()):
        a = build.hidden(a, len(left) - 1, 0.0)
    axes = (*build.broadcast([left[:-2], right[:-2]]), *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
    build.keep(node, (a, b), axes)
    zeros = build.zeros.setdefault(node.outputs[0], set())
    if len(left) > 1 and len(left) - 2 in build.zeros.get(a, ()):
        zeros.add(len(axes) - (2 if len(right) > 1 else 1))


@_rule("Gemm")
def _gemm(build: Builder, node: Node) -> None:
    op: Any = node.op
    a, b, *rest = (build.read(i) for i in node.inputs if i)
    rows, inner = build.axes[a][::-1] if op.transA else build.axes[a]
    columns = build.axes[b][0] if op.transB else build.axes[b][1]
    if is_padded(inner):
        a = build.hidden(a, 0 if op.transA else 1, 0.0)
    build.keep(node, (a, b, *rest), (rows, columns))


@_rule("Softmax", "LogSoftmax")
def _softmax(build: Builder, node: Node) -> None:
    op: Any = node.op
    x = build.read(node.inputs[0])
    axes, axis = build.axes[x], _axis_of(node, build.axes[x])
    if op.flatten and any(map(is_padded, axes[axis + 1 :])):
        raise NoCapacity(f"{op.type} computes along several axes, of which one grows")
    if is_padded(axes[axis]):
        dims = (*build.extents((axes[axis],)), *[1] * (len(axes) - 1 - axis))
        if axis == len(axes) - 1:
            x = build.added("Add", axes, x, build.bias(axes[axis], dims, build.make.dtype(x)))
        else:
            x = build.hidden(x, axis, -np.inf)
    build.keep(node, (x,), axes)
    if op.type == "Softmax":
        build.zeros[node.outputs[0]] = {axis} | build.zeros.get(node.outputs[0], set())


@_rule(*(kind for kind in NEUTRAL if kind.startswith("Reduce")))
def _reduce(build: Builder, node: Node) -> None:
    op: Any = node.op
    x, given = build.read(node.inputs[0]), build.axes[build.read(node.inputs[0])]
    named = _ints(build, node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    which = op.resolve(None if named is None else np.array(named, np.int64), len(given))
    for axis in which:
        x = build.hidden(x, axis, NEUTRAL[op.type])
    axes = tuple(() if k in which else axis for k, axis in enumerate(given) if op.keepdims or k not in which)
    parameters = [build.read(i) for i in node.inputs[1:] if i]
    if op.type == "ReduceMean" and any(is_padded(given[k]) for k in which):
        wide, attributes = build.make.dtype(x), {"keepdims": op.keepdims}
        if not wide.is_float:
            raise NoCapacity("a mean of integers along a size that grows")
        total = build.added("ReduceSum", axes, x, *parameters, **attributes)
        count = build.live(tuple(p for k in which for p in given[k]))
        number = build.fed(("count", tuple(given[k] for k in which), wide), (), wide, count)
        build.keep(node, (total, number), axes, op=new_op("Div"))
        return
    build.keep(node, (x, *parameters), axes)


@_rule("ArgMax", "ArgMin")
def _arg(build: Builder, node: Node) -> None:
    op: Any = node.op
    x = build.read(node.inputs[0])
    given, axis = build.axes[x], _axis_of(node, build.axes[x])
    x = build.hidden(x, axis, NEUTRAL[op.type])
    axes = tuple(() if k == axis else a for k, a in enumerate(given) if op.keepdims or k != axis)
    build.keep(node, (x,), axes)


@_rule("CumSum", "CumProd")
def _scan(build: Builder, node: Node) -> None:
    op: Any = node.op
    x, where = build.read(node.inputs[0]), build.read(node.inputs[1])
    axis = int(_ints(build, node.inputs[1])[0]) % max(len(build.axes[x]), 1)
    if op.reverse:
        x = build.hidden(x, axis, 0.0 if op.type == "CumSum" else 1.0)
    build.keep(node, (x, where), build.axes[x])


@_rule("Pad")
def _pad(build: Builder, node: Node) -> None:
    x, *rest = (build.read(i) if i else "" for i in node.inputs)
    named = _ints(build, node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    rank = len(build.axes[x])
    axes = [*range(rank)] if named is None else [int(a) % rank for a in named]
    pads = [build.polynomial(p) for p in _ints(build, node.inputs[1])]
    around = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    if any(is_padded(build.axes[x][k]) and pair != (0, 0) for k, pair in around.items()):
        raise NoCapacity("a size that grows is padded")
    wanted = build.source.specs[node.outputs[0]].dims
    out = tuple(a if is_padded(a) else build.axis(d) for a, d in zip(build.axes[x], wanted, strict=True))
    build.keep(node, (x, *rest), out)


@_rule("Trilu")
def _trilu(build: Builder, node: Node) -> None:
    x, *rest = (build.read(i) for i in node.inputs if i)
    build.keep(node, (x, *rest), build.axes[x])


@_rule("TopK")
def _top(build: Builder, node: Node) -> None:
    x, k = (build.read(i) for i in node.inputs)
    axis = _axis_of(node, build.axes[x])
    if is_padded(build.axes[x][axis]):
        raise NoCapacity("TopK computes along a size that grows")
    chosen = [build.axis(build.source.specs[o].dims[axis]) for o in node.outputs]
    build.keep(node, (x, k), *((*build.axes[x][:axis], c, *build.axes[x][axis + 1 :]) for c in chosen))


@_rule(*NORMS)
def _norm(build: Builder, node: Node) -> None:
    x, *rest = (build.read(i) if i else "" for i in node.inputs)
    axis = _axis_of(node, build.axes[x])
    if any(map(is_padded, build.axes[x][axis:])):
        raise NoCapacity(f"{node.op.type} computes along a size that grows")
    ranks = [len(build.source.specs[o].dims) for o in node.outputs]
    reduced = (*build.axes[x][:axis], *[()] * (len(build.axes[x]) - axis))
    build.keep(node, (x, *rest), *(build.axes[x] if k == 0 else reduced for k, _ in enumerate(ranks)))


@_rule("weft::Attention")
def _attention(build: Builder, node: Node) -> None:
    op: Any = node.op
    count = op.count()
    given = [build.read(i) for i in node.inputs[:count]]
    mask = build.read(node.inputs[count]) if len(node.inputs) > count and node.inputs[count] else ""
    q, v = build.axes[given[0]], build.axes[given[-1]]
    if op.packed:
        raise NoCapacity("keys that grow with their queries")
    keys = build.axes[given[1]][-2]
    width = build.axis(build.source.specs[node.outputs[0]].dims[-1])
    axes = (*q[:2], width) if op.heads else (*q[:-1], v[-1])
    if is_padded(keys):
        rank = 4 if op.heads else len(q)
        dims = (*[1] * (rank - 1), *build.extents((keys,)))
        bias = build.bias(keys, dims, build.make.dtype(given[0]))
        if mask:
            wide = build.broadcast([build.axes[mask], (*[()] * (len(dims) - 1), keys)])
            bias = build.added("Add", wide, mask, bias)
        mask, op = bias, replace(op, zero_hidden=1)
    build.keep(node, (*given, *([mask] if mask else [])), axes, op=op)


@_rule("com.microsoft::GroupQueryAttention")
def _group_query(build: Builder, node: Node) -> None:
    """Let the buffers of the past be those of the present, which the op knows as well."""
    inputs = [build.read(i) if i and k != 6 else "" for k, i in enumerate(node.inputs)]
    if not (inputs[3] and inputs[4]):
        raise NoCapacity("an attention without a past")
    op: Any = node.op
    inputs += [""] * (10 - len(inputs))
    query, past = build.axes[inputs[0]], build.axes[inputs[3]]
    spec = build.source.specs
    present = [(*build.axes[inputs[3 + k]][:2], build.axis(spec[o].dims[2]), build.axes[inputs[3 + k]][3])
               for k, o in enumerate(node.outputs[1:3])]
    if any(build.extents((p[2],)) != build.extents((past[2],)) for p in present):
        raise NoCapacity("the caches of an attention have other capacities than those of its past")
    rows, live = build.extents((query[1],))[0], build.live(query[1])
    (room,) = build.extents((past[2],))
    if rows >= room:
        raise NoCapacity("an attention has no more room for keys than it has queries")
    if is_padded(query[1]):  # the op takes the last rows for new ones, and counts them from the end
        more = build.fed(("padding", query[1]), (), DType.INT32, lambda numbers: rows - live(numbers))
        inputs[5] = build.added("Add", build.axes[inputs[5]], inputs[5], more)
        if op.do_rotary and not inputs[9]:  # rows of padding have places, too, for which the table may be too short
            inputs[9] = _places_of_rows(build, inputs[5], inputs[7], query[1])
    inputs[6] = build.make.constant(np.array(room, np.int32))
    build.axes[inputs[6]] = ()
    out = (*query[:2], build.axis(spec[node.outputs[0]].dims[2]))
    shared = replace(op, shares_buffer=1)
    if build.keeps_state:  # its parts write into the memory of the past
        build.keep_parts(replace(node, op=shared, inputs=tuple(inputs)), out, *present)
    else:
        build.keep(node, inputs, out, *present, op=shared)
    build.appends += len(present)


def _places_of_rows(build: Builder, lengths: str, table: str, rows: Axis) -> str:
    """Return the places of new rows, (batch, rows) of int64, within a table; `lengths` are those of all, less one."""
    (count,), batch = build.extents((rows,)), build.axes[lengths][0]
    make = build.make
    wide = build.added("Cast", build.axes[lengths], lengths, to=DType.INT64)
    ends = build.added("Reshape", (batch, ()), wide, make.ints(*build.extents((batch, ()))))
    steps = make.constant(np.arange(1 - count, 1))
    every = build.added("Add", (batch, rows), ends, steps)
    last = make.constant(np.array(make.dims(table)[0] - 1, np.int64))
    return build.added("Min", (batch, rows), every, last)
