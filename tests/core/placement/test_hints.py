"""Contract row A3: hints, and the nodes that nobody takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.fakes import mock, mocks
from tests.helpers.nets import Net, chain, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.placement.optimized_network import PreCompiled
from weft.errors import ConfigError, UnsupportedOps


def placement(graph: Graph, hints: Mapping[str, str], order: Sequence[str] = ("one", "two")) -> dict[str, str]:
    """Return the device of each node, by its number, after a run that gave the right numbers."""
    with weft.load(graph, list(order), hints=hints) as session:
        np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])
        return {name[3:]: device for name, device in session.report.placement.items()}


def test_A3_a_hint_by_name_goes_before_the_order() -> None:
    with mocks(one=mock(), two=mock()):
        assert placement(chain("Relu", "Tanh", "Exp"), {"n_v1": "two"}) == {"0": "one", "1": "two", "2": "one"}
        assert placement(chain("Relu", "Tanh"), {"n_v0": "cpu"}) == {"0": "cpu", "1": "one"}


def test_A3_a_hint_by_pattern_takes_all_that_fit() -> None:
    graph = chain("Relu", "Tanh", "Exp", "Relu")
    with mocks(one=mock(), two=mock()):
        assert set(placement(graph, {"n_*": "two"}).values()) == {"two"}
        assert placement(graph, {"*[13]": "two"}) == {"0": "one", "1": "two", "2": "one", "3": "two"}


def test_A3_a_nodes_own_name_goes_before_patterns_and_the_first_pattern_before_others() -> None:
    graph = chain("Relu", "Tanh", "Exp")
    with mocks(one=mock(), two=mock(), three=mock()):
        hints = {"n_*": "two", "n_v1": "three", "*2": "one"}
        assert placement(graph, hints, ("one", "two", "three")) == {"0": "two", "1": "three", "2": "two"}


def test_A3_a_name_with_brackets_is_a_name() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 2), name="[0]/a?"))
    with mocks(one=mock(), two=mock()), weft.load(graph, ["one", "two"], hints={"n_[0]/a?": "two"}) as session:
        assert session.report.placement == {"n_[0]/a?": "two"}


def test_A3_what_the_hinted_device_refuses_falls_through_the_order_with_the_reason() -> None:
    graph = chain("Relu", "Tanh", "Exp")
    with (
        mocks(one=mock("Exp"), two=mock("Relu", "Exp"), three=mock("Exp")) as ids,
        weft.load(graph, ids, hints={"n_*": "three"}) as session,
    ):
        assert session.report.placement == {"n_v0": "two", "n_v1": "cpu", "n_v2": "three"}
        assert session.report.refusals == {
            "n_v0": {"three:0": "three does not do Relu", "one:0": "one does not do Relu"},
            "n_v1": {d: f"{d[:-2]} does not do Tanh" for d in ("three:0", "one:0", "two:0")},
        }


def test_A3_a_hint_may_name_an_index_or_a_forward_type() -> None:
    with mocks(one=mock()):
        graph = chain("Relu", "Tanh")
        hints: dict[str, str | weft.ForwardType] = {"n_v0": weft.ForwardType.CPU, "n_v1": "one:0"}
        with weft.load(graph, "one", hints=hints) as session:
            assert session.report.placement == {"n_v0": "cpu", "n_v1": "one"}


@pytest.mark.parametrize("how", [weft.load, weft.optimize])
def test_A3_hints_that_cannot_be_followed_are_named_all_at_once(how: object) -> None:
    hints = {"n_v7": "cpu", "n_v0": "nowhere", "n_v1": "two", "q*": "vulkan:99", "n_*": "one:no"}
    with mocks(one=mock(), two=mock()), pytest.raises(ConfigError) as caught:
        how(chain("Relu", "Tanh"), ["one"], hints=hints)  # type: ignore[operator]
    assert caught.value.why.split("; ") == [
        "no node is called 'n_v7'",
        "no node is called 'q*'",
        "'nowhere', for 'n_v0', is not in the order",
        "'two:0', for 'n_v1', is not in the order",
        "'vulkan:99', for 'q*', is not in the order",
        "'one:no', for 'n_*', is not in the order",
    ]
    assert "one:0, cpu:0" in caught.value.fix


def test_A3_a_hint_is_no_fallback() -> None:
    """What a hint puts elsewhere is wanted there; all that is not where a hint or the order puts it is an error."""
    graph = chain("Relu", "Tanh", "Exp")
    with mocks(one=mock("Relu", "Exp"), two=mock("Tanh")):
        with weft.load(graph, ["one", "two"], hints={"n_v1": "two"}, fallback="error") as session:
            assert session.report.placement == {"n_v0": "one", "n_v1": "two", "n_v2": "one"}
        with pytest.raises(UnsupportedOps) as caught:
            weft.load(graph, ["one", "two"], hints={"n_v0": "two"}, fallback="error")
    assert caught.value.what == "2 node(s) cannot run on two:0, one:0"
    assert caught.value.problems == (
        "'n_v0' (Relu): two:0: two does not do Relu",
        "'n_v1' (Tanh): one:0: one does not do Tanh",
    )


def test_A3_a_hint_that_is_refused_is_an_error_without_a_fallback() -> None:
    """The first device would take the node, but the user wants it on the other."""
    with mocks(one=mock(), two=mock("Tanh")), pytest.raises(UnsupportedOps, match=r"1 node.* cannot run on two:0"):
        weft.load(chain("Relu", "Tanh"), ["one", "two"], hints={"n_*": "two"}, fallback="error")


def test_A3_a_hint_that_fails_is_no_excuse_for_a_fallback() -> None:
    """two takes the node, as the hint says, and fails it; one refuses it: it would end on three unasked."""
    graph = chain("Relu", "Tanh")
    made = {"one": mock("Relu"), "two": mock("Tanh", fails={"n_v1": "too large"}), "three": mock()}
    with mocks(**made), pytest.raises(UnsupportedOps) as caught:
        weft.load(graph, ["one", "two", "three"], hints={"n_v1": "two"}, fallback="error")
    assert [str(r) for r in caught.value.refusals] == [
        "'n_v1' (Tanh): two:0: too large",
        "'n_v1' (Tanh): one:0: one does not do Tanh",
    ]


# -- nodes that nobody takes -------------------------------------------------------------------------------


def test_A3_the_advice_for_nodes_that_nobody_takes_works() -> None:
    graph = chain("Relu", "Tanh", "Exp")
    with mocks(one=mock("Relu"), two=mock("Tanh")):
        with pytest.raises(UnsupportedOps) as caught:
            weft.load(graph, ["one", "two"], fallback="error")
        assert caught.value.fix == 'allow the CPU: fallback="cpu"'
        with weft.load(graph, ["one", "two"], fallback="cpu") as session:
            assert session.report.nodes_by_device == {"one": 1, "two": 1, "cpu": 1}


def test_A3_where_the_cpu_refuses_too_nobody_is_sent_to_it() -> None:
    graph = chain("Relu")
    graph.nodes = [replace(graph.nodes[0], op=PreCompiled("acme", b"", (graph.specs["v0"],)))]
    with pytest.raises(UnsupportedOps, match="cpu:0: acme compiled it for itself") as caught:
        weft.load(graph, "cpu")
    assert "fallback" not in caught.value.fix and "on that backend alone" in caught.value.fix


@pytest.mark.parametrize("how", [weft.load, weft.optimize])
def test_A3_nodes_that_nobody_takes_are_a_table_of_all_of_them(how: object) -> None:
    graph = chain("Relu", "Tanh", "Relu", "Exp", "Sqrt")
    with mocks(one=mock("Relu"), two=mock("Tanh")), pytest.raises(UnsupportedOps) as caught:
        how(graph, ["one", "two"], fallback="error")  # type: ignore[operator]
    error = caught.value
    assert "2 node(s) run on none of one:0, two:0" in error.what
    assert error.problems == (
        "'n_v3' (Exp): one:0: one does not do Exp; two:0: two does not do Exp",
        "'n_v4' (Sqrt): one:0: one does not do Sqrt; two:0: two does not do Sqrt",
    )
    rows = [(r.node, r.op, r.device, r.reason) for r in error.refusals if r.node in ("n_v3", "n_v4")]
    assert rows == [
        (node, op, f"{d}:0", f"{d} does not do {op}")
        for node, op in (("n_v3", "Exp"), ("n_v4", "Sqrt"))
        for d in ("one", "two")
    ]


@pytest.mark.parametrize("how", [weft.load, weft.optimize])
def test_A3_fallback_error_carries_the_same_table(how: object) -> None:
    graph = chain("Relu", "Tanh", "Exp")
    with mocks(one=mock("Relu"), two=mock("Tanh")), pytest.raises(UnsupportedOps) as caught:
        how(graph, ["one", "two", "cpu"], fallback="error")  # type: ignore[operator]
    assert [(r.node, r.op, r.device, r.reason) for r in caught.value.refusals] == [
        ("n_v1", "Tanh", "one:0", "one does not do Tanh"),
        ("n_v2", "Exp", "one:0", "one does not do Exp"),
        ("n_v2", "Exp", "two:0", "two does not do Exp"),
    ]
    assert len(caught.value.problems) == 2 and "n_v1" in str(caught.value) and "n_v2" in str(caught.value)


def test_A3_nothing_is_created_before_such_an_error() -> None:
    made: list[str] = []

    class Counting(mock("Relu")):  # type: ignore[misc]
        def onCreate(self, *given: object) -> object:
            made.append("execution")
            return super().onCreate(*given)

    with mocks(one=Counting), pytest.raises(UnsupportedOps):
        weft.load(chain("Relu", "Tanh"), "one", fallback="error")
    assert not made
