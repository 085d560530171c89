"""What the registry holds: creators, with where they came from; and what finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from weft.core.backend import Backend, BackendCreator, BackendInfo, DeviceInfo
from weft.errors import BackendError

if TYPE_CHECKING:
    from weft.core.registry import BackendRegistry

Folder = str | os.PathLike[str]
WEFT = "weft"
"""The origin of the backends that are part of Weft."""


class ClassCreator(BackendCreator):
    """Makes backends of a class that has no creator of its own: one device, which is always there."""

    def __init__(self, made: type[Backend]) -> None:
        self.made, self.version, self.options = made, made.version, made.options

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend of the class."""
        return self.made(info)

    def devices(self) -> list[DeviceInfo]:
        """Return the one device, named after the class; what computes in the host's memory is software."""
        return [DeviceInfo(self.id, 0, self.made.__name__, self.version, software=self.made.host_memory)]


def as_creator(what: object) -> BackendCreator:
    """Return the creator that is meant by a creator, its class, or a class of backends; else BackendError."""
    if isinstance(what, type) and issubclass(what, BackendCreator):
        what = what()
    elif isinstance(what, type) and issubclass(what, Backend):
        what = ClassCreator(what)
    if not isinstance(what, BackendCreator):
        raise BackendError(
            f"{what!r} is not a backend", fix="give a BackendCreator, or a class that is derived from weft.Backend"
        )
    return what


def version_of(creator: BackendCreator) -> str:
    """Return a backend's own version, or that of what it was found in; "" is that of Weft."""
    return creator.version or creator.found_version


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered creator, and where it came from: "weft", a call, an entry point or a file."""

    creator: BackendCreator
    origin: str
    by_path: bool = False

    def __str__(self) -> str:
        made = self.creator.made if isinstance(self.creator, ClassCreator) else type(self.creator)
        origin = "" if self.origin == WEFT else f" from {self.origin}"
        return f"{self.creator.id!r} ({made.__module__}.{made.__qualname__}){origin}"


class Finder(Protocol):
    """Finds backends outside the program and gives them to `insert_dynamic`; it raises nothing."""

    def insert_installed(self, registry: BackendRegistry) -> None:
        """Insert what installed packages announce."""

    def insert_from(self, registry: BackendRegistry, paths: Sequence[Folder]) -> None:
        """Insert what lies in folders."""
