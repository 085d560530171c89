"""Stages that serve any number of rows: values of a counted size, such as the kept boxes, are padded.

A stage may be padded if each row of its results depends on the same row of its inputs and on no other row. Then it is
planned for a few sizes and not for every count. Two plans show whether that is so, one for a number of rows and one for
one more: the axis that differs between them is the axis of the rows, and each op must keep rows apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.stage_split import Stage

SAME_ORDER = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
ALONG_AXIS = frozenset({"Softmax", "LogSoftmax", "Hardmax", "TopK", "Split", "Concat", "ArgMax", "ArgMin"})
"""Ops that work along one axis, `axis`."""
Axes = Sequence[int | None]


def size_class(count: int) -> int:
    """Return the number of rows to plan for `count` rows: a power of two, or three quarters of one."""
    power = 1 << max(count - 1, 0).bit_length()
    return power * 3 // 4 if power >= 8 and count <= power * 3 // 4 else power


def padded(array: Array, axis: int, size: int) -> Array:
    """Pad an axis by repeating its last row: it cannot cause an error that the real rows do not."""
    more = [(0, 0)] * array.ndim
    more[axis] = (0, size - array.shape[axis])
    return np.pad(array, more, mode="edge")


def row_axes(stage: Stage, longer: Stage, size: int) -> Mapping[str, int | None] | None:
    """Return the axis of the rows for each output of a stage; None if its rows depend on each other.

    `stage` was split for `size` rows, and `longer` for one more.
    """
    a, b = stage.graph, longer.graph
    if [(n.name, n.op) for n in a.nodes] != [(n.name, n.op) for n in b.nodes] or a.outputs != b.outputs:
        return None
    if stage.corners or not _same_rest(stage.rest, longer.rest):
        return None
    axes: dict[str, int | None] = {}
    for name, spec in a.specs.items():
        if name not in b.specs or not spec.is_static:
            return None
        axis = _axis(spec, b.specs[name], size)
        if axis == -1:
            return None
        axes[name] = axis
    mixed = {name for name in a.constants if not _prefix(a.constants[name], b.constants.get(name), axes[name], size)}
    if mixed & set(a.outputs) or not all(_apart(a, node, axes, mixed) for node in a.nodes):
        return None
    return {name: axes[name] for name in a.outputs}


def _same_rest(a: Graph | None, b: Graph | None) -> bool:
    if a is None or b is None:
        return a is b
    same = [n.name for n in a.nodes] == [n.name for n in b.nodes] and a.constants.keys() == b.constants.keys()
    return same and all(_equal(value, b.constants[name]) for name, value in a.constants.items())


def _equal(a: Array, b: Array) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def _axis(spec: TensorSpec, longer: TensorSpec, size: int) -> int | None:
    """Return the axis on which two shapes differ as `size` and `size` + 1; None if they are equal, -1 otherwise."""
    if len(spec.dims) != len(longer.dims):
        return -1
    pairs = zip(spec.dims, longer.dims, strict=True)
    differ = [(k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not differ:
        return None
    return differ[0][0] if len(differ) == 1 and differ[0][1] == (size, size + 1) else -1


def _prefix(value: Array, longer: Array | None, axis: int | None, size: int) -> bool:
    """Tell whether a constant for more rows begins with the one for `size` rows."""
    if longer is None:
        return False
    return _equal(value, longer if axis is None else np.ascontiguousarray(longer.take(np.arange(size), axis)))


def _apart(graph: Graph, node: Node, axes: Mapping[str, int | None], mixed: set[str]) -> bool:
    """Tell whether a node keeps rows apart; `mixed` are constants that depend on the number of rows."""
    given: Axes = [axes[i] if i else None for i in node.inputs]
    made: Axes = [axes[o] for o in node.outputs if o]
    op, kind = node.op, node.op.type
    if any(i in mixed for i in node.inputs[:1]) or (mixed & set(node.inputs) and kind not in ("Reshape", "Expand")):
        return False
    if all(axis is None for axis in given):
        return all(axis is None for axis in made)
    if any(axis is None for axis in made) or not made:
        return False
    out, first = made[0], given[0]
    assert out is not None
    ranks = [len(graph.specs[i].dims) if i else 0 for i in node.inputs]
    rank = len(graph.specs[node.outputs[0]].dims)
    along = getattr(op, "axis", None)
    if op.is_elementwise or kind == "Cast":
        return all(axis is None or rank - r + axis == out for axis, r in zip(given, ranks, strict=True))
    if kind in SAME_ORDER:
        before, after = graph.specs[node.inputs[0]].dims, graph.specs[node.outputs[0]].dims
        return first is not None and prod(before[:first]) == prod(after[:out])
    if op.by_image:
        return first == 0 and out == 0 and all(axis is None for axis in given[1:])
    if kind in ALONG_AXIS and isinstance(along, int) and not getattr(op, "flatten", False):
        return all(axis in (None, first) for axis in given) and first is not None and along % ranks[0] != first
    if kind == "Transpose":
        perm = getattr(op, "perm", ()) or tuple(reversed(range(rank)))
        return bool(perm[out] == first)
    if kind == "Gather" and isinstance(along, int):
        if given[1] is None:
            return first is not None and along % ranks[0] != first
        return first is None
    if kind == "GatherND":
        return first is None and given[1] is not None and given[1] < ranks[1] - 1 and not getattr(op, "batch_dims", 0)
    if kind == "MatMul":
        return given[1] is None and first is not None and first != ranks[0] - 1
    if kind == "Gemm":
        return first == 0 and not getattr(op, "transA", 0) and all(axis is None for axis in given[1:])
    if kind == "RoiAlign":
        return first is None and given[1] == 0 and given[2] == 0
    return kind.startswith("Reduce")  # the axis of the rows is still there, so it was not reduced
