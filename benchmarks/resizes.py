"""Times what a new shape costs: a resize of ResNet-50, a token of a GPT-2 whose cache grows, and shapes in turns.

    python -m benchmarks.resizes --devices cpu,opencl,vulkan --json resizes.json

A resize counts planning and binding, not the run; a token counts both, and beside it stands a run of the same length
again. `gpt2` has 128 channels and 1,000 words, `wide` 900 channels and 150,000 words in fp16 (270 MB; it needs 5 GB).
`turns` runs SqueezeNet with batches of 1, 2 and 4 in turns, and with pictures of three sizes, each beside a second run
of the same size; its times are the sums of the medians of the sizes. Each other time is the median of shapes that the
session had not seen, after some others. Beside wall time stands the processor time of the process: on a machine that
others use it says more. `built` is how many programs or pipelines the device built for one call. To time an older tree,
run this file with its `weft` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.gpt2 import TWO_LAYERS, WIDE, gpt2
from benchmarks.minilm import Sizes
from benchmarks.models import resnet50, squeezenet1_1
from benchmarks.options import output, words

DEVICES = ("cpu", "opencl", "vulkan")
NETWORKS = ("resnet50", "gpt2", "wide", "turns")
BATCHES_AND_SIZES = ((2, 96, 96), (3, 64, 64), (1, 128, 96), (2, 64, 128), (4, 96, 64), (1, 160, 160), (5, 64, 64))
FIRST_WORDS = 20
"""Words in the cache before the first token that counts."""
BATCHES, PICTURE = (1, 2, 4), 64
PICTURES = (64, 80, 96)
ROUNDS = 30
"""How often each size has its turn."""


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
    with weft.load(model, device, shapes={"x": (1, 3, 64, 64)}, fallback="error", wait="all") as session:
        session.resize(shapes[0])
        return timed([lambda s=shape: session.resize(s) for shape in shapes[1:]], "ResNet-50, resize", device)  # type: ignore[misc]


def feeds(sizes: Sizes, past: int, float_type: type[np.floating[Any]] = np.float32) -> Mapping[str, np.ndarray]:
    """Return a word, a mask of ones, and random caches of `past` words."""
    rng = np.random.default_rng(past)
    shape = (1, sizes.heads, past, sizes.hidden // sizes.heads)
    caches = {
        f"past.{layer}.{kind}": rng.standard_normal(shape, dtype=np.float32).astype(float_type)
        for layer in range(sizes.layers)
        for kind in ("key", "value")
    }
    given = {"input_ids": np.ones((1, 1), np.int64), "attention_mask": np.ones((1, past + 1), np.int64)}
    return {**given, **caches}


def gpt2_tokens(device: str, tokens: int, precision: str) -> list[Times]:
    """Return what a token takes while the cache grows by one at each, and what a run of the last length takes."""
    return _tokens(gpt2(TWO_LAYERS), TWO_LAYERS, "GPT-2", device, tokens, precision)


def wide_tokens(device: str, tokens: int, precision: str) -> list[Times]:
    """Return the same for a network of 900 channels and 150,000 words in fp16."""
    model = gpt2(WIDE, tied=True, half=True)
    return _tokens(model, WIDE, "wide GPT-2", device, tokens, precision, float_type=np.float16)


def _tokens(
    model: Any, sizes: Sizes, what: str, device: str, tokens: int, precision: str,
    *, float_type: type[np.floating[Any]] = np.float32,
) -> list[Times]:
    begun = FIRST_WORDS - 2
    shapes = {n: a.shape for n, a in feeds(sizes, begun).items()}
    with weft.load(model, device, shapes=shapes, fallback="error", precision=precision, wait="all") as session:
        for past in (begun, begun + 1):
            session.run(feeds(sizes, past, float_type))
        inputs = [feeds(sizes, FIRST_WORDS + k, float_type) for k in range(tokens)]
        grown = timed([lambda i=each: session.run(i) for each in inputs], f"{what}, token", device)  # type: ignore[misc]
        again = timed([lambda: session.run(inputs[-1])] * tokens, f"{what}, same length again", device)
        return [grown, again]


def sizes_in_turns(device: str, precision: str) -> list[Times]:
    """Return what a run takes whose size is another than that of the run before, and one whose size is the same.

    Each size runs twice before the next one has its turn, so each run has its pair at the same time.
    """
    model = squeezenet1_1("n", image=PICTURE)
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], ("h", "w"), strict=True):
        dim.dim_param = name
    rng, rows = np.random.default_rng(0), list[Times]()
    kinds = {"batches": [(n, PICTURE) for n in BATCHES], "pictures": [(1, size) for size in PICTURES]}
    for kind, sizes in kinds.items():
        inputs = [rng.standard_normal((n, 3, size, size), dtype=np.float32) for n, size in sizes]
        with weft.load(model, device, fallback="error", precision=precision, wait="all") as session:
            for each in (*inputs, *inputs, *inputs):
                session.run(each)
            pairs = [(timed([run], "", device), timed([run], "", device))
                     for each in inputs * ROUNDS for run in [partial(session.run, each)]]
        for place, what in enumerate(("in turns", "same again")):
            medians = [_median([pair[place] for pair in pairs[k :: len(inputs)]]) for k in range(len(inputs))]
            wall, cpu = (sum(each) for each in zip(*medians, strict=True))
            counts = [pair[place].built for pair in pairs]
            built = None if None in counts else sum(filter(None, counts)) / len(counts)
            rows.append(Times(f"SqueezeNet, {len(inputs)} {kind}, {what}", device, wall, cpu, built))
    return rows


def _median(times: Sequence[Times]) -> tuple[float, float]:
    return statistics.median(t.wall_ms for t in times), statistics.median(t.cpu_ms for t in times)


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
    parser.add_argument("--networks", type=words(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--precision", default="high", help="of the decoders and of SqueezeNet")
    parser.add_argument("--json", type=output, help="a file for the figures")
    given = parser.parse_args(arguments)
    rows: list[Times] = []
    for device in given.devices:
        if "resnet50" in given.networks:
            rows.append(resnet_resizes(device))
        if "gpt2" in given.networks:
            rows += gpt2_tokens(device, given.tokens, given.precision)
        if "wide" in given.networks:
            rows += wide_tokens(device, given.tokens, given.precision)
        if "turns" in given.networks:
            rows += sizes_in_turns(device, given.precision)
    print(table(rows))
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
