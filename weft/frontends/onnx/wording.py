"""Words for error messages: names out of files are quoted and cut, lists are cut."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NAME = 120
LONGEST_LIST = 20


def quote(name: str) -> str:
    """Return the name in quotes, without control characters and not longer than a line."""
    shown = repr(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}...'"


def listing(items: Sequence[str], separator: str = "; ") -> str:
    """Return the items in one text; of very many only the first, and how many more there are."""
    shown = separator.join(items[:LONGEST_LIST])
    more = len(items) - LONGEST_LIST
    return shown if more <= 0 else f"{shown}{separator}and {more} more"
