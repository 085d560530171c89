"""What a model may cost before it runs: nodes, bytes of constants, and the folding of constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from time import perf_counter

import numpy as np

from weft.core.graph.graph import Graph
from weft.errors import ConfigError, ModelError, brief

GIB = 1 << 30
SMALL = 1 << 10
"""Values up to this many bytes are always folded: shapes depend on them."""
FLOPS_A_SECOND = 1e9
"""Assumed speed of the numpy references, to predict a long folding before it begins."""


@dataclass(frozen=True)
class Limits:
    """Limits on what a model may cost before it runs.

    `nodes`: nodes after functions are expanded. A file of a kilobyte can ask for any number of them. The largest
    models that exporters write have about ten thousand; 100,000 load in about 15 s.
    `constant_bytes`: bytes of the model's constants; those in a function count once for each call.
    `folding_bytes`: bytes of everything that folding and rewrites compute from constants. A node of a hundred bytes can
    ask for any number of them. What exceeds the limit is computed in each run, in planned and reused memory.
    `folding_seconds`: time that this computing may take; what exceeds it is computed in each run.
    """

    nodes: int = 250_000
    constant_bytes: int = 32 * GIB
    folding_bytes: int = 2 * GIB
    folding_seconds: float = 60.0

    @classmethod
    def of(cls, given: Limits | Mapping[str, float] | None) -> Limits:
        """Return the limits that a caller gives: Limits, some limits by name, or None; ConfigError for others."""
        if isinstance(given, Limits):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"limits={brief(repr(given))} are not understood", fix='write {"nodes": 1_000_000}')
        known = {f.name: f.default for f in fields(cls)}
        problems = [f"there is no limit {brief(repr(name))}" for name in given or () if name not in known]
        for name, value in (given or {}).items():
            whole = isinstance(value, Integral) or name == "folding_seconds"
            number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
            if name in known and not (number and whole and value >= 0):
                problems.append(f"{name}={brief(repr(value))} is not a {'whole ' if whole else ''}number from 0 on")
        if problems:
            names = ", ".join(f"{name} (by default {value:,})" for name, value in known.items())
            raise ConfigError("the limits are not understood", why="; ".join(problems), fix=f"there are {names}")
        made = {k: float(v) if k == "folding_seconds" else int(v) for k, v in (given or {}).items()}
        return cls(**made)  # type: ignore[arg-type]  # checked above

    def within(self, other: Limits) -> Limits:
        """Return the lower of each of these limits and another's."""
        return Limits(**{f.name: min(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def exceeded(self, name: str, needed: float, what: str, where: str = "") -> ModelError:
        """Return the error for a model that exceeds a limit."""
        return ModelError(
            f"{what} goes beyond the limit {name!r}",
            where=where,
            why=f"it needs {needed:,} and the limit is {getattr(self, name):,}",
            fix=f'if you trust the model, pass limits={{"{name}": {needed}}} or --limit {name}={needed}',
        )

    def check(self, graph: Graph) -> None:
        """Raise ModelError if a graph has too many nodes or too many bytes of constants."""
        if len(graph.nodes) > self.nodes:
            raise self.exceeded("nodes", len(graph.nodes), f"graph {graph.name!r}")
        nbytes = sum({id(value): value.nbytes for value in graph.constants.values()}.values())
        if nbytes > self.constant_bytes:
            raise self.exceeded("constant_bytes", nbytes, f"graph {graph.name!r}")


@dataclass
class Budget:
    """What remains of the folding limits while one network is optimised, and the values that exceeded them."""

    limits: Limits = field(default_factory=Limits)
    nbytes: int = 0
    """Bytes folded so far."""
    seconds: float = 0.0
    """Seconds spent on folding so far."""
    left: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Values that each run must compute: the limit in the way, and the value it would need."""
    clock: Callable[[], float] = perf_counter

    def allows(self, values: Iterable[str], nbytes: int, *, flops: int = 0, read: int = 0) -> bool:
        """Tell whether values may be folded from constants of `read` bytes; if not, note that runs compute them."""
        need = self.limit_in_the_way(nbytes, flops=flops, read=read)
        if need is not None:
            self.left.update(dict.fromkeys(filter(None, values), need))
        return need is None

    def limit_in_the_way(self, nbytes: int, *, flops: int = 0, read: int = 0) -> tuple[str, float] | None:
        """Return the limit that forbids to fold so much, and the value that it would need; None if none does."""
        if max(nbytes, read) <= SMALL:
            return None
        if self.nbytes + nbytes > self.limits.folding_bytes:
            return "folding_bytes", self.nbytes + nbytes
        seconds = self.seconds + flops / FLOPS_A_SECOND
        return ("folding_seconds", round(seconds + 1)) if seconds >= self.limits.folding_seconds else None

    def spend(self, nbytes: int, began: float) -> None:
        """Count `nbytes` bytes of folded values, computed since the clock read `began`."""
        self.nbytes += nbytes
        self.seconds += self.clock() - began

    def blocking(self, values: Iterable[str], what: str) -> ModelError | None:
        """Return the error for a step that needs one of these values and cannot have it, since it was not folded."""
        for value in values:
            if value in self.left:
                limit, need = self.left[value]
                return self.limits.exceeded(limit, need, f"{what}: folding {value!r}, whose value it needs,")
        return None

    def notes(self) -> list[str]:
        """Return a note that names the values each run computes because of a limit; none if there are none."""
        if not self.left:
            return []
        value, (limit, need) = next(iter(self.left.items()))
        return [
            f"{len(self.left)} value(s) that depend on constants alone are computed in every run: to fold {value!r}, "
            f"the limit {limit!r} would have to be {need:,} and is {getattr(self.limits, limit):,}"
        ]
