"""The checks of every backend, one theme a file; importing this package lists them in order."""

from weft_conformance.checks import (  # isort: skip
    native, creator, table, drawn, convolutions, outputs, support, copies, storage, order, tensors, runs, large, errors,
    concurrency, optimizing, imports, state, leaks,
)

__all__ = [
    "concurrency", "convolutions", "copies", "creator", "drawn", "errors", "imports", "large", "leaks", "native",
    "optimizing", "order", "outputs", "runs", "state", "storage", "support", "table", "tensors",
]
