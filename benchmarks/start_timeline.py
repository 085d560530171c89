"""Show where a first start spends its time: what each thread of the program and of its child processes does, and when.

    python -m benchmarks.start_timeline --network resnet50 --devices vulkan,opencl --precision high

Each start is a process of its own with empty caches (`benchmarks.startup`, also on `import`), in which a thread looks
at all others two hundred times a second (`start_samples.py`). What compiles in a driver counts as the function of Weft
that called it. Times are seconds from the start of the process; a span is what a thread did for most of each tenth of
a second. `--again` shows a second start, with the caches of the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import startup
from benchmarks.options import words
from benchmarks.start_samples import FOLDER, WAITS

BIN = 0.1
SHOWN = 10
"""Kernels that are listed: those that took longest."""
CUSTOMIZE = "import runpy; runpy.run_path({path!r}, run_name='samples')['start']()"


@dataclass(frozen=True)
class Span:
    """What a thread did for some time."""

    begin: float
    end: float
    doing: str
    detail: str = ""

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.end - self.begin


@dataclass
class Process:
    """What the threads of a process did."""

    role: str
    begin: float
    end: float = 0.0
    threads: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))


def read(path: Path) -> Process:
    """Return what the samples of a process say."""
    rows = [line.rstrip("\n").split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if len(row) == 5]
    found = Process(_role(rows[0][3]), float(rows[0][0]), float(rows[-1][0]))
    open_: dict[str, tuple[float, str, str, str]] = {}
    for at, ident, name, doing, detail in rows[1:]:
        if name == "beat":
            continue
        _end(found, open_.pop(ident, None), float(at))
        if doing:
            open_[ident] = float(at), name, doing, detail
    for left in open_.values():
        _end(found, left, found.end)
    return found


def _end(process: Process, begun: tuple[float, str, str, str] | None, at: float) -> None:
    if begun is not None:
        begin, name, doing, detail = begun
        process.threads[name].append(Span(begin, at, doing, detail))


def _role(command: str) -> str:
    known = {"selftest.child": "self-test", "compilers": "compiling process", "start_once": "program"}
    return next((role for part, role in known.items() if part in command), command[:60])


def binned(spans: Iterable[Span], begin: float) -> list[Span]:
    """Return what a thread did for most of each tenth of a second, from `begin` on, without waiting."""
    bins: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        at = span.begin - begin
        while at < span.end - begin:
            number = int(at / BIN + 1e-9)
            until = min((number + 1) * BIN, span.end - begin)
            bins[number][span.doing] += until - at
            at = until
    made: list[Span] = []
    for number in sorted(bins):
        doing = max(bins[number], key=lambda each: bins[number][each])
        if made and made[-1].doing == doing and abs(made[-1].end - number * BIN) < BIN / 2:
            made[-1] = Span(made[-1].begin, (number + 1) * BIN, doing)
        else:
            made.append(Span(number * BIN, (number + 1) * BIN, doing))
    return [span for span in made if span.doing != WAITS]


def totals(spans: Iterable[Span]) -> str:
    """Return the seconds of each phase, the longest first."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        found[span.doing] += span.seconds
    longest = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{doing} {seconds:.2f}" for doing, seconds in longest if seconds >= 0.02 and doing != WAITS)


def shown(processes: Sequence[Process]) -> str:
    """Return the timeline of a start as text."""
    program = next(p for p in processes if p.role == "program")
    lines = []
    for process in sorted(processes, key=lambda p: p.begin):
        begin, end = process.begin - program.begin, process.end - program.begin
        lines.append(f"{process.role}, {begin:.2f} to {end:.2f} s")
        for name, spans in process.threads.items():
            if process is program or name == "MainThread":
                each = "; ".join(f"{s.begin:.1f}-{s.end:.1f} {s.doing}" for s in binned(spans, program.begin))
                lines += [f"  {name}: {each}", f"    in all: {totals(spans)}"] if each else []
        others = [s for name, spans in process.threads.items() if name != "MainThread" for s in spans]
        lines += [f"  other threads: {totals(others)}"] if process is not program and totals(others) else []
    for what, wanted in (("kernels", False), ("kinds of kernels in self-tests", True)):
        took: dict[str, float] = defaultdict(float)
        for process in processes:
            if (process.role == "self-test") is wanted:
                for span in (s for spans in process.threads.values() for s in spans if s.detail):
                    took[span.detail] += span.seconds
        longest = sorted(took.items(), key=lambda item: -item[1])[: SHOWN * (3 if wanted else 1)]
        listed = ", ".join(f"{name} {seconds:.2f}" for name, seconds in longest)
        lines.append(f"{len(took)} {what}, {sum(took.values()):.1f} s of threads; the longest: {listed}")
    return "\n".join(lines)


def sampled(model: Path, device: str, precision: str, folder: Path) -> tuple[dict[str, float], list[Process]]:
    """Start a network with the caches in a folder; return the seconds that it took, and what its processes did."""
    with tempfile.TemporaryDirectory(prefix="weft-samples-") as aside:
        Path(aside, "sitecustomize.py").write_text(
            CUSTOMIZE.format(path=str(Path(__file__).with_name("start_samples.py"))), encoding="utf-8"
        )
        environment = startup.environment(folder)
        path = ":".join(filter(None, [aside, environment.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "benchmarks.start_once", str(model), device, precision]
        ended = subprocess.run(
            command, env=environment | {"PYTHONPATH": path, FOLDER: aside}, capture_output=True, text=True,
            timeout=startup.TIMEOUT,
        )
        if ended.returncode:
            raise SystemExit(ended.stderr)
        seconds: dict[str, float] = json.loads(ended.stdout.strip().splitlines()[-1])["seconds"]
        return seconds, [read(file) for file in sorted(Path(aside).glob("*.tsv"))]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=words(("vulkan", "opencl", "cpu")), default=["vulkan", "opencl"])
    parser.add_argument("--precision", type=words(("high", "normal", "low")), default=["high"])
    parser.add_argument("--network", default="resnet50", choices=startup.NETWORKS)
    parser.add_argument("--image", type=int, default=224, help="width and height of the pictures")
    parser.add_argument("--again", action="store_true", help="show a second start, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-startup-") as there:
        model = Path(there) / f"{options.network}.onnx"
        startup.write_model(options.network, options.image, model)
        for device in options.devices:
            for precision in options.precision:
                with tempfile.TemporaryDirectory(prefix="weft-startup-") as folder:
                    for which in ("first", "second") if options.again else ("first",):
                        seconds, processes = sampled(model, device, precision, Path(folder))
                        each = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
                        print(f"== {options.network} on {device}, {precision}, {which} start: {each}", flush=True)
                        print(shown(processes) + "\n", flush=True)


if __name__ == "__main__":
    main()
