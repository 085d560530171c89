"""Findings and counts of a run of the fuzzer: written to the report, and printed as a table at the end."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

from scripts.fuzz.supervisor import Found, Shift

KEPT = 3
"""Cases of one finding whose files are kept."""
PACKAGES = ("weft", "numpy", "onnx", "onnxruntime", "pyopencl", "vulkan")


@dataclass
class Report:
    """The findings by key, and the shifts. `folder` receives the files of cases."""

    command: str
    folder: Path | None
    shifts: Sequence[Shift] = ()
    begun: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    findings: dict[str, list[Found]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def add(self, found: Found) -> None:
        """Record a finding and keep its files."""
        with self._lock:
            key = f"{found.target}: {found.key}"
            self.counts[key] += 1
            known = self.findings.setdefault(key, [])
            if len(known) >= KEPT:
                return
            known.append(found)
            if self.folder is not None and found.folder is not None:
                kept = self.folder / str(sum(map(len, self.findings.values())))
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(found.folder, kept / "case", symlinks=True, ignore=_special)
                (kept / "finding.json").write_text(json.dumps(_shown(found), indent=1))
                found.folder = kept
            else:
                found.folder = None
            which = f"{found.device}, seed {found.seed}, case {found.case}"
            print(f"finding {len(self.findings)}: {key}  ({which})", flush=True)

    def table(self) -> str:
        """Return the counts and the findings as Markdown."""
        rows = [("target", "device", "cases", "minutes", "findings", "growth", "given back", "of which")]
        for s in self.shifts:
            bad = sum(s.words[kind] for kind in FINDINGS)
            words = ", ".join(f"{n:,} {word}" for word, n in s.words.most_common() if word not in FINDINGS)
            memory = (f"{s.growth:.0f} MB", f"{s.given_back:.0f} MB")
            counted = (f"{s.cases:,}", f"{s.seconds / 60:.1f}", str(bad), *memory)
            rows.append((s.target.name, s.device, *counted, words))
        cases, minutes = sum(s.cases for s in self.shifts), sum(s.seconds for s in self.shifts) / 60
        rows.append(("all", "", f"{cases:,}", f"{minutes:.1f}", str(sum(self.counts.values())), "", "", ""))
        head, *body = [f"| {' | '.join(row)} |" for row in rows]
        lines = [head, "|---" * len(rows[0]) + "|", *body, ""]
        for k, (key, found) in enumerate(self.findings.items(), 1):
            where = f", kept in {found[0].folder}" if found[0].folder else ""
            lines.append(
                f"{k}. {self.counts[key]}x {key} (--target {found[0].target} --device {found[0].device} "
                f"--seed {found[0].seed} --case {found[0].case}{where})"
            )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write everything as JSON, replacing the file atomically."""
        content: dict[str, Any] = {
            "command": self.command,
            "begun": self.begun.isoformat(timespec="seconds"),
            "machine": platform.platform(),
            "python": sys.version.split()[0],
            "versions": {name: _version(name) for name in PACKAGES},
            "shifts": [
                {
                    "target": s.target.name, "device": s.device, "cases": s.cases, "seconds": round(s.seconds, 1),
                    "growth_megabytes": round(s.growth, 1), "given_back_megabytes": round(s.given_back, 1),
                    "words": dict(s.words),
                }
                for s in self.shifts
            ],
            "findings": [
                {"key": key, "count": self.counts[key], "cases": [_shown(f) for f in found]}
                for key, found in self.findings.items()
            ],
        }
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_text(json.dumps(content, indent=1))
        temporary.replace(path)


FINDINGS = ("wrong", "exception", "crash", "hang", "memory", "growth", "fault")
"""The kinds of findings."""


def _shown(found: Found) -> dict[str, object]:
    return {**vars(found), "folder": str(found.folder) if found.folder else None}


def _special(folder: str, names: list[str]) -> list[str]:
    """Return the names that cannot be copied: pipes and devices, which a replay makes again from the case's number."""
    paths = [Path(folder) / name for name in names]
    return [p.name for p in paths if not (p.is_symlink() or p.is_file() or p.is_dir())]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
