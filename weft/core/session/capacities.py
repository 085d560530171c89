"""Chooses capacities for sizes that grow, and makes the networks for them; see `weft.core.placement.capacity`.

A capacity is a power of two, so that a text of 2,000 words is planned for three times, and not for each word.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.core.graph.symbolic import OpenSizes
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.capacity import CapacityNetwork, NoCapacity, growth, with_capacities
from weft.core.placement.open_network import OpenNetwork
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.placement.stage_split import is_staged
from weft.errors import InputError, ModelError, ValueNeeded

log = logging.getLogger("weft.session")
LEAST_ROOM = 256
"""The smallest capacity of a cache."""
FEWEST_ROWS = 16
"""The smallest capacity for rows that are new in a run, unless it is one."""
STEADY = 3
"""After how many runs in turn in which a cache grew by as much, its network is planned for a capacity."""
APART = 67
"""A network for all lengths is prepared with a cache that is so many rows longer: 0 and 1 are special sizes."""
NEW_APART = 131
"""The same for new rows, unless there is one alone: they may be as many as a model has heads."""

Sizes = Mapping[str, int]
"""Open sizes by name. An input of a few integers that decides shapes counts as sizes, such as "total[0]"."""
NONE: Sizes = {}


@dataclass(frozen=True, eq=False)
class RoomyPlan:
    """A network for capacities: what it has in common with no other, and the sizes that it holds for."""

    key: tuple[tuple[str, int], ...]
    network: CapacityNetwork
    fixed: Sizes
    prepared: PreparedNetwork
    new: Sizes
    """The capacities of the rows that are new in a run."""
    rows: Sequence[str] = ()
    """The sizes that are the number of these rows."""

    def numbers(self, sizes: Sizes) -> Sequence[int] | None:
        """Return what the network computes of sizes; None if it is not for them."""
        if any(sizes[name] != size for name, size in self.fixed.items()):
            return None
        numbers = self.network.numbers(sizes)
        return numbers if self.network.holds(sizes, numbers) else None

    def live_specs(self, names: Iterable[str], numbers: Sequence[int]) -> dict[str, TensorSpec]:
        """Return the specs of outputs, without padding, of a run for whose sizes the numbers are."""
        live = self.network
        return {o: TensorSpec(live.live_shape(o, numbers), live.graph.specs[o].dtype) for o in names}


class _NotPrepared(NoCapacity):
    """A network could not be prepared for certain sizes, which may have been a wrong guess."""


def room(least: int, smallest: int) -> int:
    """Return a capacity: a power of two."""
    return max(smallest, 1 << max(least - 1, 0).bit_length())


def _room_for(rows: Iterable[str], given: Sizes) -> dict[str, int]:
    """Return the capacities of new rows; one row has a network of its own."""
    return {name: room(given[name], FEWEST_ROWS) for name in rows if given[name] != 1}


def sizes_of(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the open sizes of a graph by name, for arrays of some of its inputs; InputError if one does not fit."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        dims = graph.specs[name].shape
        fits = len(dims) == array.ndim
        for d, size in zip(dims, array.shape, strict=False):
            fits &= size == (sizes.setdefault(d, size) if isinstance(d, str) else d)
        if not fits:
            bind(graph, {i: a.shape for i, a in arrays.items()})  # says what does not fit; a rank may be open
    return sizes


class Capacities:
    """Makes the networks of one model for capacities; a model, a precision and a pair of state each have their own."""

    def __init__(
        self, graph: Graph, precision: Precision, limits: Limits, state: Mapping[str, str],
        find: Callable[[Graph], OpenNetwork | None], kept: Callable[[], Sequence[RoomyPlan]],
    ) -> None:
        """Plan for a graph.

        `find` returns it prepared with open sizes, which hold for a bound one, if it can be. `kept` returns what was
        made here and kept by the session, what was used last first.
        """
        self._graph, self._precision, self._limits, self._state, self._find = graph, precision, limits, state, find
        self._kept = kept
        self._before: Sizes = {}
        self._step: Sizes = {}
        self._steady = 0
        self.decide = False
        """Whether shapes follow from the values of inputs of one integer, such as the length of all."""
        self.refused = ""
        """Why the network gets no capacities."""

    def note(self, sizes: Sizes) -> bool:
        """Note the sizes of a run; tell whether a cache has grown by as much in each of the last ones."""
        if sizes.keys() != self._before.keys():
            self._before, self._step, self._steady = dict(sizes), {}, 0
            return False
        step = {name: size - self._before[name] for name, size in sizes.items() if size != self._before[name]}
        grows = bool(step) and all(0 < more <= sizes[name] // 4 for name, more in step.items())
        self._steady = self._steady + 1 if grows and step == self._step else int(grows)
        self._before, self._step = dict(sizes), step
        return self._steady >= STEADY and not self.refused

    def known(self, sizes: Sizes) -> RoomyPlan | None:
        """Return a plan that was made for others and holds for these sizes."""
        return next((plan for plan in self._kept() if plan.numbers(sizes) is not None), None)

    def for_growth(self, arrays: Mapping[str, Array], values: Sizes) -> RoomyPlan | None:
        """Return a plan for the run that was noted last, if what grows is a cache; else None.

        `values` are the inputs whose values count as sizes, by the names of these.
        """
        sizes = self._before
        far = {name: size + APART * self._step.get(name, 0) for name, size in sizes.items()}
        try:
            prepared, opened = self._open(far, arrays, {name: far[name] for name in values})
            most = room(max(sizes[name] for name in self._step) + 1, LEAST_ROOM)
            plan = self._plan(prepared, opened, sizes, dict.fromkeys(self._step, most))
            if not plan.network.appends:
                raise NoCapacity("no cache grows with them")
        except (NoCapacity, ModelError) as e:
            self.refused = str(e)
            log.info("network %r is planned for each size that grows: %s", self._graph.name, e)
            return None
        return plan

    def for_state(self, arrays: Mapping[str, Array], length: int) -> RoomyPlan:
        """Return a plan for a run whose state has `length` rows; NoCapacity if there is none.

        A state that does not grow has no length.
        """
        try:
            return self._for_state(arrays, length)
        except ValueNeeded:
            if self.decide:
                raise
            self.decide = True
            return self._for_state(arrays, length)

    def _for_state(self, arrays: Mapping[str, Array], length: int) -> RoomyPlan:
        sizes = sizes_of(self._graph, arrays)
        grown = self._grown(sizes)
        values = self._values(arrays)
        if not grown:
            prepared, opened = self._open(sizes, arrays, values)
            return self._plan(prepared, opened, sizes, {})
        given = {**sizes, **values, grown: length}
        for plan in self._kept():  # the last one has the capacity that the state has now
            if plan.new == _room_for(plan.new, given) and plan.numbers(given) is not None:
                return plan
        told: NoCapacity | InputError | None = None
        for longer in self._longer({**sizes, **values}, length):
            try:
                return self._for_length(arrays, values, given, grown, longer)
            except ValueNeeded:
                raise
            except (NoCapacity, InputError) as e:  # other sizes than these may follow from the length
                told = e if told is None or isinstance(told, _NotPrepared) else told
            except ModelError as e:
                told = told or _NotPrepared(str(e))
        assert told is not None
        if isinstance(told, _NotPrepared) and self._kept():  # it could be prepared for other inputs
            raise self._unfit(length, f"with the {length} rows of the state, {told}")
        raise told

    def numbers(self, plan: RoomyPlan, arrays: Mapping[str, Array], length: int) -> Sequence[int]:
        """Return what the network of a plan computes of the sizes of a run whose state has `length` rows."""
        sizes = {**sizes_of(self._graph, arrays), **self._values(arrays)}
        grown = self._grown(sizes)
        given = {**sizes, grown: length} if grown else sizes
        numbers = plan.numbers(given)
        assert numbers is not None
        rows = plan.network.rows(numbers)
        wrong = [name for name in plan.rows if given[name] != rows]
        if wrong or rows < 0:
            told = ", ".join(f"{name!r} is {given[name]}" for name in wrong)
            why = f"the state has {length} rows and would have {length + rows} with this run; {told}"
            raise self._unfit(length, why)
        return numbers

    def _unfit(self, length: int, why: str) -> InputError:
        return InputError(
            "the inputs do not fit the length of the state",
            where=f"network {self._graph.name!r}",
            why=why,
            fix=f"an attention mask, or a total length, counts all rows: {length} and the new ones",
        )

    def _grown(self, sizes: Sizes) -> str:
        """Return the size that belongs to the state alone; "" if there is none."""
        own = {d for i in self._state for d in self._graph.specs[i].shape if isinstance(d, str)} - sizes.keys()
        if len(own) > 1:
            names = ", ".join(map(repr, sorted(own)))
            raise NoCapacity(f"the sizes {names} are those of its state alone, and only one may be")
        return next(iter(own), "")

    def _values(self, arrays: Mapping[str, Array]) -> dict[str, int]:
        """Return the inputs of one integer, by the names of their values as sizes, where shapes follow from such."""
        if not self.decide:
            return {}
        return {
            f"{name}[0]": int(array.reshape(-1)[0])
            for name, array in arrays.items()
            if array.size == 1 and array.dtype.kind in "iu" and self._graph.specs[name].is_static
        }

    def _longer(self, sizes: Sizes, length: int) -> Iterator[frozenset[str]]:
        """Return which sizes may be longer where the state is, the likely ones first."""
        names = [n for n, size in sizes.items() if size >= max(length, 1)]
        told = frozenset(n for n in names if any(word in n.lower() for word in ("total", "past", "+")))
        yield told
        for some in chain.from_iterable(combinations(names, k) for k in range(min(len(names), 3) + 1)):
            if frozenset(some) != told:
                yield frozenset(some)

    def _for_length(
        self, arrays: Mapping[str, Array], values: Sizes, given: Sizes, grown: str, longer: frozenset[str]
    ) -> RoomyPlan:
        apart = self._apart(given, grown, longer)
        prepared, opened = self._open(apart, arrays, {n: apart[n] for n in values})
        found = growth(prepared.graph, opened, self._state, grown)
        rows = self._rows(found, given, given[grown], longer)
        new = _room_for(rows, given)
        most = room(given[grown] + sum(new.values()) + 1, LEAST_ROOM)
        # A size that is longer in the state's own sums has its room; one that only seemed to be stays what it is.
        follows = {*longer.intersection(found), *opened.derived()}.intersection(given)
        return self._plan(prepared, opened, given, dict.fromkeys(follows, most) | {grown: most} | new, new, rows)

    def _apart(self, given: Sizes, grown: str, longer: frozenset[str]) -> dict[str, int]:
        """Return sizes for which a network is prepared: as these, but no two are the same by chance.

        What a network is for sizes that are equal, or that are those of its weights, holds for no others. More than one
        new row stays more than one.
        """
        more = {n: NEW_APART for n in self._alone(given, longer) if given[n] != 1}
        total = sum(more.values())
        whole = {n: APART + (total if len(more) == 1 else 0) for n in longer}
        return {n: size + (more | whole | {grown: APART}).get(n, 0) for n, size in given.items()}

    def _alone(self, given: Sizes, longer: frozenset[str]) -> list[str]:
        """Return the sizes that the state does not have, and that are not longer where it is."""
        lasting = {d for i in self._state for d in self._graph.specs[i].shape if isinstance(d, str)}
        return [n for n in given if n not in lasting and n not in longer]

    def _rows(self, found: Sequence[str], given: Sizes, length: int, longer: frozenset[str]) -> Sequence[str]:
        """Return the sizes that are the number of new rows, if `found` are those by which the state becomes longer.

        That may be the length of all, such as the mask's: what is new are then the sizes of inputs alone that are as
        many as it is longer than the state.
        """
        totals = longer.intersection(found)
        if not totals:
            return found
        new = given[next(iter(totals))] - length
        rows = [n for n in self._alone(given, longer) if given[n] == new]
        if not rows:
            why = f"{next(iter(totals))!r} is {length + new}, the state has {length} rows, no input has {new} new"
            raise self._unfit(length, why)
        return rows

    def _open(self, sizes: Sizes, arrays: Mapping[str, Array], values: Sizes) -> tuple[PreparedNetwork, OpenSizes]:
        """Return the network prepared with open sizes, which hold for these; NoCapacity if there is none."""
        graph = self._graph
        shapes = {
            name: tuple(sizes[d] if isinstance(d, str) else d for d in graph.specs[name].shape)
            for name in graph.inputs
        }
        bound = bind(graph, shapes)
        known = {name[:-3]: number for name, number in values.items()}
        bound.inputs = [i for i in bound.inputs if i not in known]
        bound.constants = bound.constants | {
            name: np.full_like(arrays[name], number) for name, number in known.items()
        }
        if is_staged(bound):
            raise NoCapacity("shapes follow from values that a run computes")
        if not (graph.symbols() or values):
            return prepare_network(bound, self._precision, self._limits), OpenSizes()
        made = self._find(bound)
        if made is None:
            prepare_network(bound, self._precision, self._limits)  # raises ModelError where the sizes do not fit
            raise _NotPrepared("what the network is follows from the numbers that its sizes are")
        return made.prepared_open

    def _plan(
        self, prepared: PreparedNetwork, opened: OpenSizes, sizes: Sizes, capacities: Sizes, new: Sizes = NONE,
        rows: Sequence[str] = (),
    ) -> RoomyPlan:
        fixed = {name: size for name, size in sizes.items() if name not in capacities}
        key = tuple(sorted({**capacities, **fixed}.items()))
        known = next((plan for plan in self._kept() if plan.key == key), None)
        if known is not None:
            return known
        network = with_capacities(prepared.graph, opened, capacities, fixed, self._state)
        return RoomyPlan(key, network, fixed, prepared, new, rows)
