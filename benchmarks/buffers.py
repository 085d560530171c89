"""Time runs with buffers beside runs with arrays, and look for growth, for shared weights, and at threads.

    python -m benchmarks.buffers [--devices vulkan,opencl] [--parts times,growth,memory,threads] [--runs 100000]

`times`: host to host with numpy's arrays, with the session's own (`input_arrays`, `output_arrays`), with buffers that
are used again, and with new ones for each output (`outputs=weft.Buffer`); beside each the bytes that a run copies to
and from the device, as `Session.transfers` counts them. One network is a Relu of 19.3 MB, one ResNet-50. The last rows
are two sessions, of which one reads what the other makes (3.2 MB): as arrays, or as a buffer. A run with buffers has
ended when it returns.

`growth` runs a tiny network many times, with the same buffers and with new ones, and prints the process's resident
memory, the bytes of the device and its recordings after each tenth. `memory` prints both for one, two and four sessions
of a network of 270 MB, each loaded from the same bytes. `threads` runs ResNet-50 in one, two and four threads with a
session each, which share their input.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks import resizes
from benchmarks.gpt2 import WIDE, gpt2
from benchmarks.measure import Array, Counts, timed
from benchmarks.models import resnet50
from benchmarks.options import number, output, words
from benchmarks.transfers import echo
from scripts.memory import resident_megabytes
from weft.backends.gpu.creator import GpuCreator

PARTS = ("times", "growth", "memory", "threads")
SESSIONS = (1, 2, 4)
TOLERANCE = 2e-3
"""How far results may be apart, relative to the largest: with buffers the same kernels run."""


@dataclass(frozen=True)
class Row:
    """One figure, or several, of a device."""

    device: str
    what: str
    figures: Mapping[str, float]


def times(device: str, counts: Counts, batch: int, image: int) -> list[Row]:
    """Return the times of a run for each kind of arrays."""
    x = np.random.default_rng(0).standard_normal((batch, 3, image, image)).astype(np.float32)
    rows = _kinds(device, f"Relu, {x.nbytes / 1e6:.1f} MB", echo(batch, image), {"x": x}, counts)
    picture = x[:1].copy()
    rows += _kinds(device, "ResNet-50", resnet50(1, image=image), {"x": picture}, counts)
    return rows + _two_sessions(device, picture, counts)


def _convolution(shape: tuple[int, ...], channels: int, kernel: int, **attributes: Any) -> weft.Network:
    net, rng = weft.Network("convolution"), np.random.default_rng(1)
    weights = rng.standard_normal((channels, shape[1], kernel, kernel)) / (kernel * shape[1] ** 0.5)
    x, pads = net.add_input("x", shape), [kernel // 2] * 4
    y = net.add_layer("Conv", x, weights.astype(np.float32), pads=pads, **attributes)
    net.add_output("y", net.add_layer("Relu", y))
    return net


def _two_sessions(device: str, x: Array, counts: Counts) -> list[Row]:
    n, c, h, w = x.shape
    with ExitStack() as held:
        first, second = (
            held.enter_context(weft.load(net, device, fallback="error", wait="all"))
            for net in (_convolution((n, c, h, w), 64, 7, strides=[2, 2]), _convolution((n, 64, h // 2, w // 2), 64, 3))
        )
        between = held.enter_context(first.buffer("y"))

        def by_buffer() -> list[Any]:
            first.run(x, outputs=[between])
            return second.run(between)

        expected = second.run(first.run(x)[0])
        kinds = {"arrays between": lambda: second.run(first.run(x)[0]), "a buffer between": by_buffer}
        return [
            _row(device, f"two sessions, {kind}", [first, second], run, expected, counts) for kind, run in kinds.items()
        ]


def _kinds(device: str, name: str, model: Any, inputs: Mapping[str, Array], counts: Counts) -> list[Row]:
    with ExitStack() as held:
        session = held.enter_context(weft.load(model, device, fallback="error", wait="all"))
        expected = session.run(dict(inputs))
        kinds: dict[str, Callable[[], list[Any]]] = {"numpy's": lambda: session.run(dict(inputs))}
        given, out = session.input_arrays(), session.output_arrays()
        for key, value in inputs.items():
            given[key][...] = value
        kinds["session's"] = lambda: session.run(given, outputs=out)
        buffers = {key: held.enter_context(session.buffer(key, value)) for key, value in inputs.items()}
        results = {key: held.enter_context(session.buffer(key)) for key in session.outputs}
        kinds["buffers"] = lambda: session.run(buffers, outputs=results)
        kinds["new buffers"] = lambda: session.run(buffers, outputs=weft.Buffer)
        kinds["numpy's in, buffers out"] = lambda: session.run(dict(inputs), outputs=results)
        return [_row(device, f"{name}, {kind}", [session], run, expected, counts) for kind, run in kinds.items()]


def _row(
    device: str, what: str, sessions: Sequence[weft.Session], run: Callable[[], list[Any]], expected: Sequence[Array],
    counts: Counts,
) -> Row:
    for result, value in zip(run(), expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, atol=TOLERANCE * float(np.abs(value).max()))
    median, p90 = timed(run, counts)
    before = [session.transfers for session in sessions]
    run()
    after = [session.transfers for session in sessions]
    copied = [sum(getattr(b, n) - getattr(a, n) for a, b in zip(before, after, strict=True))
              for n in ("to_devices", "from_devices")]
    return Row(device, what, {"ms": median, "p90 ms": p90, "bytes in": copied[0], "bytes out": copied[1]})


# -- what a process holds ----------------------------------------------------------------------------------------


def _held(device: str) -> dict[str, float]:
    """Return what the process and the device hold, in MB, and how many recordings there are."""
    held = {"resident MB": resident_megabytes()}
    for use in weft.memory():
        if use.device == (device if ":" in device else f"{device}:0"):
            held |= {"buffers": use.buffers, "device MB": (use.all_bytes or use.buffer_bytes) / 2**20}
    (choice,) = weft.registry.choose(device)
    if isinstance(choice.creator, GpuCreator):
        held["recordings"] = choice.creator.runtime(choice.index).device.stats.live_recordings
    return held


def growth(device: str, runs: int) -> list[Row]:
    """Return what the process holds after each tenth of many runs."""
    net = weft.Network("tiny")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (1, 256))))
    value, rows = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32), list[Row]()
    with ExitStack() as held:
        session = held.enter_context(weft.load(net, device, fallback="error", wait="all"))
        x, y = held.enter_context(session.buffer("x", value)), held.enter_context(session.buffer("y"))
        kinds: dict[str, Callable[[], object]] = {
            "the same buffers": lambda: session.run(x, outputs=[y]),
            "a new buffer for the output": lambda: session.run(x, outputs=weft.Buffer),
            "a new buffer for the input": lambda: session.run(weft.array(value, device=device), outputs=[y]),
        }
        for kind, run in kinds.items():
            for tenth in range(11):
                count = max(runs // 10, 1) if tenth else 100
                begun = time.perf_counter()
                for _ in range(count):
                    run()
                us = (time.perf_counter() - begun) / count * 1e6
                what = f"{kind}, {tenth * count if tenth else 0:,} runs"
                rows.append(Row(device, what, {"us a run": us, **_held(device)}))
            np.testing.assert_array_equal(y.numpy(), np.maximum(value, 0))
    return rows


def memory(device: str) -> list[Row]:
    """Return what the process holds with several sessions of one network."""
    model = gpt2(WIDE, tied=True, half=True).SerializeToString()
    given = resizes.feeds(WIDE, 16, np.float16)
    shapes = {name: array.shape for name, array in given.items()}
    rows, expected = [Row(device, "no session", _held(device))], list[Array]()
    with ExitStack() as held:
        for count in range(1, SESSIONS[-1] + 1):
            begun = time.perf_counter()
            session = held.enter_context(weft.load(model, device, shapes=shapes, fallback="error", wait="all"))
            took = time.perf_counter() - begun
            results = session.run(given)
            expected = expected or results
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, value)
            if count in SESSIONS:
                what = f"{count} session{'s' if count > 1 else ''} of {len(model) / 1e6:.0f} MB"
                rows.append(Row(device, what, {**_held(device), "last load s": took}))
    return rows


def _work(session: weft.Session, shared: weft.Buffer, expected: Array, seconds: float) -> int:
    """Run for so long, and return how often."""
    done, stop = 0, time.perf_counter() + seconds
    with session.buffer("y") as y:
        while time.perf_counter() < stop:
            session.run(shared, outputs=[y])
            done += 1
        np.testing.assert_allclose(y.numpy(), expected, atol=TOLERANCE * float(np.abs(expected).max()))
    return done


def threads(device: str, seconds: float, image: int) -> list[Row]:
    """Return how many runs a second several threads get, which share their input."""
    rows, model = list[Row](), resnet50(1, image=image)
    x = np.random.default_rng(0).standard_normal((1, 3, image, image)).astype(np.float32)
    for count in SESSIONS:
        with ExitStack() as held, weft.array(x, device=device) as shared:
            sessions = [
                held.enter_context(weft.load(model, device, fallback="error", wait="all")) for _ in range(count)
            ]
            (expected,) = sessions[0].run(x)
            for session in sessions:
                _work(session, shared, expected, 0.1)
            begun = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                each = [pool.submit(_work, session, shared, expected, seconds) for session in sessions]
                done = sum(one.result() for one in each)
            rate = done / (time.perf_counter() - begun)
        rows.append(Row(device, f"{count} thread{'s' if count > 1 else ''}", {"runs a second": rate}))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    lines = list[str]()
    for row in rows:
        figures = ", ".join(f"{name} {value:,.3f}".rstrip("0").rstrip(".") for name, value in row.figures.items())
        lines.append(f"{row.device:<10} {row.what:<52} {figures}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [creator.id for creator in weft.registry.creators()]
    parser.add_argument("--devices", type=words(known), default=["vulkan", "opencl"])
    parser.add_argument("--parts", type=words(PARTS), default=["times", "memory", "threads"])
    parser.add_argument("--runs", type=number, default=100_000, help="of each kind of buffers in `growth`")
    parser.add_argument("--batch", type=number, default=32, help="of the Relu")
    parser.add_argument("--image", type=number, default=224)
    parser.add_argument("--iterations", type=number, default=200)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement at most")
    parser.add_argument("--json", type=output)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = parse(arguments)
    counts = Counts(iterations=given.iterations, seconds=given.seconds)
    rows = list[Row]()
    parts: dict[str, Callable[[str], list[Row]]] = {
        "times": lambda device: times(device, counts, given.batch, given.image),
        "growth": lambda device: growth(device, given.runs),
        "memory": memory,
        "threads": lambda device: threads(device, given.seconds, given.image),
    }
    for device in given.devices:
        for part in given.parts:
            made = parts[part](device)
            print(f"\n{part}\n{table(made)}", flush=True)
            rows += made
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
