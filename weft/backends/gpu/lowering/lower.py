"""Lower a part of a network for a GPU: choose layouts and views, and plan every launch, before anything has memory.

The result depends only on the graph with its shapes and on a `Target`.
A pipeline then only binds the launches to memory and kernels. If a load follows, threads build the kernels meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.backends.gpu.lowering.fusion.why_apart import why_apart
from weft.backends.gpu.lowering.launches.builder import NodeBuilder, PlannedConstant
from weft.backends.gpu.lowering.launches.chains import Section, find_chains, moving_us, without_chained
from weft.backends.gpu.lowering.launches.dry_run import launches_nothing
from weft.backends.gpu.lowering.launches.micro_batches import (
    cover_the_copy,
    find_micro_batches,
    micro_batch_of,
)
from weft.backends.gpu.lowering.layout.fold_moves import FoldedMoves, fold_moves
from weft.backends.gpu.lowering.layout.layouts import (
    base_inputs,
    base_op,
    base_outputs,
    find_views,
    first_blocks,
    legal_aliases,
    values_read,
)
from weft.backends.gpu.lowering.rewrites.order import OF_LAYOUTS, Rewrite, rewritten
from weft.backends.gpu.lowering.target import Target
from weft.backends.gpu.memory.slots import Spot
from weft.backends.gpu.recording.launches import PlannedChain, PlannedLaunch
from weft.backends.gpu.recording.micro_batches import WHOLE_BATCH, MicroBatches
from weft.backends.gpu.tuning_tables.choice import Choice, ChoiceSource, Taken
from weft.backends.gpu.tuning_tables.tuning_table import TableSource
from weft.core.contract.error_context import at_node, blame
from weft.core.contract.lowered import Lowered, ValueView, root_of
from weft.core.contract.profile import Work
from weft.core.graph.described import describe
from weft.core.graph.graph import Graph, Node, depths
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.host.garbage import without_collections
from weft.core.passes.journal import Change, Journal, PassNote, same_nodes
from weft.kernels.chain import CHAIN
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import find_gpu_op
from weft.kernels.special import traits
from weft.ops.gpu.move import launch_blocks


@dataclass(frozen=True, eq=False)
class NodePlan:
    """The launches of one node, on tensors at spots, with the scratch and constants that they need."""

    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    launches: Sequence[PlannedLaunch]
    scratches: Sequence[Tensor]
    constants: Sequence[PlannedConstant]
    choices: list[Choice]
    """The choices that the op left to tuning."""
    taken: Sequence[Taken]
    """The kernels and tiles that were chosen, in order."""

    def microseconds(self, caps: DeviceCaps) -> float:
        """Return what its launches are expected to take: by the cost model, or the time to move their bytes."""
        chosen = [choice for choice in self.choices if choice.decision.in_microseconds]
        known = {id(launch) for choice in chosen for launch in choice.launches}
        others = (launch for launch in self.launches if id(launch) not in known)
        return sum(choice.microseconds for choice in chosen) + moving_us(others, caps)


@dataclass(frozen=True, eq=False)
class GpuPlan:
    """What a load needs of a lowered part besides its graph and views."""

    nodes: Mapping[str, Sequence[NodePlan]]
    """By the node's first output: one plan, or one for each micro-batch."""
    micro_batches: MicroBatches
    read: frozenset[str]
    """The roots of the values that kernels read."""
    chains: Sequence[PlannedChain] = ()
    """Which launches share one."""
    undivided: Mapping[str, NodePlan] = field(default_factory=dict)
    """For nodes on micro-batches: the plan on the whole batch, for runs that begin when all of it is there."""

    def expected(self, graph: Graph, caps: DeviceCaps) -> dict[int, float]:
        """Return the microseconds that each planned launch is expected to take, by its `id`.

        A node takes what the cost model says, but no less than its products at the device's best; its launches share
        that by the bytes that they move.
        """
        ops = {label_of(node): node.op for node in graph.nodes}
        found: dict[int, float] = {}
        for label, plan in ((k, p) for k, plans in self.nodes.items() for p in (*plans, self.undivided.get(k)) if p):
            flops = Work.of(label, ops[label], plan.inputs, plan.outputs).flops
            us = max(plan.microseconds(caps), flops / 2 / (caps.model.unit_products * caps.likely_units))
            moved = [x.read + x.written + 1 for x in plan.launches]
            found |= {id(x): us * n / sum(moved) for x, n in zip(plan.launches, moved, strict=True)}
        return found

    @property
    def launches(self) -> Iterator[PlannedLaunch]:
        """Return the launches of all plans, before any of them share one."""
        every = (plan for plans in self.nodes.values() for plan in plans)
        return (launch for plan in (*every, *self.undivided.values()) for launch in plan.launches)


def plan_node(
    target: Target, op: Op, label: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor],
    source: ChoiceSource | None, node: str = "", earlier: Callable[[str], frozenset[str]] | None = None,
) -> NodePlan:
    """Return the launches of a node whose tensors lie at spots; `source` makes the choices.

    `earlier` is what `Target.earlier` returns.
    """
    form = find_gpu_op(op)
    assert form is not None
    builder = NodeBuilder(
        target.device, op, label, inputs, outputs, source, node=node,
         split_products=target.split_products, thrifty=target.thrifty, winograd=target.config.winograd,
        earlier=earlier, few=target.general,
    )
    if not launches_nothing(outputs) and not _launched_as_blocks(op, builder, inputs, outputs):
        form.launches(base_op(op), builder, base_inputs(op, inputs), base_outputs(op, outputs))
    used = {t.memory.root for launch in builder.launched for t in (*launch.reads, *launch.writes)}
    return NodePlan(
        inputs, outputs, builder.launched, [t for t in builder.scratches if t.memory.root in used],
        list(builder.constants.values()), builder.choices, builder.taken,
    )


def _launched_as_blocks(
    op: Op, builder: NodeBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> bool:
    """Copy packed outputs that are channel blocks of the input, unless they lie there; tell whether they are such.

    The kernels of the op itself reach NCHW alone.
    """
    blocks = first_blocks(op, inputs, outputs) if outputs[0].layout.packed else None
    for y, first in zip(outputs, blocks or (), strict=False):
        assert inputs[0] is not None
        launch_blocks(builder, inputs[0], y, first)
    return blocks is not None


def tuned_plan(
    target: Target, op: Op, label: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor],
    node: str = "", earlier: Callable[[str], frozenset[str]] | None = None,
) -> NodePlan:
    """Return the launches with tuned choices; a choice whose kernels have changed since does not count."""
    source = TableSource(target.tuning) if target.tuning is not None else None
    plan = plan_node(target, op, label, inputs, outputs, source, node, earlier)
    while source is not None and not source.stand(plan.choices):
        plan = plan_node(target, op, label, inputs, outputs, source, node, earlier)
    return plan


@without_collections()
def lower(graph: Graph, target: Target) -> Lowered:
    """Return the part as a device runs it. Custom nodes are not planned: their executions launch what they like."""
    journal = _Notes(target)
    graph = rewritten(graph, target, OF_LAYOUTS, journal.rewrite)
    depth = depths(graph)
    # Nodes of one depth share no memory in the plan, so they can run side by side.
    graph.nodes.sort(key=lambda node: depth[node.outputs[0]])
    graph.aliases = legal_aliases(graph, target.is_custom)
    folded = FoldedMoves(graph, find_views(graph, target.is_custom))
    if target.fusing and target.maps_indices:
        folded = fold_moves(graph, folded.views, target.is_custom)
    graph, views = folded.graph, folded.views
    micro_batches = WHOLE_BATCH
    if target.begins_early:
        micro_batches = find_micro_batches(graph, views, target.is_custom, target.device)
    planner = _Planner(folded, micro_batches, target)
    plans, micro_batches = planner.run(), planner.micro_batches
    journal.views(graph, views)
    journal.micro_batches(graph, micro_batches)
    chains = _chains(graph, plans, micro_batches, target)
    read = frozenset(root_of(views, i) for i in values_read(graph, views, target.is_custom))
    decisions = {node.name: plans[label][0].taken for node in graph.nodes if (label := label_of(node)) in plans}
    plan = GpuPlan(plans, micro_batches, read, chains, planner.undivided)
    launches = without_chained(_in_order(plans, micro_batches), chains)
    launched = {node for launch in launches for node in launch.nodes}
    if target.forms_chains(graph):
        prefetch(launches, target)
    prefetch((launch for each in planner.undivided.values() for launch in each.launches), target)
    # The network must not hold the target.
    caps, is_custom = target.device.caps, target.is_custom
    split_products, fusing = target.split_products, target.fusing
    return Lowered(
        graph, launches, views, plan, decisions=decisions, steps=tuple(journal.steps),
        why_apart=lambda: why_apart(
            folded, launched, is_custom, caps, split_products=split_products, fusing=fusing
        ),
    )


def label_of(node: Node) -> str:
    """Return the key of a node's plans: its first output."""
    return next(o for o in node.outputs if o)


class _Notes:
    """What lowering did to the nodes of a part, for the journal of the network."""

    def __init__(self, target: Target) -> None:
        info = target.device.info
        self._device, self._journal = f"{info.id}:{info.index}", Journal()

    @property
    def steps(self) -> list[PassNote]:
        """Return the steps that did something."""
        return self._journal.notes

    def rewrite(self, step: Rewrite, before: Graph, after: Graph) -> None:
        """Note a rewrite if it changed nodes."""
        if not same_nodes(before.nodes, after.nodes):
            nodes = list(before.nodes), list(after.nodes)
            self._journal.note(f"{self._device} {step.name}", *nodes, before.outputs, purpose=step.purpose)

    def views(self, graph: Graph, views: Mapping[str, ValueView]) -> None:
        """Note which nodes write into memory of another value, or move nothing."""
        changes = []
        for node in graph.nodes:
            for name in (o for o in node.outputs if o in views):
                view = views[name]
                text = f"{name!r} needs no memory of its own: it lies {_shown(view)}"
                changes.append(Change("planned", node.name, text, "", (name, view.root)))
        self._plan("find_views", "Let values lie where their readers want them, and move nothing twice", changes)

    def micro_batches(self, graph: Graph, micro_batches: MicroBatches) -> None:
        """Note which nodes run on micro-batches."""
        text = f"runs once for each of {micro_batches.count} micro-batches, while the host copies the rest of it"
        nodes = (node for node in graph.nodes if label_of(node) in micro_batches.nodes)
        changes = [Change("planned", node.name, text, "", node.outputs) for node in nodes]
        self._plan("split_batch", "Begin before the whole input is there", changes)

    def _plan(self, step: str, purpose: str, changes: Sequence[Change]) -> None:
        if changes:
            self._journal.notes.append(PassNote.of_changes(f"{self._device} {step}", purpose, changes))


def _shown(view: ValueView) -> str:
    """Return where a value lies, as a journal says it."""
    if view.blocks:
        return f"in {view.root!r}, from channel block {view.first} on"
    if view.places.is_identity:
        return f"where {view.root!r} does"
    return f"in {view.root!r}, whose elements kernels reach by size:step {view.places}"


class _Planner:
    """Plans node by node; `micro_batches` then has those nodes alone that are worth dividing.

    Where an input is not sent in chunks, a run from pinned memory begins when all of it is on the device. To divide
    such a run would hide nothing, so the nodes have `undivided` plans for it.
    """

    def __init__(self, folded: FoldedMoves, micro_batches: MicroBatches, target: Target) -> None:
        self.graph, self.views, self.free = folded.graph, folded.views, folded.free
        self.micro_batches, self.target = micro_batches, target
        self.tensors: dict[str, Tensor] = {}
        self.taken: set[str] = set()
        """The candidates that nodes so far have, if kernels are to be few."""
        self.earlier = (lambda _: frozenset(self.taken)) if target.general else target.earlier(folded.graph)
        self.planned_level = -1
        self.undivided: dict[str, NodePlan] = {}

    def run(self) -> dict[str, list[NodePlan]]:
        plans: dict[str, list[NodePlan]] = {}
        place, callback = self.target.device.info, "GpuBackend.lower"
        device, chained = f"{place.id}:{place.index}", self.target.forms_chains(self.graph)
        depth = depths(self.graph)
        for node in self.graph.nodes:
            self._end_micro_batches(depth[label_of(node)], plans)
            if self.target.is_custom(node.op) or find_gpu_op(node.op) is None:
                continue
            label = label_of(node)
            try:
                plans[label] = self._plans(node, label)
            except Exception:
                with blame(at_node(node, device), callback=callback):
                    raise
            launches = [launch for plan in plans[label] for launch in plan.launches]
            if self.target.watch is not None:
                self.target.watch(launches)
            if not chained:
                prefetch(launches, self.target)
        return plans

    def _end_micro_batches(self, level: int, plans: Mapping[str, Sequence[NodePlan]]) -> None:
        """Divide no nodes of this level if those before it hide the copy of the input; each level is planned once."""
        if level <= self.planned_level or level > self.micro_batches.depth:
            return
        self.planned_level = level
        divided = [label for label in plans if label in self.micro_batches.nodes]
        caps = self.target.device.caps
        us = sum(plans[label][0].microseconds(caps) for label in divided)
        if divided and cover_the_copy(self.micro_batches, self.graph, us, self.target.device):
            self.micro_batches = replace(self.micro_batches, depth=level - 1, nodes=frozenset(divided))

    def _plans(self, node: Node, label: str) -> list[NodePlan]:
        inputs = [self._tensor(i) if i else None for i in node.inputs]
        outputs = [self._tensor(o) for o in node.outputs if o]
        count = self.micro_batches.count

        def plan(part: Callable[[Tensor], Tensor]) -> NodePlan:
            some = [t if t is None or t.constant is not None else part(t) for t in inputs]
            done = [part(t) for t in outputs]
            made = tuned_plan(self.target, node.op, label, some, done, node.name, self.earlier)
            self.taken.update(each.text for each in made.taken if self.target.general)
            return made

        if node.name in self.free:
            times = count if label in self.micro_batches.nodes else 1
            return [NodePlan(inputs, outputs, (), (), (), [], ()) for _ in range(times)]
        if label not in self.micro_batches.nodes or not self.target.device.sends_ahead:
            whole = plan(lambda t: t)
            if label not in self.micro_batches.nodes:
                return [whole]
            self.undivided[label] = whole
        return [plan(lambda t, k=number: micro_batch_of(t, k, count)) for number in range(count)]  # type: ignore[misc]

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            tensor = self.tensors[name] = describe(self.graph, name)
            if tensor.constant is None:
                tensor.memory = Spot.of(name, self.views)
        return self.tensors[name]


def _in_order(plans: Mapping[str, Sequence[NodePlan]], micro_batches: MicroBatches) -> tuple[PlannedLaunch, ...]:
    """Return all launches in the order of their submits: one micro-batch after the other, then the whole batch."""
    divided = [label for label in plans if label in micro_batches.nodes]
    first = [plans[label][number] for number in range(micro_batches.count) for label in divided]
    rest = [plan for label, each in plans.items() if label not in micro_batches.nodes for plan in each]
    return tuple(launch for plan in (*first, *rest) for launch in plan.launches)


def _chains(
    graph: Graph, plans: Mapping[str, Sequence[NodePlan]], micro_batches: MicroBatches, target: Target
) -> Sequence[PlannedChain]:
    """Return which launches share one; none beside executions of others, which may be recorded between any two."""
    if not target.forms_chains(graph) or any(target.is_custom(node.op) for node in graph.nodes):
        return ()
    depth = depths(graph)
    sections = [
        Section(
            label,
            depth[label],
            [launch for plan in each for launch in plan.launches],
            sum(plan.microseconds(target.device.caps) for plan in each),
        )
        for label, each in plans.items()
        if label not in micro_batches.nodes
    ]
    device = target.device
    return find_chains(sections, device.caps, device.dialect, device.longest_chained)


def prefetch(launches: Iterable[PlannedLaunch], target: Target) -> None:
    """Start to build kernels, if a load follows, but for those that are to be tested before."""
    if target.builds is not None:
        for launch in launches:
            if target.verdicts is None or not target.verdicts.lack(templates_of(launch)):
                target.builds.prefetch(launch.source, launch.values)


def templates_of(launch: PlannedLaunch) -> set[str]:
    """Return the templates and traits of a launch: of a chain, those of its levels and of plain chains, too."""
    levels = [kernel for _, kernel in launch.levels]
    return {launch.kernel, *levels, *([CHAIN] if levels else []), *traits(launch.source)}
