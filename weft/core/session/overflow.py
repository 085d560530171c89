"""Overflow at precision LOW: which values of a run are beyond fp16, so that they are planned again as float32.

The first run of a session is watched (`OverflowWatch`): for each float value that is stored the watch notes whether a
number is not finite, and, of float32, the largest number that is. fp16 values that are not finite become float32
(`Graph.overflowing`), and the run is repeated. Then their sizes are known: those that fp16 holds are stored as fp16
again. What is not finite in float32 either, such as log(0) or what is made of an infinite input, is the network's own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import MovingOp
from weft.core.passes.precision import are_finite_halves
from weft.core.session.arguments import is_half

if TYPE_CHECKING:
    from weft.core.session.planner import Planner

log = logging.getLogger("weft.session")

HELD = 32768.0
"""A value that reaches this stays float32: other inputs may make it twice as large."""
ROUNDS = 4
"""How often a network is planned again at most: a value may be beyond fp16 only once another one is finite."""
MOST_IN_VAIN = 3
"""After so many runs in which nothing overflowed, though outputs were not finite, no more are checked."""
PASSES_ON = frozenset({"Add", "Cast", "Min", "Where"})
"""Ops whose result is minus infinity where an input says so."""
MOST_IN_MASK = 1 << 18
"""Most elements of a constant in which minus infinity is looked for: weights have none, and take long to look at."""
MOST_CHECKED = 1 << 16
"""Outputs of up to so many bytes are checked in every run, which takes microseconds."""
_STORED_AS = re.compile(r"(\.float(16|32)(\.\d+)?)+$")
"""What `store_as_float16` adds to the name of a value."""


@dataclass
class _Seen:
    """What was stored for a value, in all runs of its node."""

    is_half: bool
    is_finite: bool = True
    largest: float = 0.0
    """Of the finite numbers of float32."""


class OverflowWatch:
    """Notes what a run stores; a `thorough` one wants to see all of it, even if that takes long."""

    def __init__(self, *, thorough: bool = False) -> None:
        self.thorough = thorough
        self.masks = frozenset[str]()
        """The values in which minus infinity is the network's own; see `masks_of`."""
        self._seen: dict[str, _Seen] = {}
        self._held: set[str] = set()
        """The inputs of the run whose finite numbers fp16 holds."""

    def give(self, inputs: Mapping[str, Array | list[Array] | None]) -> None:
        """Note the inputs of the run: arrays, sequences of them, and None for an optional that holds nothing."""
        for name, value in inputs.items():
            parts = value if isinstance(value, list) else [] if value is None else [value]
            if all(p.dtype == np.float32 and np.abs(p).max(where=np.isfinite(p), initial=0) < HELD for p in parts):
                self._held.add(name)

    def copy(self, source: str, target: str) -> None:
        """Note a copy to another device."""
        self._seen[target] = _Seen(False, source not in self._seen or self._seen[source].is_finite)

    def see(self, name: str, stored: Array) -> None:
        """Note a value as it is stored, padding included, in float16 or float32; other types tell nothing."""
        if stored.dtype not in (np.float16, np.float32) or not stored.size:
            return
        is_half = stored.dtype == np.float16
        seen = self._seen.setdefault(name, _Seen(is_half))
        if is_half:
            hides = in_model(name) in self.masks
            seen.is_finite = seen.is_finite and are_finite_halves(stored, but_lowest=hides)
            return
        largest = float(max(stored.max(), -stored.min()))
        if not np.isfinite(largest):
            seen.is_finite = False
            largest = float(np.abs(stored).max(where=np.isfinite(stored), initial=0))
        seen.largest = max(seen.largest, largest)

    def overflowing(self, infinite: frozenset[str]) -> frozenset[str]:
        """Return the fp16 values that are not finite, by the model's names.

        `infinite` are values that are not finite in float32 either.
        """
        bad = [name for name, seen in self._seen.items() if seen.is_half and not seen.is_finite]
        return frozenset(_in_model(n for n in bad if in_model(n) not in infinite | self._held))

    @property
    def infinite(self) -> frozenset[str]:
        """Return the values that are not finite in float32 either, and whose finite numbers fp16 holds."""
        own = (n for n, seen in self._seen.items() if not (seen.is_half or seen.is_finite) and seen.largest < HELD)
        return frozenset(in_model(n) for n in own)

    def beyond_half(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names without those of values that were stored as float32 and that fp16 would hold."""
        held = {in_model(n) for n, seen in self._seen.items() if not seen.is_half and seen.largest < HELD}
        return frozenset(name for name in names if in_model(name) not in held)


def masks_of(graph: Graph, given: Iterable[str] = ()) -> frozenset[str]:
    """Return the values of a network that are made of constants, or inputs `given`, with minus infinity.

    They hide something, and say so wherever they are kept.
    """
    small = {n: c for n, c in graph.constants.items() if c.dtype.kind == "f" and c.size <= MOST_IN_MASK}
    found = {*given, *(n for n, c in small.items() if bool(np.isneginf(c).any()))}
    for node in graph.nodes:
        if (isinstance(node.op, MovingOp) or node.op.type in PASSES_ON) and not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(map(in_model, found))


def in_model(name: str) -> str:
    """Return what the model calls a value, whatever it is stored as."""
    return _STORED_AS.sub("", name)


def _in_model(names: Iterable[str]) -> set[str]:
    return {each for name in names for each in (name, in_model(name))}  # a model's own name may end so


def _all_finite(values: Array) -> bool:
    if not values.size:
        return True
    if values.dtype == np.float16:
        return are_finite_halves(values)
    if values.dtype == np.float32:  # NaN is the largest and the smallest number of an array
        return bool(np.isfinite(values.max()) and np.isfinite(values.min()))
    return bool(np.isfinite(values.astype(np.float32, copy=False)).all())


def are_finite(arrays: Sequence[object]) -> bool:
    """Tell whether all floats of some arrays are finite."""
    return all(_all_finite(a) for a in arrays if isinstance(a, np.ndarray) and DType.of(a.dtype).is_float)


def have_no_nan(inputs: Iterable[object]) -> bool:
    """Tell whether no float of some inputs, which may be lists of arrays, is NaN."""
    arrays = (a for given in inputs for a in (given if isinstance(given, (list, tuple)) else [given]))
    floats = (a for a in arrays if isinstance(a, np.ndarray) and DType.of(a.dtype).is_float)
    return not any(bool(np.isnan(a.astype(np.float32, copy=False)).any()) for a in floats)


def are_suspect(arrays: Sequence[object]) -> bool:
    """Tell whether outputs of a run are not finite, as far as a check takes no time."""
    return are_checked(arrays) and not are_finite(arrays)


def are_checked(arrays: Sequence[object]) -> bool:
    """Tell whether outputs are so small that all of them are checked in every run."""
    return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray)) <= MOST_CHECKED


class RangeCheck:
    """Looks at the runs of a session at precision LOW for overflow, and has them repeated in float32."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        """Whether runs are looked at."""
        self.watch = OverflowWatch() if is_on else None
        """Sees what the next run stores."""
        self.halves = frozenset[str]()
        """The outputs that were given in fp16 before values overflowed; for fp16 arrays they are converted since."""
        self._in_vain = 0
        """How many runs were watched in which nothing overflowed, though they showed what is not finite."""

    def may_repeat(self, given: Sequence[object]) -> bool:
        """Tell whether a run with these arrays for its outputs may be repeated."""
        return self.is_on and (self.watch is not None or are_checked(given))

    def settled(
        self, results: list[Any], inputs: Mapping[str, Any], planner: Callable[[], Planner],
        repeat: Callable[[], list[Any]], widen: Callable[[frozenset[str]], None],
    ) -> list[Any]:
        """Return the results of a run that has ended, or of another with what overflowed in float32.

        A run that was not watched is repeated if its outputs are not finite, unless NaN in its inputs explains that.
        Buffers are not read for that. `planner` returns what plans now, `repeat` the results of the same run again,
        and `widen` has values stored in float32 from now on.
        """
        watch, self.watch = self.watch, None
        is_odd = watch is None and are_suspect(self._judged(results, planner()))
        has_nan = (watch is not None or is_odd) and not have_no_nan(inputs.values())
        if watch is None:
            if has_nan or not is_odd:
                return results
            results, watch = self._watched(repeat)

        def plan_in_float32(names: frozenset[str]) -> tuple[list[Any], OverflowWatch]:
            now = planner()
            self.halves |= now.narrowable.intersection(now.graph.outputs)
            widen(names)
            return self._watched(repeat)

        before, infinite = planner().graph.overflowing, frozenset[str]()
        for _ in range(ROUNDS):
            now = planner()
            found = watch.overflowing(infinite) - now.graph.overflowing
            if not found:
                break
            if now.fixed is not None and not are_finite([*inputs.values()]):
                break  # it may be what was given, which only another plan would tell
            if now.fixed is not None:
                names = ", ".join(sorted(found)[:5])
                log.warning("values overflow float16 in an optimised network, which stays as it is: %s", names)
                self.is_on = False
                return results
            results, watch = plan_in_float32(now.graph.overflowing | found)
        if planner().graph.overflowing != before:
            infinite = watch.infinite
            kept = before | watch.beyond_half(planner().graph.overflowing)
            if kept != planner().graph.overflowing:
                results, watch = plan_in_float32(kept)
                found = watch.overflowing(infinite)
                if not found <= kept:
                    results, _ = plan_in_float32(kept | found)
        if planner().graph.overflowing != before:
            names = ", ".join(sorted({*map(in_model, planner().graph.overflowing - before)})[:5])
            log.warning("values overflowed float16 in a run and are float32 from now on: %s", names)
        elif has_nan or are_suspect(self._judged(results, planner())):
            self._in_vain += 1
            if has_nan and self._in_vain < MOST_IN_VAIN:
                self.watch = OverflowWatch()  # what other inputs make may differ
            elif not has_nan and self._in_vain >= MOST_IN_VAIN:
                self.is_on = False
                log.info("outputs are not finite at any precision: later runs are not checked for overflow")
        return results

    def _watched(self, repeat: Callable[[], list[Any]]) -> tuple[list[Any], OverflowWatch]:
        self.watch = watch = OverflowWatch(thorough=True)
        try:
            return repeat(), watch
        finally:
            self.watch = None

    def _judged(self, results: list[Any], now: Planner) -> list[Any]:
        """Return the outputs that tell of an overflow: not those that are float32 and given in arrays of float16."""
        wide = self.halves - now.narrowable
        if not wide:
            return results
        named = zip(now.graph.outputs, results, strict=True)
        return [result for name, result in named if not (name in wide and is_half(result))]
