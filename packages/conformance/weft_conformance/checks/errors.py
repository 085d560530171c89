"""Errors have the right class, name the node, and leave the session usable (section 4 of the contract)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.core.contract.error_context import ends_program
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft.core.session.session import Session
from weft.errors import ClosedError, ExecutionError, InputError, UnsupportedOps, WeftError
from weft_conformance.kit import Kit, check
from weft_conformance.networks import Net
from weft_conformance.report import Finding
from weft_conformance.watch import Call


@dataclass(frozen=True)
class Unheard(Op):
    """An op that no backend has a kernel for: it doubles its input."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        (spec,) = inputs
        assert spec is not None
        return (spec,)

    def reference(self, *inputs: Array | None) -> Array:
        """Return twice the input."""
        (x,) = inputs
        assert x is not None
        return np.asarray(x + x)


Unheard.type = "conformance::Unheard"


@check("errors", "M12 A2", "errors are of the right class, name the node, and leave the session usable")
def errors(kit: Kit) -> Iterable[Finding]:
    """Feed what does not fit, let a node fail, ask for an unheard-of op, close twice."""
    x = kit.blocks.feeds()["x"]
    bad: dict[str, Mapping[str, Array]] = {
        "an input of another shape": {"x": np.zeros((*x.shape[:-1], x.shape[-1] + 1), np.float32)},
        "an input of another rank": {"x": np.zeros((*x.shape, 2), np.float32)},
        "an input of another type": {"x": x.astype(np.complex64)},
        "an input of another name": {"z": x},
    }
    for subject, fed in bad.items():
        yield kit.attempt(subject, _bad_input, kit, fed)
    yield kit.attempt("a node that fails in a run", _failing, kit, "onExecute")
    yield kit.attempt("a node that fails in a resize", _failing, kit, "onResize")
    yield _unheard(kit)
    yield kit.attempt("a session that is closed twice", _closed_twice, kit)
    yield kit.attempt("a run of a closed session", _run_closed, kit)


def _usable(kit: Kit, session: Session, graph: Graph, batch: int = 2) -> str:
    """Return what is wrong with a run after an error."""
    fed = kit.blocks.feeds(7, batch)
    problem = kit.compare(graph, fed, session.run(fed))
    return f"the session is not usable afterwards: {problem}" if problem else ""


def _raises(kind: type[WeftError], do: Callable[[], object]) -> tuple[str, str]:
    """Return the message of the error, and what is wrong with its class."""
    try:
        do()
    except kind as e:
        return str(e), ""
    except BaseException as e:
        if ends_program(e):
            raise
        return str(e), f"{type(e).__name__} was raised instead of {kind.__name__}: {e}"
    return "", f"no {kind.__name__} was raised"


def _bad_input(kit: Kit, fed: Mapping[str, Array]) -> str:
    graph = kit.blocks.chain()
    with kit.load(graph) as session:
        _, problem = _raises(InputError, lambda: session.run(fed))
        return problem or _usable(kit, session, graph)


def _failing(kit: Kit, callback: str) -> str:
    """Let one execution raise once, instead of running the backend's own code."""
    graph = kit.blocks.diamond(open_batch=True)
    failures: list[Call] = []
    armed = False

    def fail(call: Call) -> None:
        if armed and call.name == callback and not failures:
            failures.append(call)
            raise RuntimeError("the conformance kit lets this node fail")

    with kit.watch(fail), kit.load(graph) as session:
        session.run(kit.blocks.feeds())
        armed = True
        message, problem = _raises(ExecutionError, lambda: session.run(kit.blocks.feeds(1, 3)))
        if not problem and not re.search(r"node '[^']+'", message):  # a backend may have put nodes of its own there
            problem = f"the error names no node: {message}"
        return problem or _usable(kit, session, graph, 3) or _usable(kit, session, graph, 2)


def _unheard(kit: Kit) -> Finding:
    subject = "an op that it cannot know"
    net = Net(kit.blocks.form)
    graph = net.finish(net.add(Unheard(), "x"))
    fed = kit.blocks.feeds()
    try:
        with kit.load(graph) as session:
            return kit.judge(subject, kit.compare(graph, fed, session.run(fed)))
    except UnsupportedOps as e:
        return kit.refused(subject, kit.reason_of(e))
    except BaseException as e:
        if ends_program(e):
            raise
        return kit.raised(subject, e)


def _closed_twice(kit: Kit) -> str:
    session = kit.load(kit.blocks.chain())
    session.close()
    session.close()
    return ""


def _run_closed(kit: Kit) -> str:
    session = kit.load(kit.blocks.chain())
    session.close()
    return _raises(ClosedError, lambda: session.run(kit.blocks.feeds()))[1]
