"""A large batch in parts, by several sessions: one part is copied to the device while the one before is computed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

import numpy as np

from weft.core.arrays import take_inputs
from weft.core.layout import Array
from weft.core.session import Session
from weft.errors import InputError, WeftError


class Relay:
    """Runs a batch as parts along the first axis of all inputs and outputs, one on each of some sessions.

    The sessions hold the same network, each with weights of its own; those of one device share it in turn. Only
    for networks that treat the rows of a batch each by itself: that is not checked. Where the time of a run is
    partly that of copying its inputs, a relay of two hides a part of it; but smaller parts may be computed slower.
    Several threads may use a relay; their runs follow each other.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        """Take over sessions of one network; InputError if their inputs or outputs have other names, or for none."""
        held = list(sessions)
        if not held or len({id(s) for s in held}) < len(held):
            raise InputError(
                "a relay needs sessions, each of them once",
                why=f"{len(held)} were given, {len({id(s) for s in held})} of them different",
                fix="call weft.load once for each part",
            )
        if any((list(s.inputs), s.outputs) != (list(held[0].inputs), held[0].outputs) for s in held):
            raise InputError(
                "the sessions of a relay have inputs or outputs of different names", fix="load one network for all"
            )
        self.sessions = held
        self._lock = threading.Lock()

    def run(self, *inputs: Array | Mapping[str, Array]) -> list[Array]:
        """Return the outputs, in order, for arrays of shape (batch, ...) in input order or a dict by name.

        The batch is divided as evenly as it goes, the first parts being the larger ones; it has a row for each
        session at least. InputError where inputs are of different batches, or outputs not of the inputs' one.
        """
        arrays = take_inputs(self.sessions[0].graph, inputs)
        ends = self._ends({name: a.shape for name, a in arrays.items()})
        started: list[Session] = []
        with self._lock:
            try:
                for session, start, end in zip(self.sessions, [0, *ends], ends, strict=False):
                    session.submit({name: a[start:end] for name, a in arrays.items()})
                    started.append(session)
                parts = [started.pop(0).wait() for _ in self.sessions]
            except BaseException:
                for session in started:
                    with suppress(WeftError):
                        session.wait()  # whatever came of it, nothing may be left running
                raise
        names = self.sessions[0].outputs
        return [self._joined(name, column, ends) for name, column in zip(names, zip(*parts, strict=True), strict=True)]

    def _ends(self, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
        """Return where each part of the batch ends."""
        batches = {shape[0] if shape else 0 for shape in shapes.values()}
        count = len(self.sessions)
        if len(batches) != 1 or max(batches) < count:
            given = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
            raise InputError(
                f"the inputs are no batch for {count} sessions",
                why=f"all need one first axis of at least {count}; given are {given}",
            )
        each, more = divmod(max(batches), count)
        return [each * (k + 1) + min(more, k + 1) for k in range(count)]

    def _joined(self, name: str, parts: Sequence[Array], ends: Sequence[int]) -> Array:
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        if [p.shape[0] if p.ndim else None for p in parts] != sizes:
            raise InputError(
                f"the output {name!r} is not of the inputs' batch",
                why=f"parts of {sizes} rows gave outputs of shapes {[p.shape for p in parts]}",
                fix="run the network with a single session",
            )
        return np.concatenate(parts)

    def close(self) -> None:
        """Close all sessions; what the first of them to refuse raises comes out when the others are closed."""
        with self._lock, ExitStack() as closing:
            for session in reversed(self.sessions):
                closing.callback(session.close)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
