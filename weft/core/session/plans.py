"""The plans of a session: which ones it keeps, which one a run uses, and when one goes.

See "Plans" in docs/internals/loading.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session.executable import Executable
from weft.core.session.loader import NO_STATE, Loader

MOST_PLANS = 32
"""How many plans a session keeps: enough for the batches, pictures or lengths that come in turns, and for stages."""
MOST_BYTES = 512 << 20
"""Most bytes that what is loaded for plans may take that the last run did not use, on all devices."""
MOST_BYTES_OF_STATE = 4 << 30
"""The same where plans share a state. One is for single words and others are for prompts, whose logits alone take
hundreds of megabytes; the next word or prompt would be loaded anew."""


@dataclass(eq=False)
class Plan:
    """How a network, or a stage of one, runs for certain sizes."""

    key: Hashable = None
    """What it was made for; None if it is not to be kept."""
    why: str = ""
    """Why it was made."""
    executable: Executable = field(default_factory=Executable)
    """What is loaded for it; it is not loaded if that was freed, or given to another plan."""
    run: int = -1
    """The last run that used it."""
    loads_again: ClassVar[bool] = True
    """Whether it is worth keeping when its executable is freed."""


PlanT = TypeVar("PlanT", bound=Plan)


class Plans:
    """The plans of one session by key, and the one that runs use. The least recently used go first.

    A plan over the number of MOST_PLANS is dropped. What is loaded for a plan is freed if what is loaded for those that
    the last run did not use takes more than MOST_BYTES; a plan that can be loaded again is kept then.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._held: dict[Hashable, Plan] = {}
        self.run = 0
        """The number of the run: plans that it uses are not freed to save memory."""
        self._count = 0

    def all(self, kind: type[PlanT]) -> Iterator[PlanT]:
        """Yield the plans of a kind that there are now, those used last first."""
        return (plan for plan in reversed(self._now) if isinstance(plan, kind))

    @property
    def _now(self) -> list[Plan]:
        """Return the plans in a list of its own: a run of another thread may keep one meanwhile."""
        return [*self._held.values()]

    def find(self, kind: type[PlanT], key: Hashable) -> PlanT | None:
        """Return the plan of a key, which is now the one used last."""
        plan = self._held.get(key)
        if not isinstance(plan, kind):
            return None
        self.keep(plan)
        return plan

    def begin(self, plan: Plan) -> None:
        """Note that a run begins with a plan."""
        self.run += 1
        plan.run = self.run

    def turn_to(self, plan: Plan) -> None:
        """Let runs use a plan that is loaded, once the last run is done."""
        before = self._loader.now
        self._loader.turn_to(plan.executable)
        if before is not plan.executable and not any(each.executable is before for each in self._held.values()):
            before.evict()
        self.keep(plan)

    def load(
        self, plan: Plan, network: OptimizedNetwork, *, beside: bool, state: Mapping[str, Tensor] = NO_STATE
    ) -> None:
        """Load a network for a plan, which runs use from then on.

        It takes the place of what runs used until now, unless it is to stay loaded `beside` that.
        """
        now = self._loader.now
        self.run += 1
        beside = beside and any(each.executable is now for each in self._held.values()) and now.is_loaded
        if plan.executable is not now:
            plan.executable.evict()
        if beside:
            self.make_room()
        plan.executable = self._loader.load(network, beside=beside, state=state)
        self._count += 1

    def keep(self, plan: Plan) -> None:
        """Keep a plan, as the one used last, if it has a key."""
        if plan.key is None:
            return
        self._held.pop(plan.key, None)
        self._held[plan.key], plan.run = plan, self.run
        for key in [*self._held][: -MOST_PLANS]:
            self.forget(self._held[key])

    def forget(self, plan: Plan) -> None:
        """Keep a plan no longer; what is loaded for it is freed, unless runs use it now."""
        self._held.pop(plan.key, None)
        if plan.executable is not self._loader.now:
            plan.executable.evict()

    def forget_all(self) -> None:
        """Keep no plan any longer."""
        for plan in [*self._held.values()]:
            self.forget(plan)

    def free(self) -> bool:
        """Free what is loaded for plans that runs do not use now; tell whether there was something."""
        loaded = [plan for plan in self._held.values() if plan.executable.pipelines]
        idle = [plan for plan in loaded if plan.executable is not self._loader.now]
        for plan in idle:
            self._free(plan)
        return bool(idle)

    def _free(self, plan: Plan) -> None:
        if plan.loads_again:
            plan.executable.evict()
        else:
            self.forget(plan)

    def make_room(self) -> None:
        """Free what was not used for long, until the rest takes little memory; what this run has used stays."""
        idle = [plan for plan in self._held.values() if plan.executable.pipelines and plan.run != self.run]
        taken = {plan: plan.executable.nbytes for plan in idle}
        most = MOST_BYTES_OF_STATE if any(plan.executable.aliased for plan in taken) else MOST_BYTES
        for plan in idle:
            if sum(taken.values()) <= most:
                return
            self._free(plan)
            taken[plan] = 0

    def line(self, plan: Plan) -> str:
        """Return what the report says of the plan that runs use."""
        held = self._now
        others = [p.executable.nbytes for p in held if p is not plan and p.executable.pipelines]
        kept = f"{len(held)} kept" if held else "none kept"
        beside = f", {len(others)} loaded beside it with {sum(others) / 1e6:.1f} MB" if others else ""
        return f"{plan.why}; {self._count} loaded so far, {kept}{beside}"
