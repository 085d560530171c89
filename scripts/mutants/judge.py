"""Run the tests of a tree: once to see what reaches what, then once for each mutant."""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from scripts.mutants.faults import Mutant, apply

NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".hypothesis", ".*_cache")
NOT_TRIED = "not tried"
CHECKS = {"WEFT_VULKAN_VALIDATION": "1", "WEFT_CHECK_PASSES": "1"}
"""What tests/conftest.py switches on, but not in a worker of pytest-xdist: it inherits these."""
Side = Literal["old", "new"]


@dataclass
class Judge:
    """One tree, the mutants, and how much may be spent on them."""

    tree: Path
    mutants: Sequence[Mutant]
    side: Side
    jobs: int
    budget: float
    """Processor seconds of tests for one mutant, by the times of the run without one."""
    file_limit: float
    """Seconds for one test file of the first run."""
    mutant_limit: float
    """Seconds after which a mutant's tests count as caught: the fault made one of them hang."""
    end: float
    """When no mutant is begun any more, by time.monotonic()."""
    skip: str
    """Test files that are left out: a regular expression."""
    divide: str
    """Test files that are run in eight parts: a regular expression."""
    folder: Path
    out: Path
    """Where the verdicts are written after each mutant, so that a stopped run leaves what it found."""
    resume: bool = False
    """Whether to keep what a stopped run of the same mutants left in `folder` and `out`."""

    def run(self) -> dict[str, Any]:
        """Return the verdict and the number of tests of each mutant, as `out` has them.

        Raises ValueError if it should resume and `out` has verdicts of other mutants.
        """
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        earlier = self._earlier()
        # Only the changed file is compiled again: a copy keeps the times that compiled files are checked by.
        compileall.compile_dir(self.tree, quiet=2, workers=self.jobs)
        rows = self._reach()
        passed = {name: row for name, row in rows.items() if row.get("passed") and "reached" in row}
        print(f"{len(rows)} tests, {len(passed)} passed; {time.monotonic() - began:.0f} s", flush=True)
        left = Counter(name.split("::")[0] for name in rows if name not in passed)
        print("not passed or skipped:", dict(left.most_common(12)), flush=True)
        tests: dict[int, list[str]] = defaultdict(list)
        for name in sorted(passed, key=lambda name: float(passed[name]["seconds"])):
            for i in passed[name]["reached"]:
                tests[i].append(name)
        seconds = {name: float(row["seconds"]) for name, row in passed.items()}
        everyone = range(len(self.mutants))
        counts = [len(tests[i]) for i in everyone]
        verdicts = [
            verdict if count == counts[i] else NOT_TRIED for i, (verdict, count) in enumerate(earlier)
        ]
        result = {"verdicts": verdicts, "tests": counts, "mutants": list(self.mutants)}
        writing = Lock()

        def judge(i: int) -> None:
            verdict = self._judge(i, tests[i], seconds)
            with writing:
                verdicts[i] = verdict
                _write(self.out, result)

        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(judge, (i for i in everyone if verdicts[i] == NOT_TRIED)))
        _write(self.out, result)
        print(dict(Counter(verdicts)), f"{time.monotonic() - began:.0f} s", flush=True)
        return result

    def _earlier(self) -> list[tuple[str, int]]:
        """Return the verdict and the number of tests that each mutant had in the run that is resumed."""
        if not (self.resume and self.out.exists()):
            return [(NOT_TRIED, 0)] * len(self.mutants)
        kept = json.loads(self.out.read_text())
        if kept.get("mutants") != list(self.mutants):
            raise ValueError(f"{self.out} has verdicts of other mutants: run without --resume, or write elsewhere")
        return list(zip(kept["verdicts"], kept["tests"], strict=True))

    def _reach(self) -> dict[str, Any]:
        files = list((self.tree / "tests").rglob("test_*.py"))
        names = [
            str(path.relative_to(self.tree)) for path in sorted(files, key=lambda path: -path.stat().st_size)
        ]
        names = [name for name in names if not (self.skip and re.search(self.skip, name))]
        divided = [name for name in names if self.divide and re.search(self.divide, name)]
        parts = [(name, k, 8) for name in divided for k in range(8)]
        parts += [(name, 0, 1) for name in names if name not in divided]
        lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for i, mutant in enumerate(self.mutants):
            place = mutant[self.side]
            for number in range(place["first"], place["last"] + 1):
                lines[str(self.tree / place["path"])][number].append(i)

        def reach(part: tuple[str, int, int]) -> dict[str, Any]:
            name, k, of = part
            label = f"{name.replace('/', '_')}.{k}"
            note = self.folder / f"{label}.json"
            job = {"note": str(note), "lines": lines, "part": [k, of]}
            if not (self.resume and note.exists() and self._was(label, job)):
                note.unlink(missing_ok=True)
                self._pytest(self.tree, label, job, [name], self.file_limit)
            if not note.exists():
                print("no results:", name, k, flush=True)
                return {}
            rows: dict[str, Any] = json.loads(note.read_text())
            return rows

        found: dict[str, Any] = {}
        with ThreadPoolExecutor(self.jobs) as pool:
            for rows in pool.map(reach, parts):
                found.update(rows)
        return found

    def _was(self, label: str, job: dict[str, Any]) -> bool:
        """Tell whether the last job of this label was the same: the same lines, and the same part of the tests."""
        about = self.folder / f"{label}.job"
        return about.exists() and json.loads(about.read_text()) == json.loads(json.dumps(job))

    def _judge(self, i: int, tests: list[str], seconds: dict[str, float]) -> str:
        if not tests:
            return "not reached"
        if time.monotonic() > self.end:
            return NOT_TRIED
        chosen: list[str] = []
        total = 0.0
        for name in tests:
            total += seconds[name]
            if chosen and total > self.budget:
                break
            chosen.append(name)
        mutant, copy = self.mutants[i], self.folder / f"copy{i}"
        shutil.copytree(self.tree, copy, ignore=NOT_COPIED, symlinks=True)
        try:
            place = mutant[self.side]
            file = copy / place["path"]
            file.write_text(apply(file.read_text(), mutant, place))
            for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                compiled.unlink()
            files = sorted({name.split("::")[0] for name in chosen})
            code = self._pytest(copy, f"mutant{i}", {"only": chosen}, ["-x", *files], self.mutant_limit)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return {0: "survived", None: "caught by time"}.get(code, "caught")

    def _pytest(
        self, tree: Path, label: str, job: dict[str, Any], args: list[str], limit: float
    ) -> int | None:
        """Return pytest's exit code; None if it ran past the limit."""
        about = self.folder / f"{label}.job"
        about.write_text(json.dumps(job))
        plugins = ["-p", "no:cacheprovider", "-p", "mutants_plugin", "-p", "_hypothesis_pytestplugin"]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--no-header", *plugins, *args]
        here = str(Path(__file__).parent)
        with (
            tempfile.TemporaryDirectory(prefix="mutants-cache-", ignore_cleanup_errors=True) as cache,
            (self.folder / f"{label}.log").open("w") as log,
        ):
            # A worker of pytest-xdist does not ask which devices are there: the first run shows which tests pass.
            environment = os.environ | CHECKS | {
                "MUTANTS": str(about),
                "PYTEST_XDIST_WORKER": "mutants",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "WEFT_CACHE_DIR": cache,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(tree), here, os.environ.get("PYTHONPATH")))),
            }
            try:
                done = subprocess.run(
                    command, cwd=tree, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=limit
                )
            except subprocess.TimeoutExpired:
                return None
        return done.returncode


def _write(path: Path, result: dict[str, Any]) -> None:
    """Write JSON so that a run that is stopped meanwhile leaves the earlier file whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(result))
    part.replace(path)
