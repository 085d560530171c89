"""Nodes with several outputs of which some are not read, alone and with a node behind (A2, A5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, infer_shapes
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, new_op
from weft.errors import UnsupportedOps
from weft_conformance.cases.table import Case, tolerance
from weft_conformance.checks.table import all_rows, feeds_of, graph_of, halved
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.networks import difference
from weft_conformance.report import Finding

BEHIND = ("Relu", "Neg", "Abs", "Sigmoid")
"""Ops to put behind an output that is read; the first that the backend takes is used."""


@check("outputs", "A2 A5", "of a node with several outputs, those that are read are right, whichever are not")
def outputs(kit: Kit) -> Iterable[Finding]:
    """Read some of the outputs of every row of the op table that has several."""
    for row, graph in _rows_of_several_outputs():
        yield kit.attempt(row.id, _some_read, kit, row, graph)


@cache
def _rows_of_several_outputs() -> list[tuple[Case, Graph]]:
    pairs = ((row, graph_of(row)) for row in all_rows())
    return [(row, graph) for row, graph in pairs if len(graph.outputs) > 1]


def _some_read(kit: Kit, row: Case, graph: Graph) -> str:
    names = graph.outputs
    arrays = row.arrays()
    if kit.precision is Precision.LOW:
        arrays = halved(row)
    every = evaluate(row.make_op(), arrays)
    for count in range(1, len(names)):
        for read in combinations(range(len(names)), count):
            wanted = [every[k] for k in read]
            for named in (True, False):
                problem = _read(kit, row, _reading(graph, read, named=named), arrays, wanted, None)
                # A node behind does not see the names of outputs that it does not read.
                problem = problem or ("" if named else _with_a_node_behind(kit, row, graph, read, arrays, wanted))
                if problem:
                    others = "named" if named else "without names"
                    return f"reading output {' and '.join(map(str, read))}, the others {others}: {problem}"
    return ""


def _with_a_node_behind(
    kit: Kit, row: Case, graph: Graph, read: Sequence[int], arrays: Sequence[Array | None], wanted: Sequence[Array]
) -> str:
    """Return what is wrong if another node reads the output; "" also if the backend takes no such node."""
    if len(read) > 1 or not graph.specs[graph.outputs[read[0]]].dtype.is_float:
        return ""
    for kind in BEHIND:
        behind = new_op(kind)
        whole = _reading(graph, read, named=False)
        (value,) = whole.outputs
        whole.nodes.append(Node("behind", behind, (value,), ("z",)))
        whole.outputs = ["z"]
        try:
            return _read(kit, row, infer_shapes(whole), arrays, wanted, behind)
        except UnsupportedOps:
            continue
    return ""


def _reading(graph: Graph, read: Sequence[int], *, named: bool) -> Graph:
    """Return the graph with some of its outputs; the others of the node keep their names, or have none."""
    made = graph.copy()
    made.outputs = [graph.outputs[k] for k in read]
    if not named:
        (node,) = graph.nodes
        made.nodes = [replace(node, outputs=tuple(o if o in made.outputs else "" for o in node.outputs))]
    return made


def _read(
    kit: Kit, row: Case, graph: Graph, arrays: Sequence[Array | None], wanted: Sequence[Array], behind: Op | None
) -> str:
    op = row.make_op()
    wanted = [value for a in wanted for value in evaluate(behind, [a])] if behind else wanted
    with kit.load(graph) as session:
        actual: list[Array] = session.run(feeds_of(row, arrays))
        if not session.report.placement:
            raise Untried("it was computed when it was loaded, and nothing is left to run")
    classes = (op.op_class, behind.op_class) if behind else (op.op_class,)
    bounds = [_sum([tolerance(DType.of(a.dtype), c) for c in classes]) for a in wanted]
    return difference(actual, wanted, bounds)


def _sum(bounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(r for r, _ in bounds), sum(a for _, a in bounds)
