"""Arrays that a caller gives for outputs."""

from __future__ import annotations

import numpy as np
import pytest

from weft.core.graph.layout import Array
from weft.core.session import arguments


def odd(memory: Array, start: int, rng: np.random.Generator) -> Array:
    """Return an array of so many axes with strides so unlike that it is hard to say what it shares with another."""
    strides = [int(stride) for stride in rng.integers(10_000, 20_000, 16)]
    return np.lib.stride_tricks.as_strided(memory[start:], (3,) * 16, strides)


def test_the_search_for_shared_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its bound the search takes longer than anybody waits; where it gives up the arrays are refused."""
    rng, memory = np.random.default_rng(0), np.empty(1 << 20, np.int8)
    pairs = [[odd(memory, 0, rng), odd(memory, 1, rng)] for _ in range(20)]
    for pair in pairs:
        list(arguments._shared(["a", "b"], pair))
    monkeypatch.setattr(arguments, "MOST_WORK", 1)
    (said,) = arguments._shared(["a", "b"], pairs[0])
    assert "'a' and 'b' need arrays of their own" in said
