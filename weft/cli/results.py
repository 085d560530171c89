"""What a command says about the outputs of a network, and where it writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.difference import not_finite
from weft.cli.parsing import parse_pairs
from weft.cli.writing import check_writable, not_written
from weft.core.graph.layout import Array
from weft.core.session.report import Report
from weft.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True)
class Ranking:
    """How the best classes of an output are shown."""

    top: int
    labels: tuple[str, ...] = ()
    softmax: bool = False

    @classmethod
    def parse(cls, top: int | None, labels: Path | None, softmax: bool) -> Ranking | None:
        """Return the ranking that the options ask for, or None."""
        if top is None and labels is None and not softmax:
            return None
        return cls(5 if top is None else top, read_labels(labels) if labels else (), softmax)

    def best(self, output: Array) -> list[list[dict[str, Any]]]:
        """Return the best classes of each item of a batch of scores."""
        rows = [_softmax(scores) if self.softmax else scores for scores in _scores(output)]
        return [
            [{"class": int(k), "name": self._name(k), "value": float(values[k])} for k in self._order(values)]
            for values in rows
        ]

    def _order(self, values: Array) -> Array:
        return np.argsort(-values, kind="stable")[: self.top]

    def _name(self, k: int) -> str:
        return self.labels[k] if k < len(self.labels) else f"class {k}"


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the names in a file of one a line, `name` or `index,name`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        why, fix = e.strerror or str(e), "name a file of one class a line in --labels"
        raise InputError(f"the labels in {path} cannot be read", why=why, fix=fix) from None
    except UnicodeDecodeError as e:
        raise InputError(f"the labels in {path} are no text", why=str(e), fix="save the file as UTF-8") from None
    return tuple(re.sub(r"^\d+,", "", text).strip() for text in lines)


def _scores(output: Array) -> Array:
    """Return an output (n, classes, 1, 1 ...) as rows of scores."""
    rows = output.shape[0] if output.ndim > 1 else 1
    return output.astype(np.float32).reshape(rows, -1)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


def facts_of(name: str, output: Array) -> dict[str, Any]:
    """Return facts about an output: shape, type, the range of its finite numbers, and how many are not finite."""
    least = most = None
    strange = 0
    if output.size and output.dtype.kind != "b":
        finite = output[np.isfinite(output)] if output.dtype.kind == "f" else output
        least, most = (finite.min(), finite.max()) if finite.size else (None, None)
        strange = not_finite(output)
    facts = {"name": name, "dtype": str(output.dtype), "shape": output.shape}
    return {**facts, "min": least, "max": most, "not_finite": strange}


def summary(facts: Mapping[str, Any]) -> str:
    """Return the facts about an output as a line."""
    text = f"  {facts['name']}: {facts['dtype']}[{'x'.join(map(str, facts['shape']))}]"
    if facts["min"] is not None:
        text += f", {facts['min']:.6g} to {facts['max']:.6g}"
    return text + (f", {facts['not_finite']} not finite" if facts["not_finite"] else "")


def facts_of_report(report: Report) -> dict[str, Any]:
    """Return what a session's report says, as data."""
    return {
        "precision": report.config.precision.value,
        "memory": report.config.memory.value,
        "nodes": report.nodes_by_device,
        "subgraphs": report.subgraphs,
        "drivers": report.drivers,
        "statistics": report.statistics,
        "notes": report.notes,
        "copies": [{"value": c.value, "from": c.source, "to": c.target, "bytes": c.nbytes} for c in report.copies],
        "refusals": report.refusals,
    }


def precision_notes(device: str, precision: str, notes: Sequence[str]) -> list[str]:
    """Return a report's notes on precision, each behind the device and the precision of the run."""
    own = f"{device.removesuffix(':0')}: "
    return [f"{device}, {precision}: {n.removeprefix(own)}" for n in notes if "precision" in n or "float16" in n]


@dataclass
class Writer:
    """Writes outputs to the places of `--output`: a folder, or NAME=FILE for some of them."""

    folder: Path | None = None
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Sequence[str] | None, runs: int) -> Writer:
        """Return the writer for the `--output` arguments of a command that makes `runs` runs."""
        named = [text for text in given or () if "=" in text]
        folders = [text for text in given or () if "=" not in text]
        if len(folders) > 1:
            raise ConfigError("--output names two folders", why=" and ".join(folders), fix="name one")
        if named and runs > 1:
            raise ConfigError(
                "several runs would write the same file",
                where=f"--output {named[0]}",
                fix="name a folder instead",
            )
        return cls(Path(folders[0]) if folders else None, parse_pairs(named, "--output", "y=out.npy"))

    def prepare(self, names: Sequence[str]) -> None:
        """Make the folders for outputs of these names; InputError if one cannot be written."""
        unknown = [name for name in self.files if name not in names]
        if unknown:
            raise InputError(
                f"the network has no output {', '.join(map(repr, unknown))}",
                why=f"its outputs are {', '.join(names)}",
                fix="name one of these in --output, or a folder for all",
            )
        for path in map(Path, self.files.values()):
            if path.is_dir():
                fix = f"name a file in it, or write --output {path} for all outputs"
                raise InputError(f"{path} is a folder, and one output is a file", fix=fix)
        for path in dict.fromkeys(self._targets(names).values()):
            with suppress(OSError):  # the check says why
                path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(path, "--output")

    def write(self, outputs: Mapping[str, Array], prefix: str = "") -> dict[str, Path]:
        """Write the outputs, and return the file of each by name; `prefix` tells those of several runs apart."""
        targets = self._targets(list(outputs), prefix)
        for name, path in targets.items():
            try:
                with path.open("wb") as f:
                    np.save(f, outputs[name])
            except OSError as e:
                raise not_written(path, e, "--output") from None
        return targets

    def _targets(self, names: Sequence[str], prefix: str = "") -> dict[str, Path]:
        lists = [name for name in self.files if names and name not in names]
        if lists:
            name = lists[0]
            fix = f"name a folder, which gets {name}.0.npy and so on"
            raise InputError(f"the output {name!r} is a sequence, and a file holds one tensor", fix=fix)
        targets = {name: Path(file) for name, file in self.files.items()}
        if self.folder:
            for name in names:
                targets.setdefault(name, self.folder / f"{prefix}{file_name(name)}.npy")
        return targets


def file_name(name: str) -> str:
    """Return the name of a value as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
