"""Put the node or device into whatever is raised while it works (contract section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.core.fused import Fused
from weft.core.graph import Node
from weft.errors import ExecutionError, OutOfMemory, WeftError

SHOWN = 8


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What code that is not ours can raise as its own failure. A KeyboardInterrupt is the user's, who gets it."""


@contextmanager
def blame(where: str, what: str = "a node failed", *, callback: str = "") -> Iterator[None]:
    """Add `where` to what is raised inside: a WeftError keeps its class, others become ExecutionError.

    Those name the callback, too ("AcmeBackend.onResizeEnd").
    """
    try:
        yield
    except WeftError as e:
        if where not in e.where:
            place = f"{where}: {e.where}" if e.where else where
            WeftError.__init__(e, e.what, where=place, why=e.why, fix=e.fix)
        raise
    except FAILURES as e:
        kind = OutOfMemory if isinstance(e, MemoryError) else ExecutionError
        place = f"{where}: {callback}" if callback else where
        raise kind(what, where=place, why=f"{type(e).__name__}: {e}") from e


def callback_of(owner: object, name: str) -> str:
    """Return a callback as messages name it."""
    return f"{type(owner).__name__}.{name}"


def at_node(node: Node, device: str) -> str:
    """Return the place of a failure in one node."""
    return f"{_named(node)} on {device}"


def at_nodes(nodes: Sequence[Node], device: str) -> str:
    """Return the place of a failure of a device that ran these nodes and does not say which failed."""
    named = ", ".join(_named(n) for n in nodes[:SHOWN])
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"{device}, which ran {named}{more}"


def _named(node: Node) -> str:
    op = node.op
    kinds = [op.base.type, *(step.op.type for step in op.steps)] if isinstance(op, Fused) else [op.type]
    return f"node {node.name!r} ({' + '.join(kinds)})"
