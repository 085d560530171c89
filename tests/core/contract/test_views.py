"""Contract row A5: OptimizeSubgraph covers its view exactly once and keeps the slots of what it replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Inputs, Mock, Outputs, compiled, mock, mocks, renamed
from tests.helpers.nets import Net, feeds, kinds, op
from weft.core.contract.views import OptimizationViews, SubgraphView, subgraph
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import OptimizedNetwork, PreCompiled
from weft.errors import BackendError

Optimise = Callable[[SubgraphView], object]
F32 = TensorSpec((2, 3), DType.FLOAT32)


def diamond() -> Graph:
    """a = Relu(x); b = Tanh(a), c = Exp(a); y = Add(b, c); both y and c are outputs."""
    net = Net()
    a = net.add("Relu", net.input("x", 2, 3), name="a")
    b, c = net.add("Tanh", a, name="b"), net.add("Exp", a, name="c")
    return net.finish(net.add("Add", b, c, name="y"), c)


def optimised(how: Optimise, graph: Graph | None = None) -> OptimizedNetwork:
    """Return the network as a backend named acme optimises it."""

    class Acme(Mock):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            return how(view)  # type: ignore[return-value]

    with mocks(acme=Acme):
        return weft.optimize(graph or diamond(), ["acme"])


def node(view: SubgraphView, name: str) -> Node:
    return next(n for n in view.nodes if n.name == name)


def nodes(view: SubgraphView, names: str) -> SubgraphView:
    return view.part(n for n in view.nodes if n.name[2:] in names)


def with_replacement(change: Callable[[Graph], None], names: str = "bc") -> Optimise:
    """Return an optimiser that replaces some nodes by themselves, renamed and then changed."""

    def how(view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        part = nodes(view, names)
        graph = renamed(part, "acme")
        change(graph)
        views.substitute(part, graph)
        return views.keep_rest(view)

    return how


# -- what breaks the contract ------------------------------------------------------------------------------


def lose_a_node(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.keep(nodes(view, "acy"))
    return views


def list_a_node_twice(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.fail(nodes(view, "b"), "it may not")
    views.keep(nodes(view, "abcy"))
    return views


def keep_a_foreign_node(view: SubgraphView) -> OptimizationViews:
    stranger = Graph("g", ["x"], ["z"], [Node("stranger", op("Relu"), ("x",), ("z",))], {"x": F32, "z": F32})
    views = OptimizationViews()
    views.keep(SubgraphView(stranger))
    return views.keep_rest(view)


def fail_without_a_reason(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.fail(nodes(view, "b"), "  ")
    return views.keep_rest(view)


def delete_what_is_read(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.delete(nodes(view, "b"))
    return views.keep_rest(view)


def delete_an_output(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.delete(nodes(view, "y"))
    return views.keep_rest(view)


def replace_around_a_node(view: SubgraphView) -> OptimizationViews:
    """One node for a and y, which b and c lie between: it would wait for itself."""
    views = OptimizationViews()
    part = nodes(view, "ay")
    views.substitute(part, compiled(part, "acme"))
    return views.keep_rest(view)


def replace_no_nodes(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.substitute(view.part([]), Graph("g", [], [], [Node("new", op("Relu"), ("a",), ("z",))], {"z": F32}))
    return views.keep_rest(view)


def lie_about_the_slots(view: SubgraphView) -> OptimizationViews:
    """The part says that nobody reads what it makes."""
    views = OptimizationViews()
    part = nodes(view, "b")
    part.graph.outputs = []
    views.substitute(part, replace(compiled(part, "acme"), outputs=[]))
    return views.keep_rest(view)


def give_reasons_without_nodes(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.reasons = ["it is faster"]  # type: ignore[assignment]
    return views.keep_rest(view)


def give_no_sentence(view: SubgraphView) -> OptimizationViews:
    views = OptimizationViews()
    views.reasons = {"n_a": "it is faster", "n_b": 3}  # type: ignore[dict-item]
    return views.keep_rest(view)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (give_no_sentence, "reasons holds ('n_b', 3)"),
        (give_reasons_without_nodes, "reasons is ['it is faster'] (of type list), not a dict"),
        (lose_a_node, "node 'n_b' is in none of the lists"),
        (list_a_node_twice, "node 'n_b' is in 2 of the lists"),
        (keep_a_foreign_node, "node 'stranger' is not in the view"),
        (fail_without_a_reason, "node 'n_b' failed without a reason"),
        (delete_what_is_read, "output slot 'b' was deleted and is still read"),
        (delete_an_output, "output slot 'y' was deleted and is still read"),
        (replace_around_a_node, "these nodes wait for each other: 'n_b', 'n_c', 'acme runs n_a'"),
        (replace_no_nodes, "'new' replaces no nodes"),
        (lie_about_the_slots, "lost output slot 'b'"),
        (lambda view: None, "it returned None"),
        (lambda view: [view], "it returned a list"),
    ],
)
def test_A5_a_violation_names_the_backend_and_the_node(how: Optimise, said: str) -> None:
    with pytest.raises(BackendError) as caught:
        optimised(how)
    assert "acme:0" in caught.value.where and said in caught.value.why, str(caught.value)


def drop(slots: str, name: str) -> Callable[[Graph], None]:
    return lambda graph: getattr(graph, slots).remove(name)


def extra(slots: str, name: str) -> Callable[[Graph], None]:
    return lambda graph: getattr(graph, slots).append(name)


def respec(name: str, spec: TensorSpec) -> Callable[[Graph], None]:
    return lambda graph: graph.specs.update({name: spec})


def no_spec(graph: Graph) -> None:
    graph.nodes[0] = replace(graph.nodes[0], outputs=("inner",))
    graph.nodes.append(Node("last", op("Relu"), ("inner",), ("b",)))


def read_behind_the_slots(graph: Graph) -> None:
    """Reads x, which the part does not."""
    graph.nodes[0] = replace(graph.nodes[0], inputs=("x",))


def read_nothing_known(graph: Graph) -> None:
    graph.nodes[0] = replace(graph.nodes[0], inputs=("nowhere",))


def make_what_another_makes(graph: Graph) -> None:
    graph.nodes.append(Node("second", op("Relu"), ("a",), ("y",)))
    graph.specs["y"] = F32


def make_an_input(graph: Graph) -> None:
    graph.nodes.append(Node("second", op("Relu"), ("a",), ("x",)))
    graph.specs["x"] = F32


def make_nothing(graph: Graph) -> None:
    graph.nodes = graph.nodes[:1]


def repeat_a_name(graph: Graph) -> None:
    graph.nodes[0] = replace(graph.nodes[0], name="n_y")


def constant_named_as_a_value(graph: Graph) -> None:
    graph.constants["x"] = np.zeros((2, 3), np.float32)
    graph.specs["x"] = F32


def turn(graph: Graph) -> None:
    graph.nodes[0] = replace(graph.nodes[0], op=op("Transpose", perm=(1, 0)))


def read_too_much(graph: Graph) -> None:
    graph.nodes[0] = replace(graph.nodes[0], op=op("Flatten"), inputs=("a", "a"))


def compile_another_type(graph: Graph) -> None:
    other = PreCompiled("acme", b"", (TensorSpec((2, 3), DType.FLOAT16),))
    graph.nodes[0] = replace(graph.nodes[0], op=other)


def say_too_much_of_an_inner_value(graph: Graph) -> None:
    no_spec(graph)
    graph.specs["inner"] = TensorSpec((200, 300), DType.FLOAT32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (turn, "'b' has the spec float32[2x3], but node \"acme's n_b\" (Transpose) makes float32[3x2]"),
        (read_too_much, "(Flatten) do not fit (Flatten does not fit (it has 2 inputs and takes at most 1)"),
        (compile_another_type, "'b' has the spec float32[2x3], but node \"acme's n_b\" (PreCompiled) makes float16"),
        (say_too_much_of_an_inner_value, "'inner' has the spec float32[200x300], but node"),
        (drop("inputs", "a"), "lost input slot 'a'"),
        (extra("inputs", "x"), "has input slot 'x', which its part does not have"),
        (drop("outputs", "b"), "lost output slot 'b'"),
        (extra("outputs", "a"), "has output slot 'a', which its part does not have"),
        (respec("b", TensorSpec((3, 2), DType.FLOAT32)), "slot 'b' was float32[2x3] and became float32[3x2]"),
        (respec("a", TensorSpec((2, 3), DType.FLOAT16)), "slot 'a' was float32[2x3] and became float16[2x3]"),
        (no_spec, "value 'inner' has no shape and type"),
        (read_behind_the_slots, "reads 'x', which is no input slot"),
        (read_nothing_known, "reads 'nowhere', which is no input slot"),
        (make_what_another_makes, "makes 'y', which the network already has"),
        (make_an_input, "makes 'x', which the network already has"),
        (make_nothing, "makes no value for output slot 'c'"),
        (repeat_a_name, "a second node named 'n_y'"),
        (constant_named_as_a_value, "constant 'x' has the name of another value"),
    ],
)
def test_A5_a_violation_names_the_backend_and_the_slot(change: Callable[[Graph], None], said: str) -> None:
    with pytest.raises(BackendError) as caught:
        optimised(with_replacement(change))
    assert "acme:0" in caught.value.where and said in str(caught.value), str(caught.value)


def test_A5_a_constant_may_not_take_the_name_of_another() -> None:
    net = Net()
    x = net.input("x", 2)
    c = net.constant(np.ones(2, np.float32), "c")
    a = net.add("Mul", net.add("Relu", x, name="a"), c, name="b")
    graph = net.finish(net.add("Add", a, c, name="y"))

    def halve(part: Graph) -> None:
        part.constants["c"] = np.full(2, 0.5, np.float32)
        part.specs["c"] = graph.specs["c"]

    with pytest.raises(BackendError, match="constant 'c' of the network has another value"):
        optimised(with_replacement(halve, "a"), graph)


def test_A5_all_violations_are_named_at_once() -> None:
    def wrong(view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        part = nodes(view, "b")
        views.substitute(part, replace(compiled(part, "acme"), inputs=[], outputs=[]))
        views.fail(nodes(view, "c"), "")
        return views

    with pytest.raises(BackendError) as caught:
        optimised(wrong)
    for said in ("input slot 'a'", "output slot 'b'", "'n_c' failed without a reason", "'n_a' is in none"):
        assert said in caught.value.why


def test_A5_an_optimiser_that_raises_is_named() -> None:
    def broken(view: SubgraphView) -> object:
        raise KeyError("table")

    with pytest.raises(weft.WeftError, match=r"acme:0[\s\S]*KeyError"):
        optimised(broken)


# -- what keeps it -----------------------------------------------------------------------------------------


def assert_right(how: Optimise, graph: Graph | None = None) -> list[str]:
    """Return the op types of the network, which gives the same numbers when it is loaded and run."""
    graph = graph or diamond()

    class Acme(Mock):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            return how(view)  # type: ignore[return-value]

    with mocks(acme=Acme):
        network = weft.optimize(graph, ["acme"], fallback="error")
        with weft.load(network) as session:
            for seed in range(2):
                fed = feeds(graph, seed)
                for got, wanted in zip(session.run(fed), outputs(graph, fed), strict=True):
                    np.testing.assert_array_equal(got, wanted)
            assert session.report.nodes_by_device == {"acme": len(network.graph.nodes)}
    assert set(network.placement.values()) == {"acme:0"}
    return kinds(network.graph)


def test_A5_a_view_that_is_left_as_it_is() -> None:
    assert assert_right(lambda view: OptimizationViews().keep_rest(view)) == ["Relu", "Tanh", "Exp", "Add"]


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ("a", ["PreCompiled", "Tanh", "Exp", "Add"]),
        ("b", ["Relu", "PreCompiled", "Exp", "Add"]),
        ("bc", ["Relu", "PreCompiled", "Add"]),
        ("ab", ["PreCompiled", "Exp", "Add"]),
        ("bcy", ["Relu", "PreCompiled"]),
        ("abcy", ["PreCompiled"]),
    ],
)
def test_A5_a_part_or_the_whole_view_becomes_one_precompiled_node(names: str, left: list[str]) -> None:
    def how(view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        part = nodes(view, names)
        views.substitute(part, compiled(part, "acme"))
        return views.keep_rest(view)

    assert assert_right(how) == left


def test_A5_a_part_that_changes_nothing_but_its_names() -> None:
    for names in ("a", "bc", "abcy"):
        assert assert_right(with_replacement(lambda graph: None, names)) == ["Relu", "Tanh", "Exp", "Add"]


def test_A5_two_parts_are_replaced_separately() -> None:
    def how(view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        for names in ("ab", "cy"):
            part = nodes(view, names)
            views.substitute(part, compiled(part, "acme"))
        return views

    assert assert_right(how) == ["PreCompiled", "PreCompiled"]


def test_A5_one_node_becomes_several_and_brings_constants() -> None:
    """Exp(a) is replaced by Exp(a * 1) + 0."""

    def split(graph: Graph) -> None:
        graph.nodes = [
            Node("scale", op("Mul"), ("a", "one"), ("scaled",)),
            Node("exp", op("Exp"), ("scaled",), ("grown",)),
            Node("shift", op("Add"), ("grown", "nought"), ("c",)),
        ]
        one = TensorSpec((), F32.dtype)
        graph.specs |= {"scaled": F32, "grown": F32, "one": one, "nought": one}
        graph.constants = {"one": np.array(1, np.float32), "nought": np.array(0, np.float32)}

    assert assert_right(with_replacement(split, "c")) == ["Relu", "Tanh", "Mul", "Exp", "Add", "Add"]


def test_A5_a_part_that_nobody_reads_any_more_is_deleted() -> None:
    """Of y = Max(b, c), c = -exp(a) is never the greater one: y becomes Relu(b), and what makes c goes."""
    net = Net()
    a = net.add("Relu", net.input("x", 2, 3), name="a")
    b, c = net.add("Tanh", a, name="b"), net.add("Neg", net.add("Exp", a, name="e"), name="c")
    graph = net.finish(net.add("Max", b, c, name="y"))

    def how(view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        part = nodes(view, "y")
        views.substitute(part, replace(part.graph.copy(), nodes=[Node("new", op("Relu"), ("b",), ("y",))]))
        views.delete(nodes(view, "ec"))
        return views.keep_rest(view)

    assert assert_right(how, graph) == ["Relu", "Tanh", "Relu"]


def test_A5_slots_of_a_view_and_of_its_parts() -> None:
    graph = diamond()
    view = SubgraphView(subgraph(graph, "part", graph.nodes[1:]))
    assert (view.inputs, view.outputs) == (("a",), ("c", "y"))
    assert [n.name for n in view.nodes] == ["n_b", "n_c", "n_y"]
    part = nodes(view, "bc")
    assert (part.inputs, part.outputs) == (("a",), ("b", "c"))


def test_A5_each_part_of_a_divided_network_is_a_view_of_its_own() -> None:
    """What one part's optimiser does is seen by no other."""
    net = Net()
    value = net.input("x", 2, 3)
    for k, kind in enumerate(["Relu", "Tanh", "Relu", "Exp", "Relu"]):
        value = net.add(kind, value, name=f"v{k}")
    graph = net.finish(value)
    one = mock("Relu", replace=lambda nodes: [("compiled", nodes)])
    two = mock("Tanh", "Exp", replace=lambda nodes: [("renamed", nodes)])
    with mocks(one=one, two=two) as ids:
        network = weft.optimize(graph, ids)
        assert one.views == [["n_v0"], ["n_v2"], ["n_v4"]] and two.views == [["n_v1"], ["n_v3"]]
        with weft.load(network) as session:
            np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])
    assert [len(p.graph.nodes) for p in network.parts] == [1, 1, 1, 1, 1]


def test_A5_a_backend_that_does_not_take_what_it_made_is_named() -> None:
    class Forgetful(Mock):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            views = OptimizationViews()
            views.substitute(view, compiled(view, "acme"))
            return views

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> weft.Execution | None:
            return None

    with mocks(acme=Forgetful), pytest.raises(BackendError, match=r"onCreate returned None for node 'acme runs n_a'"):
        weft.load(diamond(), "acme")
