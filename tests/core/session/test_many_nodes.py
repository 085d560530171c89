"""What must not grow with the square of a network: looks at all names, divisions of the graph, lists of copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain as chain_of
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.helpers.fakes import mock, mocks
from tests.helpers.nets import Net, op
from weft.core.graph import graph as graphs
from weft.core.graph.graph import Graph, Names, Node
from weft.core.placement import debug_nodes, decompose, optimizer
from weft.core.placement.optimized_network import Part
from weft.core.placement.partition import partition
from weft.errors import NoDevice


def chain(count: int, *kinds: str) -> Graph:
    nodes = [Node(f"n{k}", op(kinds[k % len(kinds)]), (f"v{k}",), (f"v{k + 1}",)) for k in range(count)]
    net = Net()
    net.input("v0", 2, 3)
    return Graph("chain", ["v0"], [f"v{count}"], nodes, net.graph.specs)


@given(st.lists(st.sampled_from(["a", "b", "a.1", "a.2"])), st.lists(st.sampled_from(["a", "b", "a.1"])))
def test_names_are_new_each_time_and_the_shortest_that_are_free(taken: list[str], bases: list[str]) -> None:
    known = set(taken)
    names = Names(Graph("g", [], [], [Node(name, op("Relu"), (), ()) for name in taken]))
    for base in bases:
        free = next(n for n in chain_of([base], (f"{base}.{k}" for k in count(1))) if n not in known)
        assert names.fresh(base) == free
        known.add(free)


def looks(monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    """Return how often all names of a network are looked at while it is optimised, with copies and debug nodes."""
    seen = []

    class Counted(Names):
        def __init__(self, graph: Graph) -> None:
            seen.append(graph)
            super().__init__(graph)

    for module in (graphs, optimizer, debug_nodes, decompose):
        monkeypatch.setattr(module, "Names", Counted)
    with mocks(one=mock("Relu"), two=mock()):
        weft.optimize(chain(count, "Relu", "Tanh"), ["one", "two"], debug=lambda record: None)
    return len(seen)


def test_names_are_looked_at_once_a_step_not_once_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < looks(monkeypatch, 10) == looks(monkeypatch, 40)


def test_the_graph_is_divided_once_where_no_backend_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[int] = []

    def counted(graph: Graph, device: dict[str, str], order: Sequence[str] = ()) -> list[Part]:
        divided.append(len(graph.nodes))
        return partition(graph, device, order)

    monkeypatch.setattr(optimizer, "partition", counted)
    with mocks(one=mock("Relu"), two=mock("Tanh"), three=mock("Exp")):
        weft.optimize(chain(9, "Relu", "Tanh", "Exp"), ["one", "two", "three"])
        assert len(divided) == 2  # for the backends, and at the end
        divided.clear()
    swap = mock("Relu", replace=lambda nodes: [("compiled", nodes)])
    with mocks(one=swap, two=mock("Tanh"), three=mock("Exp")):
        weft.optimize(chain(9, "Relu", "Tanh", "Exp"), ["one", "two", "three"])
    assert len(divided) == 3  # once more, for what one changed


def test_results_that_nobody_reads_cost_one_turn() -> None:
    """Each node of a chain has a reader on another device, as debug nodes are."""
    graph = chain(60, "Relu", "Tanh", "Exp")
    device = {f"n{k}": "abc"[k % 3] for k in range(60)}
    for k in range(60):
        graph.nodes.append(Node(f"d{k}", op("Relu"), (f"v{k + 1}",), (f"w{k}",)))
        device[f"d{k}"] = "host"
    graph = graphs.infer_shapes(graph)
    parts = partition(graph, device)
    assert [p.device for p in parts] == ["a", "b", "c"] * 20 + ["host"]
    assert [n.name for n in parts[-1].graph.nodes] == [f"d{k}" for k in range(60)]


def test_ends_run_as_soon_as_their_device_has_a_turn() -> None:
    graph = chain(4, "Relu")
    graph.nodes.append(Node("early", op("Exp"), ("v1",), ("w",)))
    device = {"n0": "a", "n1": "b", "n2": "a", "n3": "b", "early": "b"}
    parts = partition(graphs.infer_shapes(graph), device)
    assert [[n.name for n in p.graph.nodes] for p in parts] == [["n0"], ["n1", "early"], ["n2"], ["n3"]]


def test_a_backend_that_opened_is_closed_where_the_next_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    opens, fails = mock(), mock()
    monkeypatch.setattr(opens, "close", lambda self: closed.append(self), raising=False)

    def refuse(self: object, info: object) -> None:
        raise NoDevice("there is no such device")

    monkeypatch.setattr(fails, "__init__", refuse)
    with mocks(one=opens, two=fails), pytest.raises(NoDevice):
        weft.optimize(chain(3, "Relu"), ["one", "two"])
    assert len(closed) == 1
