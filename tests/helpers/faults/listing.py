"""How backends that are right but for one thing are listed, each with the check that must find it and those that may.

`every_fault` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from weft.backends.cpu.backend import CpuBackend, ReferenceExecution
from weft.core.contract.backend import Backend, Execution
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]
RUNS = frozenset({
    "imports", "order", "resize", "limit", "determinism", "inputs", "errors", "threads", "short-lived", "leaks",
    "tensors", "large", "changes", "networks", "convolutions",
})
"""Checks that run networks: a fault that spoils every network may show in each."""
LOADS = RUNS | {"table", "outputs", "support", "views"}

COMPUTES = frozenset({"table", "networks", "convolutions", "outputs"})
"""Checks that try all ops: a fault of some ops may show in each."""


@dataclass(frozen=True)
class Fault:
    """A broken backend; the check that must find it; a piece of what is said; other checks that it may spoil."""

    made: type[Backend]
    check: str
    piece: str
    others: frozenset[str] = frozenset()


FAULTS: dict[str, Fault] = {}


def fault(check: str, piece: str, others: frozenset[str] = frozenset()) -> Callable[[type[Backend]], type[Backend]]:
    def register(made: type[Backend]) -> type[Backend]:
        FAULTS[made.__name__] = Fault(made, check, piece, others)
        return made

    return register


class Wrapped(Execution):
    """Does what another execution does; subclasses change a part of it."""

    def __init__(self, op: Op, backend: Any) -> None:
        self.inner, self.op, self.backend = ReferenceExecution(op), op, backend

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onExecute(inputs, outputs)


class Wrapping(CpuBackend):
    """The CPU backend with other executions for some ops (all, if none are named)."""

    execution: ClassVar[type[Wrapped]] = Wrapped
    ops: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[tuple[str, ...]] = ()
    """The rows of the op table that show what is wrong, if they are not those of `ops`."""

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        if self.ops and op.type not in self.ops:
            return super().onCreate(inputs, outputs, op)
        return self.execution(op, self)
