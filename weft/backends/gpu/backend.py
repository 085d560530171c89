"""The backend of every GPU API: one class, over a `GpuDevice`.

A pipeline becomes one recording: uploads of its inputs, the launches of its nodes by dependency level, and downloads of
its outputs. `onResizeEnd` records it; a run submits it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from weft import config
from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import Binding, CopyCommand, GpuDevice
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.device.varying import sizes_of
from weft.backends.gpu.execution import GpuExecution, PipelineContext
from weft.backends.gpu.lowering.fusion.epilogues import why_not_fused, why_not_joined
from weft.backends.gpu.lowering.launches.builder import PlannedConstant, WrongKernel, choice_of
from weft.backends.gpu.lowering.lower import GpuPlan, label_of, lower, prefetch, templates_of
from weft.backends.gpu.lowering.rewrites.order import FUSE_EPILOGUES, OF_PARTS, Rewrite, explain, rewritten
from weft.backends.gpu.lowering.support import Asked, why_not
from weft.backends.gpu.lowering.target import Target
from weft.backends.gpu.memory.slots import Region, Slots
from weft.backends.gpu.pipeline import GpuPipeline
from weft.backends.gpu.recording.launches import BoundLaunch, PlannedLaunch, access
from weft.backends.gpu.recording.pipeline_recording import PipelineRecording
from weft.backends.gpu.recording.schedule import Access, run_once
from weft.backends.gpu.runtime import GpuRuntime
from weft.core.contract.backend import Backend, BackendInfo, Execution, StorageType, Wait
from weft.core.contract.engine import Engine
from weft.core.contract.error_context import at_node, blame
from weft.core.contract.lowered import Lowered, PlanAgain, TakesLong
from weft.core.contract.session_config import not_granted
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import PACK, Array, Layout, convert, storage_shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.host import disk_cache
from weft.core.host.tensor_copy import copy_tensor
from weft.core.memory.buffer_manager import BufferManager
from weft.core.passes.fuse import fuse_epilogues
from weft.errors import BackendError
from weft.kernels.gpu_op import find_gpu_op
from weft.kernels.launch import FOR_SHAPES
from weft.kernels.special import READS_SIZES
from weft.ops.relayout import Relayout

TESTED = "some kernels are to be tested"
MANY = 4
"""Kernels to be built for which a session that wants its first run soon is given other ones."""


class GpuBackend(Engine):
    """Run a pipeline on a GPU device.

    Each API has a subclass, so that `addCreator` reaches only one of them. Custom executions get tensors in NCHW whose
    memory is a `Region`; nothing is fused into their nodes.
    """

    pipeline_type = GpuPipeline
    copies_constants = False
    tests_kernels = True
    """Whether kernels are tested before their first use; a test itself says no."""

    def __init__(self, info: BackendInfo, runtime: GpuRuntime) -> None:
        super().__init__(info)
        self.runtime, self.device = runtime, runtime.device
        self._memory = BufferManager(
            runtime.heap.allocate,
            runtime.heap.free,
            alignment=self.device.caps.offset_alignment,
            static=(runtime.static.take, runtime.static.give),
        )
        self.slots = Slots(self._memory)
        self.recording = PipelineRecording(runtime.heap, info.profiling)
        self.recording.submissions.longest = runtime.longest_submission
        shares = runtime.general and self.device.shares_kernels
        self._builds = Builds(self.device, runtime.varying(info.same_nodes), all_vary=shares)
        self._target = Target(
            self.device, None if runtime.general else runtime.tuning, info.config, self._is_custom,
            info.profiling is not None, self._builds if info.loads else None, runtime.chains, runtime.verdicts,
            runtime.general,
        )
        self._shared = PipelineContext(
            self._target, self.slots, self.recording, self._builds, runtime.static,
            runtime.constants(info.same_nodes),
        )
        self.wants_other_sizes = not self.device.reads_all_sizes and FOR_SHAPES not in self.device.caps.without
        wait = Wait(config.wait()) if info.wait is Wait.AUTO else info.wait
        waits_for_all = {Wait.AUTO: self.device.caps.software, Wait.FIRST: False, Wait.ALL: True}[wait]
        self._hurries = info.loads and not (waits_for_all or runtime.general)
        """Whether the next plan is given up if the part could not run soon."""
        self._asked = Asked()
        self.makers: dict[str, Node] = {}
        """The nodes of this part, by their first outputs."""

    # -- support and rewriting -----------------------------------------------------------------------------

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why this device cannot run the node, or None."""
        if self.find_creator(op.type) is None:
            return self._asked.why_not(inputs, outputs, op, self.device.caps)
        refused = super().why_not(inputs, outputs, op)
        return refused and why_not(inputs, outputs, op, self.device.caps)

    def why_not_optimized(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return why this device cannot run the node as it is, fused steps included; a custom op's creator answers."""
        if self._is_custom(op):
            return super().why_not_optimized(inputs, outputs, op)
        packed = [t for t in (*inputs, *outputs) if t is not None and t.layout is not Layout.NCHW]
        if packed:
            return f"{packed[0].name!r} lies as {packed[0].layout.value} before layouts are chosen"
        if isinstance(op, Relayout):
            return "it changes a layout before layouts are chosen"
        if isinstance(op, Fused):
            custom = [o.type for o in (op.base, *(step.op for step in op.steps)) if self._is_custom(o)]
            if custom:
                return f"nothing is fused with {custom[0]}, which a creator makes"
            return why_not_fused(inputs, op, self.device.caps)
        refused = why_not(inputs, outputs, op, self.device.caps)
        return refused or super().why_not_optimized(inputs, outputs, op)

    def onCreate(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> Execution | None:
        """Return the execution of the op's creator, else one with the op's own launches."""
        created = super().onCreate(inputs, outputs, op)
        if created is None and find_gpu_op(op) is not None:
            return GpuExecution(op, self._shared, outputs[0].name)
        return created

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        """Fuse element-wise steps into the nodes before them, and norms, unless that is off or wrong on the device."""
        views = OptimizationViews()
        if not self._target.fusing:
            return views.keep_rest(view)

        def note(step: Rewrite, before: Graph, after: Graph) -> None:
            explain(views.reasons, str(step), before.nodes, after.nodes)

        turned = rewritten(view.graph, self._target, OF_PARTS, note)
        fused = fuse_epilogues(turned, self._can_fuse)
        explain(views.reasons, FUSE_EPILOGUES, turned.nodes, fused.nodes)
        if turned is view.graph and len(fused.nodes) == len(turned.nodes):
            return views.keep_rest(view)
        views.substitute(view, fused)  # as a whole: hundreds of groups would each be checked by themselves
        return views

    def why_later(self) -> str:
        """Return why any part can only run later: no start before tested a kernel of this device."""
        verdicts = self.runtime.verdicts
        if not (self._hurries and self.tests_kernels and verdicts.untested) or verdicts.by_name:
            return ""
        self._hurries = False
        return TESTED

    def lower(self, graph: Graph) -> Lowered:
        """Return the part with its layouts, views and launches; see `weft.backends.gpu.lowering`.

        Kernels that this device has not launched yet are tested before. PlanAgain if some of them are wrong. TakesLong,
        at the first call, if the session wants its first run soon and much is to be tested or built.
        """
        caps = self.device.caps
        try:
            with self._builds.ended_by_errors():
                lowered = self._planned_in_a_hurry(graph) if self._hurries else None
                lowered = lowered or lower(graph, self._target)
            if self.tests_kernels and self.runtime.verdicts.untested:
                self._test_before_use(lowered)
        except WrongKernel as e:
            raise self._planned_again(f"{e.what}: {e.why}") from e
        if self.tests_kernels and self.device.caps != caps:  # found here, or meanwhile by another session's load
            raise self._planned_again("the self-test found kernels wrong that it may launch")
        return lowered

    def _planned_in_a_hurry(self, graph: Graph) -> Lowered:
        """Return the part with its launches, and build them; TakesLong if much is to be done before it can run.

        That comes up as soon as it is known, so that little is planned in vain.
        """
        self._hurries = False
        missing = _Missing(self.device)

        def test(launches: Iterable[PlannedLaunch]) -> None:
            if self.tests_kernels and self.runtime.verdicts.lack(self._kinds(launches)):
                raise self._takes_long(TESTED)

        def build(launches: Iterable[PlannedLaunch]) -> None:
            if missing.count(launches) >= MANY:
                raise self._takes_long(f"{MANY} kernels or more are to be built")

        def watch(launches: Sequence[PlannedLaunch]) -> None:
            test(launches)
            if not self._target.forms_chains(graph):  # kernels that become parts of others are not built
                build(launches)

        lowered = lower(graph, replace(self._target, builds=None, watch=watch))
        assert isinstance(lowered.plan, GpuPlan)
        test((*(launches := _launches(lowered)), *lowered.plan.launches))
        build(launches)
        prefetch(launches, self._target)
        return lowered

    def _takes_long(self, why: str) -> TakesLong:
        return TakesLong("a part of the network can run later", where=self.info.device, why=why)

    def _planned_again(self, why: str) -> PlanAgain:
        fix = "load or optimise it again: then other kernels, or another device, take their place"
        return PlanAgain("the network has to be planned again", where=self.info.device, why=why, fix=fix)

    def _test_before_use(self, lowered: Lowered) -> None:
        assert isinstance(lowered.plan, GpuPlan)
        templates: set[str] | None = self._kinds((*_launches(lowered), *lowered.plan.launches))
        if any(self._is_custom(node.op) for node in lowered.graph.nodes):
            templates = None  # a creator's own execution may launch anything
        if templates is None or self.runtime.verdicts.lack(templates):
            self.runtime.verdicts.verify(self.runtime, templates)

    def _kinds(self, launches: Iterable[PlannedLaunch]) -> set[str]:
        """Return the templates and traits of launches."""
        found = {t for launch in launches for t in templates_of(launch)}
        reads_sizes = self.device.reads_all_sizes or self._builds.knows_a_shape
        return found | {READS_SIZES} if reads_sizes and found else found

    def onLowered(self, lowered: Lowered) -> None:
        """Take over the views for the memory plan, and the launches for the executions."""
        plan = lowered.plan
        assert isinstance(plan, GpuPlan)
        self.makers = {label_of(node): node for node in lowered.graph.nodes}
        self._shared.take(plan)
        sizes = sizes_of(lowered.graph)
        self._builds.note(plan.launches, sizes)
        # At the second shape kernels are built anew in any case, because they read what varies.
        for label, plans in plan.nodes.items() if self._builds.sizes_change(sizes) else ():
            if all(self._builds.serves_shapes(launch.source) for launch in plans[0].launches):
                for number, each in enumerate(plans[0].taken):
                    self._builds.took(choice_of(label, number), each.text)
        self.slots.follow(lowered.graph, lowered.views, plan.micro_batches.depth)
        self.recording.run.micro_batches = plan.micro_batches
        self.recording.run.chains.plan(plan.chains)
        if self.recording.submissions.longest:
            self.recording.submissions.expected = plan.expected(lowered.graph, self.device.caps)

    def wanted_constants(self, plan: GpuPlan) -> list[PlannedConstant]:
        """Return the constants of a plan that are not in memory, in the order of its nodes."""
        held = self._shared.constants
        return [
            constant
            for label, plans in plan.nodes.items()
            for each in plans
            for constant in each.constants
            if (other := held.get((label, constant.key))) is None or not other.is_made_of(constant.sources)
        ]

    def compare(self, lowered: Lowered) -> None:
        """Learn which constants of kernels vary from the part for a shape with other sizes."""
        assert isinstance(lowered.plan, GpuPlan)
        self._builds.compare(lowered.plan.launches, sizes_of(lowered.graph))

    def _can_fuse(self, graph: Graph, base: Node, step: Node, inside: frozenset[int]) -> bool:
        most = self.device.caps.max_buffers
        return why_not_joined(graph, base, step, inside, self._is_custom, most) is None

    @classmethod
    def _is_custom(cls, op: Op) -> bool:
        # Of the class: an optimised network that asks this later must not keep a backend alive.
        return cls.find_creator(op.type) is not None

    # -- memory ----------------------------------------------------------------------------------------------

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Give the tensor a slot, or its region in the slot of its root."""
        tensor.backend = self
        tensor.memory = self.slots.acquire(tensor, storage_type)
        return True

    def canImport(self, source: Backend) -> bool:
        """Tell whether the source's tensors are on the same device."""
        return isinstance(source, GpuBackend) and source.device is self.device

    def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
        """Use the memory of a tensor on this device, or copy it there if it is a view of another tensor."""
        tensor.backend = self
        if self.slots.adopt(tensor, source):
            return True
        if source.memory.slot.storage is StorageType.STATE:
            return False  # a run would write to the copy
        tensor.memory = self.slots.acquire(tensor, StorageType.DYNAMIC_SEPERATE)
        self.recording.imports.append((source, tensor))
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        """Release the tensor's slot; the last of its views releases a shared slot."""
        if tensor.memory is None:
            return False
        self.slots.release(tensor, storage_type)
        if storage_type is StorageType.STATE:
            self.runtime.heap.drop_unheld()  # a driver frees it after the last recording that has it
        return True

    def onAllocateBuffer(self) -> bool:
        """Allocate the arena of this pipeline."""
        self.slots.allocate()
        return True

    def onClearBuffer(self) -> bool:
        """Free the recording and all memory that is neither STATIC nor STATE."""
        self._builds.drop()
        self._shared.forget_plans()
        self._drop_recording()
        self.slots.clear()
        return True

    # -- resize ----------------------------------------------------------------------------------------------

    def onResizeBegin(self) -> None:
        """Begin a new recording and a new memory plan."""
        self._drop_recording()
        self.slots.begin()

    def _drop_recording(self) -> None:
        self.recording.drop()
        self.recording.run.chains.drop(self.slots)

    def onResizeEnd(self) -> None:
        """Wait for the kernels, then record everything, now that addresses are known."""
        self._shared.forget_plans()
        run = self.recording.run
        run.chains.bind(run.rest, self.device, self._builds, self.slots, share=self.runtime.chains)
        self._builds.finish(self._blame)
        self.recording.seal()
        self.device.keep()

    def _part_chains(self) -> None:
        """Launch the levels of chains one by one, here and in all sessions to come, since a chain has given up."""
        chains, self.runtime.chains = self.recording.run.chains, False
        chains.build_levels(self._builds)
        self._builds.finish(self._blame)
        self.recording.forget_replays()
        chains.part(self.slots)

    def _blame(self, label: str) -> AbstractContextManager[None]:
        return blame(at_node(self.makers[label], self.info.device))

    # -- run -------------------------------------------------------------------------------------------------

    def onExecuteBegin(self) -> None:
        """Wait for the run before, because this one writes the same memory."""
        self.recording.begin()
        if self.recording.run.chains.gave_up:
            self._part_chains()

    def onExecuteEnd(self) -> None:
        """Submit the recording; the device works on while the caller goes on."""
        self.recording.submit()

    def onWaitFinish(self) -> bool:
        """Wait for the last submit."""
        self.recording.wait()
        return True

    def repeat(self, suspect: bool) -> Iterator[list[Tensor]]:
        """Repeat the run launch by launch, and yield what each stored, as host tensors that the next one overwrites.

        Chains need more kernels for that, so a run with chains is only repeated if it is suspect.
        """
        chains = self.recording.run.chains
        if chains.bound:
            if not suspect:
                return
            chains.build_levels(self._builds)
            self._builds.finish(self._blame)
        yield from self.recording.repeat()

    # -- copies ----------------------------------------------------------------------------------------------

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        """Copy to, from or within the device; conversions within it run on it."""
        fork_guard.check(self.info.id, self.info.index)
        self.recording.wait()
        if src.backend is self and dst.backend is self:
            self.copy_inside(src, dst)
        elif dst.backend is self and isinstance(src.memory, np.ndarray):
            stored = convert(src.memory, src.shape, src.layout, dst.layout, dst.dtype.numpy)
            stored, (mapped, binding) = np.ascontiguousarray(stored), _mapped(dst)
            if mapped is None:
                self.device.upload(binding.buffer, binding.offset, stored)
            else:
                mapped[: stored.nbytes] = stored.reshape(-1).view(np.uint8)
        elif src.backend is self and isinstance(dst.memory, np.ndarray):
            mapped, binding = _mapped(src)
            stored = np.empty(storage_shape(src.shape, src.layout), src.dtype.numpy)
            if mapped is None:
                self.device.download(binding.buffer, binding.offset, stored)
            else:
                stored.reshape(-1).view(np.uint8)[:] = mapped[: stored.nbytes]
            converted = convert(stored, src.shape, src.layout, dst.layout, dst.dtype.numpy)
            np.copyto(dst.memory, converted.reshape(dst.storage_shape))
        elif self in (src.backend, dst.backend):
            copy_tensor(src, dst)  # the other tensor is on another device: copy through the host
        else:
            raise BackendError(
                f"{self.info.device} was asked to copy {src.name!r} to {dst.name!r}",
                why="both are of other backends",
                fix="ask the backend of one of them",
            )

    def copy_inside(self, src: Tensor, dst: Tensor) -> None:
        """Copy from one tensor of the device to another, which it is done with on return."""
        a, b = _whole(src), _whole(dst)
        if src.layout is dst.layout and src.dtype is dst.dtype:
            source, target = (Binding(x.buffer, x.offset, src.nbytes) for x in (a, b))
            run_once(self.device, [Access(CopyCommand(source, target, "copy"), (a,), (b,))] if src.nbytes else [])
            return
        try:
            launches = self._relayouts(src, dst)
        except WrongKernel:
            middle = Tensor.empty(src.shape, src.dtype, src.layout, src.name)
            self.onCopyBuffer(src, middle)
            self.onCopyBuffer(middle, dst)
            return
        run_once(self.device, [access(launch) for launch in launches])

    def _relayouts(self, src: Tensor, dst: Tensor) -> list[BoundLaunch]:
        """Return the launches that convert one tensor to another; WrongKernel if the self-test finds them wrong."""
        execution = GpuExecution(Relayout(dst.layout, dst.dtype), self._shared, f"copy {src.name}")
        verdicts = self.runtime.verdicts
        while True:
            launches = execution.launches([src], [dst])
            templates = {name for launch in launches for name in templates_of(launch.plan)}
            if not (self.tests_kernels and verdicts.lack(templates)):
                return launches
            verdicts.verify(self.runtime, templates)

    # -- end -------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """Return bytes and launches of this pipeline."""
        arena = self._memory.arena
        return {
            "arena_bytes": arena.size,
            "arena_live_peak": arena.live_peak(),
            "staging_bytes": self.recording.staging_bytes,
            "launches": len(self.recording.run.planned),
            "submissions": self.recording.submitted_parts,
        }

    def notes(self) -> Sequence[str]:
        """Return notes on refused settings and kernels, the cache, and how many kernels tuning chose."""
        tuned = self.recording.tuned
        chosen = [f"{tuned} kernels tuned for this device"] if tuned else []
        longest = self.recording.submissions.longest
        long = [
            f"{label} takes about {seconds:.2g} s at once, and a submission should take {longest:g} s: it cannot be "
            "divided further, so a driver's watchdog may end it; give it a smaller batch"
            for label, seconds in self.recording.too_long
        ]
        granted = not_granted(self.info.config, faster_arithmetic=self._target.split_products)
        return [*granted, *self.runtime.notes, *disk_cache.remarks(), *chosen, *self.recording.run.chains.notes, *long]

    def close(self) -> None:
        """Free everything of this pipeline; the device stays open."""
        self.onClearBuffer()
        self._memory.close()
        self.runtime.users.discard(self)
        self.runtime.left()


class _Missing:
    """Counts kernels that are to be built, each once."""

    def __init__(self, device: GpuDevice) -> None:
        self._device, self._seen, self._count = device, set[tuple[str, str]](), 0

    def count(self, launches: Iterable[PlannedLaunch]) -> int:
        """Return how many of these and of those before are neither built nor kept on disk."""
        kernels = {(x.source.digest, repr(x.values)): (x.source, x.values) for x in launches}
        self._count += self._device.to_be_built(kernel for key, kernel in kernels.items() if key not in self._seen)
        self._seen.update(kernels)
        return self._count


def _launches(lowered: Lowered) -> list[PlannedLaunch]:
    return [launch for launch in lowered.launches if isinstance(launch, PlannedLaunch)]


def _mapped(tensor: Tensor) -> tuple[Array | None, Binding]:
    """Return the tensor's bytes in host memory, or None, and its bytes on the device."""
    binding = _whole(tensor)
    host = binding.buffer.host
    return None if host is None else host[binding.offset :], binding


def _whole(tensor: Tensor) -> Binding:
    region: Region = tensor.memory
    if region.slot.buffer is None:
        what, why = f"tensor {tensor.name!r} has no memory", "it was not acquired, or was cleared"
        raise BackendError(what, why=why, fix="acquire it by onAcquireBuffer first")
    if not region.places.is_identity or (region.blocks and region.blocks != -(-tensor.shape[1] // PACK)):
        what = f"tensor {tensor.name!r} lies inside another and cannot be copied by itself"
        raise BackendError(what, fix="copy the tensor that it lies in")
    return region.binding()
