"""What pytest's command line asks of the kit; see `weft_pytest`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft_conformance.cases.table import Case
from weft_conformance.kit import Check, Kit
from weft_conformance.running import open_kit, select

_KIT = pytest.StashKey[Kit]()


def kit_of(config: pytest.Config) -> Kit:
    """Return the kit for the device that the command line names, one for all tests; UsageError if it is not there."""
    held = config.stash.get(_KIT, None)
    if held is not None:
        return held
    folders = [Path(p).absolute() for p in config.getoption("weft_backend_path")]
    try:
        if folders:
            registry.rescan(folders)
        select(config.getoption("weft_only"))
        made = open_kit(config.getoption("weft_backend"), config.getoption("weft_precision"))
    except WeftError as e:
        raise pytest.UsageError(str(e)) from None
    made.seed, made.seconds = config.getoption("weft_seed"), config.getoption("weft_seconds")
    config.stash[_KIT] = made
    return made


def chosen(config: pytest.Config) -> tuple[Sequence[Check], Sequence[Case]]:
    """Return the checks and rows that the command line names; UsageError if it names no device."""
    if not config.getoption("weft_backend", default=None):
        raise pytest.UsageError("name the device to examine: --weft-backend NAME")
    try:
        return select(config.getoption("weft_only"))
    except WeftError as e:
        raise pytest.UsageError(str(e)) from None
