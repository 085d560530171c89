"""Sizes that stay open compute as ints do, and every comparison is a guard."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.core.graph.symbolic import OpenSizes, SymbolicInt, int_array, integer

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def computed(rng: random.Random, a: Any, b: Any, steps: int) -> Any:
    """Return a number that the same steps make of two others; `rng` chooses the steps."""
    values = [a, b]
    for _ in range(steps):
        left, right, what = rng.choice(values), rng.choice([*values, rng.randint(1, 9)]), rng.choice(sorted(OPERATIONS))
        if what in "//%" and not right > 0:
            continue
        made = OPERATIONS[what](left, right)
        values.append(made)
        if made < 0:
            values.append(-made)
    return values[-1]


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_is_that_of_ints(seed: int) -> None:
    """For the sizes of the moment, and for all others for which the guards hold."""
    sizes = OpenSizes()
    a, b = sizes.size("a", 7), sizes.size("b", 12)
    found = computed(random.Random(seed), a, b, 12)
    terms = found.terms if isinstance(found, SymbolicInt) else (((), found),)
    evaluate = sizes.evaluator([terms])
    assert evaluate({"a": 7, "b": 12}) == [computed(random.Random(seed), 7, 12, 12)]
    for other in ((8, 13), (70, 11), (2, 300), (15, 15)):
        got = evaluate({"a": other[0], "b": other[1]})
        assert got is None or got == [computed(random.Random(seed), *other, 12)]


def test_comparisons_are_guards() -> None:
    """Sizes for which a comparison would have another answer are not served."""
    sizes = OpenSizes()
    a, b = sizes.size("a", 5), sizes.size("b", 6)
    assert a < 9
    assert a + 1 == b
    assert b * 2 == a * 2 + 2  # follows from the line before
    assert len(sizes.guards) == 2
    evaluate = sizes.evaluator([(a * b).terms])
    assert evaluate({"a": 8, "b": 9}) == [72]
    assert evaluate({"a": 9, "b": 10}) is None
    assert evaluate({"a": 8, "b": 8}) is None


USES = (int, float, range, np.zeros, lambda size: np.array([size], np.int64), lambda size: [0][size])


@pytest.mark.parametrize("use", USES)
def test_a_number_is_not_taken_for_granted(use: Any) -> None:
    """What no guard could note raises, and is remembered even where somebody catches it."""
    sizes = OpenSizes()
    size = sizes.size("a", 3)
    with pytest.raises(TypeError):
        use(size)
    assert sizes.failed


def test_arrays_hold_open_sizes() -> None:
    """As objects; without one, they are arrays of integers."""
    size = OpenSizes().size("a", 3)
    assert int_array([1, 2]).dtype == np.int64
    held = int_array([size, 2])
    assert held.dtype == object
    assert integer(held[0]) is size
    assert type(integer(np.int64(2))) is int
