"""Contract row A6: failed parts, and only they, go to the next backends, whose optimisers see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.fakes import Mock, Replace, compiled, mock, mocks
from tests.helpers.nets import chain, feeds, kinds
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.run_length import examples
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.prepare import prepare_network
from weft.errors import UnsupportedOps

FIVE = ("Relu", "Tanh", "Exp", "Sqrt", "Neg")


def as_one(nodes: Sequence[Node]) -> list[tuple[str, Sequence[Node]]]:
    """Replace each node by a precompiled one."""
    return [("compiled", [n]) for n in nodes]


def assert_right(network: OptimizedNetwork, graph: Graph) -> None:
    """The network, loaded, gives what the graph's references give."""
    with weft.load(network) as session:
        for seed in range(2):
            (y,) = session.run(feeds(graph, seed))
            np.testing.assert_array_equal(y, outputs(graph, feeds(graph, seed))[0])


def reasons(network: OptimizedNetwork) -> list[str]:
    return [f"{r.node[2:]} {r.device[:-2]}: {r.reason}" for r in network.refusals]


def where(network: OptimizedNetwork) -> str:
    """Return the devices of the nodes in order: "one one two"."""
    placement = network.placement
    return " ".join(placement[n.name][:-2] for n in network.graph.nodes if n.name in placement)


# -- {fully, partly, not} supported x {fully, partly, not} optimised -----------------------------------------

SUPPORT = {"fully": FIVE, "partly": ("Relu", "Tanh", "Exp"), "not": ("Abs",)}
FAILURES: dict[str, tuple[str, ...]] = {
    "fully": (),
    "partly": ("n_v1",),
    "not": tuple(f"n_v{k}" for k in range(5)),
}


@pytest.mark.parametrize("optimised", FAILURES)
@pytest.mark.parametrize("supported", SUPPORT)
def test_A6_only_what_failed_moves_and_the_next_optimiser_sees_it(supported: str, optimised: str) -> None:
    takes, fails = SUPPORT[supported], {n: f"{n} is too hard" for n in FAILURES[optimised]}
    one, two = mock(*takes, fails=fails, replace=as_one), mock(replace=as_one)
    graph = chain(*FIVE)
    with mocks(one=one, two=two) as ids:
        network = weft.optimize(graph, ids, fallback="error" if not fails and supported == "fully" else "cpu")
        assert_right(network, graph)
    offered = [n.name for n in graph.nodes if n.op.type in takes]
    kept = [n for n in offered if n not in fails]
    moved = [n.name for n in graph.nodes if n.name not in kept]
    assert [n for view in one.views for n in view] == offered
    assert sorted(n for view in two.views for n in view) == moved
    assert where(network) == " ".join("one" if n.name in kept else "two" for n in graph.nodes)
    assert set(kinds(network.graph)) <= {"PreCompiled", "Copy"}
    refused = [f"{n.name[2:]} one: one does not do {n.op.type}" for n in graph.nodes if n.op.type not in takes]
    failed = [f"{n[2:]} one: {n} is too hard" for n in offered if n in fails]
    assert sorted(reasons(network)) == sorted(refused + failed)


@pytest.mark.parametrize("optimised", FAILURES)
@pytest.mark.parametrize("supported", SUPPORT)
def test_A6_the_same_through_load(supported: str, optimised: str) -> None:
    fails = {n: f"{n} is too hard" for n in FAILURES[optimised]}
    graph = chain(*FIVE)
    with mocks(one=mock(*SUPPORT[supported], fails=fails), two=mock()) as ids, weft.load(graph, ids) as session:
        takes = {n.name: n.op.type in SUPPORT[supported] and n.name not in fails for n in graph.nodes}
        assert session.report.placement == {n: "one" if mine else "two" for n, mine in takes.items()}
        assert set(session.report.refusals) == {n for n, mine in takes.items() if not mine}
        np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])


# -- who sees what --------------------------------------------------------------------------------------------


def test_A6_failed_nodes_join_neighbours_that_their_new_backend_has_not_seen() -> None:
    one = mock("Relu", "Tanh", fails={"n_v1": "too hard"})
    two = mock("Exp", "Tanh")
    with mocks(one=one, two=two) as ids:
        network = weft.optimize(chain("Relu", "Tanh", "Exp"), ids)
    assert (one.views, two.views) == ([["n_v0", "n_v1"]], [["n_v1", "n_v2"]])
    assert [len(p.graph.nodes) for p in network.parts] == [1, 2]


def test_A6_a_backend_that_was_asked_sees_what_comes_back_alone() -> None:
    """three gets v1 by a hint and fails it; it comes back to one, which has optimised v0 and v2 already."""
    one, three = mock(replace=as_one), mock(fails={"n_v1": "not today"})
    with mocks(one=one, three=three) as ids:
        graph = chain("Relu", "Tanh", "Exp")
        network = weft.optimize(graph, ids, hints={"n_v1": "three"})
        assert_right(network, graph)
    assert one.views == [["n_v0"], ["n_v2"], ["n_v1"]] and three.views == [["n_v1"]]
    assert reasons(network) == ["v1 three: not today"]
    assert len(network.parts) == 1, "what is on one device in the end is one part"


def test_A6_a_failed_part_of_several_nodes_moves_as_a_whole() -> None:
    class Failing(Mock):
        views: list[list[str]] = []

        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            views = OptimizationViews()
            views.fail(view.part(view.nodes[1:4]), "three at once are too many")
            part = view.part(view.nodes[:1])
            views.substitute(part, compiled(part, self.info.id))
            return views.keep_rest(view)

    two = mock(replace=lambda nodes: [("compiled", nodes)])
    graph = chain(*FIVE)
    with mocks(one=Failing, two=two) as ids:
        network = weft.optimize(graph, ids)
        assert_right(network, graph)
    assert two.views == [["n_v1", "n_v2", "n_v3"]]
    assert kinds(network.graph) == ["PreCompiled", "Copy", "PreCompiled", "Copy", "Neg"]
    assert where(network) == "one two one"
    assert reasons(network) == [f"v{k} one: three at once are too many" for k in (1, 2, 3)]


def test_A6_failed_nodes_go_to_different_backends() -> None:
    one = mock("Relu", "Tanh", "Exp", fails={"n_v0": "first", "n_v2": "third"})
    two, three = mock("Relu"), mock("Exp")
    graph = chain("Relu", "Tanh", "Exp")
    with mocks(one=one, two=two, three=three) as ids:
        network = weft.optimize(graph, ids, fallback="cpu")
        assert_right(network, graph)
    assert where(network) == "two one three"
    assert (two.views, three.views) == ([["n_v0"]], [["n_v2"]])
    assert reasons(network) == ["v0 one: first", "v2 one: third", "v2 two: two does not do Exp"]


def test_A6_a_chain_of_failures_ends_with_every_reason() -> None:
    made = {f"m{k}": mock(fails={"n_v1": f"reason {k}"}) for k in range(3)}
    with mocks(**made) as ids, pytest.raises(UnsupportedOps) as caught:
        weft.optimize(chain("Relu", "Tanh", "Exp"), ids, fallback="error")
    assert caught.value.problems == ("'n_v1' (Tanh): m0:0: reason 0; m1:0: reason 1; m2:0: reason 2",)
    assert [(r.node, r.device, r.reason) for r in caught.value.refusals] == [
        ("n_v1", f"m{k}:0", f"reason {k}") for k in range(3)
    ]
    assert [made[id_].views for id_ in ids] == [[["n_v0", "n_v1", "n_v2"]], [["n_v1"]], [["n_v1"]]]


def test_A6_backends_that_fail_everything_end_with_all_nodes_at_once() -> None:
    graph = chain("Relu", "Tanh", "Relu", "Tanh")
    all_ = {n.name: "no" for n in graph.nodes}
    made = {"one": mock("Relu", fails=all_), "two": mock("Tanh", fails=all_), "three": mock(fails=all_)}
    with mocks(**made) as ids, pytest.raises(UnsupportedOps) as caught:
        weft.optimize(graph, ids, fallback="error")
    assert [p.partition(" ")[0] for p in caught.value.problems] == ["'n_v0'", "'n_v1'", "'n_v2'", "'n_v3'"]
    assert caught.value.problems[1] == "'n_v1' (Tanh): one:0: one does not do Tanh; two:0: no; three:0: no"


def test_A6_the_cpu_takes_what_all_others_fail() -> None:
    graph = chain(*FIVE)
    everything = {n.name: "no" for n in graph.nodes}
    with mocks(one=mock(fails=everything), two=mock(fails=everything)) as ids:
        network = weft.optimize(graph, ids)
        assert_right(network, graph)
    assert where(network) == "cpu cpu cpu cpu cpu" and len(network.refusals) == 10


def test_A6_fallback_error_counts_failures() -> None:
    with mocks(one=mock(fails={"n_v1": "no"})) as ids, pytest.raises(UnsupportedOps) as caught:
        weft.load(chain("Relu", "Tanh"), [*ids, "cpu"], fallback="error")
    assert caught.value.problems == ("'n_v1' (Tanh): one:0: no",)


# -- any graph, any backends ----------------------------------------------------------------------------------


def in_runs(cuts: Sequence[tuple[int, str]]) -> Replace:
    """Replace runs of nodes of the given lengths, one after the other, each in the given way, or not ("")."""

    def runs(nodes: Sequence[Node]) -> list[tuple[str, Sequence[Node]]]:
        ends = [0, *accumulate(length for length, _ in cuts)]
        return [(how, nodes[a:b]) for (_, how), a, b in zip(cuts, ends, ends[1:], strict=False) if how and nodes[a:b]]

    return runs


@st.composite
def backends(draw: st.DrawFn, graph: Graph) -> dict[str, type[Mock]]:
    """Draw one to four backends, each with ops, nodes that it fails, and parts that it replaces."""
    ops = sorted({n.op.type for n in graph.nodes})
    names = sorted(n.name for n in graph.nodes)
    made = {}
    for k in range(draw(st.integers(1, 4))):
        takes = draw(st.lists(st.sampled_from(ops), unique=True)) if ops else []
        fails = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
        ways = st.tuples(st.integers(1, 3), st.sampled_from(["", "compiled", "renamed"]))
        made[f"m{k}"] = mock(
            *(takes or ["nothing"]),
            imports=draw(st.booleans()),
            fails={n: f"m{k} fails {n}" for n in fails},
            replace=in_runs(draw(st.lists(ways, max_size=5))),
        )
    return made


def check_parts(network: OptimizedNetwork, prepared: Graph, made: dict[str, type[Mock]]) -> None:
    """Every node is in one part of its device; what no backend replaced is where the rules put it."""
    in_parts = [n.name for p in network.parts for n in p.graph.nodes]
    assert Counter(in_parts) == Counter(n.name for n in network.graph.nodes if n.op.type != "Copy")
    assert max(Counter(in_parts).values(), default=1) == 1
    seen = Counter(n for cls in made.values() for view in cls.views for n in view)
    assert all(
        (id_, n) not in failed
        for failed in [{(r.device[:-2], r.node) for r in network.refusals}]
        for n, id_ in ((n, d[:-2]) for n, d in network.placement.items())
    )
    for node in prepared.nodes:
        takers = [i for i, m in made.items() if node.op.type in (m.takes or ()) and node.name not in m.fails]
        asked = [i for i, m in made.items() if node.op.type in (m.takes or ())]
        home = takers[0] if takers else "cpu"
        before = asked[: asked.index(home) + 1] if takers else asked
        assert seen[node.name] == len(before), f"{node.name} was seen by {seen[node.name]} and not {before}"
        assert network.placement.get(node.name, f"{home}:0") == f"{home}:0"
        for id_ in before:
            if id_ != home:
                (said,) = [r.reason for r in network.refusals if (r.node, r.device) == (node.name, f"{id_}:0")]
                assert said == f"{id_} fails {node.name}"


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
def test_A6_any_network_on_any_backends_gives_the_numbers_of_one_backend(data: st.DataObject) -> None:
    graph = data.draw(networks(9))
    prepared = prepare_network(graph, weft.Precision.HIGH).graph
    made = data.draw(backends(prepared))
    fed = [feeds(graph, seed) for seed in range(2)]
    with weft.load(graph, "cpu") as alone:
        wanted = [alone.run(f) for f in fed]
    with mocks(**made) as ids:
        network = weft.optimize(graph, ids)
        check_parts(network, prepared, made)
        again = weft.optimize(graph, ids)
        assert str(again) == str(network)
        for source in (network, graph):
            with weft.load(source, *([] if source is network else [ids])) as session:
                for f, expected in zip(fed, wanted, strict=True):
                    for got, want in zip(session.run(f), expected, strict=True):
                        np.testing.assert_array_equal(got, want)
