"""`--json`: what a command found as one JSON document, on standard output or in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import weft
from weft.cli.writing import check_writable, not_written

OPTION = "--json"
SUFFIX = ".json"
"""How the name of a file after `--json` ends: it tells the file from the model, which may stand there too."""
TO_OUTPUT = "-"


@dataclass(frozen=True)
class JsonTarget:
    """Where the document goes: to a file, or to standard output."""

    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> JsonTarget:
        """Return the target that the option names; InputError if the file cannot be written."""
        if text == TO_OUTPUT:
            return cls()
        path = Path(text)
        check_writable(path, OPTION)
        return cls(path)


JsonOption = Annotated[
    JsonTarget | None,
    typer.Option(
        OPTION,
        parser=JsonTarget.parse,
        metavar="[FILE]",
        help=f"Print what is found as one JSON document and nothing else, or write it to a file (*{SUFFIX}) as well.",
    ),
]


def with_value(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with a value for each `--json` that has none."""
    filled, ended = list[str](), False
    for k, each in enumerate(arguments):
        ended = ended or each == "--"
        names_file = k + 1 < len(arguments) and arguments[k + 1].endswith(SUFFIX)
        filled.append(f"{OPTION}={TO_OUTPUT}" if each == OPTION and not ended and not names_file else each)
    return filled


def prints_text(target: JsonTarget | None) -> bool:
    """Tell whether a command prints what it found in words: always, unless JSON takes the place of it."""
    return target is None or target.file is not None


def answer(
    target: JsonTarget | None, facts: Callable[[], Mapping[str, Any]], text: Callable[[], None] | None = None
) -> None:
    """Give what a command found: in words, as JSON, or as both if the JSON goes to a file.

    `text` prints the words, unless the command has printed them. Numbers that are not finite become null, which JSON
    has in their place.
    """
    if text is not None and prints_text(target):
        text()
    if target is None:
        return
    document = json.dumps({"weft": weft.__version__, **_plain(facts())}, indent=2, allow_nan=False)
    if target.file is None:
        print(document)
        return
    try:
        target.file.write_text(f"{document}\n", encoding="utf-8")
    except OSError as e:
        raise not_written(target.file, e, OPTION) from None


def _plain(value: Any) -> Any:
    """Return a value as what JSON has: objects become their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
