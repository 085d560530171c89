"""Run one node by itself, with any of its op's candidates, on random data: time it and compare its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from types import TracebackType

import numpy as np

from weft.backends.gpu.device.device import BarrierCommand, Command
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.execution import GpuExecution, PipelineContext
from weft.backends.gpu.lowering.target import Target
from weft.backends.gpu.memory.slots import Region, Slots, Spot
from weft.backends.gpu.recording.launches import BoundLaunch, access
from weft.backends.gpu.recording.pipeline_recording import PipelineRecording
from weft.backends.gpu.recording.schedule import schedule
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.core.contract.backend import StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout, storage_shape, to_storage
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.memory.buffer_manager import BufferManager
from weft.errors import DeviceLost, WeftError

REPEATS = 10
SUBMITS = 3
LONG = 0.05
"""Most seconds of one submit: slow kernels need fewer repeats."""
BUSY, MOST_BUSY = 0.01, 5000
"""Seconds of work in one submit that keeps a device busy, and the most launches in it."""
FASTER = 0.98
"""A run that takes less than this share of the fastest before means that the clock has risen."""
MOST_WARM = 6.0
"""Seconds after which a device counts as warm in any case."""
TOLERANCES = {DType.FLOAT32: (1e-5, 1e-4), DType.FLOAT16: (2e-3, 1e-2)}
"""How far results may be from the default's: by norm, and for any element, relative to the largest value."""


@dataclass(frozen=True)
class Variant:
    """The launches of the node with one candidate."""

    text: str
    launches: tuple[BoundLaunch, ...]
    digest: str

    def build(self) -> None:
        """Build its kernels, or wait for them; CompileError if the device refuses one."""
        for launch in self.launches:
            _ = launch.kernel

    @property
    def is_built(self) -> bool:
        """Tell whether its kernels were built without an error; wait for them."""
        try:
            self.build()
        except DeviceLost:
            raise
        except WeftError:  # refused, or no memory for it
            return False
        return True


@dataclass(frozen=True)
class _Forced:
    key: str
    text: str

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        return self.text if key == self.key else None


@dataclass(frozen=True)
class _Preferred:
    start: str

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        return next((text for text in texts if text.startswith(self.start)), None)


class NodeBench:
    """Owns copies of a node's inputs and outputs on the device; a context manager that frees them."""

    def __init__(
        self, runtime: GpuRuntime, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], *,
        label: str = "node", target: Target | None = None, clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._device, self._clock = runtime.device, clock
        device, static = runtime.device, (runtime.static.take, runtime.static.give)
        self._memory = BufferManager(
            runtime.heap.allocate, runtime.heap.free, alignment=device.caps.offset_alignment, static=static
        )
        self._slots = Slots(self._memory)
        recording, builds = PipelineRecording(runtime.heap), Builds(device)
        target = target or Target(device)
        context = PipelineContext(target, self._slots, recording, builds, runtime.static, runtime.constants(None))
        self._execution = GpuExecution(op, context, label)
        self._rng = np.random.default_rng(0)
        copies: dict[int, Tensor] = {}
        try:
            self._inputs = [t if t is None or t.constant is not None else self._copy(t, copies) for t in inputs]
            self._outputs = [self._copy(t, copies) for t in outputs]
        except BaseException:
            self.close()
            raise

    def _copy(self, tensor: Tensor, copies: dict[int, Tensor]) -> Tensor:
        """Return a copy with random data, which lies in a copy of what it is a view of, as that decides on kernels."""
        if id(tensor) not in copies:
            whole = _root(tensor)
            region = self._slots.acquire(whole, StorageType.DYNAMIC)
            if isinstance(tensor.memory, Spot | Region):
                of = tensor.memory
                region = replace(region, first=of.first, blocks=of.blocks, places=of.places)
            made = Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.layout, region)
            self._upload(made, to_storage(_random(self._rng, whole), whole.layout))
            copies[id(tensor)] = made
        return copies[id(tensor)]

    def _upload(self, tensor: Tensor, stored: Array) -> None:
        region: Region = tensor.memory
        if stored.nbytes:
            self._device.upload(region.slot.buffer, region.slot.offset, np.ascontiguousarray(stored))

    def feed(self, values: Sequence[Array | None]) -> None:
        """Fill the inputs that are not constants with given values."""
        for tensor, value in zip(self._inputs, values, strict=True):
            if tensor is not None and tensor.constant is None and value is not None:
                self._upload(tensor, to_storage(value, tensor.layout))

    def default(self) -> Variant:
        """Return the launches with the op's defaults."""
        launches, _ = self._execution.plan(self._inputs, self._outputs, None)
        return Variant("default", tuple(launches), "")

    def choices(self) -> Sequence[Choice]:
        """Return what the op leaves to tuning."""
        return self._execution.plan(self._inputs, self._outputs, None)[1]

    def preferring(self, start: str) -> Variant:
        """Return the launches with the first candidate of each choice whose text begins so, else with the default."""
        launches, _ = self._execution.plan(self._inputs, self._outputs, _Preferred(start))
        return Variant(start, tuple(launches), "")

    def plan(self, key: str, text: str) -> Variant:
        """Return the launches with a candidate for one problem, and defaults for others."""
        launches, choices = self._execution.plan(self._inputs, self._outputs, _Forced(key, text))
        return Variant(text, tuple(launches), next(p for p in choices if p.key == key).digest)

    def seconds(self, variant: Variant, once: float) -> float:
        """Return the time of one run on the device: the smallest median of several series of runs.

        `once` is the time of a single run, and decides how many runs there are.
        """
        repeats = max(1, min(REPEATS, int(LONG / max(once, 1e-9))))
        return self._seconds(variant, repeats, SUBMITS if once < LONG else 1)

    def once(self, variant: Variant) -> float:
        """Run once, and return the time. Devices without timestamps are timed from submit to wait."""
        return self._seconds(variant, 1, 1)

    def warm(self, variant: Variant, steady: float) -> None:
        """Keep the device busy until runs have not become faster for `steady` seconds.

        The clock of an idle GPU may take seconds to rise, in steps, and light work may not raise it at all.
        """
        begun = last = now = self._clock()
        fastest = float("inf")

        def is_warm(spent: float) -> bool:
            nonlocal fastest, last, now
            now = self._clock()
            if spent < FASTER * fastest:
                fastest, last = spent, now
            return now - last >= steady or now - begun >= MOST_WARM

        self._keep_busy(variant, is_warm)

    def busy(self, variant: Variant, done: Callable[[], bool]) -> None:
        """Keep the device busy until `done`, so that its clock does not fall."""
        if not done():
            self._keep_busy(variant, lambda _: done())

    def _keep_busy(self, variant: Variant, enough: Callable[[float], bool]) -> None:
        """Submit long series of runs until `enough`, which gets the seconds of each; CPUs do not need it."""
        if self._device.caps.software:
            return
        repeats = max(1, min(MOST_BUSY // len(variant.launches), int(BUSY / max(self.once(variant), 1e-9))))
        device, handle = self._device, self._device.record(_repeated(variant, repeats), profile=False)
        try:
            while True:
                begun = self._clock()
                device.submit(handle)
                device.wait(handle)
                if enough(self._clock() - begun):
                    break
        finally:
            device.release(handle)

    def _seconds(self, variant: Variant, repeats: int, submits: int) -> float:
        once = schedule([access(launch) for launch in variant.launches])
        commands = _repeated(variant, repeats)
        queued = [s for _ in range(submits) if (s := self._device.queued_seconds(commands)) is not None]
        if queued:
            return min(queued) / repeats
        gaps = 1e-6 * self._device.caps.model.between_launches_us * sum(isinstance(c, BarrierCommand) for c in once)
        device, found = self._device, []
        handle = device.record(commands, profile=True)
        try:
            for _ in range(submits):
                begun = self._clock()
                device.submit(handle)
                device.wait(handle)
                elapsed = self._clock() - begun
                times, step = device.timings(handle), len(once) + 1
                runs = [sum(times[k : k + step]) for k in range(0, len(times), step)]
                found.append(median(runs) + gaps if any(runs) else elapsed / repeats)
        finally:
            device.release(handle)
        return min(found)

    def poison(self, variant: Variant) -> None:
        """Fill outputs and scratch with NaN, so that elements which the kernels do not write are noticed."""
        written = {id(t): t for launch in variant.launches for t in launch.writes}
        for tensor in (*written.values(), *self._outputs):
            self._upload(tensor, np.full(_root(tensor).nbytes, 0xFF, np.uint8))

    def results(self) -> list[Array]:
        """Return the outputs as they are stored, each with all that it is a view of."""
        out = []
        for tensor in self._outputs:
            whole = _root(tensor)
            stored = np.empty(storage_shape(whole.shape, whole.layout), whole.dtype.numpy)
            region: Region = tensor.memory
            if stored.nbytes:
                self._device.download(region.slot.buffer, region.slot.offset, stored)
            out.append(stored)
        return out

    def close(self) -> None:
        """Free everything."""
        self._execution.close()
        self._memory.close()

    def __enter__(self) -> NodeBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _repeated(variant: Variant, repeats: int) -> list[Command]:
    once = schedule([access(launch) for launch in variant.launches])
    return [c for _ in range(repeats) for c in (*once, BarrierCommand())]


def _root(tensor: Tensor) -> Tensor:
    """Return what a tensor is a view of, as far as it is known; itself if it is none."""
    of = tensor.memory
    if isinstance(of, Spot | Region) and of.blocks:
        return replace(tensor, shape=(tensor.shape[0], of.blocks * PACK, *tensor.shape[2:]), memory=None)
    if isinstance(of, Spot | Region) and of.places.stages:
        last = of.places.stages[-1]
        furthest = last.offset + sum(max((axis.size - 1) * axis.step, 0) for axis in last.axes)
        return replace(tensor, shape=(furthest + 1,), layout=Layout.NCHW, memory=None)
    return tensor


def _random(rng: np.random.Generator, tensor: Tensor) -> Array:
    kind = tensor.dtype.numpy
    if np.issubdtype(kind, np.floating):
        return rng.standard_normal(tensor.shape, np.float32).astype(kind)
    return rng.integers(0, 2, tensor.shape).astype(kind)


def difference(got: Sequence[Array], want: Sequence[Array]) -> str | None:
    """Return why results are too far from the default's, as a sentence; else None.

    Where the default is infinite, results must be equal; where it is NaN, they may be anything that is not finite.
    """
    for a, b in zip(got, want, strict=True):
        if b.size == 0:
            continue
        by_norm, by_largest = TOLERANCES.get(DType.of(b.dtype), (0.0, 0.0))
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        odd = (np.isfinite(x) != finite) | (np.isinf(y) & (x != y))
        if odd.any():
            return f"{np.count_nonzero(odd)} elements are not written, or not finite"
        apart = np.abs(np.subtract(x, y, where=finite, out=np.zeros_like(x)))
        scale = np.where(finite, np.abs(y), 0.0)
        off, worst = float(np.linalg.norm(apart)), float(apart.max())
        if off > by_norm * float(np.linalg.norm(scale)) or worst > by_largest * float(scale.max()):
            return f"wrong numbers: off by {off:.1e} by norm, by {worst:.1e} at most, of {scale.max():.1e}"
    return None
