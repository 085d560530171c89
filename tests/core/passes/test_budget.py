"""Passes ask before they compute constants, and the journal tells what the limits of folding kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings

import weft.core.passes
from tests.helpers.decoders import decoder
from tests.helpers.nets import Net, kinds
from tests.helpers.pass_networks import ALONE, OWN, given_to
from tests.helpers.random_nets import SLOW
from weft.core.graph import limits
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget, Limits
from weft.core.passes import AnyPass, PassContext, PassManager, graph_pass, run_passes
from weft.errors import ModelError

ASKING = {
    *("fold_constants", "fold_negations", "move_transposes_up", "settle_moves"),
    *("move_transposes_down", "sink_transposes"),
    *("undo_reshapes", "fold_batch_norm", "join_parallel_convolutions", "settle_convolutions"),
    *("fuse_attention", "join_projections", "join_sibling_products", "join_sibling_steps"),
}
"""The passes that compute constants of any size."""


drawn = settings(deadline=None, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=SLOW)


def refused(each: AnyPass, graph: Graph) -> str | None:
    """Return what the journal says of nodes that a pass leaves without a budget; None if it needs none."""
    bound, manager = given_to(each, graph), PassManager(PassContext(Budget(Limits(folding_bytes=0))))
    with suppress(ModelError):  # a shape depends on what is not folded, and the error names the limit
        if str(manager.run(bound, each)) != str(each(bound)):
            return " ".join(c.text for step in manager.journal.notes for c in step.changes if c.kind == "left")
    return None


@pytest.mark.parametrize("name", ALONE)
def test_the_journal_tells_what_the_budget_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL", 0)  # the constants of random networks are small
    each = ALONE[name]

    @given(graph=OWN[name])
    @settings(drawn, max_examples=10)
    def told(graph: Graph) -> None:
        said = refused(each, graph)
        assert said is None or "would go beyond the limit 'folding_bytes'" in said
        assert said is None or name in ASKING

    told()
    if name in ASKING:
        asked = OWN[name].map(lambda graph: refused(each, graph) is not None)
        find(asked, bool, settings=settings(drawn, max_examples=200))


def test_a_decoder_with_a_tight_limit_tells_why_its_products_stay_apart() -> None:
    net = Net()
    graph = net.finish(decoder(net, net.input("x", 2, 5, 16), 2, 3))
    tight = PassManager(PassContext(Budget(Limits(folding_bytes=2000))))
    after = graph
    for each in weft.core.passes.PASSES:
        after = tight.run(after, each)
    assert (kinds(run_passes(graph)).count("MatMul"), kinds(after).count("MatMul")) == (2, 4)
    first = next(n.name for n in graph.nodes if n.op.type == "MatMul")
    (told,) = tight.journal.explain(first)
    assert told.startswith("join_sibling_products (")
    assert told.endswith(f"{first!r} stays: joined weights would go beyond the limit 'folding_bytes'")


def test_what_one_attempt_leaves_and_another_rewrites_is_not_left() -> None:
    @graph_pass()
    def abs_of_relu(graph: Graph, context: PassContext) -> Graph:
        """Remove the first node."""
        first, *rest = graph.nodes
        assert not context.allows(first.name, 1 << 20)
        out = graph.copy()
        out.nodes = [n for n in rest if n.inputs[0] != first.outputs[0]]
        return out

    net = Net()
    x = net.input("x", 2, 3)
    net.add("Relu", x)
    graph = net.finish(net.add("Abs", x))
    manager = PassManager(PassContext(Budget(Limits(folding_bytes=0))))
    assert kinds(manager.run(graph, abs_of_relu)) == ["Abs"]
    assert manager.context.left == {}


def test_no_pass_asks_the_budget_itself() -> None:
    """`PassContext.allows` records the reason, too."""
    folder = Path(weft.core.passes.__path__[0])
    others = [path for path in folder.rglob("*.py") if path != folder / "manager.py"]
    assert others
    assert [path.name for path in others if "budget.allows(" in path.read_text()] == []
