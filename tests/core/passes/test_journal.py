"""The journal: what became of each node and value, which pass did it, and how it is told."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.fakes import mock, mocks
from tests.helpers.nets import Net, op
from weft.core.graph.graph import Graph, Node
from weft.core.passes.journal import Journal
from weft.errors import ConfigError, InputError
from weft.extend import PassContext, graph_pass


def told(before: list[Node], after: list[Node], outputs: list[str], name: str) -> list[str]:
    journal = Journal()
    journal.note("step", before, after, outputs)
    return journal.explain(name)


def node(name: str, reads: str, makes: str = "", kind: str = "Relu") -> Node:
    return Node(name, op(kind), tuple(reads.split()), (makes or f"{name}.out",))


A, B, C = node("a", "x"), node("b", "a.out"), node("c", "b.out", "y")


@pytest.mark.parametrize(
    ("after", "name", "text"),
    [
        ([A, node("b", "a.out", "y", "Exp")], "c", "'c' is gone: 'b' makes 'y' now"),
        ([A, node("b", "a.out", "y", "Exp")], "b", "'b' is now Exp(), makes 'y' instead of 'b.out', and does the "),
        ([A, node("c", "a.out", "y", "Exp")], "b", "'b' is merged into 'c'"),
        ([node("c", "x", "y", "Exp")], "a", "'a' is merged into 'c'"),
        ([A, node("c", "a.out", "y")], "b", "'b' is gone: its readers read 'a.out' instead"),
        ([A, node("c", "a.out", "y")], "c", "'c' reads 'a.out' instead of 'b.out'"),
        ([C], "b", "'b' is computed once, before all runs: its results are constants"),
        ([C], "a", "'a' is computed once, before all runs: its results are constants"),
        ([A, B, C, node("d", "a.out")], "d", "'d' is new: d.out = Relu()(a.out)  # d"),
        ([A, B, C, node("d", "a.out")], "d.out", "'d' is new: d.out = Relu()(a.out)  # d"),
    ],
)
def test_what_became_of_a_node(after: list[Node], name: str, text: str) -> None:
    assert text in told([A, B, C], after, ["y"], name)[-1]


def test_a_node_that_nobody_reads_and_one_whose_readers_are_gone() -> None:
    dead, deader = node("d", "a.out"), node("e", "d.out")
    for name in ("d", "e"):
        said = told([A, B, C, dead, deader], [A, B, C], ["y"], name)
        assert said[-1] == f"step: {name!r} is gone: nothing reads its results"


def test_attributes_that_changed_are_told_alone() -> None:
    before = [Node("p", op("Transpose", perm=(1, 0)), ("x",), ("y",))]
    after = [Node("p", op("Transpose", perm=(0, 1)), ("x",), ("y",))]
    assert told(before, after, ["y"], "p")[-1] == "step: 'p' has perm=(0, 1) instead of (1, 0)"


def test_a_long_chain_of_nodes_that_went_is_followed_to_its_end() -> None:
    chain = [node(f"n{k}", f"v{k}", f"v{k + 1}") for k in range(5000)]
    last = [node("n4999", "v0", "v5000", "Exp")]
    assert told(chain, last, ["v5000"], "n0")[1] == "step: 'n0' is merged into 'n4999'"


def conv_and_norm() -> Graph:
    net = Net()
    y = net.conv(net.input("x", 1, 3, 6, 6), 4, 3, name="conv")
    y = net.add("BatchNormalization", y, *(np.abs(net.random(4)) + 1 for _ in range(4)), name="norm")
    half = net.add("Neg", np.array(-0.5, np.float32), name="half")
    return net.finish(net.add("Mul", net.add("Relu", y, name="relu"), half, name="y"))


def test_the_life_of_a_node_goes_from_the_file_to_the_device() -> None:
    network = weft.optimize(conv_and_norm(), "opencl")
    first, folded, fused, laid, now = network.why("n_norm")
    assert first.startswith("as read: norm = BatchNormalization(")
    assert folded.startswith("fold_batch_norm (Move") and "'n_norm' is gone: 'n_conv' makes 'norm' now" in folded
    assert fused.startswith("opencl:0 (") and "does the work of 'n_relu', 'n_y'" in fused
    assert laid.startswith("opencl:0 assign_layouts (") and "'n_conv' makes 'y.c4' instead of 'y'" in laid
    assert now.startswith("now: 'n_conv' runs on opencl:0: n_conv (Conv + Relu + Mul) -> y.c4: float32[")
    assert "its results are constants" in "".join(network.why("half"))
    assert network.why("half")[-1] == "now: 'half' is a constant of the network, float32[]"
    assert "'n_conv' makes 'norm' now" in " ".join(network.why("norm"))


def test_ops_that_are_taken_apart_and_copies_are_told() -> None:
    net = Net()
    gelu = net.add("Gelu", net.input("x", 2, 3), name="gelu")
    graph = net.finish(net.add("Exp", gelu, name="y"))
    with mocks(one=mock("Mul", "Add", "Erf"), two=mock()) as ids:
        network = weft.optimize(graph, ids)
    said = "\n".join(network.why("n_gelu"))
    assert "one:0 refuses Gelu and takes its parts" in said
    (copy,) = network.copies
    assert "insert_copies" in network.why(copy.name)[0]
    assert network.why(copy.name)[-1].startswith(f"now: {copy.name!r} brings a value from one device to another")
    refused = network.why("n_y")
    assert any(line.startswith("one:0 refuses 'n_y': ") for line in refused) and "runs on two:0" in refused[-1]


def test_a_name_that_never_was_is_an_error_with_names_like_it() -> None:
    with pytest.raises(InputError, match="no node or value 'n_konv', neither as") as caught:
        weft.optimize(conv_and_norm(), "cpu").why("n_konv")
    assert "'n_conv'" in caught.value.why
    assert weft.optimize(conv_and_norm(), "cpu").why("x") == ["now: 'x' is an input of the network, float32[1x3x6x6]"]


def test_the_report_of_a_session_has_the_journal() -> None:
    with weft.load(conv_and_norm(), "cpu", memory="limit") as session:
        assert session.report.journal == session.optimized.journal
        assert session.report.journal.explain("n_norm") == session.optimized.why("n_norm")[:-1]


# -- a user's passes -------------------------------------------------------------------------------------------


@graph_pass()
def relu_to_abs(graph: Graph, context: PassContext) -> Graph:
    """Put an Abs in the place of each Relu."""
    if all(n.op.type != "Relu" for n in graph):
        return graph
    out = graph.copy()
    out.nodes = [Node(n.name, op("Abs"), n.inputs, n.outputs) if n.op.type == "Relu" else n for n in graph]
    return out


def relu(*shape: int | str) -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", *shape), name="y"))


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_users_pass_runs_at_each_load_and_resize(device: str, precision: str) -> None:
    for graph in (relu(2, 3), relu("n", 3)):
        with weft.load(graph, device, precision=precision, passes=[relu_to_abs], fallback="error") as session:
            for rows in (2, 2) if graph.inputs and isinstance(graph.specs["x"].shape[0], int) else (2, 5):
                (y,) = session.run(np.full((rows, 3), -2, np.float32))
                np.testing.assert_array_equal(y, np.full((rows, 3), 2, np.float32))
                assert set(session.report.placement.values()) == {device}
                assert "relu_to_abs" in "".join(session.optimized.why("n_y"))
    (y,) = weft.load(relu(2, 3), "cpu").run(np.full((2, 3), -2, np.float32))
    assert not y.any()


def test_what_is_no_pass_is_refused() -> None:
    for given, why in (
        ([len], "<built-in function len> is no pass"),
        ([relu_to_abs, relu_to_abs], "2 passes are called 'relu_to_abs'"),
        (7, "7 is no pass"),
    ):
        with pytest.raises(ConfigError, match="passes= is not understood") as caught:
            weft.optimize(relu(2, 3), "cpu", passes=given)  # type: ignore[arg-type]
        assert caught.value.why == why
    with pytest.raises(ConfigError, match="an optimised network is loaded as it is"):
        weft.load(weft.optimize(relu(2, 3), "cpu"), passes=[relu_to_abs])

