"""Random networks of the backend's own ops, at two sizes and with inputs that change (M3, M4, M6, M11)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count, takewhile

import numpy as np

from weft.core.contract.backend import Backend
from weft.core.graph.op import new_op
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import all_rows, graph_of
from weft_conformance.drawing import MOST_NODES, Drawing, Made
from weft_conformance.kit import Kit, check
from weft_conformance.makers import MAKERS, of_row, serves
from weft_conformance.report import Finding
from weft_conformance.trials import accepts, is_taken, judged

ATTEMPTS = 12
"""Tries of each node; a network may end with fewer nodes than it could have."""
COMMON = ("Conv", "Conv", "Conv", "Add", "Mul", "Relu", "MaxPool", "AveragePool", "Concat", "Split", "Transpose",
          "Slice", "MatMul", "ReduceMean", "Softmax", "Reshape", "Sub", "Pad", "Pad")
"""Ops of which half of the nodes are, if the backend takes them."""
LATE = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity")
"""Ops of nodes behind all others, which read what was made early: its memory must have lasted."""


@check("networks", "M3 M4 M6 M11", "random networks of the backend's ops are right, run after run and size after size")
def networks(kit: Kit) -> Iterable[Finding]:
    """Draw networks from seeds that follow each other, for as long as the kit was told."""
    with kit.opened() as backend:
        kinds = _kinds(backend)
        if not kinds:
            yield kit.nothing("random networks", "the backend takes no row of small inputs of common types")
            return
        for seed in _seeds(kit):
            yield kit.attempt(f"seed {seed}", _network, kit, backend, kinds, seed)


def _seeds(kit: Kit) -> Iterator[int]:
    """Yield the seeds of networks: so many, and more until the time is over."""
    start = time.monotonic()
    yield from range(kit.seed, kit.seed + kit.networks)
    yield from takewhile(lambda _: time.monotonic() < start + kit.seconds, count(kit.seed + kit.networks))


def _kinds(backend: Backend) -> dict[str, list[Case]]:
    """Return the rows that the backend takes and that networks may have nodes like, by op."""
    kinds: dict[str, list[Case]] = {}
    for row in _rows():
        if is_taken(backend, graph_of(row)):
            kinds.setdefault(row.op, []).append(row)
    return kinds


@cache
def _rows() -> list[Case]:
    return [row for row in all_rows() if serves(row)]


def _network(kit: Kit, backend: Backend, kinds: dict[str, list[Case]], seed: int) -> str:
    """Draw a network and return what is wrong with its runs."""
    drawing = Drawing(seed, accepts(backend), kit.dtype)
    order = [str(k) for k in np.random.default_rng(5).permutation(sorted(kinds))]
    common = [k for k in COMMON if k in kinds]
    for number in range(MOST_NODES):
        for attempt in range(ATTEMPTS):
            turn = (seed * MOST_NODES + number + attempt * 31) % len(order)
            kind = drawing.pick(common) if common and drawing.rng.random() < 0.5 else order[turn]
            maker = MAKERS.get(kind)
            use = maker if maker is not None and drawing.rng.random() < 0.8 else None
            made = use(drawing, kind) if use else of_row(drawing, drawing.pick(kinds[kind]))
            if made is not None and drawing.try_node(made):
                break
    late = [k for k in LATE if k in kinds]
    made_early = [node.outputs[0] for node in drawing.graph.nodes[:-2]]
    for value in drawing.rng.permutation(made_early)[:2] if late else ():
        drawing.try_node(Made(new_op(drawing.pick(late)), [str(value)]))
    return judged(kit, drawing)
