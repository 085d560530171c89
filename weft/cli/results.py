"""What a command says about the outputs of a network, and where it writes them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from weft.cli.console import line
from weft.cli.difference import not_finite
from weft.cli.parsing import parse_pairs
from weft.core.graph.layout import Array
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

    def show(self, output: Array) -> None:
        """Print the best classes of each item of a batch of scores."""
        for scores in _scores(output):
            values = _softmax(scores) if self.softmax else scores
            for k in np.argsort(-values, kind="stable")[: self.top]:
                name = self.labels[k] if k < len(self.labels) else f"class {k}"
                line(f"    {values[k]:8.4f}  {name}")


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


def summary(name: str, output: Array) -> str:
    """Return a line on an output: shape, type, range, and how many values are not finite."""
    text = f"  {name}: {output.dtype}[{'x'.join(map(str, output.shape))}]"
    if output.size and output.dtype.kind != "b":
        finite = output[np.isfinite(output)] if output.dtype.kind == "f" else output
        if finite.size:
            text += f", {finite.min():.6g} to {finite.max():.6g}"
        strange = not_finite(output)
        if strange:
            text += f", {strange} not finite"
    return text


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
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
                    pass
            except OSError as e:
                raise _not_written(path, e) from None

    def write(self, outputs: Mapping[str, Array], prefix: str = "") -> list[Path]:
        """Write the outputs, and return the files; `prefix` tells those of several runs apart."""
        targets = self._targets(list(outputs), prefix)
        for name, path in targets.items():
            try:
                with path.open("wb") as f:
                    np.save(f, outputs[name])
            except OSError as e:
                raise _not_written(path, e) from None
        return list(targets.values())

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


def _not_written(path: Path, error: OSError) -> InputError:
    file = next((parent for parent in path.parents if parent.is_file()), None)
    if file is not None:
        why, fix = f"{file} is a file, not a folder", "name a folder in --output, or NAME=FILE.npy"
    else:
        why, fix = error.strerror or str(error), "check its permissions, or name another place in --output"
    return InputError(f"{path} cannot be written", why=why, fix=fix)


def file_name(name: str) -> str:
    """Return the name of a value as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
