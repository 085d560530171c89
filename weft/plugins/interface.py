"""What a dynamic backend exports, and what is wrong with one that does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from weft.core.backend import API_VERSION, BackendCreator, is_compatible
from weft.core.blame import FAILURES
from weft.core.entries import as_creator
from weft.core.presence import described
from weft.errors import BackendError, brief

FUNCTIONS = ("GetBackendId", "GetVersion", "BackendFactory")


class MalformedError(Exception):
    """A dynamic backend cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A backend that was read: its id and its creator."""

    id: str
    creator: BackendCreator
    version: str = ""
    """What counts as the creator's version where it has none."""


def version_of_file(content: bytes) -> str:
    """Return what stands for the version of a backend in a file."""
    return f"file {hashlib.sha256(content).hexdigest()[:16]}"


def read(module: object, what: str) -> Announced:
    """Return the backend of a module with the three functions, which are called once each, in order.

    `what` is what has them, for the reasons of MalformedError.
    """
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise MalformedError(f"{what} has no function {' and no '.join(missing)}")
    id_ = checked_id(_call(module, "GetBackendId"))
    version = checked_version(_call(module, "GetVersion"), "GetVersion returned")
    creator = checked_creator(_call(module, "BackendFactory"), "BackendFactory returned")
    creator.api_version = version
    return Announced(id_, creator)


def _call(module: object, name: str) -> object:
    return guarded(getattr(module, name), f"{name} failed")


def guarded(call: Callable[[], object], what: str) -> object:
    """Return what a call of foreign code returns; whatever it raises becomes MalformedError."""
    try:
        return call()
    except FAILURES as e:
        raise MalformedError(f"{what}: {described(e)}") from e


def checked_id(id_: object) -> str:
    """Return the id, if it is a string that is not empty; what else an id must be the registry knows."""
    if not isinstance(id_, str):
        raise MalformedError(f"GetBackendId returned {id_!r}, which is not a string")
    if not id_.strip():
        raise MalformedError("GetBackendId returned an empty id")
    return id_


def checked_version(version: object, what: str) -> tuple[int, int]:
    """Return the version that a backend was written for, if it is one that can be used here."""
    parts = version if isinstance(version, (tuple, list)) else ()
    if len(parts) != 2 or not all(type(part) is int and part >= 0 for part in parts):
        raise MalformedError(f"{what} {version!r}, which is not a pair of numbers (major, minor)")
    theirs = (parts[0], parts[1])
    if not is_compatible(theirs, API_VERSION):
        ours = ".".join(map(str, API_VERSION))
        raise MalformedError(
            f"it was written for version {theirs[0]}.{theirs[1]} of the backend interface, and this is {ours}; "
            "the major number must be equal and the minor not above"
        )
    return theirs


def checked_creator(made: object, what: str) -> BackendCreator:
    """Return the creator that is meant by what a factory returned."""
    if made is None:
        raise MalformedError(f"{what} nothing")
    try:
        return as_creator(made)
    except BackendError as e:
        raise MalformedError(f"{what} {brief(repr(made))}, which is not a backend") from e
    except FAILURES as e:
        raise MalformedError(f"{what} {brief(repr(made))}, of which no object can be made: {described(e)}") from e
