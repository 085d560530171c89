"""Section 4: a callback that fails or returns what it must not is an error that names backend and callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net
from weft.core.contract.backend import Backend, Execution
from weft.core.contract.engine import Engine
from weft.core.contract.lowered import Launch, Lowered, ValueView
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import TensorSpec
from weft.core.host.host_backend import HostBackend
from weft.core.session.pipeline import Pipeline
from weft.errors import BackendError, DeviceError, ExecutionError, WeftError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def failing(made: type[Backend], *, kind: type[WeftError] = BackendError, graph: Graph) -> Any:
    """Return the error of a network on a backend of this class, `acme`, with the CPU behind it."""
    with registered(Creator(made)), pytest.raises(kind) as caught, weft.load(graph, "acme") as session:
        session.run(X)
        _ = session.report
    assert "acme:0" in caught.value.where, str(caught.value)
    return caught.value


class Sum(Execution):
    """Adds on the host."""

    def __init__(self, inputs: Inputs, outputs: Outputs, op: Any, backend: Any) -> None:
        """Take nothing of it."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        outputs[0].memory[...] = sum(t.memory for t in inputs if t is not None)


def sums() -> Graph:
    """Return a network with a constant."""
    net = Net()
    return net.finish(net.add("Add", net.input("x", 2, 3), np.ones(3, np.float32), name="y"))


def adding(**callbacks: Any) -> type[Backend]:
    """Return a class of host backends that add, with these callbacks; one with `lower` is an engine."""
    own = {"pipeline_type": Pipeline}
    made: Any = type("Acme", (HostBackend, Engine), own) if "lower" in callbacks else type("Acme", (HostBackend,), {})
    made.creator("Add")(type("Summing", (Sum,), {}))
    for name, value in callbacks.items():
        setattr(made, name, value)
    backend: type[Backend] = made
    return backend


def failed(*_: object) -> Any:
    raise ValueError("odd")


CALLBACKS = (
    "why_not", "OptimizeSubgraph", "lower", "onCreate", "onAcquireBuffer", "onReleaseBuffer", "onCopyBuffer",
    "onResizeBegin", "onAllocateBuffer", "onResizeEnd", "onExecuteBegin", "onExecuteEnd", "onWaitFinish",
)


@pytest.mark.parametrize("callback", CALLBACKS)
def test_4_the_error_of_a_callback_names_backend_and_callback(callback: str) -> None:
    if callback == "onReleaseBuffer":  # of two nodes, one has an input that nobody reads later
        net = Net()
        x = net.input("x", 2, 3)
        graph = net.finish(net.add("Add", net.add("Add", x, x, name="a"), x, name="y"))
    else:
        graph = sums()
    caught = failing(adding(**{callback: failed}), kind=ExecutionError, graph=graph)
    assert caught.where.endswith(f": Acme.{callback}"), caught.where
    assert caught.why == "ValueError: odd"


@pytest.mark.parametrize("callback", ["__init__", "onResize", "onExecute"])
def test_4_an_execution_that_fails_is_an_error_of_its_node(callback: str) -> None:
    made = adding()
    made.creator("Add", replace=True)(type("Summing", (Sum,), {callback: failed}))
    caught = failing(made, kind=ExecutionError, graph=sums())
    named = "Acme.onCreate" if callback == "__init__" else f"Summing.{callback}"
    assert caught.where == f"node 'n_y' (Add) on acme:0: {named}" and caught.why == "ValueError: odd"


def test_4_a_backend_whose_construction_fails_is_a_device_that_cannot_be_used() -> None:
    with registered(Creator(adding(__init__=failed))), pytest.raises(DeviceError, match="acme:0") as caught:
        weft.load(sums(), "acme")
    assert caught.value.where == "Creator.onCreate" and "ValueError" in caught.value.why


def test_4_a_close_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with registered(Creator(adding(close=failed))):
        weft.load(sums(), "acme").close()
    assert "closing Pipeline failed" in caplog.text and "acme:0: Acme.close" in caplog.text
    assert "ValueError: odd" in caplog.text


RETURN = "end it with 'return True'"


@pytest.mark.parametrize(
    ("callback", "answer", "what", "why", "fix"),
    [
        ("lower", False, "lower returned False (of type bool)", "it must return a Lowered, or None", ""),
        ("onCreate", False, "onCreate returned False (of type bool)", "an Execution, or None", "return None to refuse"),
        ("onCreate", Sum, "onCreate returned <class", "an Execution, or None", "return None to refuse"),
        ("onAcquireBuffer", None, "onAcquireBuffer returned None", "or False where memory is lacking", RETURN),
        ("onAllocateBuffer", None, "onAllocateBuffer returned None", "or False where memory is lacking", RETURN),
        ("onWaitFinish", None, "onWaitFinish returned None", "or False if the run failed", RETURN),
    ],
)
def test_4_what_a_callback_returns_is_shown_with_what_it_must_be(
    callback: str, answer: object, what: str, why: str, fix: str
) -> None:
    error = failing(adding(**{callback: lambda *_: answer}), graph=sums())
    assert what in error.what and why in error.why and error.fix.startswith(fix), str(error)
    assert error.where.endswith(f"Acme.{callback}")


def test_4_a_lowered_graph_keeps_the_inputs_and_outputs() -> None:
    def lower(self: Backend, graph: Graph) -> Lowered:
        return Lowered(replace(graph, outputs=[]))

    assert "were ['x'] -> ['y'] and are ['x'] -> []" in failing(adding(lower=lower), graph=sums()).why


def _without_nodes(graph: Graph) -> Graph:
    graph.nodes.clear()
    return graph


def _half(graph: Graph) -> Graph:
    graph.specs["y"] = TensorSpec(graph.specs["y"].shape, DType.FLOAT16)
    return graph


def _packed(graph: Graph) -> Graph:
    graph.layouts["x"] = Layout.NC4HW4
    return graph


def _without_spec(graph: Graph) -> Graph:
    (first,) = graph.nodes
    graph.nodes[:] = [replace(first, name="new", outputs=("new",)), first]
    return graph


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_without_nodes, "nothing makes the output 'y'"),
        (_half, "'y' was float32[2x3] NCHW and is float16[2x3] NCHW"),
        (_packed, "'x' was float32[2x3] NCHW and is float32[2x3] NC4HW4"),
        (_without_spec, "has no shape and type"),
        (lambda g: Lowered(g, views={"z": ValueView("x")}), "a view names 'z', which is no value"),
        (
            lambda g: Lowered(g, (Launch("z", "k", (1, 1, 1), (1, 1, 1), 0, 0),)),
            "a launch names 'z', which is no node",
        ),
    ],
)
def test_4_a_lowered_graph_can_run_in_the_place_of_its_part(
    made: Callable[[Graph], Graph | Lowered], why: str
) -> None:
    def lower(self: Backend, graph: Graph) -> Lowered:
        lowered = made(graph)
        return Lowered(lowered) if isinstance(lowered, Graph) else lowered

    error = failing(adding(lower=lower), graph=sums())
    assert error.what == "the backend lowered its part to a graph that cannot run in its place"
    assert why in error.why


@pytest.mark.parametrize("answer", [True, 1])
def test_4_a_host_backend_that_gives_no_memory_is_named_not_the_one_that_would_import_it(answer: object) -> None:
    """The CPU, which reads the result, is not to blame."""
    net = Net()
    graph = net.finish(net.add("Tanh", net.add("Add", net.input("x", 2, 3), np.ones(3, np.float32), name="a")))
    memory = dict.fromkeys(("onAcquireBuffer", "onReleaseBuffer"), lambda *_: answer)
    error = failing(adding(**memory, copies_constants=False), graph=graph)
    assert error.what == "acme:0 gave 'x' no memory" and "after onAllocateBuffer" in error.why
    assert error.where == "acme:0: Acme.onAcquireBuffer"


# -- the memory of outputs -------------------------------------------------------------------------------------


def test_4_an_execution_that_replaces_the_memory_of_its_output_is_told_to_write_into_it() -> None:
    made, wrong = adding(), True

    class Replacing(Sum):
        def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
            if wrong:
                outputs[0].memory = np.zeros_like(outputs[0].memory)
            else:
                super().onExecute(inputs, outputs)

    made.creator("Add", replace=True)(Replacing)
    with registered(Creator(made)), weft.load(sums(), "acme") as session:
        with pytest.raises(BackendError, match="replaced the memory of 'y'") as caught:
            session.run(X)
        assert caught.value.where == "node 'n_y' (Add) on acme:0: Replacing.onExecute"
        assert "out=outputs[0].memory" in caught.value.fix
        wrong = False
        np.testing.assert_array_equal(session.run(X)[0], X + 1, "the memory is the old one again")


# -- what is asked beside the work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "what", "said"),
    [
        ("statistics", lambda *_: None, "acme: its statistics are missing: BackendError: statistics returned None"),
        ("statistics", lambda *_: {"a": "b"}, "acme: its statistics are missing: BackendError: statistics returned"),
        ("statistics", failed, "acme: its statistics are missing: ValueError: odd"),
        ("notes", lambda *_: None, "acme: its notes are missing: BackendError: notes returned None"),
        ("notes", lambda *_: "one", "acme: its notes are missing: BackendError: notes returned 'one'"),
        ("notes", failed, "acme: its notes are missing: ValueError: odd"),
    ],
)
def test_4_a_report_is_not_lost_for_what_a_backend_fails_to_tell(callback: str, what: Any, said: str) -> None:
    with registered(Creator(adding(**{callback: what}))), weft.load(sums(), "acme") as session:
        assert any(note.startswith(said) for note in session.report.notes), session.report.notes
        assert session.report.nodes_by_device == {"acme": 1}


def with_creator(**functions: Any) -> Any:
    made = type("AcmeCreator", (Creator,), functions)
    return made(adding())


@pytest.mark.parametrize(
    ("function", "kind"), [("create_memory_manager", "a MemoryManager"), ("create_context", "a BackendContext")]
)
def test_4_a_manager_or_context_of_another_type_is_an_error_when_it_is_made(function: str, kind: str) -> None:
    for answer, what in (("x", f"{function} returned 'x' (of type str)"), (weft.MemoryManager, "returned <class")):
        creator = with_creator(**{function: lambda *_, answer=answer: answer})
        with registered(creator), weft.Runtime() as runtime, pytest.raises(BackendError, match=kind) as caught:
            weft.load(sums(), "acme", runtime=runtime)
        assert what in caught.value.what and caught.value.where.endswith(f": AcmeCreator.{function}")
    creator = with_creator(**{function: failed})
    with registered(creator), weft.Runtime() as own, pytest.raises(ExecutionError, match="ValueError: odd") as raised:
        weft.load(sums(), "acme", runtime=own)
    assert raised.value.where.endswith(f": AcmeCreator.{function}")


@pytest.mark.parametrize("notice", ["before_load", "after_load", "before_unload", "after_unload"])
def test_4_a_context_that_returns_None_says_yes_and_one_that_fails_is_named(notice: str) -> None:
    silent = type("Silent", (weft.BackendContext,), {notice: lambda *_: None})
    with registered(with_creator(create_context=lambda *_: silent())), weft.Runtime() as runtime:
        weft.load(sums(), "acme", runtime=runtime).close()
    bad = type("Failing", (weft.BackendContext,), {notice: failed})
    with registered(with_creator(create_context=lambda *_: bad())):
        runtime = weft.Runtime()
        with pytest.raises(WeftError, match="ValueError: odd") as caught:
            weft.load(sums(), "acme", runtime=runtime).close()
        assert notice in str(caught.value) and "acme" in str(caught.value)
