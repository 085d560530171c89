"""What every backend is held against, a file a theme; importing this puts all on the list, in order."""

from weft.conformance.checks import (  # isort: skip
    creator, table, support, copies, storage, order, runs, errors, concurrency, optimizing, imports, leaks,
)  # fmt: skip

__all__ = [
    "concurrency", "copies", "creator", "errors", "imports", "leaks", "optimizing", "order", "runs", "storage",
    "support", "table",
]
