"""Time a pool on one device and on several: how many pictures a second it runs, and how that grows.

    python -m benchmarks.pool [--devices vulkan:0,vulkan:1] [--batch 32] [--replicas 1,2] [--precision low,high]

Callers in threads keep the queue filled with pictures for ResNet-50, --rows a request, so the figures are host to host,
copies included. Rows in turn: the first device, the first two, and so on, by replicas for each device. The last figure
of a row is its rate over that of the first device with as many replicas. Without --devices, all GPUs count.

--input is the type of the pictures: float32, or uint8, which the network converts, or float16 (with --precision low).
--switch-ms sets how long a thread of Python keeps the interpreter while others wait (5 ms by default). --processes
gives each replica a process of its own. `busy` and `gather` are shares of a replica's time: in runs, and, of it,
putting batches together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import weft
from benchmarks.measure import Array
from benchmarks.models import resnet50
from benchmarks.options import number, numbers, output, words

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
    gather: float
    """The share of the time in which it put batches together."""
    precision: str
    over_one: float
    """The rate over that of one device."""


def measure(pool: weft.Pool, x: Array, expected: Array, callers: int, seconds: float) -> list[float]:
    """Return the pictures a second, the mean rows of a run, and the shares of time in runs and in gathering."""
    ahead = 3 * len(pool.report.replicas) * pool.batch // (callers * len(x)) + 1

    def call(last: float) -> int:
        done, results, mapped = 0, [expected], pool.map(repeat(x), ahead=ahead)
        while time.perf_counter() < last:
            results, done = next(mapped), done + len(x)
        np.testing.assert_allclose(results[0], expected, atol=TOLERANCE * float(np.abs(expected).max()))
        return done

    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(call, repeat(time.perf_counter() + min(seconds, 2.0), callers)))  # warms up
        before, begun = pool.report.replicas, time.perf_counter()
        done = sum(threads.map(call, repeat(begun + seconds, callers)))
        took, after = time.perf_counter() - begun, pool.report.replicas
    names, both = ("runs", "rows", "busy_seconds", "gather_seconds"), list(zip(after, before, strict=True))
    runs, rows, busy, gather = (sum(getattr(a, n) - getattr(b, n) for a, b in both) for n in names)
    return [done / took, rows / max(runs, 1), busy / took / len(after), gather / took / len(after)]


def network(options: argparse.Namespace) -> tuple[bytes, Array]:
    """Return ResNet-50 and the pictures of a request, in the type that it takes."""
    model = resnet50("n", image=options.image, width=options.width)
    shape = (options.rows, 3, options.image, options.image)
    picture = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if options.input != "uint8":
        return model.SerializeToString(), picture.astype(options.input)
    (given,) = model.graph.input
    for node in model.graph.node:
        node.input[:] = ["picture" if name == given.name else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Cast", [given.name], ["picture"], to=TensorProto.FLOAT))
    given.type.tensor_type.elem_type = TensorProto.UINT8
    return model.SerializeToString(), (picture * 40 + 128).clip(0, 255).astype(np.uint8)


def pools(devices: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """Return the rows of one device, two, and so on, each in a pool."""
    rows, one, (model, x) = list[Row](), dict[tuple[str, int], float](), network(options)
    for precision in options.precision:
        for count in range(1, len(devices) + 1):
            for replicas in options.replicas:
                with weft.Pool(
                    model, devices[:count], replicas=replicas, batch=options.batch, batch_wait=0.005, queue=1 << 20,
                    precision=precision, fallback="error", wait="all", processes=options.processes,
                ) as pool:
                    pool.warm()
                    rate, mean, busy, gather = measure(pool, x, pool.run(x)[0], options.callers, options.seconds)
                over = rate / one.setdefault((precision, replicas), rate)
                rows.append(Row(count, replicas, rate, mean, busy, gather, precision, over))
                print(shown(rows[-1]), flush=True)
    return rows


def shown(row: Row) -> str:
    """Return a row as text."""
    return (
        f"{row.precision:>6}, {row.devices} device(s), {row.replicas} replica(s) each: "
        f"{row.pictures_per_second:9.1f} pictures/s, {row.mean_batch:5.1f} a run, busy {row.busy:4.0%}, "
        f"gather {row.gather:4.0%}, {row.over_one:.2f}x"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="", help="names with commas between them")
    parser.add_argument("--replicas", type=numbers, default=[1, 2], help="for each device")
    parser.add_argument("--batch", type=number, default=32)
    parser.add_argument("--rows", type=number, default=1, help="pictures of a request")
    parser.add_argument("--precision", type=words(("high", "normal", "low")), default=["low"])
    parser.add_argument("--input", choices=["float32", "float16", "uint8"], default="float32")
    parser.add_argument("--image", type=number, default=224)
    parser.add_argument("--width", type=float, default=1.0, help="of ResNet-50's layers")
    parser.add_argument("--callers", type=number, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--switch-ms", type=float, default=5.0)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--json", type=output)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = parse(arguments)
    sys.setswitchinterval(given.switch_ms / 1000)
    devices = [d for d in given.devices.split(",") if d] or [d.identity for d in weft.registry.gpus()]
    print(f"ResNet-50 of {given.input}, batches of up to {given.batch}, on {', '.join(devices)}", flush=True)
    rows = pools(devices, given)
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
