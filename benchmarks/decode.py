"""Times generation by language models of real sizes, whose caches grow by a row a word: load, prompts, words.

    python -m benchmarks.decode --networks qwen,llama --forms genai,genai4,optimum --devices opencl,vulkan

A network is built with random weights of the real sizes (`benchmarks.decoders`), saved and loaded with `state=True`.
`prompt` is the first of 512 words, with the planning; then come `--steps` words one by one, and a prompt of 300 more
words. `word` is the median of those that found a plan; `again` the median of runs of the same length, for which the
state is rewound by a row each time; `longest` the longest word but those with a new capacity, whose time is `class`.
`built` counts the programs that the device built after the first word. `same` tells how many words of `--compare`
ONNX Runtime would choose as well, given the same text before each, and `error` the largest difference of their logits
by the largest logit. `caller` is the median word where the caller passes the caches (`--caller`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import weft
from benchmarks.decoders import DECODERS, FORMS, empty_caches, feeds, save
from benchmarks.options import words

PROMPT, MORE = 512, 300


@dataclass
class Row:
    """What one network takes on one device; times in ms, loads in s."""

    network: str
    form: str
    device: str
    precision: str
    load_s: float
    prompt_ms: float
    word_ms: float
    again_ms: float
    longest_ms: float
    class_ms: float
    more_ms: float
    built: int
    state_mb: float
    same: str = ""
    error: float = 0.0
    caller_ms: float = 0.0


def _built(device: str) -> int:
    if device.startswith("cpu"):
        return 0
    name, _, index = device.partition(":")
    creator: Any = weft.registry.find(name)
    return int(creator.runtime(int(index or 0)).device.stats.compiles)


def generate(
    path: Path, network: str, form: str, device: str, precision: str, steps: int
) -> tuple[Row, list[Any], list[Any]]:
    """Return the times, the words, and the logits of each."""
    sizes = DECODERS[network]
    begun = perf_counter()
    session = weft.load(path, device, state=True, precision=precision)
    load = perf_counter() - begun
    rng = np.random.default_rng(0)
    text = rng.integers(0, sizes.vocabulary, (1, min(PROMPT, sizes.positions // 4)))

    def run(new: Any) -> tuple[float, Any]:
        given = feeds(sizes, form, new, session.state.length)
        begun = perf_counter()
        (logits,) = session.run(given)
        return (perf_counter() - begun) * 1e3, logits[0, -1]

    with session:
        prompt, logits = run(text)
        said, all_logits, times, built = [text], [logits], [], 0
        for k in range(steps):
            said.append(np.array([[int(all_logits[-1].argmax())]]))
            took, logits = run(said[-1])
            all_logits.append(logits)
            times.append(took)
            built = _built(device) if k == 0 else built
        built = _built(device) - built
        again = []
        for _ in range(20):
            session.state.rewind(session.state.length - 1)
            again.append(run(said[-1])[0])
        more, _ = run(rng.integers(0, sizes.vocabulary, (1, min(MORE, sizes.positions // 8))))
        median = statistics.median(times)
        slow = sorted(t for t in times if t > 10 * median)
        row = Row(
            network, form, device, precision, load, prompt, median, statistics.median(again),
            max(t for t in times if t <= 10 * median), max(slow, default=0.0), more, built, session.state.nbytes / 1e6,
        )
    return row, said, all_logits


def by_caller(path: Path, network: str, form: str, device: str, precision: str, steps: int) -> float:
    """Return the median time of a word whose caches the caller passes and gets."""
    sizes = DECODERS[network]
    rng, times = np.random.default_rng(0), []
    with weft.load(path, device, precision=precision) as session:
        names = [name.replace("present", "past_key_values") for name in session.outputs]
        caches, past = empty_caches(sizes), 0
        new = rng.integers(0, sizes.vocabulary, (1, 32))
        for _ in range(steps):
            given = {**feeds(sizes, form, new, past), **caches}
            begun = perf_counter()
            logits, *made = session.run(given)
            times.append((perf_counter() - begun) * 1e3)
            past += new.shape[1]
            caches = dict(zip(names[1:], made, strict=True))
            new = np.array([[int(logits[0, -1].argmax())]])
    return statistics.median(times[10:])


def compare(path: Path, network: str, form: str, said: Sequence[Any], logits: Sequence[Any]) -> tuple[str, float]:
    """Return how many words ONNX Runtime would have chosen, too, and the largest difference of logits."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name.replace("present", "past_key_values") for o in session.get_outputs()]
    sizes = DECODERS[network]
    caches, past, same, error = empty_caches(sizes), 0, 0, 0.0
    for new, own in zip(said, logits, strict=True):
        found = dict(zip(names, session.run(None, {**feeds(sizes, form, new, past), **caches}), strict=True))
        past += new.shape[1]
        other = found.pop("logits")[0, -1]
        caches = found
        same += int(own.argmax() == other.argmax())
        error = max(error, float(np.abs(own - other).max() / np.abs(other).max()))
    return f"{same}/{len(said)}", error


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--networks", type=words(tuple(DECODERS)), default=["qwen"])
    add("--forms", type=words(FORMS), default=["genai"])
    add("--devices", type=lambda t: t.split(","), default=["opencl", "vulkan"])
    add("--precisions", type=lambda t: t.split(","), default=["low"])
    add("--steps", type=int, default=200)
    add("--compare", type=int, default=0, help="words that ONNX Runtime repeats, the prompt included")
    add("--caller", type=int, default=0, help="words with caches of the caller's")
    add("--folder", type=Path, default=None, help="where networks are kept; a temporary folder by default")
    add("--json", type=Path, default=None)
    asked = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        for network in asked.networks:
            for form in asked.forms:
                path = save(network, form, folder)
                for device in asked.devices:
                    for precision in asked.precisions:
                        row, said, logits = generate(path, network, form, device, precision, asked.steps)
                        if asked.compare:
                            most = asked.compare
                            row.same, row.error = compare(path, network, form, said[:most], logits[:most])
                        if asked.caller:
                            row.caller_ms = by_caller(path, network, form, device, precision, asked.caller)
                        rows.append(row)
                        print(row, file=sys.stderr, flush=True)
                        if asked.json:
                            asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print(table(rows))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    names = list(asdict(rows[0]))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for row in rows:
        values = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in asdict(row).values()]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
