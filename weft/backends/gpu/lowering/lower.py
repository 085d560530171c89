"""From a part of a network to what a GPU runs: layouts, views, and every launch, before anything has memory.

It depends on the graph with its shapes and on a `Target` alone, changes neither, and is done once for each of them: a
pipeline only binds what comes out to memory, kernels and addresses. Where a load follows, threads build the kernels
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.lowering.fusion import fuse_pools
from weft.backends.gpu.lowering.launch_builder import NodeBuilder, PlannedConstant, PlannedLaunch
from weft.backends.gpu.lowering.layouts import (
    Special,
    assign_layouts,
    base_inputs,
    base_op,
    find_views,
    packed_layout,
    splits_products,
    values_read,
)
from weft.backends.gpu.lowering.merge_convolutions import merge_siblings, products_in_vain
from weft.backends.gpu.memory.slots import Spot
from weft.backends.gpu.recording.batch_split import NO_FRONT, Front, find_front, part_of
from weft.backends.gpu.tuning.tunables import Choices, Pick
from weft.backends.gpu.tuning.tuning_table import NodeChoices
from weft.core.contract.error_context import at_node, blame
from weft.core.contract.lowered import Lowered, ValueView
from weft.core.contract.session_config import BackendConfig, MemoryMode
from weft.core.graph.graph import Graph, Node, depths
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.placement.assign import describe
from weft.kernels.launch import find_gpu_op

if TYPE_CHECKING:
    from weft.backends.gpu.tuning.tuning_table import TuningTable


@dataclass(frozen=True)
class Target:
    """What launches are planned for: an open device, and what was asked of it."""

    device: GpuDevice
    tuning: TuningTable | None = None
    """What decides where ops leave something open; None: their defaults."""
    config: BackendConfig = field(default_factory=BackendConfig)
    special: Special = lambda op: False
    profiled: bool = False
    """The device's times are taken in each run."""
    builds: Builds | None = field(default=None, compare=False)
    """Where kernels are built while the nodes after theirs are planned; None: none is built before it is bound."""
    known: dict[str, tuple[Op, tuple[Array, ...], dict[str, TensorSpec]]] = field(default_factory=dict, compare=False)
    """The shapes and types of constants that were made before, by label, with the op and the weights behind them.

    A resize need not make them again to plan with them. Nothing else depends on it; none is held where memory is short.
    """

    @property
    def split_products(self) -> bool:
        """Tell whether matrix units may multiply fp32 as sums of halves."""
        return splits_products(self.device.caps, self.config.precision)

    @property
    def packed_layout(self) -> Layout:
        """Return how images lie."""
        return packed_layout(self.device.caps, self.config.precision)

    @property
    def thrifty(self) -> bool:
        """Tell whether memory is short."""
        return self.config.memory is MemoryMode.LIMIT

    @property
    def begins_early(self) -> bool:
        """Tell whether first nodes may run on a part of a batch while the rest is copied."""
        return self.device.computes_ahead and not self.thrifty and not self.profiled


@dataclass(frozen=True, eq=False)
class NodePlan:
    """The launches of one node, about tensors that lie at spots, and what they need."""

    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    launches: Sequence[PlannedLaunch]
    scratches: Sequence[Tensor]
    constants: Sequence[PlannedConstant]
    picks: list[Pick]
    """What the op left to tuning."""


@dataclass(frozen=True, eq=False)
class GpuPlan:
    """What loading needs of a lowered part, besides its graph and views."""

    nodes: Mapping[str, Sequence[NodePlan]]
    """By the label, which is the first output: one plan a node, or one for each part of the batch."""
    front: Front
    read: frozenset[str]
    """The roots of the values that kernels read."""


def plan_node(
    target: Target,
    op: Op,
    label: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    choices: Choices | None,
    node: str = "",
) -> NodePlan:
    """Return the launches of a node whose tensors lie at spots, as some choices make them."""
    form = find_gpu_op(op)
    assert form is not None
    weights = tuple(t.constant for t in inputs if t is not None and t.constant is not None)
    before = target.known.get(label)
    same = before is not None and before[0] == op and [*map(id, before[1])] == [*map(id, weights)]
    known = before[2] if before is not None and same else {}
    builder = NodeBuilder(
        target.device, op, label, inputs, choices, known=known,
        node=node, split_products=target.split_products, thrifty=target.thrifty, winograd=target.config.winograd,
    )  # fmt: skip
    form.launches(base_op(op), builder, base_inputs(op, inputs), outputs)
    if not target.thrifty:
        made = {k: TensorSpec(c.tensor.shape, c.tensor.dtype) for k, c in builder.constants.items()}
        target.known[label] = op, weights, {**known, **made}
    return NodePlan(
        inputs, outputs, builder.launched, builder.scratches, list(builder.constants.values()), builder.picks
    )


def tuned_plan(
    target: Target, op: Op, label: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], node: str = ""
) -> NodePlan:
    """Return the launches with what was tuned; a choice whose kernels changed since then is not taken."""
    choices = NodeChoices(target.tuning) if target.tuning is not None else None
    plan = plan_node(target, op, label, inputs, outputs, choices, node)
    while choices is not None and not choices.stand(plan.picks):
        plan = plan_node(target, op, label, inputs, outputs, choices, node)
    return plan


def lower(graph: Graph, target: Target) -> Lowered:
    """Return the part as a device runs it.

    Nodes of ops that a creator of the backend's own makes are not planned: what they launch is the creator's.
    """
    graph = _rewritten(graph, target)
    views = find_views(graph, target.special)
    front = find_front(graph, views, target.special, target.device) if target.begins_early else NO_FRONT
    plans = _Planner(graph, views, front, target).run()
    read = frozenset(views[i].root if i in views else i for i in values_read(graph, views, target.special))
    return Lowered(graph, _in_order(plans, front), views, GpuPlan(plans, front, read))


def _rewritten(graph: Graph, target: Target) -> Graph:
    """Let convolutions do the work of others, choose layouts, and sort the nodes by depth."""
    device, special, split = target.device, target.special, target.split_products
    caps = device.caps
    if target.config.fusing and not target.thrifty:
        graph = merge_siblings(graph, special, products_in_vain(device))
    if target.config.fusing:
        graph = fuse_pools(graph, special, caps, split)

    def planar(graph: Graph, node: Node) -> bool:
        form = find_gpu_op(node.op)
        inputs, output = base_inputs(node.op, graph.input_specs(node)), graph.specs[node.outputs[0]]
        return form is not None and form.reads_planar(base_op(node.op), inputs, output, caps, split)

    graph = assign_layouts(graph, special, target.packed_layout, planar, caps.without)
    depth = depths(graph)
    # Side by side in the order means side by side in the memory plan, and so on the device.
    graph.nodes.sort(key=lambda node: depth[node.outputs[0]])
    return graph


class _Planner:
    def __init__(self, graph: Graph, views: Mapping[str, ValueView], front: Front, target: Target) -> None:
        self.graph, self.views, self.front, self.target = graph, views, front, target
        self.tensors: dict[str, Tensor] = {}

    def run(self) -> dict[str, list[NodePlan]]:
        plans: dict[str, list[NodePlan]] = {}
        place, callback = self.target.device.info, "GpuBackend.lower"
        device = f"{place.id}:{place.index}"
        for node in self.graph.nodes:
            if self.target.special(node.op) or find_gpu_op(node.op) is None:
                continue
            with blame(at_node(node, device), callback=callback):
                label = next(o for o in node.outputs if o)
                plans[label] = self._plans(node, label)
            if self.target.builds is not None:
                for launch in (launch for plan in plans[label] for launch in plan.launches):
                    self.target.builds.prefetch(launch.source, launch.values)
        return plans

    def _plans(self, node: Node, label: str) -> list[NodePlan]:
        inputs = [self._tensor(i) if i else None for i in node.inputs]
        outputs = [self._tensor(o) for o in node.outputs if o]
        parts = self.front.parts

        def plan(part: Callable[[Tensor], Tensor]) -> NodePlan:
            some = [t if t is None or t.constant is not None else part(t) for t in inputs]
            return tuned_plan(self.target, node.op, label, some, [part(t) for t in outputs], node.name)

        if label not in self.front.nodes:
            return [plan(lambda t: t)]
        return [plan(lambda t, k=part: part_of(t, k, parts)) for part in range(parts)]  # type: ignore[misc]

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            tensor = self.tensors[name] = describe(self.graph, name)
            if tensor.constant is None:
                tensor.memory = Spot.of(name, self.views)
        return self.tensors[name]


def _in_order(plans: Mapping[str, Sequence[NodePlan]], front: Front) -> tuple[PlannedLaunch, ...]:
    """Return all launches in the order of their submits: those of the front by parts of the batch, then the rest."""
    ahead = [plans[label][part] for part in range(front.parts) for label in plans if label in front.nodes]
    rest = [plan for label, each in plans.items() if label not in front.nodes for plan in each]
    return tuple(launch for plan in (*ahead, *rest) for launch in plan.launches)
