"""Measure what a device does in a time, by short kernels: the scale of cost estimates (`weft.kernels.rates`).

Each microbenchmark (`probe.mako`) repeats one thing as often as an argument says, until that takes a few milliseconds
from submit to wait; what one launch takes by itself is subtracted. So neither timestamps nor events are needed, and a
device behind any API is measured in the same way. The least of a few times counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any

import numpy as np

from weft.backends.gpu.device.device import BarrierCommand, Binding, Command, GpuBuffer, LaunchCommand
from weft.backends.gpu.runtime import GpuRuntime
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.errors import CompileError, OutOfMemory
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.rates import Rates, rounded
from weft.kernels.source import SUBGROUP, Arg
from weft.kernels.template import KernelRequest, render

ITEMS, GROUPS = 64, 16
"""Work-items of a group, as of most portable kernels, and groups for each compute unit."""
VECTOR = 16
"""Bytes of four floats."""
SMALL, LARGE, LARGE_OF_CPU, SENT = 1 << 20, 512 << 20, 96 << 20, 4 << 20
"""Bytes of a buffer that a cache holds, of one that none holds, on a GPU and on a CPU, and of what is sent.

A GPU's cache of 50 MiB still answers half of the reads of 96 MiB.
"""
SLOTS = 1 << 14
"""Vectors that the kernels store to."""
ENOUGH = 3e-3
"""Seconds of a kernel that is long enough to be timed."""
WARM = 0.2
"""Seconds of work before the first measurement, in which a GPU raises its clock."""
TIMES = 3
"""How often a kernel is timed; the least counts."""
HELD_UP = 0.75
"""A second time that is less than so much of the first says that something else ran meanwhile."""
LAUNCHES, MORE = 50, 4
"""Launches in one submission, to time one, and how many times as many in a longer one."""
MOST_TURNS = 1 << 24
PRODUCTS, SHARED, LOADS, BARRIERS, TILES = 64, 8, 4, 2, 4
"""What an item, or a subgroup, of `probe.mako` does in a turn: products, vectors, loads at once, barriers, tiles."""


class Probe:
    """The microbenchmarks on one device; a context manager that frees their memory."""

    def __init__(self, runtime: GpuRuntime, clock: Callable[[], float] = perf_counter) -> None:
        self._device, self._heap, self._clock = runtime.device, runtime.heap, clock
        self._caps = runtime.device.caps
        self._held = ExitStack()
        self._rounds = self._buffer(np.zeros(VECTOR, np.int32))
        self._out = self._buffer(np.zeros(SLOTS * 4, np.float32))
        self._start = 0.0

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def rates(self) -> Iterator[dict[str, float]]:
        """Measure one thing after the other; yield what is known of the rates by then, by their names.

        What the device cannot do, or has no memory for, is left out.
        """
        units, found = self._caps.likely_units, dict[str, float]()
        data = self._buffer(np.full(SMALL // 4, 0.5, np.float32))
        x = {"x": (Arg("x", DType.FLOAT32, "fours"), data)}
        groups, items = GROUPS * units, min(ITEMS, self._caps.max_local_items)
        launch = self._launch("launch", {}, 1, 1)
        self._start = min(self._seconds([launch], 1) for _ in range(TIMES))
        self._warm(self._launch("products", x, groups, items))
        self._start = min(self._seconds([launch], 1) for _ in range(TIMES))
        found["start_us"] = self._start * 1e6
        waits: dict[str, list[Command]] = {"between_us": [launch, BarrierCommand()], "launch_us": [launch]}
        for name, commands in waits.items():
            found[name] = self._launch_us(commands)
        yield found
        found["products"] = self._rate("products", x, groups, items) * groups * items * PRODUCTS
        found["item_products"] = self._rate("products", x, 1, 1) * PRODUCTS
        yield found
        found["shared_vectors"] = self._rate("shared", x, groups, items) * groups * items * SHARED
        found["barrier_us"] = 1 / (self._rate("barriers", x, units, items) * BARRIERS)
        yield found
        a_turn = groups * items * LOADS * VECTOR
        found["cache_bytes"] = self._rate("read", x, groups, items, SMALL // VECTOR) * a_turn
        halves = {"x": (Arg("x", DType.FLOAT16, "fours"), self._buffer(np.full(SMALL // 2, 0.5, np.float16)))}
        if self._caps.fp16_storage:
            found["half_bytes"] = self._rate("read", halves, groups, items, SMALL // 8) * a_turn / 2
        yield found
        found["wait_us"] = self._wait()
        yield found
        with suppress(OutOfMemory):
            found["memory_bytes"] = self._memory_bytes(groups, items)
        yield found
        found |= self._transfers()
        yield found
        if self._caps.multiplies(HALVES):
            with suppress(CompileError):
                found["matrix_products"] = self._matrices(units)
        yield found

    # -- the parts that need more than a call --------------------------------------------------------------

    def _launch_us(self, commands: Sequence[Command]) -> float:
        """Return the microseconds of a launch with what stands behind it, from two lengths of a recording."""
        few, many = ([*commands] * count for count in (LAUNCHES, MORE * LAUNCHES))
        least = [float("inf"), float("inf")]
        while True:
            for k, each in enumerate((few, many)):
                least[k] = min(least[k], *(self._seconds(each, 1) for _ in range(TIMES)))
            if least[1] > least[0]:  # or another process held the shorter one up
                return (least[1] - least[0]) * 1e6 / ((MORE - 1) * LAUNCHES)

    def _wait(self) -> float:
        """Return the microseconds of a load that waits for the one before: places of a buffer, in one long cycle."""
        count = SMALL // 4
        order = np.random.default_rng(0).permutation(count)  # no prefetcher knows what comes next
        places = np.empty(count, np.int32)
        places[order] = np.roll(order, -1)
        held = {"places": (Arg("places", DType.INT32, "linear"), self._buffer(places))}
        return 1 / self._rate("waits", held, 1, 1)

    def _memory_bytes(self, groups: int, items: int) -> float:
        wanted = LARGE_OF_CPU if self._device.info.software else min(LARGE, self._caps.max_allocation // 8)
        nbytes = min(wanted, self._caps.max_buffer_range, self._caps.max_allocation) // VECTOR * VECTOR
        buffer = self._heap.allocate(nbytes)
        try:
            held = {"x": (Arg("x", DType.FLOAT32, "fours"), buffer)}
            return self._rate("read", held, groups, items, nbytes // VECTOR) * groups * items * LOADS * VECTOR
        finally:
            self._heap.free(buffer)

    def _transfers(self) -> dict[str, float]:
        sent = np.zeros(SENT, np.uint8)
        buffer = self._buffer(sent)

        def bytes_a_us(move: Callable[[], None]) -> float:
            times = []
            for _ in range(TIMES):
                begun = self._clock()
                move()
                times.append(self._clock() - begun)
            return SENT / max(min(times), 1e-9) * 1e-6

        return {
            "upload_bytes": bytes_a_us(lambda: self._device.upload(buffer, 0, sent)),
            "download_bytes": bytes_a_us(lambda: self._device.download(buffer, 0, sent)),
        }

    def _matrices(self, units: int) -> float:
        """Return the products of the tiles that Weft's kernels multiply; no kernel has others."""
        data = self._buffer(np.full(ITEMS * 4, 0.5, np.float32))
        args = {"x": (Arg("x", DType.FLOAT32, "linear"), data)}
        groups = GROUPS * units
        turns = self._rate("", args, groups, ITEMS, template="probe_matrix")
        return turns * groups * (ITEMS // SUBGROUP) * TILES * HALVES.products

    # -- kernels and their times ---------------------------------------------------------------------------

    def _buffer(self, values: Array) -> GpuBuffer:
        buffer = self._heap.allocate(values.nbytes)
        self._held.callback(self._heap.free, buffer)
        self._device.upload(buffer, 0, values)
        return buffer

    def _launch(
        self, what: str, args: dict[str, tuple[Arg, GpuBuffer]], groups: int, items: int, count: int = 0,
        template: str = "probe",
    ) -> LaunchCommand:
        """Return the launch of a microbenchmark."""
        out = Arg("y", DType.FLOAT32, "linear" if template != "probe" else "fours", written=True)
        every = {"rounds": (Arg("rounds", DType.INT32, "linear"), self._rounds), **args, "y": (out, self._out)}
        variant = (("what", what),) if what else ()
        ints = ("SLOTS", *(["COUNT", "STEP"] if count else []))
        request = KernelRequest(template, variant, tuple(arg for arg, _ in every.values()), ints)
        source = render(request, self._device.dialect)
        known = {"LX": items, "LY": 1, "LZ": 1, "SLOTS": SLOTS}
        if count:
            each = count // LOADS  # a turn goes on behind what all items read in the one before
            known |= {"COUNT": each, "STEP": (groups * items + items) % each}
        kernel = self._device.compile(source, {name: known[name] for name, _ in source.constants})
        bindings = tuple(Binding(buffer, 0, buffer.nbytes) for _, buffer in every.values())
        return LaunchCommand(kernel, bindings, (min(groups, self._caps.max_grid[0]), 1, 1), "probe")

    def _rate(
        self, what: str, args: dict[str, tuple[Arg, GpuBuffer]], groups: int, items: int, count: int = 0,
        template: str = "probe",
    ) -> float:
        """Return how many turns of a microbenchmark end in a microsecond."""
        launch = self._launch(what, args, groups, items, count, template)
        most = self._caps.max_rounds or MOST_TURNS
        turns = 1
        while True:
            least = self._least(launch, turns)
            if least >= ENOUGH:
                again = self._least(launch, turns)
                # Other processes may hold up all of a few runs: then the time is not that of the kernel yet.
                if again < HELD_UP * least:
                    least = again
                else:
                    return turns / min(least, again) * 1e-6
            if turns >= most:
                return turns / max(least, 1e-9) * 1e-6
            turns = min(most, turns * int(min(max(2 * ENOUGH / max(least, 1e-6), 2), 64)))

    def _least(self, launch: LaunchCommand, turns: int) -> float:
        return min(self._seconds([launch], turns) for _ in range(TIMES)) - self._start

    def _seconds(self, commands: Sequence[Command], turns: int) -> float:
        """Return the time from the submit of some commands to their end, after one run of a single turn."""
        device = self._device
        recording = device.record(commands)
        try:
            for each in (1, turns):
                device.upload(self._rounds, 0, np.full(1, each, np.int32))
                begun = self._clock()
                device.submit(recording)
                device.wait(recording)
                seconds = self._clock() - begun
        finally:
            device.release(recording)
        return seconds

    def _warm(self, launch: LaunchCommand) -> None:
        """Keep a GPU busy until its clock has risen."""
        if self._device.info.software:
            return
        begun, turns = self._clock(), 1 << 10
        while self._clock() - begun < WARM:
            self._seconds([launch], turns)


def measure(runtime: GpuRuntime, pause: Callable[[], bool] = lambda: True) -> Rates | None:
    """Return the rates of a device; None if `pause`, which is called between the microbenchmarks, returns False.

    WeftError if the device fails, or its compiler refuses a kernel.
    """
    known: dict[str, float] = {}
    with Probe(runtime) as probe:
        for found in probe.rates():
            known |= found
            if not pause():
                return None
    held: dict[str, Any] = {name: rounded(value) for name, value in known.items()}
    if "matrix_products" in held:
        held["matrices"] = {str(HALVES): held["matrix_products"]}
    return Rates.from_dict(held, runtime.device.info.id)
