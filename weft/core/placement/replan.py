"""The one loop that plans again: a device turns out to do less than its backend said, or a backend refuses a node late.

Either may be found while a network is lowered or loaded. Everything is then planned anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.core.contract.lowered import PlanAgain
from weft.core.graph.graph import Node
from weft.core.placement.assign import Assignment
from weft.errors import BackendError

T = TypeVar("T")
log = logging.getLogger("weft.placement")
MOST_ATTEMPTS = 16
"""Plans of a network while a device turns out to do less and less."""


class NodeRefused(Exception):
    """`onCreate` returned None: the nodes must go to another backend."""

    def __init__(self, nodes: Sequence[Node], device: str) -> None:
        self.nodes, self.device = nodes, device
        super().__init__(f"{', '.join(n.name for n in nodes)} on {device}")


def until_taken(
    attempt: Callable[[Assignment], T],
    hear: Callable[[NodeRefused], None] = lambda refusal: None,
    anew: Callable[[], None] = lambda: None,
    before: Assignment | None = None,
) -> T:
    """Return what `attempt` gives, which plans a network and perhaps loads it, once no device turns it down.

    An attempt is told what was refused so far, of which `before` is the beginning. `hear` is told of each refusal, and
    may raise. `anew` is called before another attempt because a device can do less than its backend said; PlanAgain if
    that does not end. BackendError for a refused node that the backend itself made.
    """
    refused, left = before or Assignment(), MOST_ATTEMPTS
    while True:
        try:
            return attempt(refused)
        except NodeRefused as e:
            hear(e)
            _note(e, refused)
        except PlanAgain as e:
            left -= 1
            if not left:
                raise
            log.info("%s: planned anew: %s", e.where, e.why)
            anew()


def _note(refusal: NodeRefused, before: Assignment) -> None:
    for node in refusal.nodes:
        if (node.name, refusal.device) in before.refusals:
            raise BackendError(
                f"onCreate returned None for node {node.name!r} ({node.op.type}), which its backend put there",
                where=refusal.device,
                fix="OptimizeSubgraph may only make nodes that the backend takes",
            )
        before.refuse(node, refusal.device, "onCreate returned None for these shapes and types")
