"""What a dynamic backend must export, and the checks of what it exports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from weft.core.contract.backend import BackendCreator
from weft.core.contract.error_context import FAILURES, sent_by_signal
from weft.core.registry.entries import as_creator, checked_version
from weft.core.registry.probe import described
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
    """The version to use if the creator has none."""


def version_of_file(content: bytes) -> str:
    """Return the version of a backend in a file: a hash of its content."""
    return f"file {hashlib.sha256(content).hexdigest()[:16]}"


def read(module: object, what: str) -> Announced:
    """Return the backend of a module with the three functions, which are called once each, in order.

    `what` names the module in the messages of MalformedError.
    """
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise MalformedError(f"{what} has no function {' and no '.join(missing)}")
    id_ = checked_id(_call(module, "GetBackendId"))
    version = usable_version(_call(module, "GetVersion"), "GetVersion returned")
    creator = checked_creator(_call(module, "BackendFactory"), "BackendFactory returned")
    creator.api_version = version
    return Announced(id_, creator)


def _call(module: object, name: str) -> object:
    return guarded(getattr(module, name), f"{name} failed")


def guarded(call: Callable[[], object], what: str) -> object:
    """Return what a call of foreign code returns; turn what it raises, SystemExit too, into MalformedError.

    An interrupt, and what a signal handler raises, are meant for the program and go through.
    """
    try:
        return call()
    except FAILURES as e:
        if sent_by_signal(e):
            raise
        raise MalformedError(f"{what}: {described(e)}") from e


def checked_id(id_: object) -> str:
    """Return the id if it is a string that is not empty; the registry checks the rest."""
    if not isinstance(id_, str):
        raise MalformedError(f"GetBackendId returned {id_!r}, which is not a string")
    if not id_.strip():
        raise MalformedError("GetBackendId returned an empty id")
    return id_


def usable_version(version: object, what: str) -> tuple[int, int]:
    """Return the interface version that a backend was written for; MalformedError if Weft cannot use it."""
    try:
        return checked_version(version, what)
    except BackendError as e:
        raise MalformedError(e.short) from e


def checked_creator(made: object, what: str) -> BackendCreator:
    """Return the creator for what a factory returned: a creator, its class, or a class of backends."""
    if made is None:
        raise MalformedError(f"{what} nothing")
    try:
        return as_creator(made)
    except BackendError as e:
        why = f"of which no object can be made: {e.why}" if e.why else "which is not a backend"
        raise MalformedError(f"{what} {brief(repr(made))}, {why}") from e
    except FAILURES as e:
        if sent_by_signal(e):
            raise
        raise MalformedError(f"{what} {brief(repr(made))}, of which no object can be made: {described(e)}") from e
