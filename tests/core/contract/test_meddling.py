"""Contract row A5: a backend is shown a copy; only what it returns changes the network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Mock, compiled, mocks
from tests.helpers.nets import Net, feeds, kinds, op
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs

MEDDLING: dict[str, Callable[[Graph], object]] = {
    "drops nodes": lambda graph: graph.nodes.clear(),
    "adds a node": lambda graph: graph.nodes.append(Node("more", op("Neg"), ("y",), ("z",))),
    "turns nodes round": lambda graph: graph.nodes.reverse(),
    "changes an op": lambda graph: object.__setattr__(graph.nodes[0], "op", op("Neg")),
    "forgets specs": lambda graph: graph.specs.clear(),
    "forgets slots": lambda graph: graph.outputs.clear(),
}


@pytest.mark.parametrize("meddling", MEDDLING)
def test_A5_what_a_backend_does_to_its_view_changes_nothing_but_what_it_returns(meddling: str) -> None:
    """Its views are right, and then it works on in the graph that it was shown."""

    class Acme(Mock):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            views = OptimizationViews()
            part = view.part(n for n in view.nodes if n.op.type == "Tanh")
            views.substitute(part, compiled(part, "acme"))
            views.keep_rest(view)
            MEDDLING[meddling](view.graph)
            return views

    net = Net()
    a = net.add("Relu", net.input("x", 2, 3), name="a")
    b = net.add("Tanh", a, name="b")
    graph = net.finish(net.add("Add", b, net.add("Exp", a, name="c"), name="y"), b)
    with mocks(acme=Acme):
        network = weft.optimize(graph, "acme", fallback="error")
        with weft.load(network) as session:
            for got, wanted in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert kinds(network.graph) == ["Relu", "PreCompiled", "Exp", "Add"]
    assert [n.name for n in network.graph.nodes] == ["n_a", "acme runs n_b", "n_c", "n_y"]
