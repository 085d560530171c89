"""Large tensors, and what a run must not keep from the run before (M3, M6, M10)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape
from weft.core.session.session import Session
from weft_conformance.kit import Kit, check
from weft_conformance.networks import Blocks, Net
from weft_conformance.report import Finding

LARGE: dict[int, Shape] = {4: (2, 6, 163, 157), 3: (293, 6, 173), 2: (1741, 173)}
"""The shapes of large networks by rank: about 300,000 elements and 1.2 MB, more than 16 bits count and a staging buffer
of 64 KiB or 1 MB holds, in sizes that no tile divides."""


LONG: dict[int, tuple[Shape, ...]] = {
    4: ((1, 6, 70001, 1), (66001, 6, 1, 1)), 3: ((66001, 6, 1),), 2: ((70001, 6),),
}
"""Shapes by rank with more rows, or more images, than the 65,535 groups that some devices start along an axis."""


def large_blocks(kit: Kit) -> Blocks:
    """Return the networks of a kit's ops at a large size."""
    return replace(kit.blocks, form=LARGE[len(kit.blocks.form)])


@check("large", "M3 M6 M10", "tensors of 1.2 MB or 70,001 rows are right to their last element, one op or a network")
def large(kit: Kit) -> Iterable[Finding]:
    """Run each op alone and networks of them on some 300,000 elements."""
    blocks = large_blocks(kit)
    for step in blocks.steps:
        net = Net(blocks.form)
        graph = net.finish(step(net, "x"))
        yield kit.attempt(f"{graph.nodes[0].op.type} of {graph.specs['x']}", _run_and_run_again, kit, graph, blocks)
    yield kit.attempt("branches", _run_and_run_again, kit, blocks.diamond(), blocks)
    for form in LONG[len(blocks.form)]:
        long = replace(blocks, form=form)
        net = Net(form)
        graph = net.finish(*(step(net, "x") for step in long.steps))
        yield kit.attempt(f"each op of {graph.specs['x']}", _run_and_run_again, kit, graph, long)


def _run_and_run_again(kit: Kit, graph: Graph, blocks: Blocks) -> str:
    """Run, and once more with one late element changed."""
    fed = blocks.feeds(7)
    with kit.load(graph) as session:
        problem = kit.compare(graph, fed, session.run(fed))
        return problem or _changed(kit, graph, session, fed, -1)


@check("changes", "M3 M5", "a run computes with its whole input, and a network with its own constants")
def changes(kit: Kit) -> Iterable[Finding]:
    """Change one element of an input or of a constant between two runs or loads."""
    blocks = kit.blocks
    for name, graph in blocks.all().items():
        yield kit.attempt(f"{name}, a late element of the input", _late_elements, kit, graph)
    yield kit.attempt("the caller's array, written to between two runs", _in_place, kit, blocks.chain())
    net = Net(blocks.form)
    for step in blocks.steps:
        step(net, "x")
    if net.graph.constants:
        graph = net.finish(*(node.outputs[0] for node in net.graph.nodes))
        yield kit.attempt("a late element of each constant", _late_constants, kit, graph)


def _late_elements(kit: Kit, graph: Graph) -> str:
    fed = kit.blocks.feeds(8)
    with kit.load(graph) as session:
        session.run(fed)
        problems = (_changed(kit, graph, session, fed, at) for at in (-1, fed["x"].size // 2, -1))
        return next(filter(None, problems), "")


def _changed(kit: Kit, graph: Graph, session: Session, fed: dict[str, Array], at: int) -> str:
    """Run with one element changed, in an array of its own."""
    other = _with_another(fed["x"], at)
    problem = kit.compare(graph, {"x": other}, session.run({"x": other}))
    return f"with another element {at % other.size} than in the run before: {problem}" if problem else ""


def _with_another(array: Array, at: int) -> Array:
    """Return a copy in which one element is positive and differs by more than any rounding."""
    other = array.copy()
    other.flat[at] = 1.75 if array.flat[at] < 1 else 0.5
    return other


def _in_place(kit: Kit, graph: Graph) -> str:
    fed = kit.blocks.feeds(9)
    with kit.load(graph) as session:
        session.run(fed)
        fed["x"][...] = _with_another(fed["x"], -1)
        return kit.compare(graph, fed, session.run(fed))


def _late_constants(kit: Kit, graph: Graph) -> str:
    """Load two networks whose constants differ in their last element, at the same time."""
    fed = kit.blocks.feeds(10)
    other = graph.copy()
    other.constants = {name: _with_another(value, -1) for name, value in graph.constants.items()}
    with kit.load(graph) as first, kit.load(other) as second:
        for which, session, mine in (("first", first, graph), ("second", second, other), ("first", first, graph)):
            problem = kit.compare(mine, fed, session.run(fed))
            if problem:
                return f"the {which} of two networks whose constants differ in one element: {problem}"
    return ""
