"""Several threads on a session, and several sessions on a device at one time (M14, and section 4)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from weft.core.graph.graph import Graph
from weft.core.session.session import Session
from weft_conformance.checks.large import large_blocks
from weft_conformance.kit import Kit, check, same_bits
from weft_conformance.networks import Blocks
from weft_conformance.report import Finding
from weft_conformance.watch import Call

THREADS, RUNS, LASTING_RUNS = 4, 6, 12
PATIENCE = 1.0
"""Seconds that one session waits for the other at a step, because a backend may let only one run at a time."""


@check("threads", "M14", "threads may share a session, and sessions the device; results are right")
def threads(kit: Kit) -> Iterable[Finding]:
    """Run concurrently: freely, and with two sessions that take every step in turn."""
    graph = kit.blocks.diamond()
    yield kit.attempt("one session, several threads", _one_session, kit, graph)
    yield kit.attempt("several sessions, a thread each", _several_sessions, kit, graph)
    yield kit.attempt("sessions loaded by several threads", _loads, kit, graph)
    yield kit.attempt("two sessions, step by step in turn", _in_turn, kit, graph)
    yield kit.attempt("the same bits in every thread", _same_bits, kit, graph)
    yield kit.attempt("a session after another was closed", _after_another, kit, graph)
    yield kit.attempt("several sessions with work that lasts", _lasting, kit, large_blocks(kit))


@contextmanager
def _frequent_switches() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _together(kit: Kit, works: list[Callable[[], str]]) -> str:
    """Run each function in its own thread, all from one moment on, and return the first problem."""
    problems: list[str] = []
    start = threading.Barrier(len(works))

    def do(work: Callable[[], str]) -> None:
        start.wait()
        try:
            problem = work()
        except BaseException as e:  # nobody interrupts the kit's own threads
            problem = kit.explain(e)
        if problem:
            problems.append(problem)

    started = [threading.Thread(target=do, args=(w,), daemon=True) for w in works]
    with _frequent_switches():
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    return problems[0] if problems else ""


def _runs(kit: Kit, session: Session, graph: Graph, seed: int) -> Callable[[], str]:
    def work() -> str:
        for k in range(RUNS):
            fed = kit.blocks.feeds(100 * seed + k)
            problem = kit.compare(graph, fed, session.run(fed))
            if problem:
                return f"thread {seed}, run {k + 1}: {problem}"
        return ""

    return work


def _one_session(kit: Kit, graph: Graph) -> str:
    with kit.load(graph) as session:
        return _together(kit, [_runs(kit, session, graph, k) for k in range(THREADS)])


def _several_sessions(kit: Kit, graph: Graph) -> str:
    with ExitStack() as stack:
        sessions = [stack.enter_context(kit.load(graph)) for _ in range(THREADS)]
        return _together(kit, [_runs(kit, s, graph, k) for k, s in enumerate(sessions)])


def _loads(kit: Kit, graph: Graph) -> str:
    def work(seed: int) -> Callable[[], str]:
        def load_and_run() -> str:
            with kit.load(graph) as session:
                return _runs(kit, session, graph, seed)()

        return load_and_run

    return _together(kit, [work(k) for k in range(3)])


def _lasting(kit: Kit, blocks: Blocks) -> str:
    """Run sessions on large inputs in turn, so that the work of one overlaps the copies of another.

    A race may spoil one run in twenty. Comparing bits is quick, so there can be many runs.
    """
    graph = blocks.chain(3)
    fed = [blocks.feeds(seed) for seed in range(THREADS)]
    with ExitStack() as stack:
        sessions = [stack.enter_context(kit.load(graph)) for _ in range(THREADS)]
        alone = [sessions[0].run(each) for each in fed]
        problem = next(filter(None, (kit.compare(graph, *pair) for pair in zip(fed, alone, strict=True))), "")

        def works(session: Session, first: int) -> Callable[[], str]:
            def work() -> str:
                for run in range(LASTING_RUNS):
                    which = (first + run) % THREADS
                    if not same_bits(session.run(fed[which]), alone[which]):
                        return f"thread {first}, run {run + 1}: other bits than when the session ran alone"
                return ""

            return work

        return problem or _together(kit, [works(session, k) for k, session in enumerate(sessions)])


def _after_another(kit: Kit, graph: Graph) -> str:
    """Run a session whose device another one has left."""
    fed = kit.blocks.feeds(12)
    with kit.load(graph) as session:
        with kit.load(graph) as other:
            other.run(fed)
        return kit.compare(graph, fed, session.run(fed))


def _in_turn(kit: Kit, graph: Graph) -> str:
    """Hold each execution until the other session has reached its next one."""
    turns = threading.Barrier(2)
    running = threading.local()

    def wait(call: Call) -> None:
        stepped = call.name in ("onExecute", "onExecuteEnd", "onWaitFinish")
        if getattr(running, "on", False) and stepped and not call.within:
            try:
                turns.wait(PATIENCE)
            except threading.BrokenBarrierError:
                running.on = False  # the other is done, or may not run now

    def stepwise(session: Session, seed: int) -> Callable[[], str]:
        def work() -> str:
            running.on = True
            try:
                return _runs(kit, session, graph, seed)()
            finally:
                running.on = False
                turns.abort()

        return work

    with kit.watch(wait), kit.load(graph) as first, kit.load(graph) as second:
        return _together(kit, [stepwise(first, 1), stepwise(second, 2)])


def _same_bits(kit: Kit, graph: Graph) -> str:
    """Run in the thread that loaded, and in others, one after the other; then load in another."""
    fed = kit.blocks.feeds(11)
    with kit.load(graph) as session:
        first = session.run(fed)

        def again() -> str:
            return "" if same_bits(first, session.run(fed)) else "another thread than that which loaded got other bits"

        for _ in range(THREADS):
            problem = _together(kit, [again])
            if problem:
                return problem

    def elsewhere() -> str:
        with kit.load(graph) as mine:
            return "" if same_bits(first, mine.run(fed)) else "a session that another thread loaded gave other bits"

    return _together(kit, [elsewhere])
