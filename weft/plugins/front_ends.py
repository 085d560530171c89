"""Front ends of installed packages: the entry points of the group `weft.front_ends`."""

from __future__ import annotations

from importlib.metadata import entry_points

from weft.core.registry.front_ends import FrontEnd, FrontEndRegistry
from weft.plugins.interface import MalformedError, guarded
from weft.plugins.packages import origin_of

GROUP = "weft.front_ends"


def insert_all(registry: FrontEndRegistry) -> None:
    """Import and insert every announced front end, in the order of their names; report those that are wrong."""
    try:
        found = sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value))
    except Exception as e:
        registry.skip("entry points", f"the installed packages cannot be read: {type(e).__name__}: {e}")
        return
    for each in found:
        origin = origin_of(each)
        try:
            what = guarded(each.load, f"{each.value} cannot be imported")
        except MalformedError as e:
            registry.skip(origin, str(e))
            continue
        if isinstance(what, FrontEnd):
            registry.insert_found(what, origin)
        else:
            registry.skip(origin, f"{each.value} is {what!r}, which is no weft.extend.FrontEnd")
