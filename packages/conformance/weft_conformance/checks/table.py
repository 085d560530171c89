"""The op table: each row on the backend alone, against the op's own reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from weft.core.contract.backend import Precision
from weft.core.contract.error_context import ends_program
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array, Shape
from weft.core.passes.wide_values import makes_wide
from weft.errors import UnsupportedOps
from weft_conformance.cases.table import Case, all_cases, tolerance
from weft_conformance.drive import ask, decides_late
from weft_conformance.kit import Check, Kit, check
from weft_conformance.networks import difference, rearranged
from weft_conformance.report import Finding, is_sentence

NAME = "table"
SPREADING = frozenset({
    "Abs", "Add", "GlobalMaxPool", "LogSoftmax", "Max", "MaxPool", "Min", "Mul", "Neg", "ReduceMax", "ReduceMin",
    "Relu", "Softmax", "Sub",
})
"""Ops whose results are compared where an input has a NaN and a number that is large for an exponential."""


@cache
def _rows() -> tuple[Case, ...]:
    return tuple(all_cases())


def all_rows() -> list[Case]:
    """Return every row of the op table."""
    return list(_rows())


@check(NAME, "A2 M3 M4", "each row of the op table agrees with the op's reference, or is refused with a reason")
def op_table(kit: Kit) -> Iterable[Finding]:
    """Look at every row."""
    for row in all_rows():
        yield from look_at_row(kit, row)


def look_at_row(kit: Kit, row: Case) -> list[Finding]:
    """Return the finding on one row."""
    return kit.look(Check(NAME, "", "", partial(_look, row=row)))


def _look(kit: Kit, row: Case) -> list[Finding]:
    try:
        return [_judge(kit, row)]
    except BaseException as e:
        if ends_program(e):
            raise
        return [_raised(kit, row, e, declined=bool(kit.declined))]


def _raised(kit: Kit, row: Case, e: BaseException, *, declined: bool) -> Finding:
    """Return the finding on an exception, with the backend's own answer of `why_not`."""
    said = kit.raised(row.id, e)
    try:
        with kit.opened() as backend:
            reason = ask(backend, graph_of(row))
            declined = declined and not decides_late(backend, row.make_op().type)
    except BaseException as other:
        if ends_program(other):
            raise
        return said
    if reason is not None and not is_sentence(reason):
        return kit.refused(row.id, reason)
    if not isinstance(e, UnsupportedOps):
        return said
    if declined:
        return kit.unexplained(row.id, "onCreate returned None, and why_not had not refused the node")
    if reason is None:
        kit.note(f"{row.op} is refused only after why_not took it: {kit.reason_of(e)}")
    return kit.refused(row.id, kit.reason_of(e))


def _judge(kit: Kit, row: Case) -> Finding:
    """Run a row twice with other inputs, and at another size, and compare."""
    problem = _twice(kit, row)
    if problem is None:
        return kit.nothing(row.id, "it was computed when it was loaded")
    return kit.judge(row.id, problem or _at_another_size(kit, row))


def _twice(kit: Kit, row: Case) -> str | None:
    """Return what is wrong in runs of a part with two nodes of the row; None if nothing is left to run.

    The nodes have inputs and constants of their own. In the second run the first node gets its inputs rearranged, so
    that their sums, their largest elements and the elements at their ends stay, and the second what the first had. In
    the third, inputs of floats hold a NaN, of which nothing may stay for the last, which is the first again.
    """
    first, second = (_stored(kit, row, row.arrays(draw)) for draw in (0, 1))
    runs = {"": (first, second)}
    runs["in run 2, with other inputs: "] = (_rearranged(row, first), _swapped(row, first, second))
    special = _special(row, first)
    if kit.precision is not Precision.LOW and any(a is not b for a, b in zip(first, special, strict=True)):
        runs["in run 3, with a NaN: "] = (special, _special(row, second))
        runs["in run 4, after a NaN: "] = (first, second)
    with kit.load(_side_by_side(row, first, second)) as session:
        for when, pair in runs.items():
            fed = {f"{name}{k}": a for k, each in enumerate(pair) for name, a in feeds_of(row, each).items()}
            given = {name: a.copy() for name, a in fed.items()}
            actual = session.run(fed)
            if not session.report.placement:
                return None
            if any(a.tobytes() != given[name].tobytes() for name, a in fed.items()):
                return "the arrays of the caller were written to"
            if when.endswith("with a NaN: ") and row.op not in SPREADING:
                continue
            count = len(actual) // 2
            parts = (actual[:count], actual[count:])
            for which, part, arrays in zip(("", "a second node: "), parts, pair, strict=True):
                problem = compare_row(row, arrays, part, kit.precision)
                if problem:
                    return f"{when}{which}{problem}"
    return ""


def _at_another_size(kit: Kit, row: Case) -> str:
    """Return what is wrong after a change of size and after the change back; "" also if the row has but one size."""
    first = _stored(kit, row, row.arrays())
    found = _resized(row, first)
    if found is None:
        return ""
    graph, grown = found
    sizes = ", ".join("x".join(map(str, a.shape)) for a in feeds_of(row, grown).values())
    names = ("at first", f"at {sizes} after its own size", f"at its own size after {sizes}")
    try:
        with kit.load(graph) as session:
            for name, arrays in zip(names, (first, _stored(kit, row, grown), _rearranged(row, first)), strict=True):
                problem = compare_row(row, arrays, session.run(feeds_of(row, arrays)), kit.precision)
                if problem:
                    return f"{name}: {problem}"
    except UnsupportedOps:
        return ""  # it may refuse other sizes
    return ""


def _resized(row: Case, arrays: Sequence[Array | None]) -> tuple[Graph, list[Array | None]] | None:
    """Return the row's graph with sizes that are open, and inputs of other sizes; None if it takes no others."""
    for shapes in _other_shapes(row):
        inputs = [i if shape is None or i is None else replace(i, shape=shape)
                  for i, shape in zip(row.inputs, shapes, strict=True)]
        other = replace(row, inputs=tuple(inputs))
        grown = [new if shape is not None else old
                 for new, old, shape in zip(other.arrays(), arrays, shapes, strict=True)]
        try:
            other.make_op().inferred(other.specs(), row.constants())
            evaluate(other.make_op(), grown)
        except Exception:  # what these sizes mean to an op is for the op to say
            continue
        graph = graph_of(row)
        graph.specs = {n: s for n, s in graph.specs.items() if n in graph.inputs or n in graph.constants}
        for k, shape in enumerate(shapes):
            if shape is not None:
                spec = graph.specs[f"x{k}"]
                dims = zip(spec.dims, shape, strict=True)
                named = tuple(old if old == new else f"from {old} to {new}" for old, new in dims)
                graph.specs[f"x{k}"] = replace(spec, shape=named)
        return graph, grown
    return None


def _other_shapes(row: Case) -> Iterator[list[Shape | None]]:
    """Yield shapes to try for the inputs that are drawn in each run, None for others: first heights and widths grow."""
    drawn = [k for k, i in enumerate(row.inputs) if i and not i.constant and i.value is None and i.shape]
    if not drawn:
        return
    lead = max(drawn, key=lambda k: len(_shape(row, k)))
    rank = len(_shape(row, lead))
    spatial = [set(range(2, rank)), {rank - 1}, {2}] if rank > 2 else [{0, 1}]
    for axes in [*spatial, *({a} for a in range(rank))]:
        for reach in ("all from the right", "all from the left", "one"):
            shapes: list[Shape | None] = [None] * len(row.inputs)
            for k in drawn:
                ranks = (len(_shape(row, k)), rank)
                shapes[k] = _grown(_shape(row, k), _shape(row, lead), axes, ranks[0] - ranks[1], reach, k == lead)
            if any(s is not None for s in shapes):
                yield shapes


def _shape(row: Case, k: int) -> Shape:
    given = row.inputs[k]
    return given.shape if given else ()


def _grown(shape: Shape, lead: Shape, axes: set[int], behind: int, reach: str, is_lead: bool) -> Shape | None:
    """Return a shape that grows along the axes of the leading one where it has the same sizes; None if it has none."""
    if reach == "one" and not is_lead:
        return None
    offset = behind if reach == "all from the right" else 0
    grown = list(shape)
    for axis in axes:
        at = axis + offset
        if axis < len(lead) and 0 <= at < len(shape) and shape[at] == lead[axis] and shape[at]:
            grown[at] += 2 + axis % 2
    return tuple(grown) if tuple(grown) != shape else None


def _stored(kit: Kit, row: Case, arrays: Sequence[Array | None]) -> list[Array | None]:
    """Return the inputs as the kit's precision stores them."""
    low = kit.precision is Precision.LOW and not row.make_op().keeps_types
    return halved(row, arrays) if low else list(arrays)


def _rearranged(row: Case, arrays: Sequence[Array | None]) -> list[Array | None]:
    """Return inputs of which those that are drawn in each run have the same elements in another order."""
    pairs = zip(row.inputs, arrays, strict=True)
    return [a if a is None or i is None or i.constant or i.value is not None else rearranged(a) for i, a in pairs]


def _special(row: Case, arrays: Sequence[Array | None]) -> list[Array | None]:
    """Return inputs of which those of floats that are drawn in each run hold a NaN and a large number."""
    found = list(arrays)
    for k, (given, array) in enumerate(zip(row.inputs, arrays, strict=True)):
        drawn = given is not None and not given.constant and given.value is None
        if drawn and array is not None and array.dtype in (np.float32, np.float64) and array.size > 2:
            found[k] = array.copy()
            found[k].flat[[array.size // 3, array.size - 1]] = np.nan, 100.0  # type: ignore[union-attr]
    return found


def _swapped(row: Case, arrays: Sequence[Array | None], other: Sequence[Array | None]) -> list[Array | None]:
    """Return inputs with the constants of others."""
    pairs = zip(row.inputs, arrays, other, strict=True)
    return [theirs if i is not None and i.constant else mine for i, mine, theirs in pairs]


def _side_by_side(row: Case, first: Sequence[Array | None], second: Sequence[Array | None]) -> Graph:
    """Return a graph of two nodes of a row that share nothing."""
    one = graph_of(row)
    (node,) = one.nodes
    made = Graph(one.name, [], [])
    for k, arrays in enumerate((first, second)):
        made.inputs += [f"{i}{k}" for i in one.inputs]
        made.outputs += [f"{o}{k}" for o in one.outputs]
        names = (tuple(n and f"{n}{k}" for n in each) for each in (node.inputs, node.outputs))
        made.nodes.append(Node(f"{node.name}{k}", node.op, *names))
        made.specs |= {f"{n}{k}": spec for n, spec in one.specs.items()}
        given = dict(zip(node.inputs, arrays, strict=True))
        for name in one.constants:
            value = given[name]
            assert value is not None
            made.constants[f"{name}{k}"] = value.astype(one.specs[name].dtype.numpy)
    return made


def compare_row(row: Case, arrays: Sequence[Array | None], actual: Sequence[Array], precision: Precision) -> str:
    """Return how outputs differ from the row's reference in types, shapes or numbers; "" if they do not."""
    op = row.make_op()
    wanted = evaluate(op, arrays)
    if precision is not Precision.LOW:
        for k, (mine, theirs) in enumerate(zip(actual, wanted, strict=False)):
            if mine.dtype != theirs.dtype:
                return f"output {k} is {mine.dtype} instead of {theirs.dtype}"
    return difference(actual, wanted, [tolerance(DType.of(a.dtype), op.op_class) for a in wanted])


def halved(row: Case, arrays: Sequence[Array | None] | None = None) -> list[Array | None]:
    """Return inputs of a row with float16 instead of float32, as precision LOW stores them.

    Constants of `Op.wide_inputs` and `Op.exact_parameters` stay float32, and all inputs beside a constant that float16
    cannot hold.
    """
    op, graph = row.make_op(), graph_of(row)
    if any(makes_wide(graph, node) for node in graph.nodes):
        return list(row.arrays() if arrays is None else arrays)
    kept = (*op.wide_inputs, *op.exact_parameters)
    wide = {k for k in kept if k < len(row.inputs) and (i := row.inputs[k]) and i.constant}
    with np.errstate(over="ignore"):
        return [
            a.astype(np.float16) if a is not None and a.dtype == np.float32 and k not in wide else a
            for k, a in enumerate(row.arrays() if arrays is None else arrays)
        ]


def graph_of(row: Case) -> Graph:
    """Return a graph of one node."""
    op, specs, constants = row.make_op(), row.specs(), row.constants()
    names = tuple(f"x{k}" if i is not None else "" for k, i in enumerate(row.inputs))
    made = {f"y{k}": spec for k, spec in enumerate(op.inferred(specs, constants))}
    outputs = list(made)
    fed = [n for n, i in zip(names, row.inputs, strict=True) if i is not None and not i.constant]
    graph = Graph(row.id, fed, outputs, [Node("node", op, names, tuple(outputs))])
    for name, spec, value in zip(names, specs, constants, strict=True):
        if spec is not None:
            graph.specs[name] = spec
        if value is not None:
            graph.constants[name] = value
    graph.specs |= made
    return graph


def feeds_of(row: Case, arrays: Sequence[Array | None]) -> dict[str, Array]:
    """Return the arrays for the inputs of `graph_of`, of the types it declares."""
    each = enumerate(zip(row.inputs, arrays, strict=True))
    return {f"x{k}": a.astype(DType(i.dtype).numpy) for k, (i, a) in each if i and a is not None and not i.constant}
