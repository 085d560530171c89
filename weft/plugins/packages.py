"""Backends of installed packages: the entry points of the group `weft.backends`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from weft.core.contract.backend import Backend, BackendCreator
from weft.core.registry.backend_registry import BackendRegistry
from weft.plugins.interface import (
    FUNCTIONS,
    Announced,
    MalformedError,
    checked_creator,
    guarded,
    read,
)

GROUP = "weft.backends"


def insert_all(registry: BackendRegistry) -> None:
    """Import and insert every announced backend, in the order of their names; report those that are wrong."""
    try:
        found = sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value))
    except Exception as e:
        registry.skip("entry points", f"the installed packages cannot be read: {type(e).__name__}: {e}")
        return
    for each in found:
        origin = origin_of(each)
        try:
            announced = load(each)
        except MalformedError as e:
            registry.skip(origin, str(e))
            continue
        version = f"{each.dist.name} {each.dist.version}" if each.dist is not None else ""
        registry.insert_dynamic(announced.creator, origin, id=announced.id, version=version)


def origin_of(entry_point: EntryPoint) -> str:
    """Return where an entry point is: its name and its package."""
    package = entry_point.dist
    named = f" (package {package.name} {package.version})" if package is not None else ""
    return f"entry point {entry_point.name}{named}"


def load(entry_point: EntryPoint) -> Announced:
    """Return the backend of an entry point: a creator, its class, a class of backends, or a module.

    A creator has its own id; without one, and for a class of backends, the entry point's name is the id.
    """
    value = entry_point.value
    if not EntryPoint.pattern.match(value):
        raise MalformedError(f"its value {value!r} names no module and nothing in one; write package.module:name")
    what = guarded(entry_point.load, f"{value} cannot be imported")
    kind = what if isinstance(what, type) else type(what)
    if not issubclass(kind, (Backend, BackendCreator)):
        if not any(hasattr(what, name) for name in FUNCTIONS):
            raise MalformedError(
                f"{value} is {what!r}, which is neither a backend nor a module with {', '.join(FUNCTIONS)}"
            )
        return read(what, value)
    creator = checked_creator(what, f"{value} is")
    id_ = creator.id or entry_point.name
    if not isinstance(id_, str):
        raise MalformedError(f"its id is {id_!r}, which is not a string")
    return Announced(id_, creator)
