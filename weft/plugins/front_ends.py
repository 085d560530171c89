"""Front ends of installed packages: the entry points of the group `weft.front_ends`."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from weft.core.registry.front_ends import FrontEnd, FrontEndRegistry
from weft.plugins.entry_points import insert_each
from weft.plugins.interface import MalformedError

GROUP = "weft.front_ends"


def insert_all(registry: FrontEndRegistry) -> None:
    """Import and insert every announced front end, in the order of their names; report the wrong ones."""

    def insert(entry_point: EntryPoint, what: object, origin: str) -> None:
        if not isinstance(what, FrontEnd):
            raise MalformedError(f"{entry_point.value} is {what!r}, which is no weft.extend.FrontEnd")
        registry.insert_found(what, origin)

    insert_each(GROUP, insert, registry.skip)
