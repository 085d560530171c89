"""Times the tiles of the portable attention in fp32 on a GPU, and compares them with what a load would expect.

    python -m benchmarks.attention_tiles                             # judge the estimates by attention_tiles.json
    python -m benchmarks.attention_tiles --device opencl --jobs 15   # time all tiles, and write that file anew

`weft.ops.gpu.attention.tiled.microseconds` estimates. Each process of `--jobs` builds the kernels of its problems; when
all are built, one after the other times them (`NodeBench`), each tile twice, of which the shorter time counts. A tile
whose result differs from the default's is reported, and has no time.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import queue
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import weft
from benchmarks.options import number
from scripts.update_shipped_choices import CARDS
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.node_bench import NodeBench, difference
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention.tiled import legal_tiles, microseconds

DATA = Path(__file__).with_suffix(".json")
Times = dict[str, float]
"""Microseconds by the tile's `repr`."""


class Problem(NamedTuple):
    """The sizes of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    """Elements of a head, of queries, keys and values alike."""

    @property
    def extents(self) -> Extents:
        """Return the sizes as the kernel's."""
        return Extents((self.batch, self.heads), self.queries, self.keys, self.depth, self.depth)


PROBLEMS = tuple(
    Problem(*sizes)
    for sizes in (
        (16, 6, 197, 197, 64), (1, 12, 1024, 1024, 64), (1, 8, 4096, 77, 40), (1024, 3, 49, 49, 32),
        (1, 8, 1024, 1024, 80), (16, 12, 128, 128, 32), (1, 12, 197, 197, 64), (1, 6, 197, 197, 64),
        (4, 4, 256, 256, 36), (1, 8, 100, 850, 32), (1, 12, 128, 128, 32), (64, 3, 49, 49, 32), (64, 2, 49, 49, 32),
        (16, 6, 49, 49, 32), (4, 12, 49, 49, 32), (1, 24, 49, 49, 32), (4, 4, 64, 64, 48), (4, 4, 16, 16, 60),
        (1, 12, 1, 1024, 64), (1, 16, 577, 577, 64), (1, 4, 50, 50, 16), (1, 8, 256, 256, 128),
    )
)  # fmt: skip
"""Of vision transformers, windows, language models with many keys or one query, decoders, and pictures with texts."""


def judged(times: dict[Problem, Times], caps: DeviceCaps) -> list[tuple[Problem, str, float, float, float]]:
    """Return for each problem the tile that is chosen, what it was expected to take, what it took, and the best.

    The best is that of all tiles with a time, also of those that are not offered any more.
    """
    out = []
    for problem, us in times.items():
        expected = {repr(t): microseconds(caps, problem.extents, t) for t in legal_tiles(caps, problem.extents)}
        chosen = min(expected, key=expected.__getitem__)
        if chosen not in us:
            raise SystemExit(f"{chosen} has no time for {tuple(problem)}: time the tiles anew with --device")
        out.append((problem, chosen, expected[chosen], us[chosen], min(us.values())))
    return out


def recorded() -> dict[Problem, Times]:
    """Return the times of the file."""
    return {Problem(*ast.literal_eval(sizes)): us for sizes, us in json.loads(DATA.read_text("utf-8"))["us"].items()}


def _runtime(device: str) -> GpuRuntime:
    choice = weft.registry.choose(device)[0]
    if not isinstance(choice.creator, GpuCreator):
        raise SystemExit(f"--device {device}: it runs no kernels of Weft's")
    runtime = choice.creator.runtime(choice.index)
    runtime.trust()
    return runtime


def _time(device: str, problems: Sequence[Problem], built: Any, lock: Any, answers: Any) -> None:
    """Build the kernels of some problems, wait for all other processes, and time them while no other does."""
    runtime = _runtime(device)
    with ExitStack() as stack:
        benches = []
        try:
            for each in problems:
                lead = (each.batch, each.heads)
                q, k, v, y = (
                    Tensor(name, (*lead, rows, each.depth), DType.FLOAT32, Layout.NCHW)
                    for name, rows in (("q", each.queries), ("k", each.keys), ("v", each.keys), ("y", each.queries))
                )
                bench = stack.enter_context(NodeBench(runtime, Attention(scale=each.depth**-0.5), [q, k, v], [y]))
                (choice,) = bench.choices()
                variants = {text: bench.plan(choice.key, text) for text in choice.decision.texts}
                benches.append((each, bench, {text: x for text, x in variants.items() if x.is_built}))
            built.wait()
        except BaseException:
            built.abort()  # or the others would wait for ever
            raise
        with lock:
            for each, bench, variants in benches:
                answers.put((each, _timed(each, bench, variants)))


def _timed(problem: Problem, bench: NodeBench, variants: dict[str, Any]) -> Times:
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
            print(f"{tuple(problem)} {text}: {wrong}")
    for _ in range(2):
        for text in us:
            us[text] = min(us[text], bench.seconds(variants[text], bench.once(variants[text])) * 1e6)
    return {text: round(each, 2) for text, each in us.items()}


def timed(device: str, jobs: int) -> dict[Problem, Times]:
    """Return what all tiles that fit a device take; SystemExit if a process fails."""
    _runtime(device)
    context = multiprocessing.get_context("spawn")
    jobs = min(jobs, len(PROBLEMS))
    built, lock, answers = context.Barrier(jobs), context.Lock(), context.Queue()
    started = [
        context.Process(target=_time, args=(device, PROBLEMS[k::jobs], built, lock, answers)) for k in range(jobs)
    ]
    for process in started:
        process.start()
    found = dict[Problem, Times]()
    while len(found) < len(PROBLEMS):
        try:
            found.update([answers.get(timeout=1)])
        except queue.Empty:
            if any(process.exitcode for process in started):
                raise SystemExit("a process that times tiles failed: see above") from None
    for process in started:
        process.join()
    return {problem: found[problem] for problem in PROBLEMS}


def main() -> None:
    """Print the estimates beside the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", help="time the tiles on this device")
    parser.add_argument("--jobs", type=number, default=1, help="processes that build kernels")
    options = parser.parse_args()
    if options.device:
        times = timed(options.device, options.jobs)
        runtime = _runtime(options.device)
        held = {str(tuple(problem)): us for problem, us in times.items()}
        info = runtime.device.info
        content = {"device": f"{info.name}, {info.driver}", "api": info.id, "date": str(date.today()), "us": held}
        DATA.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    rows = judged(recorded(), CARDS["opencl"].caps)  # a card of as many units as those that the times are of
    print(f"{'attention':28} {'tile':42} expected  taken  best")
    for problem, tile, expected, took, best in rows:
        print(f"{tuple(problem)!s:28} {tile:42} {expected:8.1f} {took:6.1f} {best:5.1f}")
    for what, ratios in (
        ("chosen over best", [took / best for *_, took, best in rows]),
        ("expected over taken", [expected / took for _, _, expected, took, _ in rows]),
    ):
        print(f"{what}: {exp(sum(map(log, ratios)) / len(ratios)):.3f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
