"""The execution of a node on a GPU: it binds planned launches to memory and kernels, and holds the node's constants."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.lowering.launches.builder import PlannedConstant
from weft.backends.gpu.lowering.launches.micro_batches import micro_batch_of
from weft.backends.gpu.lowering.lower import GpuPlan, NodePlan, plan_node, tuned_plan
from weft.backends.gpu.lowering.target import Target
from weft.backends.gpu.memory.node_constants import HeldConstant, NodeConstants
from weft.backends.gpu.memory.slots import Region, Slots, Spot
from weft.backends.gpu.memory.static_pool import StaticPool
from weft.backends.gpu.recording.launches import BoundLaunch, PlannedLaunch
from weft.backends.gpu.recording.pipeline_recording import PipelineRecording
from weft.backends.gpu.tuning_tables.choice import Choice, ChoiceSource
from weft.core.contract.backend import Recorded, StorageType
from weft.core.contract.profile import Work
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.memory.buffer_manager import Slot


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """What the executions of one pipeline share, so that they need not know the backend object."""

    target: Target
    slots: Slots
    recording: PipelineRecording
    builds: Builds
    static: StaticPool
    constants: NodeConstants
    plans: dict[str, Sequence[NodePlan]] = field(default_factory=dict)
    """The plans of the part's nodes, by label, until the end of the resize."""
    undivided: dict[str, NodePlan] = field(default_factory=dict)
    """For nodes on micro-batches: plans on the whole batch, until then."""

    def take(self, plan: GpuPlan) -> None:
        """Note the plans of a part's nodes."""
        self.plans.update(plan.nodes)
        self.undivided.update(plan.undivided)

    def forget_plans(self) -> None:
        """Forget all plans: executions have bound them."""
        self.plans.clear()
        self.undivided.clear()


class GpuExecution(Recorded):
    """A node whose launches become part of the backend's recording."""

    any_shape = any_constant = True

    def __init__(self, op: Op, context: PipelineContext, label: str) -> None:
        self.op, self.label = op, label
        self._context = context
        self._constants: dict[str, HeldConstant] = {}
        self._used: set[str] = set()
        self.choices: list[Choice] = []
        """The choices that the op left to tuning at the last resize."""
        self.planned: dict[str, tuple[Sequence[Tensor | None], Sequence[Tensor]]] = {}
        """The inputs and outputs of these choices, by their keys; of the last micro-batch, if several pose one."""

    @property
    def target(self) -> Target:
        """Return the target of the launches."""
        return self._context.target

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Bind the planned launches, start building their kernels, and add them to the recording."""
        self._used.clear()
        self.planned.clear()
        self.label = outputs[0].name  # another network of the session may name the value differently
        plans = self._context.plans.get(self.label)
        if plans is None:  # the op is custom, but its execution creator refused this node
            plans = [self._plan(inputs, outputs)]
        launches = [self._recorded(plans, number, inputs, outputs) for number in range(len(plans))]
        undivided = self._context.undivided.get(self.label)
        if undivided is not None:
            launches.append(self._bound(undivided, inputs, outputs))
            self._context.recording.run.undivided += launches[-1]
            self._note(undivided, inputs, outputs)
        alone = (x for each in launches for x in each if x not in self._context.recording.run.chains)
        self._context.builds.add(self.label, [launch.build for launch in alone])
        self.choices = [c for plan in (*plans, undivided) if plan is not None for c in plan.choices]
        if self._context.recording.profiling is not None:
            self._context.recording.work[self.label] = Work.of(self.label, self.op, inputs, outputs)
        run = (choice for plan in plans for choice in plan.choices)
        self._context.recording.tuned += sum(len(choice.launches) for choice in run if choice.made)
        for key in self._constants.keys() - self._used:
            self._context.slots.release(self._constants.pop(key).tensor, StorageType.STATIC)

    def _recorded(
        self, plans: Sequence[NodePlan], number: int, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> list[BoundLaunch]:
        """Add the launches on a micro-batch, or on the whole batch, to the recording, and return them."""
        recording, count = self._context.recording, len(plans)
        launches = self._bound(plans[number], inputs, outputs)
        if count == 1:
            self._note(plans[number], inputs, outputs)
            recording.run.rest += launches
        else:
            some = [t if t is None or t.constant is not None else micro_batch_of(t, number, count) for t in inputs]
            self._note(plans[number], some, [micro_batch_of(t, number, count) for t in outputs])
            recording.run.of_micro_batches.setdefault(number, []).extend(launches)
        return launches

    def _note(self, plan: NodePlan, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Note what the choices of a plan are about, for tuning."""
        self.planned.update({choice.key: (inputs, outputs) for choice in plan.choices})

    def launches(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[BoundLaunch]:
        """Plan launches with tuned choices for tensors that have memory, and return them."""
        return self._bound(self._plan(inputs, outputs), inputs, outputs)

    def plan(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], source: ChoiceSource | None
    ) -> tuple[list[BoundLaunch], list[Choice]]:
        """Return the launches and choices for tensors that have memory; nothing is built yet."""
        placed = [_placed(t) for t in inputs]
        plan = plan_node(self.target, self.op, self.label, placed, [_spotted(t) for t in outputs], source)
        return self._bound(plan, inputs, outputs), plan.choices

    def _plan(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> NodePlan:
        placed = [_placed(t) for t in inputs]
        done = [_spotted(t) for t in outputs]
        return tuned_plan(self.target, self.op, self.label, placed, done)

    def _bound(
        self, plan: NodePlan, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> list[BoundLaunch]:
        """Return the launches of a plan on tensors that have memory, with their scratch and constants."""
        binder = _Binder()
        for planned, real in zip((*plan.inputs, *plan.outputs), (*inputs, *outputs), strict=True):
            if planned is not None and real is not None and isinstance(planned.memory, Spot):
                binder.add(planned, real)
        for constant in plan.constants:
            binder.add(constant.tensor, self._uploaded(constant))
        scratches = [self._scratch(planned, binder) for planned in plan.scratches]
        for scratch in scratches:
            self._context.slots.release(scratch, StorageType.DYNAMIC)
        return [binder.bound(launch, self._context.builds) for launch in plan.launches]

    def _scratch(self, planned: Tensor, binder: _Binder) -> Tensor:
        made = replace(planned, memory=self._context.slots.acquire(planned, StorageType.DYNAMIC))
        binder.add(planned, made)
        return made

    def _uploaded(self, constant: PlannedConstant) -> Tensor:
        """Return a constant in device memory: what is there, if it was made of the same arrays.

        A constant that a resize does not use is freed after it.
        """
        key = constant.key
        self._used.add(key)
        held = self._constants.get(key)
        if held is None or not held.is_of(self.op, constant.sources):
            made = self._placed(constant)
            if held is not None:
                self._context.slots.release(held.tensor, StorageType.STATIC)
            held = self._constants[key] = made
        constant.forget()  # a thread may make it though it is in memory by now: another pipeline placed it meanwhile
        return held.tensor

    def _placed(self, constant: PlannedConstant) -> HeldConstant:
        """Return a constant in memory: that of another pipeline, or new."""
        context, spec, place = self._context, constant.tensor, (self.label, constant.key)
        other = context.constants.get(place)
        if other is not None and other.is_held and other.is_of(self.op, constant.sources):
            held: Slot = other.tensor.memory.slot
            context.static.again((held.buffer, held.offset))
            slot = context.slots.manager.hold(held.nbytes, held.buffer, held.offset)
        else:
            content = constant.take()
            slot = context.slots.manager.hold(content.nbytes, *context.static.upload(content))
        tensor = replace(spec, memory=Region(slot))
        made = context.constants[place] = HeldConstant(tensor, self.op, tuple(map(ref, constant.sources)))
        return made

    def close(self) -> None:
        """Free the constants."""
        for held in self._constants.values():
            self._context.slots.release(held.tensor, StorageType.STATIC)
        self._constants = {}


class _Binder:
    """Binds planned tensors to the memory of real ones."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, Slot] = {}
        self._real: dict[int, Tensor] = {}

    def add(self, planned: Tensor, real: Tensor) -> None:
        """Note the memory of a planned tensor; other tensors at spots of its root get the same slot."""
        spot: Spot = planned.memory
        region: Region = real.memory
        self._slots[spot.root] = region.slot
        if spot.length == region.length:  # otherwise the plan is for some images of the tensor
            self._real[id(planned)] = real

    def bound(self, launch: PlannedLaunch, builds: Builds) -> BoundLaunch:
        """Return the launch with memory, and with a kernel that may not be built yet."""
        reads, writes = ([self._tensor(t) for t in tensors] for tensors in (launch.reads, launch.writes))
        return BoundLaunch(launch, builds.build(launch), tuple(reads), tuple(writes))

    def _tensor(self, planned: Tensor) -> Tensor:
        real = self._real.get(id(planned))
        if real is None:
            spot: Spot = planned.memory
            real = self._real[id(planned)] = replace(planned, memory=spot.on(self._slots[spot.root]))
        return real


def _spotted(tensor: Tensor) -> Tensor:
    """Return a planned tensor at the spot of a tensor that has memory."""
    region: Any = tensor.memory
    return replace(tensor, memory=region.spot)


def _placed(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.constant is not None else _spotted(tensor)
