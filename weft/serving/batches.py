"""Several requests in one run: which networks allow it, and how their rows go in and come out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.tensor import SequenceSpec
from weft.core.session.session import Session
from weft.errors import ConfigError
from weft.serving.request_queue import Request
from weft.serving.worker import WorkerSession


def batch_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows that batches have: powers of two, and the largest one.

    A network is prepared for each number of rows by itself, so a batch of five is filled up to one of eight.
    """
    return (*(1 << k for k in range(most.bit_length()) if 1 << k < most), most)


def check_batches(graph: Graph) -> None:
    """Raise ConfigError unless the first dimension of all inputs is one open size, and that of no output is fixed."""
    specs = {name: graph.specs[name] for name in graph.inputs}
    rows = {s.shape[0] for s in specs.values() if s.shape and not isinstance(s, SequenceSpec)}
    problems = [
        f"input {name!r} is {spec}"
        for name, spec in specs.items()
        if len(rows) != 1 or not spec.shape or spec.has_open_rank or isinstance(spec.shape[0], int)
    ]
    problems += [
        f"output {name!r} is {declared}"
        for name, declared in graph.declared.items()
        if declared.shape is not None and (not declared.shape or declared.shape[0] is not None)
    ]
    if problems or not specs:
        raise ConfigError(
            "this network cannot run several requests at once",
            where=f"network {graph.name!r}",
            why="; ".join(problems) or "it has no inputs",
            fix="export it with one open size as the first dimension of every input and output, or leave batch= out",
        )


MOST_ARRAYS = 8
"""For how many kinds and sizes of batches a session keeps arrays; it records its commands for as many."""


@dataclass(frozen=True)
class _BatchArrays:
    """Arrays that the inputs of a batch are copied to, by name."""

    arrays: dict[str, Array]
    are_reached: bool
    """Whether it was tried to have them in memory that the device reaches."""

    @classmethod
    def of(cls, request: Request, size: int) -> _BatchArrays:
        """Return arrays of numpy's for a batch of such requests."""
        made = {n: np.empty((size, *first.shape[1:]), first.dtype) for n, first in request.inputs.items()}
        return cls(made, are_reached=False)


class BatchRunner:
    """Runs several requests at once in a session."""

    def __init__(self, session: Session | WorkerSession, sizes: Sequence[int]) -> None:
        self.session = session
        self.gather_seconds = 0.0
        """The time that went into putting requests together."""
        self._sizes = sizes
        self._arrays: dict[tuple[Hashable, int], _BatchArrays] = {}
        """For the inputs of a kind and size of batch; the last is the one used last."""

    def run(self, requests: Sequence[Request]) -> tuple[list[list[Any]], int]:
        """Return the outputs of each request, and how many rows filled up the batch, which repeat the last one.

        ConfigError if an output has another number of rows than the batch.
        """
        total = sum(request.rows for request in requests)
        size = next((s for s in self._sizes if s >= total), total)
        if len(requests) == 1 and size == total:
            return [self.session.run(requests[0].inputs)], 0
        key = requests[0].kind, size
        began = monotonic()
        held = self._arrays.pop(key, None) or _BatchArrays.of(requests[0], size)
        for name, array in held.arrays.items():
            parts = [request.inputs[name] for request in requests]
            np.concatenate(parts, out=array[:total])
            array[total:] = parts[-1][-1:]
        self.gather_seconds += monotonic() - began
        results = self.session.run(held.arrays)
        self._keep(key, held)
        outputs, begin = [], 0
        for request in requests:
            end = begin + request.rows
            outputs.append([part.copy() for part in self._cut(results, size, begin, end)])  # a view keeps the whole
            begin = end
        return outputs, size - total

    def _cut(self, results: Sequence[Any], size: int, begin: int, end: int) -> list[Array]:
        wrong = {o: r.shape for o, r in zip(self.session.outputs, results, strict=True) if r.shape[:1] != (size,)}
        if wrong:
            shown = ", ".join(f"{name!r} has shape {shape}" for name, shape in wrong.items())
            raise ConfigError(
                "the outputs of a batch cannot be told apart",
                where=f"network {self.session.graph.name!r}",
                why=f"it ran with {size} rows, and {shown}",
                fix="leave batch= out: this network's outputs do not belong to the rows of its inputs",
            )
        return [result[begin:end] for result in results]

    def _keep(self, key: tuple[Hashable, int], held: _BatchArrays) -> None:
        """Keep arrays for the next batch like this, in memory that the session reads without a copy if it has such."""
        if key[0] is None:  # a request that runs alone is of no kind
            return
        reached = None if held.are_reached else self._in_reach(held.arrays)
        self._arrays[key] = held if reached is None else _BatchArrays(reached, are_reached=True)
        for old in [*self._arrays][:-MOST_ARRAYS]:
            del self._arrays[old]

    def _in_reach(self, arrays: dict[str, Array]) -> dict[str, Array] | None:
        """Return arrays like these in the session's reach, as far as it reads such; None while its kernels change."""
        if isinstance(self.session, WorkerSession):
            return self.session.new_inputs(arrays)
        if not self.session.report.final:
            return None
        reached = self.session.input_arrays(half=any(array.dtype == np.float16 for array in arrays.values()))
        return {n: reached[n] if reached[n].dtype == array.dtype else array for n, array in arrays.items()}
