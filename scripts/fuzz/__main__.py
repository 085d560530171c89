"""The command line of the fuzzer; see the docstring of `scripts.fuzz`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Lock
from time import monotonic

from scripts.fuzz.report import Report
from scripts.fuzz.supervisor import Run, Shift, work
from scripts.fuzz.target import DEVICES, Target, find_targets
from scripts.fuzz.worker import outcome, quiet

TURN = 120.0
"""Seconds of one target on one device before the next pair's turn."""
SHORTEST_TURN = 15.0
"""The shortest turn, so that a target does more than its preparation."""
UNLIMITED = 2**62


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzzer; return 1 if there are findings."""
    early, _ = _parser().parse_known_args(arguments)
    targets = find_targets(early.module)
    asked = _arguments(arguments, targets)
    if asked.list:
        print("\n".join(f"{t.name:16} {t.about} ({', '.join(t.devices)})" for t in targets.values()))
        return 0
    if asked.replay is not None:
        return _replay(asked.replay, targets)
    chosen = [targets[name] for name in asked.target]
    pairs = [Shift(t, d) for t in chosen for d in t.devices if d in asked.device]
    if asked.case is not None:
        return _one(pairs, asked.seed, asked.case)
    os.nice(asked.nice)
    folder = asked.report.with_suffix(".findings") if asked.report else None
    report = Report(shlex.join(["python", "-m", "scripts.fuzz", *(arguments or sys.argv[1:])]), folder, pairs)
    _run(pairs, asked, report)
    print(f"\n{report.table()}")
    return int(bool(report.counts) or any(s.faults for s in pairs))


def _parser() -> argparse.ArgumentParser:
    """Return a parser for the option that decides which targets exist."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--module", action="append", default=[], help="also import targets from this module")
    return parser


def _arguments(arguments: list[str] | None, targets: dict[str, type[Target]]) -> argparse.Namespace:
    about = "Fuzz all that comes into Weft."
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=about, parents=[_parser()])
    add = parser.add_argument
    add(
        "--target", type=_words(targets), default=list(targets), metavar="A,B", help="targets; by default all"
    )
    add(
        "--device", type=_words(DEVICES), default=list(DEVICES), metavar="A,B", help="devices; by default all"
    )
    add("--seconds", type=float, default=None, help="wall-clock time for all targets together (default: 60)")
    add("--cases", type=int, default=None, help="this many cases of each target and device, however long they take")
    add("--seed", type=int, default=0, help="the seed of the stream of cases")
    add("--case", type=int, default=None, help="make and check only this case, in this process")
    add("--replay", type=Path, default=None, metavar="FOLDER", help="check a kept case, in this process")
    add("--jobs", type=int, default=1, help="processes at a time")
    add("--nice", type=int, default=10, help="how much to lower the priority")
    add("--report", type=Path, default=None, metavar="FILE", help="counts and findings as JSON")
    add("--list", action="store_true", help="list the targets")
    return parser.parse_args(arguments)


def _words(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            there = ", ".join(known)
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'} is not known; there are {there}"
            )
        return names

    return parse


def _run(pairs: list[Shift], asked: argparse.Namespace, report: Report) -> None:
    """Give each pair of target and device its turn, round after round, until the time or the cases run out."""
    stop = Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    run = Run(asked.seed, UNLIMITED if asked.cases is None else asked.cases, report.add, stop.is_set)
    seconds = (
        asked.seconds if asked.seconds is not None else 60.0 if asked.cases is None else float(UNLIMITED)
    )
    end = monotonic() + seconds
    turn = min(TURN, max(seconds * asked.jobs / max(len(pairs), 1), SHORTEST_TURN))
    waiting: Queue[Shift] = Queue()
    for pair in pairs:
        waiting.put(pair)
    lock = Lock()

    def worker(number: int, scratch: Path) -> None:
        while not stop.is_set() and (left := end - monotonic()) > 0:
            try:
                pair = waiting.get_nowait()
            except Empty:
                return
            length = min(turn, left) if asked.cases is None else left
            work(pair, run, scratch / str(number), length)
            if pair.next < run.last and not pair.faults:
                waiting.put(pair)
            if asked.report is not None:
                with lock:
                    report.write(asked.report)

    try:
        with (
            tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch,
            ThreadPoolExecutor(asked.jobs) as pool,
        ):
            done = [pool.submit(worker, k, Path(scratch)) for k in range(asked.jobs)]
            for each in done:
                each.result()
    finally:
        stop.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked.report is not None:
        report.write(asked.report)


def _one(pairs: list[Shift], seed: int, number: int) -> int:
    """Make and check one case on each device, in this process, so that a debugger can be used."""
    found = 0
    for pair in pairs:
        with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch:
            target = _ready(pair.target, pair.device, Path(scratch))
            folder = Path(scratch) / "case"
            folder.mkdir()
            became = outcome(target, seed, number, folder)
            print(
                f"{target.name} on {target.device}, seed {seed}, case {number}: {became.get('word', 'a finding')}"
            )
            print(became.get("text", ""))
            found += "kind" in became
            target.close()
    return int(bool(found))


def _replay(kept: Path, targets: dict[str, type[Target]]) -> int:
    """Check the files of a kept case."""
    finding = json.loads((kept / "finding.json").read_text())
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch:
        target = _ready(targets[finding["target"]], finding["device"], Path(scratch))
        try:
            print(target.check(kept / "case"))
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            target.close()
    return 0


def _ready(kind: type[Target], device: str, scratch: Path) -> Target:
    quiet()
    target = kind(device, scratch / "kept")
    target.scratch.mkdir()
    target.prepare()
    return target


if __name__ == "__main__":
    sys.exit(main())
