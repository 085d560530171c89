"""How long this run of the tests is: the short one of every change, or the long one of `--all`."""

from __future__ import annotations

import os

VARIABLE = "WEFT_TESTS_ALL"
"""Set for the long run by `tests/conftest.py`, so that workers and children know it before they import a test."""


def examples(count: int) -> int:
    """Return how many examples hypothesis tries: `count` in the long run, a third of them in the short one."""
    return count if VARIABLE in os.environ else -(-count // 3)
