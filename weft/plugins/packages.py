"""Backends of installed packages: the entry points of the group `weft.backends`."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from weft.core.contract.backend import Backend, BackendCreator
from weft.core.registry.backend_registry import BackendRegistry
from weft.plugins.entry_points import insert_each
from weft.plugins.interface import FUNCTIONS, Announced, MalformedError, checked_creator, read

GROUP = "weft.backends"


def insert_all(registry: BackendRegistry) -> None:
    """Import and insert every announced backend, in the order of their names; report the wrong ones."""

    def insert(entry_point: EntryPoint, what: object, origin: str) -> None:
        announced = _announced(entry_point, what)
        package = entry_point.dist
        version = f"{package.name} {package.version}" if package is not None else ""
        registry.insert_dynamic(announced.creator, origin, id=announced.id, version=version)

    insert_each(GROUP, insert, registry.skip)


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
