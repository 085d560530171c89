"""Late refusals: a backend takes a node and refuses it as it is loaded. Everything is then planned and loaded anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weft.core.contract.lowered import PlanAgain
from weft.core.placement.assign import Assignment
from weft.core.placement.lower_network import MOST_PLANS
from weft.core.session.pipeline import NodeRefused
from weft.errors import BackendError

T = TypeVar("T")


def until_taken(
    attempt: Callable[[Assignment], T],
    hear: Callable[[NodeRefused], None] = lambda refusal: None,
    anew: Callable[[], None] = lambda: None,
) -> T:
    """Return what `attempt` gives, which plans and loads a network; call it again while a backend refuses nodes late.

    An attempt is told what was refused before. `hear` is told of each refusal, and may raise. `anew` is called before
    another attempt because a device can do less than its backend said. BackendError for a refused node that the backend
    itself made.
    """
    before, left = Assignment(), MOST_PLANS
    while True:
        try:
            return attempt(before)
        except NodeRefused as e:
            hear(e)
            _note(e, before)
        except PlanAgain:
            left -= 1
            if not left:
                raise
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
