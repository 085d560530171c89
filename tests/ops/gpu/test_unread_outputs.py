"""Ops on GPUs whose last outputs nobody reads: what is read must be right, and nothing else is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.op_rows import GPUS, ROWS, assert_agree, reference, run
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of

OPS = ("TopK", "NonZero", "Compress", "Unique", "NonMaxSuppression", "DynamicQuantizeLinear")
FIRST = [next(row for row in ROWS if row.op == op and len(graph_of(row).outputs) > 1) for op in OPS]


@pytest.mark.covering
@pytest.mark.parametrize("row", FIRST, ids=OPS)
@pytest.mark.parametrize("device", GPUS)
def test_the_first_output_alone(device: str, row: Case) -> None:
    graph = graph_of(row)
    graph.outputs = graph.outputs[:1]
    graph.nodes = [replace(node, outputs=node.outputs[:1]) for node in graph.nodes]
    arrays = row.arrays()
    actual = run(graph, feeds_of(row, arrays), device)
    assert_agree(actual, reference(row.make_op(), arrays)[:1], row.make_op())
