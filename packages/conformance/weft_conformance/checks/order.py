"""The order of callbacks in a session, and results that follow the order of nodes (M11, A12)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from weft.core.graph.graph import Graph
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding
from weft_conformance.watch import Call

LETTERS = {
    "onCreate": "c", "onResizeBegin": "[", "onResize": "r", "onAllocateBuffer": "P", "onResizeEnd": "]",
    "onImportBuffer": "a", "onClearBuffer": "C", "onExecuteBegin": "<", "onExecute": "x", "onExecuteEnd": ">",
}
SEQUENCE = re.compile(r"c*(?:\[a*(?:a*rf*)*P\](?:<x*>)*(?:Cc*)?)*")
"""Nodes are created. A resize acquires, then resizes and releases node by node, then plans. Then come runs."""
QUIET_RUN = ("onCreate", "onResizeBegin", "onResize", "onAllocateBuffer", "onResizeEnd", "onClearBuffer")


@check("order", "M11 A12", "callbacks come in the contract's order, and the results are those of the nodes' order")
def order(kit: Kit) -> Iterable[Finding]:
    """Watch sessions of networks whose results depend on the order of their nodes."""
    for name, graph in (*kit.blocks.all().items(), ("another size", kit.blocks.diamond(open_batch=True))):
        yield kit.attempt(name, _watched, kit, graph)


def _watched(kit: Kit, graph: Graph) -> str:
    with kit.watch() as watch:
        problem = _results(kit, graph)
    problem = problem or _nested(watch.calls)
    for backend in range(len(watch.backends)):
        calls = [c for c in watch.calls if c.backend == backend and not c.within]
        if any(c.name == "onResizeBegin" for c in calls):
            problem = problem or _sequence(calls) or _executions(calls) or _memory(calls)
    return problem


def _results(kit: Kit, graph: Graph) -> str:
    """Run three times, the last with other sizes if the network takes them; return what is wrong with the results."""
    with kit.load(graph) as session:
        for seed, batch in enumerate((2, 2, 3 if graph.symbols() else 2)):
            fed = kit.blocks.feeds(seed, batch)
            problem = kit.compare(graph, fed, session.run({k: np.array(a) for k, a in fed.items()}))
            if problem:
                return f"run {seed + 1}: {problem}"
    return ""


def _nested(calls: Sequence[Call]) -> str:
    """Return which execution its backend called instead of the session, or what a run made instead of a resize."""
    for call in calls:
        if call.within and call.name in ("onExecute", "onResize"):
            return f"{call.name} of the node that makes {call.what!r} was called within {call.within}"
        if call.within.startswith("onExecute") and call.name in (*QUIET_RUN, "onAcquireBuffer", "onReleaseBuffer"):
            return f"{call.name} {call.what} was called within {call.within}: a run prepares nothing".replace("  ", " ")
    return ""


def _sequence(calls: Sequence[Call]) -> str:
    letters = "".join(_letter(c) for c in calls)
    whole = SEQUENCE.fullmatch(letters)
    if whole is not None:
        return ""
    good = SEQUENCE.match(letters)
    kept = [c for c in calls if _letter(c)]
    at = good.end() if good else 0
    said = [f"{c.name} {c.what}".strip() for c in kept[max(at - 3, 0) : at + 1]]
    return f"the callbacks came out of order: ... {', '.join(said)}"


def _letter(call: Call) -> str:
    if call.is_static:
        return ""
    if call.name in ("onAcquireBuffer", "onReleaseBuffer"):
        return "a" if call.name == "onAcquireBuffer" else "f"
    return LETTERS.get(call.name, "")


def _executions(calls: Sequence[Call]) -> str:
    """Return where a run left out, repeated or reordered executions of the resize, or prepared something."""
    sized: list[str] = []
    ran: list[str] = []
    running = False
    for call in calls:
        if call.name == "onResizeBegin":
            sized = []
        elif call.name == "onResize":
            sized.append(call.what)
        elif call.name == "onExecuteBegin":
            ran, running = [], True
        elif call.name == "onExecute":
            ran.append(call.what)
        elif call.name == "onExecuteEnd":
            running = False
            if ran != sized:
                return f"a run did the nodes of {', '.join(ran)}, and the resize prepared {', '.join(sized)}"
        if running and call.name in QUIET_RUN:
            return f"{call.name} {call.what} came during a run"
    return ""


def _memory(calls: Sequence[Call]) -> str:
    """Return what was resized before its output had memory, or released without having memory."""
    held: set[str] = set()
    for call in calls:
        if call.is_static:
            continue
        if call.name == "onResizeBegin":
            held = set()
        elif call.name in ("onAcquireBuffer", "onImportBuffer"):
            held.add(call.what)
        elif call.name == "onResize" and call.what not in held:
            return f"the node that makes {call.what!r} was resized before its output had memory"
        elif call.name == "onReleaseBuffer" and call.what not in held:
            return f"{call.what!r} was released and had no memory"
    return ""
