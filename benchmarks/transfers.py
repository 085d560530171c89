"""Time the transfer of large inputs to a device: host copies by number of threads, and whole runs.

    python -m benchmarks.transfers [--devices vulkan,opencl] [--batch 32] [--threads 1,2,4,8,16] [--stream off,on]

The network is a Relu and an average over each picture: it reads all of a batch (19.3 MB for 32 pictures of
224 x 224) and computes and returns next to nothing. `fill` copies into the device's staging memory alone. `run` is
host to host, from numpy to numpy; `over device` what is left of it without the span of the launches, which a session
that takes timestamps tells. In the first row numpy copies in the calling thread and everything is sent after it; the
others are `Session.run` with that many threads, on a device that sends ahead in chunks. `--stream off,on` measures
every device without and with chunks, whatever it does by itself; the staging memory may be another, too.

A second table compares arrays: numpy's, in the model's type and, at precision low, in fp16; and those of the session
(`Session.input_arrays`, `output_arrays`), which a run does not copy. `fill` is what a caller pays who has his data
elsewhere; it is no part of `run`. One network is the same, the other a Relu alone, which returns as much as it takes.

`--pieces` measures instead what a run at batch 1 consists of, for arrays of 1 to 9 MB (`benchmarks.run_pieces`):

    python -m benchmarks.transfers --pieces [--devices vulkan,opencl] [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import weft
from benchmarks import run_pieces
from benchmarks.measure import Array, Counts, timed
from benchmarks.options import number, numbers, words
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.recording import chunked_upload
from weft.core.host import parallel_copy
from weft.core.session.pipeline import Pipeline
from weft.errors import WeftError

STREAMS = ("", "off", "on", "off,on", "on,off")
"""What `--stream` takes."""


@dataclass(frozen=True)
class Row:
    """One way to copy: the ms of a copy into staging memory, and the median and 90th percentile of a run's."""

    copied_by: str
    fill_ms: float
    run_ms: float
    p90_ms: float


@dataclass(frozen=True)
class ArraysRow:
    """One kind of arrays: ms to fill the input from another array, and the median and 90th percentile of a run's."""

    kind: str
    fill_ms: float
    run_ms: float
    p90_ms: float


def network(batch: int, image: int) -> weft.Network:
    """Return a network whose input is large and whose work and output are small."""
    net = weft.Network("transfers")
    relu = net.add_layer("Relu", net.add_input("x", (batch, 3, image, image)))
    net.add_output("y", net.add_layer("Flatten", net.add_layer("GlobalAveragePool", relu)))
    return net


def echo(batch: int, image: int) -> weft.Network:
    """Return a network whose output is as large as its input, with next to no work."""
    net = weft.Network("echo")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (batch, 3, image, image))))
    return net


def measure_arrays(device: str, net: weft.Network, x: Array, precision: str, counts: Counts) -> list[ArraysRow]:
    """Return a row for each kind of arrays that a caller may have at this precision."""
    rows = list[ArraysRow]()
    with weft.load(net, device, precision=precision, fallback="error", wait="all") as session:
        (expected,) = session.run(x)

        def row(kind: str, given: Array, out: Array) -> None:
            def run() -> Array:
                session.run(given, outputs=[out])
                return out

            fill = timed(lambda: np.copyto(given, x, casting="same_kind"), counts)[0]
            np.testing.assert_allclose(run(), expected, atol=1e-4 if precision == "high" else 1e-2)
            rows.append(ArraysRow(kind, fill, *timed(run, counts)))

        for dtype in (np.float32, *([np.float16] if precision == "low" else [])):
            row(f"numpy's, {np.dtype(dtype)}", np.empty(x.shape, dtype), np.empty(expected.shape, dtype))
        (given,), (out,) = session.input_arrays().values(), session.output_arrays().values()
        row(f"session's, {given.dtype}", given, out)
    return rows


def measure(device: str, net: weft.Network, x: Array, threads: Sequence[int], counts: Counts) -> list[Row]:
    """Return the row of numpy's copy, then one for each number of threads."""
    right = np.maximum(x, 0).mean(axis=(2, 3), dtype=np.float64)
    with weft.load(net, device, precision="high", fallback="error", wait="all") as session:
        (pipeline,) = session.pipelines
        mapped = pipeline.mapped["x"]

        def row(name: str, fill: Callable[[], None], run: Callable[[], Array]) -> Row:
            np.testing.assert_allclose(run(), right, atol=1e-4)
            return Row(name, timed(fill, counts)[0], *timed(run, counts))

        rows = [row("np.copyto", lambda: np.copyto(mapped, x), lambda: _one_after_another(pipeline, x))]
        for count in threads:
            parallel_copy.set_threads(count)
            rows.append(row(_times(count), lambda: parallel_copy.copy_into(mapped, x), lambda: session.run(x)[0]))
    return rows


def stream(device: str, mode: str) -> bool:
    """Have the sessions to come on a device send ahead ("on") or not ("off"), and return whether they do."""
    (choice,) = weft.registry.choose(device)
    if not isinstance(choice.creator, GpuCreator):
        return False
    opened = choice.creator.runtime(choice.index).device
    if mode:
        opened.sends_ahead = mode == "on"
    return opened.sends_ahead


def device_ms(device: str, net: weft.Network, x: Array, counts: Counts) -> float:
    """Return the median span of a run's launches; NaN if the device tells no times."""
    spans: list[float] = []
    with weft.load(net, device, precision="high", fallback="error", profile="span") as session:

        def sample() -> None:
            session.run(x)
            spans.extend(value * 1e3 for (_, name), value in session.profile.counters.items() if name == "span")

        timed(sample, counts)
    return float(np.median(spans)) if spans else float("nan")


def _one_after_another(pipeline: Pipeline, x: Array) -> Array:
    """Run without helpers: copy everything, then send everything, then compute."""
    np.copyto(pipeline.mapped["x"], x)
    pipeline.execute()
    pipeline.wait()
    return pipeline.mapped["y"].copy()


def _times(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def show(device: str, rows: Sequence[Row], span: float, nbytes: int) -> None:
    """Print the table of one device; what cannot be told is "-", with a remark on it."""
    print(f"\n{device}: {nbytes / 1e6:.1f} MB, launches {_number(span, 3)} ms")
    print(f"{'copied by':<12}{'fill ms':>9}{'GB/s':>8}{'run ms':>9}{'p90':>8}{'over device':>13}{'GB/s':>8}")
    for r in rows:
        over = r.run_ms - span if r.run_ms > span else math.nan
        fill, rest = (_number(nbytes / 1e6 / ms if ms > 0 else math.nan, 1) for ms in (r.fill_ms, over))
        line = f"{r.copied_by:<12}{r.fill_ms:>9.3f}{fill:>8}{r.run_ms:>9.3f}{r.p90_ms:>8.3f}"
        print(f"{line}{_number(over, 3):>13}{rest:>8}", flush=True)
    if math.isnan(span):
        print("-: the device tells no times of its launches")
    elif any(r.run_ms <= span for r in rows):
        print("-: the run took no longer than the launches alone, which are slower with timestamps")


def show_arrays(device: str, name: str, precision: str, rows: Sequence[ArraysRow]) -> None:
    """Print the table of one network on one device."""
    print(f"\n{device}, {name}, precision {precision}")
    print(f"{'arrays':<20}{'fill ms':>9}{'run ms':>9}{'p90':>8}")
    for r in rows:
        print(f"{r.kind:<20}{r.fill_ms:>9.3f}{r.run_ms:>9.3f}{r.p90_ms:>8.3f}", flush=True)


def _number(number: float, digits: int) -> str:
    return "-" if math.isnan(number) else f"{number:.{digits}f}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [creator.id for creator in weft.registry.creators()]
    parser.add_argument("--devices", type=words(known), default=["vulkan", "opencl"])
    parser.add_argument("--batch", type=number, default=32)
    parser.add_argument("--image", type=number, default=224)
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4, 8, 16])
    piece = "most bytes that are copied at a time"
    parser.add_argument("--piece", type=number, default=parallel_copy.PIECE, help=piece)
    parser.add_argument("--chunk", type=number, default=chunked_upload.CHUNK, help="bytes that are sent together")
    parser.add_argument("--stream", choices=STREAMS, default="", help="without or with chunks; else as devices do")
    parser.add_argument("--pieces", action="store_true", help="what a run at batch 1 consists of, and nothing else")
    parser.add_argument("--iterations", type=number, default=200)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement at most")
    return parser.parse_args(arguments)


def show_pieces(devices: Sequence[str], seconds: float) -> None:
    """Print the tables of `benchmarks.run_pieces` for each device, and how long they took."""
    begun = time.perf_counter()
    for device in devices:
        try:
            run_pieces.show_copies(device, (1, 2, 3, 4, 6, 8), seconds / 8)
            for name in run_pieces.SHAPES:
                run_pieces.show_runs(device, name, "low", seconds)
        except WeftError as e:
            print(f"\n{device}: {e}")
    print(f"\n{time.perf_counter() - begun:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each device and print its table."""
    given = parse(arguments)
    parallel_copy.PIECE, chunked_upload.CHUNK = given.piece, given.chunk
    if given.pieces:
        return show_pieces(given.devices, given.seconds)
    counts = Counts(min(20, given.iterations), given.iterations, given.seconds)
    if counts.trial:
        counts = replace(counts, warm=0.0)
    net = network(given.batch, given.image)
    x = np.random.default_rng(0).standard_normal((given.batch, 3, given.image, given.image)).astype(np.float32)
    threads = parallel_copy.default_threads()
    print(f"{threads} threads by default, pieces of {given.piece}, chunks of {given.chunk} bytes")
    for device in given.devices:
        try:
            span = device_ms(device, net, x, counts)
            for mode in given.stream.split(","):
                name = f"{device} ({'chunks' if stream(device, mode) else 'no chunks'})"
                show(name, measure(device, net, x, given.threads, counts), span, x.nbytes)
            parallel_copy.set_threads(threads)
            for each in (net, echo(given.batch, given.image)):
                for precision in ("high", "low"):
                    rows = measure_arrays(device, each, x, precision, counts)
                    show_arrays(device, each.name, precision, rows)
        except WeftError as e:
            print(f"\n{device}: {e}")
        finally:
            parallel_copy.set_threads(parallel_copy.default_threads())


if __name__ == "__main__":
    main()
