"""The kernels that sessions launch."""

from __future__ import annotations

import weft
from tests.helpers.null_gpu import null_gpu
from weft.core.graph.graph import Graph


def kernels(session: weft.Session) -> list[str]:
    """Return the templates that a session on one GPU launches, those of nodes that run in parts once."""
    launches = session.pipelines[0].backend.recording.run.planned  # type: ignore[attr-defined]
    return [label.rpartition("/")[2] for label in dict.fromkeys(launch.label for launch in launches)]


def most_buffers(session: weft.Session) -> int:
    """Return the most buffers that a launch of a session on one GPU reads and writes."""
    launches = session.pipelines[0].backend.recording.run.planned  # type: ignore[attr-defined]
    return max(len(launch.reads) + len(launch.writes) for launch in launches)


def planned_kernels(graph: Graph, precision: str = "high") -> list[str]:
    """Return the templates that a graph needs on a GPU that runs nothing."""
    with null_gpu(), weft.load(graph, "null", precision=precision, fallback="error") as session:
        return kernels(session)
