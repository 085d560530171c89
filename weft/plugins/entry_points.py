"""Imports the entry points that installed packages announce, in order; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from weft.plugins.interface import MalformedError, guarded


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
