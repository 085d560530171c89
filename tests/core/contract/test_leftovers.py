"""Contract row A5: a replacement does not redefine values outside it, and values that it leaves unread are removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import weft
from tests.helpers.fakes import Mock, mock, mocks
from tests.helpers.nets import Net, feeds
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import remove_unread
from weft.core.placement.optimized_network import precompiled

WRONG = TensorSpec((7, 7), DType.FLOAT32)


def chain(*kinds: str) -> Graph:
    net = Net()
    value = net.input("x", 2, 3)
    for k, kind in enumerate(kinds):
        value = net.add(kind, value, name=f"v{k}")
    return net.finish(value)


class Slanders(Mock):
    """Replaces its part by itself, with specs and layouts for values all over the network."""

    takes = frozenset({"Relu"})

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views, graph = OptimizationViews(), view.graph.copy()
        for name in ("x", "v2", "nowhere"):
            graph.specs[name], graph.layouts[name] = WRONG, Layout.NC4HW4
        views.substitute(view, graph)
        return views


def test_A5_a_replacement_does_not_change_the_specs_and_layouts_of_others() -> None:
    graph = chain("Tanh", "Relu", "Exp")
    with mocks(acme=Slanders):
        network = weft.optimize(graph, ["acme", "cpu"])
        assert network.placement["n_v1"] == "acme:0"
        assert {s.shape for s in network.graph.specs.values()} == {(2, 3)} and not network.graph.layouts
        with weft.load(network) as session:
            np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])


class Swallows(Mock):
    """Puts its part, weights and all, into one node."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        views.substitute(view, precompiled(view, self.info.id, b"".join(
            value.tobytes() for value in view.graph.constants.values())))
        return views


def test_A5_weights_that_a_backend_took_are_not_kept_and_not_saved_again(tmp_path: Path) -> None:
    net = Net()
    graph = net.finish(net.add("MatMul", net.input("x", 2, 64), net.random(64, 64), name="y"))
    with mocks(acme=Swallows):
        network = weft.optimize(graph, ["acme"])
        assert not network.graph.constants and set(network.graph.specs) == {"x", "y"}
        network.save(tmp_path / "net.weft")
    assert (tmp_path / "net.weft").stat().st_size < 1.5 * 64 * 64 * 4


def test_A5_what_is_read_or_an_output_stays() -> None:
    net = Net()
    known = net.constant(np.ones((2, 3), np.float32), "known")
    graph = net.finish(net.add("Relu", net.input("x", 2, 3), name="y"), known)
    net.constant(np.ones(2, np.float32), "unread")
    with mocks(acme=mock()):
        assert set(weft.optimize(graph, ["acme"]).graph.constants) == {"known"}
    kept = remove_unread(replace(graph, inputs=["x", "z"], specs={**graph.specs, "z": WRONG}))
    assert set(kept.specs) == {"x", "y", "z", "known"}
