"""Section 4: an answer that the contract does not allow is an error that names the backend and shows the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, mock, mocks, registered
from tests.helpers.nets import chain
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend
from weft.core.contract.views import FailedPart, OptimizationViews, SubgraphView, Substitution
from weft.core.graph.graph import Graph
from weft.core.placement.assign import Assignment
from weft.core.placement.optimizer import optimize_parts
from weft.errors import BackendError, ExecutionError, WeftError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def failing(made: type[Backend], *, kind: type[WeftError] = BackendError, graph: Graph | None = None) -> Any:
    """Return the error of a network on a backend of this class, `acme`, with the CPU behind it."""
    with registered(Creator(made)), pytest.raises(kind) as caught, weft.load(graph or chain("Relu"), "acme") as session:
        session.run(X)
        _ = session.report
    assert "acme:0" in caught.value.where, str(caught.value)
    return caught.value


def with_callback(name: str, what: Callable[..., object], base: type[Backend] = CpuBackend) -> type[Backend]:
    return type("Acme", (base,), {name: what})


# -- reasons ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said", "fix"),
    [
        (False, "False (of type bool)", "return None to accept"),
        (True, "True (of type bool)", ""),
        (3, "3 (of type int)", ""),
        (b"no", "b'no' (of type bytes)", ""),
        (["no"], "['no'] (of type list)", ""),
        ("", "'' (of type str)", "say in a sentence what the backend lacks"),
    ],
)
def test_4_a_reason_is_a_sentence_or_None(answer: object, said: str, fix: str) -> None:
    error = failing(with_callback("why_not", lambda *_: answer))
    assert error.what == f"why_not returned {said}" and error.fix == fix
    assert error.where == "node 'n_v0' (Relu) on acme:0: Acme.why_not"


def test_4_an_answer_that_cannot_be_printed_is_an_error_all_the_same() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    error = failing(with_callback("why_not", lambda *_: Shy()))
    assert error.what == "why_not returned an object of type Shy"


# -- views -----------------------------------------------------------------------------------------------------

Optimise = Callable[[OptimizationViews, SubgraphView], object]


def views_of(how: Optimise) -> Any:
    """Return the error of a backend that does this to the views it returns."""

    def OptimizeSubgraph(self: Backend, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        how(views, view)
        return views.keep_rest(view)

    return failing(with_callback("OptimizeSubgraph", OptimizeSubgraph), graph=chain("Relu", "Tanh"))


def bad_graph(**changes: Any) -> Optimise:
    def substitute(views: OptimizationViews, view: SubgraphView) -> None:
        graph = view.graph.copy()
        vars(graph).update(changes)
        views.substitute(view, graph)

    return substitute


def bad_node(views: OptimizationViews, view: SubgraphView) -> None:
    graph = view.graph.copy()
    graph.nodes = [weft.Node(k, n.op, n.inputs, n.outputs) for k, n in enumerate(graph.nodes)]  # type: ignore[arg-type]
    views.substitute(view, graph)


NODES = "use view.part(nodes), or the view itself for all of them"


@pytest.mark.parametrize(
    ("how", "said", "fix"),
    [
        (lambda o, v: o.keep(v.nodes), "which is not a SubgraphView", NODES),
        (lambda o, v: o.delete(v.nodes[0]), "which is not a SubgraphView", NODES),
        (lambda o, v: o.fail([], "why"), "it got [] (of type list), which is not a SubgraphView", NODES),
        (lambda o, v: o.substitute(None, v.graph), "it got None, which is not a SubgraphView", NODES),
        (lambda o, v: o.keep_rest(None), "it got None, which is not a SubgraphView", NODES),
        (lambda o, v: o.substitute(v, None), "the replacement is None, which is not a Graph", ""),
        (lambda o, v: o.substitute(v, v), "which is not a Graph", ""),
        (bad_graph(nodes=["x"]), "nodes of the replacement must be a list of Node", ""),
        (bad_graph(outputs=("v1",)), "outputs of the replacement must be a list of str", ""),
        (bad_node, "a node of the replacement is not made of names and an op", ""),
        (lambda o, v: o.fail(v, None), "failed with the reason None; write a sentence", ""),
        (lambda o, v: o.fail(v, 5), "failed with the reason 5 (of type int); write a sentence", ""),
        (lambda o, v: v.part(v.nodes[0]), "", "write view.part([node])"),
        (lambda o, v: v.part(["n_v0"]), "it got 'n_v0' (of type str)", ""),
        (lambda o, v: o.failed.append(v), "failed holds", ""),
        (lambda o, v: o.failed.append(FailedPart(v.nodes, "no")), "is no part; use view.part(nodes)", ""),
        (lambda o, v: o.substitutions.append(Substitution(v, None)), "the replacement is None", ""),  # type: ignore[arg-type]
    ],
)
def test_4_what_is_put_into_the_views_is_held_against_the_contract(how: Optimise, said: str, fix: str) -> None:
    error = views_of(how)
    assert said in error.why and error.fix.startswith(fix), str(error)


def test_4_a_list_of_the_views_that_is_none_is_named() -> None:
    def OptimizeSubgraph(self: Backend, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews().keep_rest(view)
        views.deleted = None  # type: ignore[assignment]
        return views

    assert failing(with_callback("OptimizeSubgraph", OptimizeSubgraph)).why == "deleted is None, not a list"


def spoil(change: Callable[[Graph], object]) -> Callable[[Backend, SubgraphView], OptimizationViews]:
    def OptimizeSubgraph(self: Backend, view: SubgraphView) -> OptimizationViews:
        change(view.graph)
        return OptimizationViews().keep_rest(view)

    return OptimizeSubgraph


def rename(graph: Graph) -> None:
    for node in graph.nodes:
        object.__setattr__(node, "name", "same")


def misread(graph: Graph) -> None:
    for node in graph.nodes:
        object.__setattr__(node, "inputs", ("bogus",))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (rename, "nodes"),
        (misread, "nodes"),
        (lambda g: g.nodes.clear(), "nodes"),
        (lambda g: g.specs.clear(), "specs"),
    ],
)
def test_4_a_view_that_is_changed_is_an_error_and_the_network_stays(
    change: Callable[[Graph], object], field: str
) -> None:
    graph = chain("Relu", "Tanh")
    before = str(graph)
    error = failing(with_callback("OptimizeSubgraph", spoil(change)), graph=graph)
    assert error.what.endswith("changed the view that it was shown") and error.why.startswith(f"its {field} changed")
    assert str(graph) == before


def test_4_optimisers_that_settle_nothing_are_an_error() -> None:
    graph = chain("Relu")
    with mocks(acme=mock()):
        backends = {"acme:0": weft.registry.choose("acme")[0].open(weft.BackendConfig())}
        with pytest.raises(BackendError, match="do not come to an end") as caught:
            optimize_parts(graph, backends, Assignment({"n_v0": "ghost:0"}))
    assert caught.value.where == "ghost:0" and "'n_v0'" in caught.value.why


def test_4_a_backend_that_cannot_say_whether_it_imports_is_named() -> None:
    def canImport(self: Backend, source: Backend) -> bool:
        raise ValueError("odd")

    made = type("Acme", (mock("Tanh"),), {"canImport": canImport})
    error = failing(made, kind=ExecutionError, graph=chain("Relu", "Tanh"))
    assert error.where == "acme:0: Acme.canImport" and error.why == "ValueError: odd"
