"""The op table: each row on the backend alone, against the op's own reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial

import numpy as np

from weft.conformance.cases.table import Case, all_cases, tolerance
from weft.conformance.drive import ask
from weft.conformance.kit import Check, Kit, check
from weft.conformance.networks import difference
from weft.conformance.report import Finding, is_sentence
from weft.core.contract.backend import Precision
from weft.core.contract.error_context import ends_program
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.errors import UnsupportedOps

NAME = "table"


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
            declined = declined and not backend.decides_late(row.make_op().type)
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
    """Run a row and compare."""
    arrays = row.arrays()
    if kit.precision is Precision.LOW and not row.make_op().keeps_types:
        arrays = halved(row)
    fed = feeds_of(row, arrays)
    given = {name: a.copy() for name, a in fed.items()}
    with kit.load(graph_of(row)) as session:
        actual = session.run(fed)
        if not session.report.placement:
            return kit.nothing(row.id, "it was computed when it was loaded")
    if any(a.tobytes() != given[name].tobytes() for name, a in fed.items()):
        return kit.wrong(row.id, "the arrays of the caller were written to")
    return kit.judge(row.id, compare_row(row, arrays, actual, kit.precision))


def compare_row(row: Case, arrays: Sequence[Array | None], actual: Sequence[Array], precision: Precision) -> str:
    """Return how outputs differ from the row's reference in types, shapes or numbers; "" if they do not."""
    op = row.make_op()
    wanted = evaluate(op, arrays)
    if precision is not Precision.LOW:
        for k, (mine, theirs) in enumerate(zip(actual, wanted, strict=False)):
            if mine.dtype != theirs.dtype:
                return f"output {k} is {mine.dtype} instead of {theirs.dtype}"
    return difference(actual, wanted, [tolerance(DType.of(a.dtype), op.op_class) for a in wanted])


def halved(row: Case) -> list[Array | None]:
    """Return the arrays of a row with float16 instead of float32, as precision LOW stores them.

    Constants of `Op.wide_inputs` and `Op.exact_parameters` stay float32.
    """
    op = row.make_op()
    kept = (*op.wide_inputs, *op.exact_parameters)
    wide = {k for k in kept if k < len(row.inputs) and (i := row.inputs[k]) and i.constant}
    with np.errstate(over="ignore"):
        return [
            a.astype(np.float16) if a is not None and a.dtype == np.float32 and k not in wide else a
            for k, a in enumerate(row.arrays())
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
