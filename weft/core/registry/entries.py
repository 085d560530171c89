"""Entries of the registry: creators with their origins; and the protocol of what finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Protocol

from weft.core.contract.backend import (
    API_VERSION,
    Backend,
    BackendCreator,
    BackendInfo,
    DeviceInfo,
    ForwardType,
    is_compatible,
    missing_callbacks,
)
from weft.core.contract.backend_options import check_declared
from weft.core.contract.error_context import is_error
from weft.core.registry.probe import described
from weft.errors import BackendError, brief

if TYPE_CHECKING:
    from weft.core.registry.backend_registry import BackendRegistry

Folder = str | os.PathLike[str]
WEFT = "weft"
"""The origin of the backends that are part of Weft."""


def checked_version(version: object, what: str) -> tuple[int, int]:
    """Return the interface version that a backend was written for; BackendError if it cannot be used here."""
    parts = version if isinstance(version, (tuple, list)) else ()
    are_numbers = all(isinstance(p, Integral) and not isinstance(p, bool) and int(p) >= 0 for p in parts)
    if len(parts) != 2 or not are_numbers:
        what = f"{what} {brief(repr(version))}, which is not a pair of numbers (major, minor)"
        raise BackendError(what, fix="give the weft.extend.API_VERSION that it was written for, such as (1, 0)")
    theirs = (int(parts[0]), int(parts[1]))
    if not is_compatible(theirs, API_VERSION):
        ours = ".".join(map(str, API_VERSION))
        raise BackendError(
            f"it was written for version {theirs[0]}.{theirs[1]} of the backend interface, and this is {ours}",
            why="the major number must be equal and the minor not above",
            fix="install a version of the backend that fits, or another Weft",
        )
    return theirs


def check_creator(creator: BackendCreator) -> None:
    """Raise BackendError if a creator's attributes break the contract, however it was registered."""
    if creator.api_version is not None:
        creator.api_version = checked_version(creator.api_version, "api_version is")
    rank: object = creator.auto_rank
    facts = {
        "version": (creator.version, isinstance(creator.version, str), "a text"),
        "forward_type": (
            creator.forward_type,
            creator.forward_type is None or isinstance(creator.forward_type, ForwardType),
            "a ForwardType or None",
        ),
        "auto_rank": (rank, rank is None or (isinstance(rank, Integral) and not isinstance(rank, bool)), "a number"),
    }
    wrong = [f"{name} is {brief(repr(value))}, not {kind}" for name, (value, fits, kind) in facts.items() if not fits]
    if wrong:
        what, fix = "a backend's creator has wrong attributes", "correct them, or leave them out: all have defaults"
        raise BackendError(what, why="; ".join(wrong), fix=fix)
    check_declared(creator)


class ClassCreator(BackendCreator):
    """Makes backends of a class without a creator of its own: one device, present if the class is complete."""

    def __init__(self, made: type[Backend]) -> None:
        self.made, self.version, self.options = made, made.version, made.options
        self.api_version = made.api_version

    def absent(self) -> str | None:
        """Return what the class does not implement, or None."""
        missing = missing_callbacks(self.made)
        if not missing:
            return None
        return f"no backend can be made of {self.made.__name__}: it does not implement {', '.join(missing)}"

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend of the class."""
        return self.made(info)

    def devices(self) -> list[DeviceInfo]:
        """Return the one device, named after the class; a host memory backend counts as software."""
        return [DeviceInfo(self.id, 0, self.made.__name__, self.version, software=self.made.host_memory)]


def as_creator(what: object) -> BackendCreator:
    """Return the creator that is meant by a creator, its class, or a class of backends; else BackendError."""
    if isinstance(what, type) and issubclass(what, BackendCreator):
        what = _made(what)
    elif isinstance(what, type) and issubclass(what, Backend):
        what = ClassCreator(what)
    if not isinstance(what, BackendCreator):
        raise BackendError(
            f"{what!r} is not a backend", fix="give a BackendCreator, or a class that is derived from weft.Backend"
        )
    return what


def _made(kind: type[BackendCreator]) -> BackendCreator:
    try:
        return kind()
    except Exception as e:
        if not is_error(e):
            raise
        fix = "pass an object, where a creator needs arguments"
        raise BackendError(f"no object can be made of {kind.__name__}", why=described(e), fix=fix) from e


def version_of(creator: BackendCreator) -> str:
    """Return a backend's own version, or that of where it was found; "" means Weft's."""
    return creator.version or creator.found_version


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered creator and its origin: "weft", a call, an entry point or a file."""

    creator: BackendCreator
    origin: str
    by_path: bool = False
    by_call: bool = False
    """Whether this program registered it, so that other processes know nothing of it."""

    def __str__(self) -> str:
        made = self.creator.made if isinstance(self.creator, ClassCreator) else type(self.creator)
        origin = "" if self.origin == WEFT else f" from {self.origin}"
        return f"{self.creator.id!r} ({made.__module__}.{made.__qualname__}){origin}"


class Finder(Protocol):
    """Finds backends outside the program and gives them to `insert_dynamic`; it raises nothing."""

    def insert_installed(self, registry: BackendRegistry) -> None:
        """Insert the backends that installed packages announce."""

    def insert_from(self, registry: BackendRegistry, paths: Sequence[Folder]) -> None:
        """Insert the backends found in folders."""
