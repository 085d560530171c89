"""Times the tiles of a GPU kernel and compares them with what its estimate expects; a module for each kernel uses it.

Each process of `--jobs` builds the kernels of its problems; when all are built, one after the other times them
(`NodeBench`), each tile twice, of which the shorter time counts. A tile whose result differs from the default's is
reported, and has no time.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import queue
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from math import exp, log
from pathlib import Path
from typing import Any, Protocol

import weft
from benchmarks.cards import CARDS
from benchmarks.options import number
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.node_bench import NodeBench, difference
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps

Sizes = tuple[int, ...]
"""A problem: its fields, for the file."""
Times = dict[str, float]
"""Microseconds by the tile's `repr`."""


class TimedKernel(Protocol):
    """A kernel whose candidates are timed; processes get a pickled copy."""

    @property
    def problems(self) -> Sequence[Sizes]:
        """Return what to time."""
        ...

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return the op of a problem, its inputs and its outputs."""
        ...


class TiledKernel(TimedKernel, Protocol):
    """A kernel with estimates, which are compared with the times."""

    @property
    def name(self) -> str:
        """Return the heading of its problems."""
        ...

    @property
    def data(self) -> Path:
        """Return the file of its times."""
        ...

    def expected(self, caps: DeviceCaps, sizes: Sizes) -> Times:
        """Return the estimates of the tiles that a device takes."""
        ...


@dataclass(frozen=True)
class Judgement:
    """What became of one problem."""

    sizes: Sizes
    tile: str
    """The tile that is chosen."""
    expected: float
    took: float
    best: float
    """The least time of all tiles of its kernel that have one, also of those that are not offered any more."""


def judged(kernel: TiledKernel, times: dict[Sizes, Times], caps: DeviceCaps) -> list[Judgement]:
    """Return what is chosen for each problem; SystemExit if a chosen tile has no time."""
    out = []
    for sizes, us in times.items():
        expected = kernel.expected(caps, sizes)
        chosen = min(expected, key=expected.__getitem__)
        if chosen not in us:
            raise SystemExit(f"{chosen} has no time for {sizes}: time the tiles anew with --device")
        kinds = {_kind(tile) for tile in expected}
        best = min(time for tile, time in us.items() if _kind(tile) in kinds)
        out.append(Judgement(sizes, chosen, expected[chosen], us[chosen], best))
    return out


def _kind(tile: str) -> str:
    return tile.split("(")[0]


def recorded(kernel: TiledKernel) -> dict[Sizes, Times]:
    """Return the times of the kernel's file."""
    return {ast.literal_eval(sizes): us for sizes, us in json.loads(kernel.data.read_text("utf-8"))["us"].items()}


def runtime_of(device: str) -> GpuRuntime:
    """Return the runtime of a device whose kernels count as tested; SystemExit if it has no kernels of Weft's."""
    choice = weft.registry.choose(device)[0]
    if not isinstance(choice.creator, GpuCreator):
        raise SystemExit(f"--device {device}: it runs no kernels of Weft's")
    runtime = choice.creator.runtime(choice.index)
    runtime.trust()
    return runtime


Offered = Callable[[Sizes, Sequence[str]], Sequence[str]]
"""Returns which of a problem's candidates to time."""


def every(sizes: Sizes, texts: Sequence[str]) -> Sequence[str]:
    """Return all candidates."""
    return texts


def _time(
    kernel: TimedKernel, device: str, offered: Offered, problems: Sequence[Sizes], built: Any, lock: Any, answers: Any
) -> None:
    """Build the kernels of some problems, wait for all other processes, and time them while no other does."""
    runtime = runtime_of(device)
    with ExitStack() as stack:
        benches = []
        try:
            for sizes in problems:
                bench = stack.enter_context(NodeBench(runtime, *kernel.node(sizes)))
                (choice,) = bench.choices()
                texts = offered(sizes, choice.decision.texts)
                variants = {text: bench.plan(choice.key, text) for text in texts}
                benches.append((sizes, bench, {text: x for text, x in variants.items() if x.is_built}))
            built.wait()
        except BaseException:
            built.abort()  # or the others would wait for ever
            raise
        with lock:
            for sizes, bench, variants in benches:
                answers.put((sizes, _timed(sizes, bench, variants)))


def _timed(sizes: Sizes, bench: NodeBench, variants: dict[str, Any]) -> Times:
    default = bench.default()
    default.build()
    bench.warm(default, 0.05)
    bench.once(default)
    want, us = bench.results(), Times()
    for text, variant in variants.items():
        bench.poison(variant)
        bench.once(variant)
        wrong = difference(bench.results(), want)
        if wrong is None:
            us[text] = float("inf")
        else:
            print(f"{sizes} {text}: {wrong}")
    for _ in range(2):
        for text in us:
            us[text] = min(us[text], bench.seconds(variants[text], bench.once(variants[text])) * 1e6)
    return {text: round(each, 2) for text, each in us.items()}


def timed(kernel: TimedKernel, device: str, jobs: int, offered: Offered = every) -> dict[Sizes, Times]:
    """Return what the candidates that fit a device take; SystemExit if a process fails."""
    runtime_of(device)
    context = multiprocessing.get_context("spawn")
    problems = kernel.problems
    jobs = min(jobs, len(problems))
    built, lock, answers = context.Barrier(jobs), context.Lock(), context.Queue()
    same, shared = (kernel, device, offered), (built, lock, answers)
    started = [context.Process(target=_time, args=(*same, problems[k::jobs], *shared)) for k in range(jobs)]
    for process in started:
        process.start()
    found = dict[Sizes, Times]()
    while len(found) < len(problems):
        try:
            found.update([answers.get(timeout=1)])
        except queue.Empty:
            if any(process.exitcode for process in started):
                raise SystemExit("a process that times tiles failed: see above") from None
    for process in started:
        process.join()
    return {sizes: found[sizes] for sizes in problems}


def main(kernel: TiledKernel, about: str) -> None:
    """Print the estimates beside the times, which `--device` takes anew; `about` describes the command."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", help="time the tiles on this device")
    parser.add_argument("--jobs", type=number, default=1, help="processes that build kernels")
    options = parser.parse_args()
    if options.device:
        times = timed(kernel, options.device, options.jobs)
        info = runtime_of(options.device).device.info
        held = {str(sizes): us for sizes, us in times.items()}
        content = {"device": f"{info.name}, {info.driver}", "api": info.id, "date": str(date.today()), "us": held}
        kernel.data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    rows = judged(kernel, recorded(kernel), CARDS["opencl"].caps)  # of as many units as the card that the times are of
    print(f"{kernel.name:28} {'tile':42} expected  taken  best")
    for row in rows:
        print(f"{row.sizes!s:28} {row.tile:42} {row.expected:8.1f} {row.took:6.1f} {row.best:5.1f}")
    for what, ratios in (
        ("chosen over best", [row.took / row.best for row in rows]),
        ("expected over taken", [row.expected / row.took for row in rows]),
    ):
        print(f"{what}: {exp(sum(map(log, ratios)) / len(ratios)):.3f}, from {min(ratios):.2f} to {max(ratios):.2f}")
