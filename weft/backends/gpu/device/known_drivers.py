"""What is known of drivers by their names, beyond what they say of themselves: a table for each API, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True)
class KnownDriver:
    """What a table knows of a driver."""

    name: str = ""
    """A part of the name by which the API knows the driver or its device."""


D = TypeVar("D", bound=KnownDriver)


@cache
def read_table(path: Path) -> Any:
    """Return the table in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def best_match(drivers: Sequence[D], name: str) -> D | None:
    """Return the driver whose name is the longest that is a part of `name`, or None."""
    return max((each for each in drivers if each.name in name), key=lambda each: len(each.name), default=None)
