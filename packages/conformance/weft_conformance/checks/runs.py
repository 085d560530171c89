"""Runs one after the other: other sizes, the same bits again, inputs that stay as they are (M3, M11)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.core.contract.backend import MemoryMode
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft_conformance.kit import Kit, check, same_bits
from weft_conformance.networks import Net, Step
from weft_conformance.report import Finding

SIZES = (2, 5, 1, 5, 3, 1)


@check("resize", "M3 M4 M11", "results are right after every change of shape, there and back")
def resize(kit: Kit) -> Iterable[Finding]:
    """Run with sizes that grow and shrink, by the arrays' shapes and by `resize`; the CPU takes what is refused."""
    blocks = kit.blocks
    for name, graph in (("a chain", blocks.chain(open_batch=True)), ("branches", blocks.diamond(open_batch=True))):
        yield kit.attempt(f"{name}, by the shapes of arrays", _sizes, kit, graph, by_resize=False)
        yield kit.attempt(f"{name}, by resize", _sizes, kit, graph, by_resize=True)
    yield kit.attempt("many runs of one size", _many_runs, kit, blocks.diamond())


def _sizes(kit: Kit, graph: Graph, *, by_resize: bool, memory: MemoryMode = MemoryMode.NORMAL) -> str:
    with kit.load(graph, memory, fallback="cpu") as session:
        for seed, batch in enumerate(SIZES):
            fed = kit.blocks.feeds(seed, batch)
            if by_resize:
                session.resize({"x": fed["x"].shape})
            problem = kit.compare(graph, fed, session.run(fed))
            if problem:
                before = f" after {SIZES[seed - 1]}" if seed else ""
                return f"with {batch} images{before}: {problem}"
    return ""


def _many_runs(kit: Kit, graph: Graph) -> str:
    with kit.load(graph) as session:
        for seed in range(6):
            fed = kit.blocks.feeds(seed)
            problem = kit.compare(graph, fed, session.run(fed))
            if problem:
                return f"run {seed + 1}: {problem}"
    return ""


@check("limit", "M9", "under memory mode LIMIT, which drops the host's constants, results are the same")
def limit(kit: Kit) -> Iterable[Finding]:
    """Run, resize and run again in memory mode LIMIT."""
    blocks = kit.blocks
    for name, graph in (("a chain", blocks.chain(6, open_batch=True)), ("branches", blocks.diamond(open_batch=True))):
        yield kit.attempt(name, _sizes, kit, graph, by_resize=False, memory=MemoryMode.LIMIT)


@check("determinism", "M3", "the same run gives the same bits")
def determinism(kit: Kit) -> Iterable[Finding]:
    """Run several times with the same input, with another in between."""
    for name, graph in kit.blocks.all().items():
        yield kit.attempt(name, _same_again, kit, graph)


def _same_again(kit: Kit, graph: Graph) -> str:
    fed, other = kit.blocks.feeds(0), kit.blocks.feeds(1)
    with kit.load(graph) as session:
        first = session.run(fed)
        for k in range(2, 6):
            again = session.run(fed)
            if not same_bits(first, again):
                return f"run {k} gave other bits than the first: {_largest(first, again)}"
            session.run(other)
    return ""


def _largest(first: list[Array], again: list[Array]) -> str:
    gaps = [np.nanmax(np.abs(a.astype(np.float64) - b)) for a, b in zip(first, again, strict=True)]
    return f"by up to {max(gaps):.3g}"


@check("inputs", "M10 M6", "a node leaves its inputs as they are: what reads them later sees the same")
def inputs(kit: Kit) -> Iterable[Finding]:
    """Let a node, then the same op again, read one value; then run again with the same constants."""
    blocks = kit.blocks
    for step in blocks.steps:
        net = Net(blocks.form)
        first, again = step(net, "x"), step(net, "x")
        graph = net.finish(first, again)
        graph.constants = {name: value.copy() for name, value in graph.constants.items()}
        yield kit.attempt(graph.nodes[0].op.type, _untouched, kit, graph)
        if graph.constants:
            yield kit.attempt(f"{graph.nodes[0].op.type}, one constant of two nodes", _one_constant, kit, step)
    for kind, numbers in VIEWS.items():
        yield kit.attempt(f"a result of {kind} that is read late", _read_late, kit, kind, numbers)


VIEWS = {"Reshape": [-1], "Unsqueeze": [0], "Squeeze": [], "Flatten": None, "Identity": None}
"""Ops whose result a backend may leave where the input lies, with the numbers that they read besides."""


def _read_late(kit: Kit, kind: str, numbers: list[int] | None) -> str:
    """Read a view after other nodes have had the time to take the memory of what it is a view of."""
    blocks = kit.blocks
    net = Net(blocks.form)
    more = [] if numbers is None else [net.constant(np.array(numbers, np.int64))]
    view = net.add(new_op(kind), blocks.steps[0](net, "x"), *more)
    other = blocks.steps[-1](net, blocks.steps[0](net, "x"))
    join = new_op(blocks.join) if blocks.join else None
    graph = net.finish(other, net.add(join, view, view) if join else view)
    fed = blocks.feeds(4)
    with kit.load(graph) as session:
        return kit.compare(graph, fed, session.run(fed))


def _one_constant(kit: Kit, step: Step) -> str:
    """Let two nodes in a row read the same constants, in two runs."""
    net = Net(kit.blocks.form)
    value = step(net, "x")
    (node,) = net.graph.nodes
    graph = net.finish(net.add(node.op, *(value if i == "x" else i for i in node.inputs)))
    with kit.load(graph) as session:
        for seed in range(2):
            fed = kit.blocks.feeds(seed)
            problem = kit.compare(graph, fed, session.run(fed))
            if problem:
                return f"run {seed + 1}: {problem}"
    return ""


def _untouched(kit: Kit, graph: Graph) -> str:
    fed = kit.blocks.feeds(3)
    kept, constants = fed["x"].copy(), {name: v.copy() for name, v in graph.constants.items()}
    with kit.load(graph) as session:
        first = session.run(fed)
        problem = kit.compare(graph, {"x": kept}, first)
        second = session.run({"x": kept})
    if fed["x"].tobytes() != kept.tobytes():
        return "the array of the caller was written to"
    if any(graph.constants[name].tobytes() != value.tobytes() for name, value in constants.items()):
        return "a constant of the network was written to"
    if problem:
        return f"of two nodes that read the input: {problem}"
    return "" if same_bits(first, second) else "the second run differs: a constant on the device was written to"

