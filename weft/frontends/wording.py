"""Words for error messages: names out of files are quoted and cut."""

from __future__ import annotations

LONGEST_NAME = 120


def quote(name: str) -> str:
    """Return the name in quotes, without control characters and not longer than a line."""
    shown = repr(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}...'"
