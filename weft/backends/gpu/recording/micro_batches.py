"""Micro-batches: equal parts of a batch, for each of which the first nodes of a network are recorded by themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MicroBatches:
    """Which nodes run once for each micro-batch; all others run on the whole batch."""

    input: str = ""
    count: int = 1
    depth: int = -1
    """The last level of these nodes."""
    nodes: frozenset[str] = frozenset()
    """By their first outputs."""


WHOLE_BATCH = MicroBatches()
