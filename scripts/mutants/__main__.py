"""The command line of `scripts.mutants`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path

from scripts.mutants.faults import Mutant, choose
from scripts.mutants.judge import NOT_TRIED, Judge


def main() -> None:
    """Choose mutants, run the tests against them, or compare two runs."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    to_choose = commands.add_parser("choose", help="choose faults on lines that both trees have; prints JSON")
    to_choose.add_argument("old", type=Path)
    to_choose.add_argument("new", type=Path)
    to_choose.add_argument("--count", type=int, default=240)
    to_choose.add_argument("--seed", type=int, default=0)
    to_run = commands.add_parser("run", help="run the tests of a tree against each fault")
    to_run.add_argument("tree", type=Path)
    to_run.add_argument("mutants", type=Path)
    to_run.add_argument(
        "--side", choices=("old", "new"), required=True, help="which of the two trees this is"
    )
    to_run.add_argument("--out", type=Path, required=True, help="where the verdicts go (JSON)")
    to_run.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    to_run.add_argument("--budget", type=float, default=10.0, help="processor seconds of tests for one mutant")
    to_run.add_argument(
        "--mutant-limit", type=float, default=90.0, help="seconds after which a mutant's tests count as hung"
    )
    to_run.add_argument(
        "--file-limit", type=float, default=600.0, help="seconds for a test file of the first run"
    )
    to_run.add_argument(
        "--stop-after", type=float, default=1e9, help="seconds after which no mutant is begun"
    )
    to_run.add_argument("--skip", default="", help="test files that are left out: a regular expression")
    to_run.add_argument(
        "--divide", default="", help="test files that are run in eight parts: a regular expression"
    )
    to_run.add_argument("--folder", type=Path, default=Path("/tmp/weft-mutants"), help="for logs and copies")
    to_run.add_argument(
        "--resume", action="store_true", help="go on with a stopped run: keep what --folder and --out have of it"
    )
    to_compare = commands.add_parser(
        "compare", help="print how many were caught in two runs, and what got lost"
    )
    for name in ("mutants", "before", "after"):
        to_compare.add_argument(name, type=Path)
    args = parser.parse_args()
    if args.command == "choose":
        print(json.dumps(choose(args.old, args.new, args.count, args.seed)))
    elif args.command == "run":
        judge = Judge(
            tree=args.tree.resolve(),
            mutants=json.loads(args.mutants.read_text()),
            side=args.side,
            jobs=args.jobs,
            budget=args.budget,
            file_limit=args.file_limit,
            mutant_limit=args.mutant_limit,
            end=time.monotonic() + args.stop_after,
            skip=args.skip,
            divide=args.divide,
            folder=args.folder.resolve(),
            out=args.out,
            resume=args.resume,
        )
        judge.run()
    else:
        mutants: list[Mutant] = json.loads(args.mutants.read_text())
        compare(mutants, *(json.loads(path.read_text())["verdicts"] for path in (args.before, args.after)))


def compare(mutants: list[Mutant], before: list[str], after: list[str]) -> None:
    """Print the share caught in both runs, and each fault that only the first found."""
    both = [i for i in range(len(mutants)) if NOT_TRIED not in (before[i], after[i])]
    print(f"{len(both)} mutants were tried in both")
    for name, verdicts in (("before", before), ("after", after)):
        counts = Counter("caught" if verdicts[i].startswith("caught") else verdicts[i] for i in both)
        print(f"{name}: {counts['caught'] / max(len(both), 1):.1%} caught; {dict(counts)}")
    for i in both:
        if before[i].startswith("caught") and not after[i].startswith("caught"):
            place = mutants[i]["new"]
            print(f"lost: {place['path']}:{place['line']}: {mutants[i]['kind']}: {mutants[i]['text']}")


if __name__ == "__main__":
    main()
