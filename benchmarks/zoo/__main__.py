"""Export networks and run them on Weft's devices; print which load, run whole on the device, and are right.

    python -m benchmarks.zoo --out FOLDER --devices cpu,opencl,vulkan --only "timm/*,*/bert"

Each export and each run is a process of its own with a time limit, so that a crash or a hang costs one row. FOLDER
keeps the exported files and `rows.jsonl`; a second call goes on where the first one stopped. `--again` runs the rows
anew that were not whole and right, `--fresh` all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.options import number, words
from benchmarks.zoo.compare import allowed
from benchmarks.zoo.export import EXPORTERS
from benchmarks.zoo.networks import NETWORKS

HEADERS = ("network", "exporter", "device", "loads", "on the device", "right", "error", "load, s", "first", "second")
FAILED = "failed.txt"


@dataclass
class Row:
    """One network of one exporter on one device; `failed` says why it did not load or run."""

    network: str
    exporter: str
    device: str
    failed: str = ""
    whole: bool = False
    refused: str = ""
    nodes: dict[str, int] = field(default_factory=dict)
    load: float = 0.0
    first: float = 0.0
    second: float = 0.0
    error: float = 0.0
    allowed: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row is the row of."""
        return self.network, self.exporter, self.device

    @property
    def right(self) -> bool:
        """Tell whether it ran and the outputs are right."""
        return not self.failed and self.error <= self.allowed

    @property
    def share(self) -> float:
        """Return the share of nodes on the device; copies count for neither side."""
        there = sum(n for device, n in self.nodes.items() if device == self.device)
        return 1.0 if self.whole else there / max(sum(self.nodes.values()), 1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where files and rows are kept")
    parser.add_argument("--devices", type=words(("cpu", "opencl", "vulkan")), default=["cpu", "opencl", "vulkan"])
    parser.add_argument("--exporters", type=words(EXPORTERS), default=list(EXPORTERS))
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="names of networks, with * and commas")
    parser.add_argument("--timeout", type=number, default=300, help="seconds that an export or a run may take")
    parser.add_argument("--jobs", type=number, default=1, help="networks at a time")
    parser.add_argument("--again", action="store_true", help="run rows anew that were not whole and right")
    parser.add_argument("--fresh", action="store_true", help="run all rows anew")
    parser.add_argument("--list", action="store_true", help="print the names of the networks and stop")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    chosen = [name for name in NETWORKS if any(fnmatch(name, p.strip()) for p in options.only.split(","))]
    if options.list or not chosen:
        print("\n".join(chosen) or f"no network is named {options.only!r}; --list names them")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows = read(options.out / "rows.jsonl")
    lock = Lock()

    def keep(row: Row) -> None:
        with lock:
            rows[row.key] = row
            with (options.out / "rows.jsonl").open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            print(line(row), flush=True)

    def play(name: str, exporter: str) -> None:
        for row in measure(name, exporter, options, rows):
            keep(row)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda task: play(*task), [(n, e) for n in chosen for e in options.exporters]))
    wanted = [r for r in rows.values() if r.network in chosen and r.exporter in options.exporters]
    wanted = [r for r in wanted if r.device in options.devices]
    print("\n" + table(wanted) + "\n\n" + summary(wanted, options.out))


def read(path: Path) -> dict[tuple[str, str, str], Row]:
    """Return the rows of earlier calls, the newest of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row.key: row for row in (Row(**json.loads(text)) for text in lines)}


def measure(
    name: str, exporter: str, options: argparse.Namespace, known: dict[tuple[str, str, str], Row]
) -> Iterator[Row]:
    """Yield a row for each device that has none yet; yield nothing for a network that PyTorch does not export."""
    due = []
    for device in options.devices:
        row = known.get((name, exporter, device))
        if row is None or options.fresh or (options.again and not (row.whole and row.right)):
            due.append(device)
    folder = options.out / exporter / name
    if not due or not exported(name, exporter, folder, options.timeout):
        return
    facts = json.loads((folder / "facts.json").read_text())
    for device in due:
        row = Row(name, exporter, device, allowed=allowed(facts["apart"]))
        said, row.failed = process(["benchmarks.zoo.run_once", str(folder), device], options.timeout)
        if not row.failed:
            for key, value in json.loads(said.strip().splitlines()[-1]).items():
                setattr(row, key, value)
        yield row


def exported(name: str, exporter: str, folder: Path, timeout: float) -> bool:
    """Tell whether the network is exported, now or before; FAILED in its folder keeps why it is not."""
    if (folder / "facts.json").exists():
        return True
    if (folder / FAILED).exists():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _, failed = process(["benchmarks.zoo.export", name, exporter, str(folder)], timeout)
    if failed:
        (folder / FAILED).write_text(failed)
        print(f"{name} ({exporter}) is not exported: {failed}", flush=True)
    return not failed


def process(module: list[str], timeout: float) -> tuple[str, str]:
    """Return what a module prints in a new process, and why it failed; "" if it did not."""
    command = [sys.executable, "-m", *module]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        try:
            said, wrong = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return "", f"no end after {timeout:g} s"
    if child.returncode < 0:
        return said, f"ended by {signal.Signals(-child.returncode).name}"
    return said, _reason(wrong) or f"status {child.returncode}" if child.returncode else ""


def _reason(text: str) -> str:
    error = text.strip().rpartition("Traceback (most recent call last)")[2].splitlines()
    return "; ".join(line.strip() for line in error if not line.startswith("  "))[-2000:].lstrip(":; ")


def cells(row: Row) -> list[Any]:
    """Return what the table says of a row."""
    if row.failed:
        return [*row.key, "NO", "", "", row.failed[:160], "", "", ""]
    where = "whole" if row.whole else f"{row.share:.0%}"
    times = [f"{seconds:.2f}" for seconds in (row.load, row.first, row.second)]
    return [*row.key, "yes", where, "yes" if row.right else "NO", f"{row.error:.1e}", *times]


def line(row: Row) -> str:
    """Return a row as text."""
    why = f" | {row.refused[:300]}" if row.refused else ""
    return " | ".join(map(str, cells(row))) + " ".join(why.split("\n"))


def table(rows: Sequence[Row]) -> str:
    """Return all rows as a table of Markdown."""
    lines = ["| " + " | ".join(HEADERS) + " |", "|---" * len(HEADERS) + "|"]
    return "\n".join(lines + [f"| {' | '.join(map(str, cells(row)))} |" for row in rows])


def summary(rows: Sequence[Row], out: Path) -> str:
    """Return the counts of each device, and what PyTorch did not export."""
    lines = ["| device | exporter | tried | load | whole on the device | right |", "|---" * 6 + "|"]
    for device, exporter in dict.fromkeys((r.device, r.exporter) for r in sorted(rows, key=lambda r: r.key[::-1])):
        those = [r for r in rows if (r.device, r.exporter) == (device, exporter)]
        counts = [sum(map(bool, each)) for each in (
            (not r.failed for r in those), (r.whole for r in those), (r.right for r in those))]
        lines.append(f"| {device} | {exporter} | {len(those)} | {' | '.join(map(str, counts))} |")
    failed = sorted(out.glob(f"*/*/*/{FAILED}"))
    return "\n".join([*lines, "", f"PyTorch did not export {len(failed)}; {FAILED} in their folders says why."])


if __name__ == "__main__":
    main()
