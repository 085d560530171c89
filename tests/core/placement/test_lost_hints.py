"""Contract row A3: a hint that the rewrites leave without a node is noted, and one is found without a search."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.helpers.fakes import mock, mocks
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.core.placement.decompose import decompose_refused
from weft.core.placement.hints import Hints
from weft.errors import ConfigError


def turned_twice() -> Graph:
    """Return a Relu between two transposes that undo each other."""
    net = Net()
    a = net.add("Transpose", net.input("x", 2, 3), name="a", perm=(1, 0))
    return net.finish(net.add("Transpose", net.add("Relu", a, name="b"), name="c", perm=(1, 0)))


@pytest.mark.parametrize("hint", ["n_a", "*_a", "n_[ac]"])
def test_A3_a_hint_whose_nodes_the_rewrites_took_is_a_note_of_network_and_report(hint: str) -> None:
    with mocks(one=mock(), two=mock()):
        network = weft.optimize(turned_twice(), ["one", "two"], hints={hint: "two"})
        assert [n for n in network.notes if n.startswith(f"hint '{hint}': no node of that name is left")]
        with weft.load(turned_twice(), ["one", "two"], hints={hint: "two"}) as session:
            assert [n for n in session.report.notes if f"hint '{hint}'" in n]


@pytest.mark.parametrize("hint", ["n_b", "n_*", "n_[ab]"])
def test_A3_a_hint_that_has_a_node_still_is_no_note(hint: str) -> None:
    with mocks(one=mock(), two=mock()):
        network = weft.optimize(turned_twice(), ["one", "two"], hints={hint: "two"})
        assert network.placement == {"n_b": "two:0"}
        assert not network.notes


def test_A3_what_folds_a_batch_norm_or_a_constant_away_notes_its_hint() -> None:
    net = Net()
    known = net.add("Relu", net.random(4), name="known")
    x = net.add("MatMul", net.input("x", 2, 3), net.random(3, 4), name="product")
    ones = [np.ones(4, np.float32)] * 4
    y = net.add("BatchNormalization", x, *ones, name="norm")
    graph = net.finish(net.add("Add", y, known, name="sum"))
    with mocks(one=mock(), two=mock()):
        hints = {"n_norm": "two", "n_known": "two", "n_sum": "two"}
        notes = weft.optimize(graph, ["one", "two"], hints=hints).notes
    assert [n.split(":")[0] for n in notes] == ["hint 'n_norm'", "hint 'n_known'"]


def test_A3_the_parts_of_an_op_are_where_it_was_wanted() -> None:
    net = Net()
    graph = net.finish(net.add("Gelu", net.input("x", 2, 3), name="gelu"))
    with mocks(one=mock(), two=mock("Mul", "Erf", "Add")):
        network = weft.optimize(graph, ["one", "two"], hints={"n_gelu": "two"})
        assert len(network.placement) > 1 and set(network.placement.values()) == {"two:0"}
        with pytest.raises(ConfigError, match="no node is called 'n_gel'"):
            weft.optimize(graph, ["one", "two"], hints={"n_gel": "two"})


def test_A3_hints_given_as_a_mapping_are_left_as_they_are() -> None:
    net, hints = Net(), {"n_gelu": "one"}
    graph = net.finish(net.add("Gelu", net.input("x", 2, 3), name="gelu"))
    with mocks(one=mock("Mul", "Erf", "Add")), weft.load(graph, "one") as session:
        backends = {"one": session.pipelines[0].backend}
        divided, notes = decompose_refused(graph, backends, hints)
    assert len(divided.nodes) > 1 and notes and hints == {"n_gelu": "one"}


names = st.text("ab[]*?", min_size=1, max_size=4)


@given(st.dictionaries(names, st.sampled_from("xy")), names)
def test_A3_a_hint_is_what_a_look_at_all_would_find(hints: dict[str, str], name: str) -> None:
    wild = [d for p, d in hints.items() if fnmatchcase(name, p)]
    assert Hints(hints).device(name) == hints.get(name, wild[0] if wild else None)
