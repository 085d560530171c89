"""What holds passes against what they declare, runs them in order and to a fixed point, and keeps the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import Net, kinds, op
from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.tensor import TensorSpec
from weft.core.passes import (
    PASSES,
    Pass,
    PassContext,
    PassGroup,
    PassManager,
    Property,
    arranged,
    graph_pass,
    run_passes,
)
from weft.core.passes.pads import fold_pads
from weft.core.passes.precision import FLOATS_AS_FLOAT16
from weft.core.passes.properties import NO_DEAD_NODES, SHAPES_INFERRED
from weft.core.placement.prepare import steps
from weft.errors import ConfigError, PassError


def chain(*ops: str) -> Graph:
    net = Net()
    value = net.input("x", 2, 3)
    for k, kind in enumerate(ops):
        value = net.add(kind, value, name=f"v{k}")
    return net.finish(value)


def renamed(graph: Graph, old: str, new: str) -> Graph:
    """Return the graph with one node of a type less, or another in its place."""
    out = graph.copy()
    k = next(k for k, n in enumerate(graph.nodes) if n.op.type == old)
    out.nodes[k] = replace(graph.nodes[k], op=op(new))
    return out


NO_RELU = Property("no Relu", lambda graph: [n.name for n in graph.nodes if n.op.type == "Relu"])


@graph_pass(ensures=(NO_RELU,), rounds=10)
def relu_to_abs(graph: Graph, context: PassContext) -> Graph:
    """Put an Abs in the place of a Relu."""
    return renamed(graph, "Relu", "Abs") if any(n.op.type == "Relu" for n in graph.nodes) else graph


def run(graph: Graph, *passes: Pass | PassGroup, own: bool = True) -> PassManager:
    manager = PassManager(own=passes if own else ())
    for each in passes:
        graph = manager.run(graph, each)
    return manager


# -- order and fixed points ------------------------------------------------------------------------------------


def test_a_pass_with_rounds_is_run_until_it_changes_nothing() -> None:
    graph = chain("Relu", "Exp", "Relu", "Relu")
    manager = PassManager()
    assert kinds(manager.run(graph, relu_to_abs)) == ["Abs", "Exp", "Abs", "Abs"]
    assert kinds(graph) == ["Relu", "Exp", "Relu", "Relu"]
    (record,) = manager.records
    assert (record.name, record.before, record.after, record.changed) == ("relu_to_abs", 4, 4, True)
    manager.run(chain("Exp"), relu_to_abs)
    assert not manager.records[1].changed
    assert [step.by for step in manager.journal.notes] == ["relu_to_abs"] * 3


def test_rounds_end_after_as_many_as_the_pass_wants() -> None:
    few = replace(relu_to_abs, rounds=2, ensures=())
    assert kinds(few(chain("Relu", "Relu", "Relu"))) == ["Abs", "Abs", "Relu"]


def test_a_group_is_run_until_none_of_its_passes_changes_anything() -> None:
    one = replace(relu_to_abs, rounds=1, ensures=())
    two = Pass("exp_to_relu", lambda g, c: renamed(g, "Exp", "Relu") if "Exp" in kinds(g) else g)
    group = PassGroup("both", "Turn all to Abs.", (one, two), rounds=10, ensures=(NO_RELU,))
    graph = chain("Exp", "Relu", "Exp")
    assert kinds(group(graph)) == ["Abs"] * 3
    manager = run(graph, group)
    assert [r.name for r in manager.records] == ["both"]
    assert [s.by for s in manager.journal.notes] == ["relu_to_abs", "exp_to_relu"] * 2 + ["relu_to_abs"]
    with pytest.raises(PassError, match="pass 'both' does not ensure what it declares"):
        run(graph, replace(group, rounds=2))


def test_what_a_standard_pass_requires_is_ensured_by_one_before_it() -> None:
    for precision in Precision:
        steps(precision)  # raises otherwise
    with pytest.raises(ConfigError, match=r"'fold_pads' requires 'every value has .*which no pass before") as caught:
        arranged((fold_pads,), (), "fold_pads")
    assert "after=" in caught.value.fix


def test_a_users_pass_has_its_place_behind_the_one_that_it_names() -> None:
    places = {"a": "", "b": "fuse_gelu", "c": ""}
    first, second, third = (replace(relu_to_abs, name=name, after=after) for name, after in places.items())
    names = [each.name for each in steps(Precision.LOW, (first, second, third))]
    assert names[names.index("a") - 1 : names.index("a") + 3] == ["fold_constants", "a", "c", "remove_dead_nodes"]
    assert names[names.index("b") - 1] == "fuse_gelu"
    assert [n for n in names if n not in "abc"] == [each.name for each in steps(Precision.LOW)]
    with pytest.raises(ConfigError, match="'a' is to come after 'nowhere', and there is no such pass") as caught:
        steps(Precision.HIGH, (replace(first, after="nowhere"),))
    assert "fold_batch_norm" in caught.value.fix
    with pytest.raises(ConfigError, match="'a' requires 'floats are stored as float16', which no pass before it"):
        steps(Precision.HIGH, (replace(first, requires=(FLOATS_AS_FLOAT16,)),))


@pytest.mark.parametrize(
    ("after", "behind"),
    [("fold_pads", "settle_convolutions"), ("fold_batch_norm", "settle_convolutions"), ("squash_moves", "squash_moves"),
     ("move_transposes_up", "sink_transposes"), ("settle_moves", "settle_moves"), ("undo_reshapes", "undo_reshapes")],
)
def test_a_users_pass_has_its_place_behind_the_last_one_of_that_name_in_a_group_too(after: str, behind: str) -> None:
    names = [each.name for each in steps(Precision.HIGH, (replace(relu_to_abs, name="a", after=after),))]
    last = len(names) - 1 - names[::-1].index(behind)
    assert names.index("a") == last + 1, "no pass of that name is behind it"


# -- what a pass declares --------------------------------------------------------------------------------------


def broken(name: str) -> Callable[[Graph, PassContext], Graph]:
    """Return a rewrite that does something wrong."""

    def rewrite(graph: Graph, context: PassContext) -> Graph:
        out = graph.copy()
        first, *rest = graph.nodes
        if name == "twice":
            out.nodes = [first, first, *rest]
        elif name == "unmade":
            out.nodes = rest
        elif name == "spec":
            out.specs["v0"] = TensorSpec((2, 4), graph.specs["v0"].dtype)
            out.nodes = [replace(first, op=op("Exp")), *rest]
        elif name == "no spec":
            out.nodes = [first, *rest, Node("new", op("Exp"), ("v0",), ("new",))]
        elif name == "interface":
            out.nodes, out.outputs = [first], ["v0"]
        elif name == "in place":
            graph.nodes.append(Node("new", op("Exp"), ("v0",), ("new",)))
            return graph
        elif name == "dead":
            out.nodes = [*graph.nodes, Node("new", op("Exp"), ("v0",), ("new",))]
            out.specs["new"] = graph.specs["v0"]
        elif name == "scalar":
            out.constants["s"], out.specs["s"] = np.float32(1), TensorSpec((), DType.FLOAT32)  # type: ignore[assignment]
        elif name == "raises":
            raise KeyError("weights")
        elif name == "nothing":
            return None  # type: ignore[return-value]
        return out

    return rewrite


WRONG = {
    "scalar": "returned a graph that is not well formed.*constant 's' is a float32, not an array",
    "twice": "returned a graph that is not well formed.*2 nodes are called 'n_v0'",
    "unmade": "returned a graph that is not well formed.*reads 'v0', which nothing makes",
    "spec": r"returned a graph that is not well formed.*'v0' has the spec float32\[2x4\]",
    "no spec": "returned a graph that is not well formed.*'new' has the spec None",
    "interface": "changed the inputs or outputs of the network.*the outputs were v1 and are v0",
    "in place": "changed the graph that it was given.*its nodes changed",
    "dead": "does not ensure what it declares.*'no node whose results nobody reads' does not hold for 'new'",
    "raises": "failed.*KeyError: 'weights'",
    "nothing": "returned no graph.*returned None",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_users_pass_that_does_what_it_must_not_is_refused_by_name(name: str) -> None:
    own = Pass("mine", broken(name), ensures=(NO_DEAD_NODES,))
    with pytest.raises(PassError, match=f"(?s)pass 'mine' {WRONG[name]}"):
        run(chain("Relu", "Exp"), own)


def test_what_a_pass_requires_must_hold() -> None:
    wants = Pass("mine", lambda graph, context: graph, requires=(SHAPES_INFERRED, NO_RELU))
    run(chain("Exp"), wants)
    with pytest.raises(PassError, match=r"(?s)what pass 'mine' requires does not hold.*'no Relu' .*'n_v0', 'n_v1'"):
        run(chain("Relu", "Relu", "Exp"), wants)


def test_a_pass_may_leave_a_node_and_say_why() -> None:
    def rewrite(graph: Graph, context: PassContext) -> Graph:
        context.leave("n_v0", "it is the first")
        return graph

    manager = run(chain("Relu", "Exp"), Pass("mine", rewrite, ensures=(NO_RELU,)))
    assert manager.journal.explain("n_v0") == ["mine: 'n_v0' stays: it is the first"]
    assert not manager.records[0].changed


def leaving(name: str, why: str, **declared: Any) -> Pass:
    def rewrite(graph: Graph, context: PassContext) -> Graph:
        if why:
            context.leave("n_v0", why)
        return graph

    return Pass(name, rewrite, **declared)


def test_what_a_pass_leaves_is_its_own_matter() -> None:
    graph = chain("Relu", "Exp")
    manager = run(graph, leaving("first", "it is odd"), leaving("second", "it is even", rounds=3))
    assert manager.journal.explain("n_v0") == [
        "first: 'n_v0' stays: it is odd",
        "second: 'n_v0' stays: it is even",
    ]
    with pytest.raises(PassError, match="pass 'second' does not ensure what it declares"):
        run(graph, leaving("first", "it is odd"), leaving("second", "", ensures=(NO_RELU,)))


def test_a_group_ensures_nothing_of_what_its_passes_left_in_their_last_round() -> None:
    group = PassGroup("both", "Leave.", (leaving("a", "it is odd"), leaving("b", "")), 2, ensures=(NO_RELU,))
    assert run(chain("Relu"), group).journal.explain("n_v0") == ["a: 'n_v0' stays: it is odd"]


def test_weights_cannot_be_changed_in_place() -> None:
    def doubles(graph: Graph, context: PassContext) -> Graph:
        graph.constants["w"] *= 2
        return graph

    def renames(graph: Graph, context: PassContext) -> Graph:
        out = graph.copy()
        out.constants["v"], out.specs["v"] = out.constants.pop("w"), out.specs["w"]
        out.nodes = [replace(n, inputs=tuple("v" if i == "w" else i for i in n.inputs)) for n in graph.nodes]
        return out

    net = Net()
    weights = np.ones((2, 3), np.float32)
    graph = net.finish(net.add("Add", net.input("x", 2, 3), net.constant(weights, "w")))
    held = graph.constants["w"]
    with pytest.raises(PassError, match=r"(?s)pass 'mine' failed.*read-only.*make a new array"):
        run(graph, Pass("mine", doubles))
    assert (held == 1).all()
    mine = Pass("mine", renames)
    after = PassManager(own=[mine]).run(graph, mine)
    assert after.constants["v"] is held, "what is known by its array stays so"


def test_weft_own_passes_are_checked_in_full_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Pass("wrong", broken("dead"), ensures=(NO_DEAD_NODES,))
    with pytest.raises(PassError, match="pass 'wrong'"):
        run(chain("Relu", "Exp"), wrong, own=False)
    monkeypatch.delenv("WEFT_CHECK_PASSES")
    run(chain("Relu", "Exp"), wrong, own=False)
    with pytest.raises(PassError, match="pass 'wrong' changed the inputs or outputs"):
        run(chain("Relu", "Exp"), replace(wrong, rewrite=broken("interface")), own=False)


def test_the_properties_that_the_standard_passes_ensure_hold_in_the_end() -> None:
    net = Net()
    x = net.add("Cast", net.add("Identity", net.input("x", 1, 3, 6, 6)), to=DType.FLOAT64)
    y = net.conv(net.add("Pad", net.add("Cast", x, to=DType.FLOAT32), np.array([0, 0, 1, 1, 0, 0, 1, 1])), 4, 3)
    y = net.add("BatchNormalization", y, *(np.abs(net.random(4)) + 1 for _ in range(4)))
    y = net.add("Add", net.conv(y, 4, 1), net.conv(y, 4, 1))
    mean = net.add("ReduceMean", y, np.array([2, 3]))
    y = net.add("Mul", y, net.add("Expand", mean, np.array(net.shape(y))))
    y = net.add("Transpose", net.add("Transpose", y, perm=(0, 2, 3, 1)), perm=(0, 3, 1, 2))
    net.add("Transpose", y, perm=(1, 0, 2, 3), name="dead")
    graph = net.finish(net.add("Mul", y, net.add("Neg", np.ones((), np.float32)), name="y"))
    properties = dict.fromkeys(p for each in PASSES for p in each.ensures)
    assert len(properties) >= 8
    assert [p for p in properties if not list(p.broken_by(graph))] == [SHAPES_INFERRED]
    after = run_passes(graph)
    assert [p.name for p in properties if list(p.broken_by(after))] == []
    assert kinds(after) == ["Conv", "Conv", "ReduceMean", "Mul", "Mul"]
