"""`why_not`: the same answer twice, a sentence, no traces, and `onCreate` agrees with it (A2, M4).

A backend without a `why_not` for an op decides in `onCreate` alone: that is noted, and no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from weft.core.contract.backend import Backend, Execution
from weft.core.contract.error_context import ends_program
from weft.core.graph.described import described
from weft.core.graph.graph import Graph
from weft_conformance.cases.table import Case
from weft_conformance.checks.optimizing import optimized
from weft_conformance.checks.table import all_rows, graph_of
from weft_conformance.drive import Drive, NotCreated, decides_late
from weft_conformance.kit import Kit, check, explain
from weft_conformance.report import Finding, Verdict
from weft_conformance.traces import changes, traces


@check("support", "A2 M4", "why_not answers the same each time, with a sentence, and onCreate agrees")
def support(kit: Kit) -> Iterable[Finding]:
    """Ask about every row of the op table, and create executions for one row of each op. Only count what is right."""
    asked: list[Finding] = []
    created: dict[str, Finding] = {}
    with kit.opened() as backend:
        for row in all_rows():
            finding = _asked(kit, backend, row)
            asked.append(finding)
            if finding.verdict is Verdict.SUPPORTED and row.op not in created:
                created[row.op] = _created(kit, row)
    for subject, findings in (("why_not", asked), ("onCreate", list(created.values()))):
        bad = [f for f in findings if f.verdict.is_bad]
        counts = Counter(f.verdict.value for f in findings)
        said = ", ".join(f"{verdict} {n}" for verdict, n in counts.items()) or "nothing was taken"
        yield from bad or [kit.supported(subject, said)]


def _asked(kit: Kit, backend: Backend, row: Case) -> Finding:
    graph = graph_of(row)
    (node,) = graph.nodes
    inputs, outputs = described(graph, node)
    before = traces(node, inputs, outputs)
    try:
        first, second = (backend.why_not(inputs, outputs, node.op) for _ in range(2))
    except BaseException as e:
        if ends_program(e):
            raise
        return kit.wrong(row.id, f"why_not raised {explain(e)[0]}")
    if first != second:
        return kit.wrong(row.id, f"why_not answered {first!r}, and then {second!r}")
    changed = changes(before, traces(node, inputs, outputs))
    if changed:
        return kit.wrong(row.id, f"why_not changed {changed}")
    return kit.supported(row.id) if first is None else kit.refused(row.id, first)


class _Creates(Drive):
    """Creates the executions of a network and goes no further."""

    def _resize(self) -> None:
        return None


def _created(kit: Kit, row: Case) -> Finding:
    """Create the executions of a row that the backend takes."""
    subject, late = f"onCreate for {row.id}", False
    try:
        graph: Graph = optimized(kit, graph_of(row))
        backend = kit.choice.open(kit.config)
        late = decides_late(backend, row.make_op().type)
        with _Creates(backend, graph) as made:
            strange = [e for _, e in made.tasks if not isinstance(e, Execution)]
    except NotCreated as e:
        if not late:
            return kit.unexplained(subject, f"{e}, and why_not had taken it")
        kit.note(f"{row.op} is refused only after why_not took it: {e}")
        return kit.refused(subject, str(e))
    except BaseException as e:
        if ends_program(e):
            raise
        return kit.raised(subject, e)
    return kit.judge(subject, f"onCreate returned {strange[0]!r}, which is no Execution" if strange else "")
