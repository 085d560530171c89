"""Commands that other packages add to `weft`: entry points of the group `weft.commands`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint
from typing import Any

from weft.errors import ConfigError
from weft.plugins.interface import MalformedError
from weft.plugins.packages import insert_each

GROUP = "weft.commands"
SEPARATE = {"conformance": "weft-conformance"}
"""Commands that are packages of their own in Weft's repository, and what the packages are called."""
log = logging.getLogger("weft.plugins")


def added_commands(taken: Collection[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions that installed packages announce, by the name of the command.

    What cannot be imported, is no function or has a name that is taken is logged as a warning.
    """
    found: dict[str, Callable[..., Any]] = {}

    def insert(entry_point: EntryPoint, what: object, _: str) -> None:
        if not callable(what):
            raise MalformedError(f"{entry_point.value} is {what!r}, which is no function")
        if entry_point.name in taken or entry_point.name in found:
            raise MalformedError(f"another command is called {entry_point.name}")
        found[entry_point.name] = what

    insert_each(GROUP, insert, lambda origin, why: log.warning("%s adds no command: %s", origin, why))
    return found


def not_installed(command: str) -> ConfigError:
    """Return the error of a command whose package is missing."""
    package = SEPARATE[command]
    return ConfigError(
        f"the command {command} is not installed",
        why=f"it is in a package of its own, {package}",
        fix=f"pip install ./packages/{command}, in a clone of Weft",
    )
