"""Times what a new shape costs: a resize of ResNet-50, and each token of a two-layer GPT-2 whose cache grows by one.

    python -m benchmarks.resizes --devices cpu,opencl,vulkan --json resizes.json

A resize counts planning and binding, not the run; a token counts both. Each time is the median of shapes that the
session had not seen, after some others. Beside wall time stands the processor time of the process: on a machine that
others use it says more. `built` is how many programs or pipelines the device built for one new shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.gpt2 import TWO_LAYERS, gpt2
from benchmarks.minilm import Sizes
from benchmarks.models import resnet50
from benchmarks.options import output, words

DEVICES = ("cpu", "opencl", "vulkan")
BATCHES_AND_SIZES = ((2, 96, 96), (3, 64, 64), (1, 128, 96), (2, 64, 128), (4, 96, 64), (1, 160, 160), (5, 64, 64))
FIRST_WORDS = 20
"""Words in the cache before the first token that counts."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of one kind of new shape on a device, medians."""

    what: str
    device: str
    wall_ms: float
    cpu_ms: float
    built: float | None
    """Programs built for one shape, on average; None on devices that build none."""


def timed(calls: Sequence[Callable[[], object]], what: str, device: str) -> Times:
    """Return the medians of these calls."""
    wall, cpu, built = [], [], _built(device)
    for call in calls:
        begun, used = time.perf_counter(), time.process_time()
        call()
        wall.append((time.perf_counter() - begun) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    now = _built(device)
    each = None if built is None or now is None else (now - built) / len(calls)
    return Times(what, device, statistics.median(wall), statistics.median(cpu), each)


def _built(device: str) -> int | None:
    if device.startswith("cpu"):
        return None
    name, _, index = device.partition(":")
    creator: Any = weft.registry.find(name)
    return int(creator.runtime(int(index or 0)).device.stats.compiles)


def resnet_resizes(device: str) -> Times:
    """Return what a resize of ResNet-50 to another batch or size takes, once the device has its kernels."""
    model = resnet50("n")
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], ("h", "w"), strict=True):
        dim.dim_param = name
    shapes = [{"x": (n, 3, h, w)} for n, h, w in BATCHES_AND_SIZES]
    with weft.load(model, device, shapes={"x": (1, 3, 64, 64)}, fallback="error") as session:
        session.resize(shapes[0])
        return timed([lambda s=shape: session.resize(s) for shape in shapes[1:]], "ResNet-50, resize", device)  # type: ignore[misc]


def feeds(sizes: Sizes, past: int) -> Mapping[str, np.ndarray]:
    """Return a word, a mask of ones, and random caches of `past` words."""
    rng = np.random.default_rng(past)
    shape = (1, sizes.heads, past, sizes.hidden // sizes.heads)
    caches = {
        f"past.{layer}.{kind}": rng.standard_normal(shape, dtype=np.float32)
        for layer in range(sizes.layers)
        for kind in ("key", "value")
    }
    given = {"input_ids": np.ones((1, 1), np.int64), "attention_mask": np.ones((1, past + 1), np.int64)}
    return {**given, **caches}


def gpt2_tokens(device: str, tokens: int) -> Times:
    """Return what a token takes, the run included, while the cache grows by one at each."""
    sizes = TWO_LAYERS
    first = feeds(sizes, FIRST_WORDS - 2)
    with weft.load(
        gpt2(sizes), device, shapes={n: a.shape for n, a in first.items()}, fallback="error"
    ) as session:
        for past in (FIRST_WORDS - 2, FIRST_WORDS - 1):
            session.run(feeds(sizes, past))
        inputs = [feeds(sizes, FIRST_WORDS + k) for k in range(tokens)]
        return timed([lambda i=each: session.run(i) for each in inputs], "GPT-2, token", device)  # type: ignore[misc]


def table(rows: Sequence[Times]) -> str:
    """Return the rows as a table."""
    lines = ["| what | device | wall, ms | processor, ms | built |", "|---|---|---|---|---|"]
    for r in rows:
        built = "-" if r.built is None else f"{r.built:.1f}"
        lines.append(f"| {r.what} | {r.device} | {r.wall_ms:.2f} | {r.cpu_ms:.2f} | {built} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=words(DEVICES), default=list(DEVICES), help="with commas between them")
    parser.add_argument("--networks", type=words(("resnet50", "gpt2")), default=["resnet50", "gpt2"])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--json", type=output, help="a file for the figures")
    given = parser.parse_args(arguments)
    rows: list[Times] = []
    for device in given.devices:
        if "resnet50" in given.networks:
            rows.append(resnet_resizes(device))
        if "gpt2" in given.networks:
            rows.append(gpt2_tokens(device, given.tokens))
    print(table(rows))
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
