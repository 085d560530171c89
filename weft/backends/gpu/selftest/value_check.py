"""Test one kind of kernels: run its cases in this process, and compare the results with the numpy references."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.device.kernel_builds import thread_count
from weft.backends.gpu.lowering.layout.layouts import packed_layout
from weft.backends.gpu.lowering.target import Target
from weft.backends.gpu.pipeline import GpuPipeline
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.node_bench import NodeBench
from weft.core.contract.backend import BackendConfig, BackendInfo
from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node, infer_shapes
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array, Layout, from_storage
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.host.background import Background
from weft.core.placement.lower_network import lower_part
from weft.core.placement.optimized_network import Part
from weft.errors import ClosedError, CompileError, DeviceError, OutOfMemory, WeftError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, WantedLayout, find_gpu_op
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.special import SpecialKernel


class NotRun(WeftError):
    """Raised if the cases of a kind did not run on its kernels, so that nothing is known of these."""


def check(kind: SpecialKernel, runtime: GpuRuntime, others: Sequence[SpecialKernel] = ()) -> str | None:
    """Return what is wrong with a kind, or None. `others` are switched off meanwhile, so that none runs in its place.

    Wrong numbers, and kernels that do not compile, are the kind's fault. DeviceError for other failures of the device
    or its driver. NotRun if nothing was wrong, but not all cases ran, or not on kernels of this kind.
    """
    device, caps = runtime.device, runtime.device.caps
    try:
        # A test finds the kernels that it is written for, whatever is faster here.
        device.caps = kind.forced(without_others(replace(caps, rates=None), kind, others))
        return kind.check(runtime) if kind.check else _check_cases(kind, runtime)
    finally:
        device.caps = caps


def without_others(caps: DeviceCaps, kind: SpecialKernel, others: Sequence[SpecialKernel]) -> DeviceCaps:
    """Return the capabilities without other kinds, except the kinds that this one depends on."""
    left = [other for other in others if other.name != kind.name]
    for other in (*left, *left):  # twice: a kind may appear only when a later one is switched off
        if other in left and other.present(caps) and kind.present(less := other.disable(caps)):
            caps = less
            left.remove(other)
    return caps


def _check_cases(kind: SpecialKernel, runtime: GpuRuntime) -> str | None:
    launched, texts, cases, problem = set[str](), list[str](), kind.cases(), ""
    with ExitStack() as held:
        for case, made in zip(cases, _all_ready(cases, runtime, held), strict=True):
            if isinstance(made, CompileError):
                return f"{case.text} failed: {made.what}"
            if isinstance(made, DeviceError):
                raise made.reworded(f"{case.text} failed: {made.what}")
            if isinstance(made, WeftError):  # planning failed, before the device was asked
                problem = problem or f"{case.text} could not be planned: {made.what}"
                continue
            try:
                worst = made.difference()
            except CompileError as e:
                return f"{case.text} failed: {e.what}"
            except WeftError as e:
                e.reworded(f"{case.text} failed: {e.what}")
                raise
            launched.update(made.templates)
            texts += made.texts
            if not worst <= case.allowed:
                return f"{case.text} was wrong by {worst:.1e} of its largest value"
    missing = ", ".join(sorted(kind.launched - launched))
    if not missing and not any(kind.marker in text for text in texts):
        missing = kind.marker
    if missing and not problem:
        problem = f"none of its cases ran on such kernels ({missing}), so that nothing is known of them"
    if problem:
        raise NotRun(problem, fix="report it with the output of `weft devices`: its cases do not suit the device")
    return None


def _all_ready(
    cases: Sequence[SelfTestCase], runtime: GpuRuntime, held: ExitStack
) -> list[ReadyNode | ReadyGraph | WeftError]:
    """Plan and build all cases in threads, because compilers take most of a test's time; `held` frees them.

    A case that an interrupt leaves behind frees itself.
    """
    lock, left = threading.Lock(), threading.Event()

    def attempted(case: SelfTestCase) -> ReadyNode | ReadyGraph | WeftError:
        try:
            made = ready(case, runtime)
        except OutOfMemory:
            raise  # the kernels are not at fault
        except WeftError as e:
            return e
        with lock:
            if not left.is_set():
                held.callback(made.close)
                return made
        made.close()
        return ClosedError("the self-test was interrupted", fix="run it again")

    threads = thread_count(runtime.device)
    if threads == 1:
        return [attempted(case) for case in cases]
    try:
        with Background(threads, "weft-selftest") as pool:
            return list(pool.map(attempted, cases))
    except BaseException:
        with lock:
            left.set()
        raise


def ready(case: SelfTestCase, runtime: GpuRuntime) -> ReadyNode | ReadyGraph:
    """Plan and build a case: as one node where its node can run alone, else as a network; the caller closes it.

    What planning and compiling raise.
    """
    op = case.nodes[0].op
    alone = len(case.nodes) == 1 and find_gpu_op(op) is not None and not isinstance(op, Fused) and case.before is None
    return ReadyNode(case, runtime) if alone else ReadyGraph(case, runtime)


class ReadyNode:
    """A case of one node with built kernels; it uses the kernel's layout, so there are no conversions."""

    def __init__(self, case: SelfTestCase, runtime: GpuRuntime) -> None:
        self._case, (node,), graph, caps = case, case.nodes, _graph(case), runtime.device.caps
        form = find_gpu_op(node.op)
        packed = form is not None and _lies_packed(form, node, graph)
        layout = packed_layout(caps, case.precision) if packed else Layout.NCHW

        def tensor(name: str, laid: bool = True) -> Tensor:
            spec = graph.specs[name]
            made = Tensor(name, spec.dims, spec.dtype, layout if laid and len(spec.dims) >= 3 else Layout.NCHW)
            made.constant = case.constants.get(name)
            return made

        self._outputs = [tensor(o) for o in graph.outputs]
        inputs = [tensor(i, form is None or form.is_laid(k)) if i else None for k, i in enumerate(node.inputs)]
        target = Target(runtime.device, config=BackendConfig(precision=case.precision))
        self._bench = NodeBench(runtime, node.op, inputs, self._outputs, label="selftest", target=target)
        try:
            self._bench.feed([case.inputs.get(i) for i in node.inputs])
            self._launches = self._bench.preferring(case.prefer) if case.prefer else self._bench.default()
            self._launches.build()
        except BaseException:
            self._bench.close()
            raise
        self.templates = [launch.plan.kernel for launch in self._launches.launches]
        self.texts = [launch.plan.source.text for launch in self._launches.launches]

    def difference(self) -> float:
        """Run it, and return the largest difference from the reference, as a part of the largest value."""
        self._bench.poison(self._launches)
        self._bench.once(self._launches)
        stored = zip(self._bench.results(), self._outputs, strict=True)
        return _largest_difference([from_storage(each, t.shape, t.layout) for each, t in stored], self._case)

    def close(self) -> None:
        """Free its memory."""
        self._bench.close()


class ReadyGraph:
    """A case of several nodes, or of two shapes, with built kernels."""

    def __init__(self, case: SelfTestCase, runtime: GpuRuntime) -> None:
        self._case, self._graph = case, _graph(case)
        own = runtime.device.info
        # As a load plans it: of a second shape, ops then make the kernels that they make where sizes change.
        loads = BackendInfo(own.id, own.index, BackendConfig(precision=case.precision), loads=True)
        backend = GpuBackend(loads, runtime)
        backend.tests_kernels = False
        shapes = [self._graph] if case.before is None else [_graph(replace(case, inputs=case.before)), self._graph]
        self._pipeline = GpuPipeline(Part(backend.info.device, shapes[0]), backend)
        try:
            for graph in shapes:
                part = lower_part(Part(backend.info.device, graph), backend)
                self._pipeline.resize(part, {}, set(graph.outputs), first=graph is shapes[0])
        except BaseException:
            self._pipeline.close()
            raise
        planned = backend.recording.run.planned
        self.templates = [name for launch in planned for name in launch.templates]
        self.texts = [launch.plan.source.text for launch in planned]

    def difference(self) -> float:
        """Run it, and return the largest difference from the reference, as a part of the largest value."""
        pipeline = self._pipeline
        for name, value in self._case.inputs.items():
            pipeline.port(name).memory[...] = value
        pipeline.execute()
        pipeline.wait()
        return _largest_difference([pipeline.port(name).numpy() for name in self._graph.outputs], self._case)

    def close(self) -> None:
        """Free its memory."""
        self._pipeline.close()


def _lies_packed(form: GpuOp, node: Node, graph: Graph) -> bool:
    """Tell whether an op runs on images in blocks of channels, if all of its inputs can be such."""
    if form.wanted_layout is not WantedLayout.EITHER:
        return form.wanted_layout is WantedLayout.CHANNELS
    return form.fits_channels(node.op, *described(graph, node))


def difference(case: SelfTestCase, runtime: GpuRuntime) -> tuple[float, list[str]]:
    """Return the largest difference from the reference, as a part of the largest value, and the templates launched."""
    made = ready(case, runtime)
    try:
        return made.difference(), made.templates
    finally:
        made.close()


def _largest_difference(actual: Sequence[Array], case: SelfTestCase) -> float:
    expected = _expected(case)
    return float(np.max([apart(_wide(a), b) for a, b in zip(actual, expected, strict=True)]))


def _graph(case: SelfTestCase) -> Graph:
    outputs = [o for o in case.nodes[-1].outputs if o]
    graph = Graph("selftest", list(case.inputs), outputs, list(case.nodes))
    graph.constants = dict(case.constants)
    known = {**case.inputs, **case.constants}
    graph.specs = {name: TensorSpec(a.shape, DType.of(a.dtype), case.grids.get(name)) for name, a in known.items()}
    return infer_shapes(graph)


def _expected(case: SelfTestCase) -> list[Array]:
    return [_wide(value) for value in outputs(_graph(case), case.inputs)]


def _wide(value: Array) -> Array:
    """Return float64 as it is, anything else as float32."""
    return np.asarray(value, np.float64 if value.dtype == np.float64 else np.float32)


def apart(actual: Array, expected: Array) -> float:
    """Return the largest difference, as a part of the largest finite value expected.

    Where infinities and NaN are expected, these must be there. A NaN anywhere else gives NaN, which is within no
    tolerance.
    """
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        difference = np.where(same, 0, np.abs(actual - expected)).max()
        return 0.0 if same.all() else float(difference / np.abs(expected[np.isfinite(expected)]).max(initial=0))
