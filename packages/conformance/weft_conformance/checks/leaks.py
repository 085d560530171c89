"""Closing frees everything: objects, STATIC memory, and what the device counts (M5, M14, section 4)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from weft.core.contract.error_context import ends_program
from weft.core.graph.graph import Graph
from weft_conformance.growth import growth
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding

ROUNDS, NEW_SIZES = 4, 10
MOST_KEPT = 128
"""Bytes that a session or a run may leave behind: less than an object with a small array takes."""


@check("leaks", "M5 M14", "sessions that are closed leave no object and no memory behind, and resizes none that grows")
def leaks(kit: Kit) -> Iterable[Finding]:
    """Open and close sessions, resize back and forth, and count."""
    graph = kit.blocks.diamond(open_batch=True)
    yield kit.attempt("sessions opened and closed", _sessions, kit, graph)
    yield kit.attempt("resizes to and fro", _resizes, kit, graph)
    yield kit.attempt("loads that are refused or fail", _failures, kit, graph)
    yield kit.attempt("memory of the host, by sessions", _kept_by_sessions, kit, graph)
    yield kit.attempt("memory of the host, by runs", _kept_by_runs, kit, graph)


def _sessions(kit: Kit, graph: Graph) -> str:
    held: list[Mapping[str, int]] = []
    with kit.watch() as watch:
        for k in range(ROUNDS):
            with kit.load(graph) as session:
                session.run(kit.blocks.feeds(k))
            del session
            held.append(_device_counts(kit))
    gc.collect()
    backends, executions = watch.alive()
    if backends or executions:
        return (
            f"{backends} of {len(watch.backends)} backend objects and {executions} of {len(watch.executions)} "
            f"executions are still there after {ROUNDS} sessions were closed"
        )
    closed = {c.backend for c in watch.calls if c.name == "close"}
    if len(closed) < len(watch.backends):
        return f"{len(watch.backends) - len(closed)} backend objects were never closed"
    return _growth(held, "after each session that was closed")


def _resizes(kit: Kit, graph: Graph) -> str:
    counts = []
    with kit.watch() as watch, kit.load(graph) as session:
        for k in range(ROUNDS):
            for batch in (1, 3):
                session.run(kit.blocks.feeds(k, batch))
            counts.append(_device_counts(kit))
        static = []
        for batch in range(4, 4 + NEW_SIZES):  # a session may keep what it made for sizes that it knows
            session.run(kit.blocks.feeds(batch, batch))
            static.append(watch.held_static())
        if all(b > a for a, b in pairwise(static)):
            return f"STATIC tensors that were acquired and not released grew with each resize: {static}"
    return _growth(counts, "after each resize there and back")


def _failures(kit: Kit, graph: Graph) -> str:
    """Let loads fail half way, and check that they free what they had."""

    def fail(call: object) -> None:
        if getattr(call, "name", "") == "onResize":
            raise RuntimeError("the conformance kit lets this resize fail")

    with kit.watch(fail) as watch:
        for k in range(ROUNDS):
            _attempted(kit, graph, k)
    gc.collect()
    backends, executions = watch.alive()
    if backends or executions:
        return f"{backends} backend objects and {executions} executions are still there after loads that failed"
    return ""


def _attempted(kit: Kit, graph: Graph, seed: int) -> None:
    """Load and run, ignore errors, and keep nothing."""
    try:
        with kit.load(graph) as session:
            session.run(kit.blocks.feeds(seed))
    except BaseException as e:
        if ends_program(e):
            raise
        e.__traceback__ = None


def _kept_by_sessions(kit: Kit, graph: Graph) -> str:
    def session(k: int) -> None:
        with kit.load(graph) as made:
            made.run(kit.blocks.feeds(k))

    return _kept("session that was closed", session)


def _kept_by_runs(kit: Kit, graph: Graph) -> str:
    with kit.load(graph) as session:
        return _kept("run", lambda k: session.run(kit.blocks.feeds(k)))


def _kept(what: str, do: Callable[[int], object]) -> str:
    grown = growth(do, MOST_KEPT)
    return f"each {what} left {grown}" if grown else ""


def _device_counts(kit: Kit) -> Mapping[str, int]:
    """Return the device's own counts of what is live, if it has any: `live_*` of `backend.device.stats`."""
    with kit.opened() as backend:
        stats = getattr(getattr(backend, "device", None), "stats", None)
        names = [n for n in dir(stats) if n.startswith("live_")]
        if names:
            gc.collect()
        return {n: v for n in names if isinstance(v := getattr(stats, n), int)}


def _growth(counts: list[Mapping[str, int]], when: str) -> str:
    """Return what grew in every round after the first, which may fill caches."""
    grown = [
        f"{name}: {[c[name] for c in counts]}"
        for name in counts[0]
        if all(b[name] > a[name] for a, b in pairwise(counts[1:]))
    ]
    return f"{when} the device had more of {'; '.join(grown)}" if grown else ""
