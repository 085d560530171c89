"""Time a pool on one device and on several: how many pictures a second it runs, and how that grows.

    python -m benchmarks.pool [--devices vulkan:0,vulkan:1] [--batch 32] [--replicas 1,2] [--precision low]

Callers in threads keep the queue filled with pictures in fp32 for ResNet-50, one a request, so the figures are host to
host, copies included. Rows in turn: the first device, the first two, and so on, by replicas for each device. The last
figure of a row is its rate over that of the first device with as many replicas. Without --devices, all GPUs count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

import weft
from benchmarks.measure import Array
from benchmarks.models import resnet50
from benchmarks.options import number, numbers, output

TOLERANCE = 2e-2
"""How far results of a batch may be from those of one picture, relative to the largest: precision LOW has fp16."""


@dataclass(frozen=True)
class Row:
    """The rate of one pool."""

    devices: int
    replicas: int
    """For each device."""
    pictures_per_second: float
    mean_batch: float
    busy: float
    """The share of the time in which a replica ran, on average."""
    over_one: float
    """The rate over that of one device."""


def measure(pool: weft.Pool, x: Array, expected: Array, callers: int, seconds: float) -> tuple[float, float, float]:
    """Return the pictures a second, the mean rows of a run, and the share of the time in which replicas ran."""
    ahead = 3 * len(pool.report.replicas) * pool.batch // callers + 1

    def call(last: float) -> int:
        done, results, mapped = 0, [expected], pool.map(repeat(x), ahead=ahead)
        while time.perf_counter() < last:
            results, done = next(mapped), done + 1
        np.testing.assert_allclose(results[0], expected, atol=TOLERANCE * float(np.abs(expected).max()))
        return done

    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(call, repeat(time.perf_counter() + min(seconds, 2.0), callers)))  # warms up
        before, begun = pool.report.replicas, time.perf_counter()
        done = sum(threads.map(call, repeat(begun + seconds, callers)))
        took, after = time.perf_counter() - begun, pool.report.replicas
    runs = sum(b.runs - a.runs for a, b in zip(before, after, strict=True))
    rows = sum(b.rows - a.rows for a, b in zip(before, after, strict=True))
    busy = sum(b.busy_seconds - a.busy_seconds for a, b in zip(before, after, strict=True))
    return done / took, rows / max(runs, 1), busy / took / len(after)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="", help="names with commas between them")
    parser.add_argument("--replicas", type=numbers, default=[1, 2], help="for each device")
    parser.add_argument("--batch", type=number, default=32)
    parser.add_argument("--precision", default="low")
    parser.add_argument("--image", type=number, default=224)
    parser.add_argument("--width", type=float, default=1.0, help="of ResNet-50's layers")
    parser.add_argument("--callers", type=number, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--json", type=output)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = parse(arguments)
    devices = [d for d in given.devices.split(",") if d] or [d.identity for d in weft.registry.gpus()]
    model = resnet50("n", image=given.image, width=given.width).SerializeToString()
    x = np.random.default_rng(0).standard_normal((1, 3, given.image, given.image)).astype(np.float32)
    print(f"ResNet-50, {given.precision}, batches of up to {given.batch}, on {', '.join(devices)}")
    rows, one = list[Row](), dict[int, float]()
    for count in range(1, len(devices) + 1):
        for replicas in given.replicas:
            with weft.Pool(
                model, devices[:count], replicas=replicas, batch=given.batch, batch_wait=0.005, queue=1 << 20,
                precision=given.precision, fallback="error", wait="all",
            ) as pool:
                pool.warm()
                rate, mean, busy = measure(pool, x, pool.run(x)[0], given.callers, given.seconds)
            one.setdefault(replicas, rate)
            rows.append(Row(count, replicas, rate, mean, busy, rate / one[replicas]))
            print(
                f"{count} device(s), {replicas} replica(s) each: {rate:9.1f} pictures/s, {mean:5.1f} a run, "
                f"busy {busy:4.0%}, {rate / one[replicas]:.2f}x",
                flush=True,
            )
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
