"""Packs the weights of a part in threads, before executions ask for them one by one: an upload waits for no core."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType

from weft.backends.gpu.lowering.launches.builder import PlannedConstant
from weft.core.host.background import Background
from weft.core.host.parallel_copy import cores

AHEAD = 256 << 20
"""Most bytes that are packed and not taken."""
WORTH = 16 << 20
"""Below this many bytes in all, threads cost more than they save."""


class Packing:
    """Packs constants in the order in which they will be taken. It ends with its `with` block."""

    def __init__(self, constants: Iterable[PlannedConstant]) -> None:
        self._waiting = deque(constants)
        self._begun: set[PlannedConstant] = set()
        self._nbytes = 0
        total = sum(each.tensor.nbytes for each in self._waiting)
        self._threads = Background(cores(), "weft-packing") if total >= WORTH and cores() > 1 else None

    def __enter__(self) -> None:
        self._fill()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._waiting.clear()
        for each in [*self._begun]:
            each.forget()
        if self._threads is not None:
            self._threads.__exit__(kind, e, trace)

    def _fill(self) -> None:
        while self._threads is not None and self._waiting and self._nbytes < AHEAD:
            constant = self._waiting.popleft()
            if constant.begin(self._threads, self._taken):
                self._begun.add(constant)
                self._nbytes += constant.tensor.nbytes

    def _taken(self, constant: PlannedConstant) -> None:
        self._begun.discard(constant)
        self._nbytes -= constant.tensor.nbytes
        self._fill()
