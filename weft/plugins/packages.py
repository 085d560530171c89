"""What installed packages announce by entry points: backends and front ends, and for `weft.cli` commands."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from weft.core.contract.backend import Backend, BackendCreator
from weft.core.registry.backend_registry import BackendRegistry
from weft.core.registry.front_ends import FrontEnd, FrontEndRegistry
from weft.plugins.interface import FUNCTIONS, Announced, MalformedError, checked_creator, guarded, read

BACKENDS, FRONT_ENDS = "weft.backends", "weft.front_ends"
"""The groups of the entry points."""


def insert_each(
    group: str, insert: Callable[[EntryPoint, object, str], None], skip: Callable[[str, str], None]
) -> None:
    """Import every entry point of a group, in the order of their names, and call `insert(entry_point, object, origin)`.

    Where one cannot be imported, or `insert` raises MalformedError, `skip(origin, reason)` is called instead.
    """
    try:
        found = sorted(entry_points(group=group), key=lambda e: (e.name, e.value))
    except Exception as e:
        skip("entry points", f"the installed packages cannot be read: {type(e).__name__}: {e}")
        return
    for each in found:
        origin = origin_of(each)
        try:
            insert(each, _imported(each), origin)
        except MalformedError as e:
            skip(origin, str(e))


def origin_of(entry_point: EntryPoint) -> str:
    """Return the entry point's name and its package: "entry point acme (package acme-npu 1.2)"."""
    package = entry_point.dist
    named = f" (package {package.name} {package.version})" if package is not None else ""
    return f"entry point {entry_point.name}{named}"


def _imported(entry_point: EntryPoint) -> object:
    value = entry_point.value
    if not EntryPoint.pattern.match(value):
        raise MalformedError(f"its value {value!r} names no module and nothing in one; write package.module:name")
    return guarded(entry_point.load, f"{value} cannot be imported")


def insert_backends(registry: BackendRegistry) -> None:
    """Import and insert every announced backend, in the order of their names; report the wrong ones."""

    def insert(entry_point: EntryPoint, what: object, origin: str) -> None:
        announced = _announced(entry_point, what)
        package = entry_point.dist
        version = f"{package.name} {package.version}" if package is not None else ""
        registry.insert_dynamic(announced.creator, origin, id=announced.id, version=version)

    insert_each(BACKENDS, insert, registry.skip)


def _announced(entry_point: EntryPoint, what: object) -> Announced:
    """Return the backend that an entry point names: a creator, its class, a class of backends, or a module.

    A creator has its own id; without one, and for a class of backends, the entry point's name is the id.
    """
    value = entry_point.value
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


def insert_front_ends(registry: FrontEndRegistry) -> None:
    """Import and insert every announced front end, in the order of their names; report the wrong ones."""

    def insert(entry_point: EntryPoint, what: object, origin: str) -> None:
        if not isinstance(what, FrontEnd):
            raise MalformedError(f"{entry_point.value} is {what!r}, which is no weft.extend.FrontEnd")
        registry.insert_found(what, origin)

    insert_each(FRONT_ENDS, insert, registry.skip)
