"""Kernel builds: threads build kernels while the rest of a network is planned and uploaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.varying import NONE, LaunchLike, Sizes, Varying
from weft.core.contract.error_context import is_error
from weft.core.host import cancelled
from weft.core.host.background import Background
from weft.errors import CompileError
from weft.kernels.launch import FOR_SHAPES
from weft.kernels.source import KernelSource

log = logging.getLogger("weft.gpu")

MOST_THREADS = 8


def thread_count(device: GpuDevice) -> int:
    """Return how many kernels to build at a time; one where the driver compiles one after the other."""
    return min(MOST_THREADS, os.cpu_count() or 1) if device.compiles_side_by_side else 1


class Build:
    """A kernel with its constants; built at first use, unless a thread was started earlier. Launches may share one."""

    __slots__ = ("_device", "_future", "_kernel", "source", "values", "varying")

    def __init__(
        self, device: GpuDevice, source: KernelSource, values: Mapping[str, int | float],
        varying: frozenset[str] = NONE,
    ) -> None:
        self.source, self.values, self.varying = source, values, varying
        self._device = device
        self._kernel: Any = None
        self._future: Future[Any] | None = None

    @property
    def done(self) -> bool:
        """Tell whether no build is running."""
        return self._future is None or self._future.done()

    @property
    def is_built(self) -> bool:
        """Tell whether the kernel is there and was asked for."""
        return self._kernel is not None

    @property
    def is_begun(self) -> bool:
        """Tell whether a thread builds the kernel, or it is there."""
        return self._kernel is not None or (self._future is not None and not self._future.cancelled())

    def start(self, pool: Executor) -> None:
        """Build the kernel in a thread of the pool."""
        self._future = pool.submit(self._compile)

    def _compile(self) -> Any:
        device, source = self._device, self.source
        if self.varying and source.digest not in device.not_for_shapes:
            try:
                return device.compile_for_shapes(source, self.values, self.varying)
            except CompileError as e:  # a compiler may want to know what no other one needs
                log.info("kernel %s is built for each shape: %s", source.entry, e.what)
                device.not_for_shapes.add(source.digest)
        return device.compile(source, self.values)

    @property
    def kernel(self) -> Any:
        """Return the device's kernel, waiting for it; CompileError, at every call, if the compiler refused it."""
        if self._kernel is None:
            future = self._future
            # `Builds.drop` cancels what no thread has begun.
            self._kernel = self._compile() if future is None or future.cancelled() else future.result()
            self._future = None
        return self._kernel


def _error(build: Build) -> CompileError | None:
    try:
        _ = build.kernel
    except CompileError as e:
        return e
    return None


class Builds:
    """The builds of one pipeline. `finish`, `ending` or `drop` ends their threads; no kernel is built after that.

    `varying` is what is known of the shapes of its nodes, if other pipelines run the same nodes for other sizes. If
    `all_vary`, kernels read all constants when they run that they can, so that layers share them.
    """

    def __init__(self, device: GpuDevice, varying: Varying | None = None, *, all_vary: bool = False) -> None:
        self._device, self._all_vary = device, all_vary
        self._varying = varying or Varying()
        self._pool: Background | None = None
        self._begun: list[tuple[str, Build]] = []
        self._known: dict[Hashable, Build] = {}
        """The builds so far, by what tells their kernels apart: layers that are alike share one."""
        self._held: object = None
        """Kernels that were built together, until their builds ask for them."""
        self._only_looks_up = False
        """Whether kernels have been asked for at a later shape, and the device has had all of them so far."""

    @property
    def knows_a_shape(self) -> bool:
        """Tell whether the nodes were made ready for a shape before."""
        return self._varying.knows_a_shape

    def prefetch(self, source: KernelSource, values: Mapping[str, int | float]) -> None:
        """Start to build a kernel that `add` is likely to ask for; if the compiler refuses it, `add` says so.

        Planning takes the host as long as builds take the threads. Without threads nothing is built here, and at a
        second shape nothing either: only all of its launches tell which constants vary.
        """
        pool = None if self.knows_a_shape else self._threads()
        if pool is not None:
            build = self._build(source, values)
            if not build.is_begun:
                build.start(pool)

    def sizes_change(self, sizes: Sizes) -> bool:
        """Tell whether the nodes were made ready for other sizes than these before."""
        return self._varying.knows_others(sizes)

    def serves_shapes(self, source: KernelSource) -> bool:
        """Tell whether a kernel may read its sizes when it runs, so that it serves other shapes than its first."""
        return not (FOR_SHAPES in self._device.caps.without or source.subgroup or source.warpgroup)

    def took(self, choice: str, candidate: str) -> None:
        """Note which candidate was taken for a choice, so that `taken` returns it at later shapes."""
        self._varying.took(choice, candidate)

    def taken(self, choice: str) -> frozenset[str]:
        """Return the candidates that were taken for a choice at the shapes so far."""
        return self._varying.taken(choice)

    def compare(self, launches: Iterable[LaunchLike], sizes: Sizes) -> None:
        """Learn from the launches of a shape for which nothing is built what else varies."""
        self._varying.note(launches, sizes)

    def note(self, launches: Iterable[LaunchLike], sizes: Sizes) -> None:
        """Note all launches of a shape, before any of them is made a build; without threads, build them together."""
        noted = list(launches)
        self._only_looks_up = self.knows_a_shape
        self._varying.note(noted, sizes)
        self.together(noted)

    def together(self, wanted: Iterable[LaunchLike | Build]) -> None:
        """Without threads, have the device build what `add` will ask for together, and hold it until `drop`."""
        if thread_count(self._device) == 1:
            self._held = self._device.compile_together([(each.source, each.values) for each in wanted])

    def build(self, launch: LaunchLike) -> Build:
        """Return the build of a launch's kernel, in the form that the shapes so far ask for.

        Kernels for special hardware always know their constants: their self-tests say nothing of another form.
        """
        return self._build(launch.source, launch.values)

    def _build(self, source: KernelSource, values: Mapping[str, int | float]) -> Build:
        varying = self._varies(source) if self.serves_shapes(source) else NONE
        key = source.digest, repr([*values.values()]), varying  # 0.0 and -0.0 are equal, and make two kernels
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Build(self._device, source, values, varying)
        return known

    def _varies(self, source: KernelSource) -> frozenset[str]:
        return frozenset(name for name, _ in source.constants) if self._all_vary else self._varying.of(source)

    def add(self, owner: str, builds: Iterable[Build]) -> None:
        """Start to build what the owner needs; without threads, build it now and raise its error.

        A later shape needs few new kernels, or none, and threads take longer to start than kernels to look up. So they
        are started once the device has built one.
        """
        for build in builds:
            if not build.is_built and self._starts(build):
                self._begun.append((owner, build))

    def attempt(self, builds: Sequence[Build]) -> list[CompileError | None]:
        """Build kernels that others can replace, and return the compiler's errors."""
        refused: dict[int, CompileError] = {}
        for build in builds:
            try:
                _ = build.is_built or self._starts(build)
            except CompileError as e:  # built here: no thread has it
                refused[id(build)] = e
        return [refused[id(build)] if id(build) in refused else _error(build) for build in builds]

    def _starts(self, build: Build) -> bool:
        """Tell whether a thread has begun a build; if not, it is done."""
        pool = None if self._only_looks_up else self._threads()
        if pool is not None:
            if not build.is_begun:
                build.start(pool)
            return True
        before = self._device.stats.compiles
        _ = build.kernel
        self._only_looks_up = self._only_looks_up and self._device.stats.compiles == before
        return False

    def _threads(self) -> Background | None:
        """Return the threads that build, starting them if need be; None where one thread is all there is."""
        threads = thread_count(self._device)
        if self._pool is None and threads > 1:
            hold = ExitStack()
            hold.enter_context(self._device.building())
            self._pool = Background(threads, "weft-build", hold.close)
        return self._pool

    @property
    def done(self) -> bool:
        """Tell whether everything added is built or refused."""
        return all(build.done for _, build in self._begun)

    def finish(self, blame: Callable[[str], AbstractContextManager[None]]) -> None:
        """Wait for all builds; of several errors raise the one added first, inside `blame(owner)`."""
        with self.ending():
            for owner, build in self._begun:
                cancelled.check()
                with blame(owner):
                    _ = build.kernel

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Cancel builds that have not started at the end of the block, and wait for those that have."""
        with self.ended_by_errors():
            yield
        self._end(wait=True)

    @contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """Do the same if the block fails.

        After an interrupt, such as Ctrl-C, they go on by themselves: no compiler can be interrupted.
        """
        try:
            yield
        except BaseException as e:
            self._end(wait=is_error(e))
            raise

    def drop(self) -> None:
        """Cancel builds that have not started, and leave those that have."""
        self._end(wait=False)

    def _end(self, *, wait: bool) -> None:
        pool, self._pool, self._begun = self._pool, None, []
        self._held = None
        self._known.clear()
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)
