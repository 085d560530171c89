"""What a session does about a node that its backend took and then refuses."""

from __future__ import annotations

from weft.core.placement.assign import Assignment
from weft.core.session.pipeline import NodeRefused
from weft.errors import BackendError


def note_refusal(refusal: NodeRefused, before: Assignment) -> None:
    """Note what a backend refused late, so that the node is assigned anew; BackendError for what it made itself."""
    for node in refusal.nodes:
        if (node.name, refusal.device) in before.refusals:
            raise BackendError(
                f"onCreate returned None for node {node.name!r} ({node.op.type}), which its backend put there",
                where=refusal.device,
                fix="OptimizeSubgraph may only make nodes that the backend takes",
            )
        before.refuse(node, refusal.device, "onCreate returned None for these shapes and types")
