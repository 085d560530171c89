"""Algorithms that compete for the same work, and the chooser that picks one of them and can say why.

An `Algorithm` says whether it fits a problem, what its candidates are and what each is estimated to cost, and what it
launches. `Rivals` are the algorithms that tuning compares with each other. A `Chooser` asks its rivals in order; the
first with an algorithm that fits decide: they take what `weft tune` found for the problem, else the cheapest candidate
(`KernelBuilder.choose`).

On GPUs, algorithms that the cost model knows (`cost_model.py`) are ranked by the microseconds that it estimates. The
others, and all on software devices, are ranked by their own costs: microseconds, where their rivals say so, or rules of
thumb that predict no times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakSet

from weft.errors import ExecutionError
from weft.kernels import serial_model
from weft.kernels.cost_model import WORTH, Effort, microseconds

if TYPE_CHECKING:
    from weft.kernels.device_caps import DeviceCaps
    from weft.kernels.device_model import DeviceModel
    from weft.kernels.launch import KernelBuilder

ProblemT = TypeVar("ProblemT", bound=Hashable)
ProblemT_co = TypeVar("ProblemT_co", covariant=True)
PlanT = TypeVar("PlanT", bound="Plan[Any]")
TileT = TypeVar("TileT")
Facts = Mapping[str, "int | str | bool"]
NEVER = float("inf")
"""The cost of a candidate that only tuning may pick."""
NEAR = 1.25
"""A candidate that costs up to so many times the least is taken if its kernel exists already."""
NEAR_ENOUGH = 4.0
"""The same where kernels are to be few rather than fast."""
REMEMBERED = 1024
"""Number of problems whose decisions a chooser remembers: networks repeat their layers."""


class Plan(Protocol[ProblemT_co]):
    """A problem with its tensors."""

    @property
    def k(self) -> KernelBuilder:
        """Return the builder that collects the launches."""
        ...

    @property
    def problem(self) -> ProblemT_co:
        """Return the facts that decide how to solve it."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way in which an algorithm can solve a problem."""

    tile: Any
    """How the work is divided: a frozen dataclass, known in tuning tables by its `repr`."""
    cost: float
    """The estimated time, as a share of what the portable kernel of the op takes; `NEVER` without tuning.

    In a `Decision` that says so it is in microseconds.
    """
    algorithm: Algorithm[Any, Any, Any] | None = None
    """Whose it is; the chooser fills it in."""
    margin: float = 0.0
    """By how many microseconds it must be faster (`Algorithm.margin`), in a `Decision` by the cost model."""

    @property
    def weighed(self) -> float:
        """Return what ranks it: the cost, and the margin."""
        return self.cost + self.margin


class Algorithm(ABC, Generic[ProblemT, PlanT, TileT]):
    """One way to compute an op on GPUs; one object serves all devices."""

    name: str
    """Its name in reports: mostly the template that it launches."""
    prologue: ClassVar[str] = ""
    """The kind of its kernels with a prologue, a name for `DeviceCaps.without`; "" if none applies steps to loads."""

    def why_not(self, problem: ProblemT) -> str | None:
        """Return why it cannot, or never should, solve a problem, as the end of a sentence; None if it can."""
        return None

    @abstractmethod
    def candidates(self, problem: ProblemT) -> Sequence[Candidate]:
        """Return the ways to solve a problem that it fits, the one that is expected to be fastest first.

        None of the others costs less; tuning tries them in this order. An empty sequence says that the device has no
        room for any.
        """

    def effort(self, problem: ProblemT, tile: TileT) -> Effort | None:
        """Return what a candidate has the device do, for the cost model; None: the model has no say in it."""
        return None

    def margin(self, problem: ProblemT, tile: TileT) -> float:
        """Return by how many microseconds the cost model must expect a candidate to win, to be taken untuned."""
        return 0.0

    def reads_in_place(self, plan: PlanT) -> bool:
        """Tell whether it reads the parts of a value that otherwise have to be put together first (`Chooser`)."""
        return False

    @abstractmethod
    def launch(self, plan: PlanT, tile: TileT) -> None:
        """Launch a candidate, packing the weights as it needs them."""


@dataclass(frozen=True, eq=False)
class Rivals(Generic[ProblemT, PlanT]):
    """Algorithms that compete for the same problems."""

    name: str
    """The name of their problems in tuning tables."""
    algorithms: tuple[Algorithm[ProblemT, PlanT, Any], ...]
    facts: Callable[[ProblemT], Facts] | None = None
    """Returns what decides the launches besides the candidate, for tuning tables; None: nothing is left to tuning."""
    why_not: Callable[[ProblemT], str | None] = field(default=lambda problem: None)
    """Returns why none of them applies to a problem, or None."""
    modelled: Callable[[ProblemT], DeviceCaps] | None = None
    """Returns the device of a problem, if the cost model ranks these algorithms; None: their own costs rank them."""
    in_microseconds: Callable[[ProblemT], bool] = field(default=lambda problem: False)
    """Tells whether the algorithms' own costs are microseconds."""


@dataclass(frozen=True, eq=False)
class Decision:
    """A chooser's decision on a problem: which algorithms it asked, their candidates, and the choice without tuning.

    Printing it shows all of that.
    """

    name: str
    """The name of the rivals that decide."""
    facts: Facts | None
    """The key of the problem in tuning tables; None: tuning does not choose."""
    candidates: Mapping[str, Candidate]
    """By the `repr` of their tiles; the candidates of the cheapest algorithm come first."""
    refused: tuple[tuple[str, str], ...] = ()
    """Rivals and algorithms that do not fit, each with the reason."""
    unasked: tuple[str, ...] = ()
    """Rivals that would be asked next if none of these fitted."""
    problem: Hashable = None
    """The problem."""
    in_microseconds: bool = False
    """Whether costs are microseconds: the cost model's, or the algorithms' own."""

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return the candidates as tuning tables know them."""
        return tuple(self.candidates)

    @property
    def default(self) -> str:
        """Return the candidate that is taken without tuning."""
        return self.texts[0]

    @cached_property
    def facts_text(self) -> str:
        """Return the facts, sorted by their names, as in a tuning table's key."""
        return ", ".join(f"{name}={value!r}" for name, value in sorted((self.facts or {}).items()))

    def near(self, known: Collection[str], *, few: bool = False) -> str | None:
        """Return the cheapest of some candidates, if it hardly costs more than the default; more if they are few."""
        most = (NEAR_ENOUGH if few else NEAR) * self.candidates[self.default].weighed
        there = [text for text in self.candidates if text in known and self.candidates[text].weighed <= most]
        return min(there, key=lambda text: self.candidates[text].weighed, default=None)

    def lines(self, taken: str | None = None, reason: str = "tuning found it best") -> Iterator[str]:
        """Iterate over the lines of what is printed; `taken` is the candidate that was taken, for a `reason`."""
        for name, why in self.refused:
            yield f"{name}: no, {why}"
        taken = taken or self.default
        for text, candidate in self.candidates.items():
            cost = f"about {candidate.cost:.1f} us" if self.in_microseconds else f"cost {candidate.cost:.2f}"
            cost += f" and a margin of {candidate.margin:.1f}" if candidate.margin else ""
            cost = "for tuning" if candidate.cost == NEVER else cost
            by = f"{candidate.algorithm.name}: " if candidate.algorithm is not None else ""
            mark = "" if text != taken else ", taken" if text == self.default else f", taken: {reason}"
            yield f"{by}{text}, {cost}{mark}"
        if self.unasked:
            yield f"{', '.join(self.unasked)}: not asked, since {self.name!r} comes first"

    def __str__(self) -> str:
        return "\n".join(self.lines())


class Chooser(Generic[ProblemT, PlanT]):
    """Chooses among the algorithms of an op.

    `why_unfit` returns why an algorithm does not solve a problem, for what is asked of all of them alike. `prepared`
    launches what has to be done before the algorithm that was chosen, and returns the plan with that done.
    """

    def __init__(
        self,
        *rivals: Rivals[ProblemT, PlanT],
        why_unfit: Callable[[ProblemT, Algorithm[ProblemT, PlanT, Any]], str | None] = lambda problem, algorithm: None,
        prepared: Callable[[PlanT, Algorithm[ProblemT, PlanT, Any]], PlanT] = lambda plan, algorithm: plan,
    ) -> None:
        self.rivals, self.why_unfit, self.prepared = rivals, why_unfit, prepared
        self._remembered = lru_cache(maxsize=REMEMBERED)(self._decided)
        _CHOOSERS.add(self)

    def decide(self, problem: ProblemT) -> Decision:
        """Return which algorithms compete for a problem, and the default; ExecutionError if none fits."""
        return self._remembered(problem)

    def launch(self, plan: PlanT) -> None:
        """Launch what is chosen for a problem."""
        decision = self._remembered(plan.problem)
        candidate = plan.k.choose(decision)
        assert candidate.algorithm is not None
        candidate.algorithm.launch(self.prepared(plan, candidate.algorithm), candidate.tile)

    def _decided(self, problem: ProblemT) -> Decision:
        refused: list[tuple[str, str]] = []
        for k, rivals in enumerate(self.rivals):
            why = rivals.why_not(problem)
            if why is not None:
                refused.append((rivals.name, why))
                continue
            fitting: list[list[Candidate]] = []
            for algorithm in rivals.algorithms:
                why = self.why_unfit(problem, algorithm) or algorithm.why_not(problem)
                candidates = algorithm.candidates(problem) if why is None else ()
                if candidates:
                    fitting.append([replace(each, algorithm=algorithm) for each in candidates])
                else:
                    refused.append((algorithm.name, why or "the device has no room for its smallest work-group"))
            if fitting:
                fitting.sort(key=lambda candidates: candidates[0].cost)
                every = [each for candidates in fitting for each in candidates]
                estimated = _estimated(rivals, problem, every)
                # Two algorithms may share a tile; it then belongs to the cheaper one.
                by_text: dict[str, Candidate] = {}
                for candidate in estimated or every:
                    by_text.setdefault(repr(candidate.tile), candidate)
                facts = rivals.facts(problem) if rivals.facts is not None else None
                unasked = tuple(each.name for each in self.rivals[k + 1 :])
                in_us = estimated is not None or rivals.in_microseconds(problem)
                return Decision(rivals.name, facts, by_text, tuple(refused), unasked, problem, in_us)
        raise ExecutionError(
            "no kernel on this device computes a node",
            why="; ".join(f"{name}: {why}" for name, why in refused),
            fix="put the node on another device with `hints`",
        )


def _estimated(
    rivals: Rivals[ProblemT, PlanT], problem: ProblemT, candidates: Sequence[Candidate]
) -> list[Candidate] | None:
    """Return candidates with the cost model's microseconds, the fastest first; None if their own costs rank them.

    There is none of a software device that was not measured, nor if the model does not know a candidate that may be
    taken untuned. The first of `candidates` comes before others that are hardly faster; margins count.
    """
    caps = rivals.modelled(problem) if rivals.modelled is not None else None
    if caps is None or (caps.software and caps.rates is None):
        return None
    out = []
    for each in candidates:
        assert each.algorithm is not None
        effort = each.algorithm.effort(problem, each.tile)
        us = None
        if effort is not None:
            serial = serial_model.microseconds
            us = serial(effort, caps) if caps.software else microseconds(each.algorithm.name, effort, caps)
        if us is None and each.cost < NEVER:
            return None
        margin = each.algorithm.margin(problem, each.tile)
        out.append(replace(each, cost=NEVER if us is None else us, margin=margin))
    least = min(each.weighed for each in out)
    usual = out[0] if out[0].weighed <= WORTH * least else None
    return sorted(out, key=lambda each: (each is not usual, each.weighed))


_CHOOSERS: WeakSet[Chooser[Any, Any]] = WeakSet()


def forget_decisions() -> None:
    """Make all choosers decide anew; call it after a change of what decisions depend on."""
    for chooser in _CHOOSERS:
        chooser._remembered.cache_clear()


def candidates_of(tiles: Sequence[TileT], estimate: Callable[[TileT], float], base: float = 1.0) -> list[Candidate]:
    """Return tiles as candidates, the expected best first: it costs `base`, the others in proportion to `estimate`.

    Rules that the estimate lacks chose the first tile, so no other costs less. Duplicates are dropped.
    """
    times = {tile: estimate(tile) for tile in tiles}
    first = next(iter(times.values()), 0.0)
    return [Candidate(tile, base * max(time / first, 1.0) if first > 0 else base) for tile, time in times.items()]


def waves(model: DeviceModel, groups: int, items: int, units: int) -> float:
    """Return a relative time: waves of work-groups of so many items on so many units, each a share of the work."""
    on_a_unit = -(-max(groups, 1) // max(units, 1))
    together = min(on_a_unit, max(model.resident_items // items, 1))
    return on_a_unit / max(groups, 1) / min(1.0, together * items / model.busy_items)
