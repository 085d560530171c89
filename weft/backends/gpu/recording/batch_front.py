"""The front of a network: its first nodes, which are recorded once for each part of a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Front:
    """Which nodes run in parts, by their first outputs; `depth` is the last of their levels."""

    input: str = ""
    parts: int = 1
    depth: int = -1
    nodes: frozenset[str] = frozenset()


NO_FRONT = Front()
