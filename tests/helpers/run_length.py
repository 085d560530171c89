"""How long this run of the tests is: the short one of every change, the long one of `--all`, or `--op` alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

VARIABLE = "WEFT_TESTS_ALL"
"""Set for the long run by `tests/conftest.py`, so that workers and children know it before they import a test."""

OP_VARIABLE = "WEFT_TESTS_OP"
"""Set for a run with `--op` likewise, to what the names of its ops have in them."""

DEAR = repr("vulkan")
"""A parameter that makes a row slow: llvmpipe compiles a kernel in four times the time of OpenCL or more."""


def is_long() -> bool:
    """Tell whether this is the long run."""
    return VARIABLE in os.environ


def is_asked_about(op: str) -> bool:
    """Tell whether this run has the rows of an op: it has those of all ops, but with `--op`."""
    return os.environ.get(OP_VARIABLE, "").lower() in op.lower()


def examples(count: int) -> int:
    """Return how many examples hypothesis tries: `count` in the long run, a third of them in the short one."""
    return count if is_long() else -(-count // 3)


def covering(rows: Sequence[Mapping[str, str]], together: int = 1) -> set[int]:
    """Return the places of rows that have, between them, every value of every parameter that some row has.

    With `together=2` they have every pair of values of two parameters. Values that rows are free to choose are
    spread evenly: of nine rows of a device, three run on each of three. But no row is on Vulkan that need not be.
    """
    groups = [
        [each for size in range(1, together + 1) for each in combinations(sorted(row.items()), size)] for row in rows
    ]
    missing = {group for each in groups for group in each}
    used: Counter[object] = Counter()
    chosen: set[int] = set()
    while missing:
        best = max(
            (place for place in range(len(rows)) if place not in chosen),
            key=lambda place: (
                len(missing.intersection(groups[place])),
                DEAR not in rows[place].values(),
                -sum(used[value] for value in rows[place].items()),
                -place,
            ),
        )
        chosen.add(best)
        missing.difference_update(groups[best])
        used.update(rows[best].items())
    return chosen
