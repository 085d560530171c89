"""What was computed of arrays is found again while it is in use, and holds nothing."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from weft.core.graph.layout import Array
from weft.core.host.derived_arrays import DerivedArrays


def lasting(seed: int = 0, size: int = 1 << 16) -> Array:
    """Return an array that nobody can change."""
    array = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    array.flags.writeable = False
    return array


def test_what_was_made_is_made_once() -> None:
    derived, source, calls = DerivedArrays(), lasting(), list[int]()

    def make() -> list[Array]:
        calls.append(1)
        return [source + 1]

    (first,), (second,) = derived.make("more", [source], make), derived.make("more", [source], make)
    assert first is second and len(calls) == 1
    assert derived.find("less", [source]) is None and derived.find("more", [lasting(1)]) is None


def test_nothing_is_kept_alive() -> None:
    derived, kept = DerivedArrays(), {"source": lasting()}
    kept["made"] = derived.make("more", [kept["source"]], lambda: [kept["source"] + 1])[0]
    refs = {name: weakref.ref(array) for name, array in kept.items()}
    for name in ("made", "source"):
        assert refs[name]() is not None
        del kept[name]
        gc.collect()
        assert refs[name]() is None
        assert not kept or derived.find("more", [kept["source"]]) is None


@pytest.mark.parametrize("why", ["it may change", "it is small"])
def test_some_arrays_are_not_noted(why: str) -> None:
    source = np.zeros(1 << 16, np.float32) if why == "it may change" else lasting(size=8)
    derived = DerivedArrays()
    (made,) = derived.make("more", [source], lambda: [source + 1])
    assert derived.find("more", [source]) is None and made.flags.writeable


def test_what_was_noted_does_not_change() -> None:
    derived, source = DerivedArrays(), lasting()
    (made,) = derived.make("more", [source], lambda: [source + 1])
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 0
