"""Weights are packed ahead by threads: the same values, in bounded memory, and errors come where they are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from weft.backends.gpu import packing
from weft.backends.gpu.lowering.launches.builder import PlannedConstant
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, to_storage
from weft.core.graph.tensor import TensorSpec

SPEC = TensorSpec((1 << 20,), DType.FLOAT32)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "cores", lambda: 2)


def constants(count: int, make: Callable[[int], Array]) -> list[PlannedConstant]:
    """Return constants of 4 MiB each."""
    return [PlannedConstant("node", f"w{k}", partial(make, k), Layout.NCHW, SPEC, ()) for k in range(count)]


def filled(k: int) -> Array:
    """Return an array of one number."""
    return np.full(SPEC.dims, k, np.float32)


def test_constants_are_packed_in_threads_and_taken_in_any_order() -> None:
    makers: list[str] = []

    def make(k: int) -> Array:
        makers.append(threading.current_thread().name)
        return filled(k)

    planned = constants(8, make)
    with packing.Packing(planned):
        for k in (0, 2, 1, 7, 6, 5, 4, 3):
            assert (planned[k].take() == k).all()
    assert set(makers) == {"weft-packing"} and len(makers) == 8


def test_threads_store_what_they_make() -> None:
    """A transposed matrix, of which an op gives a view, is copied by them."""
    numbers = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    spec = TensorSpec((1024, 1024, 1), DType.FLOAT32)
    stored = to_storage(numbers.T.reshape(spec.dims), Layout.NC4HW4)
    planned = [PlannedConstant("node", f"w{k}", lambda: numbers.T.reshape(spec.dims), Layout.NC4HW4, spec, ())
               for k in range(4)]
    with packing.Packing(planned):
        for each in planned:
            taken = each.take()
            assert taken.flags.c_contiguous and taken.shape == stored.shape and (taken == stored).all()


def test_no_more_is_packed_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "AHEAD", 8 << 20)
    made, lock = set(), threading.Lock()

    def make(k: int) -> Array:
        with lock:
            made.add(k)
        return filled(k)

    planned = constants(8, make)
    with packing.Packing(planned):
        for k in range(8):
            planned[k].take()
            with lock:
                assert max(made) <= k + 2
    assert made == set(range(8))


def test_an_error_is_that_of_the_constant_that_is_taken() -> None:
    def make(k: int) -> Array:
        if k == 2:
            raise ValueError("w2 is wrong")
        return filled(k)

    planned = constants(5, make)
    with packing.Packing(planned):
        assert (planned[4].take() == 4).all()
        with pytest.raises(ValueError, match="w2 is wrong"):
            planned[2].take()


def test_what_another_pipeline_has_uploaded_makes_way_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "AHEAD", 8 << 20)
    makers: dict[int, str] = {}

    def make(k: int) -> Array:
        makers[k] = threading.current_thread().name
        return filled(k)

    planned = constants(8, make)
    with packing.Packing(planned):
        for k in range(6):
            planned[k].forget()
        for k in (6, 7):
            assert (planned[k].take() == k).all()
    assert makers[6] == makers[7] == "weft-packing"


def test_what_was_not_taken_is_made_when_it_is() -> None:
    planned = constants(5, filled)
    with packing.Packing(planned):
        planned[0].take()
    assert (planned[3].take() == 3).all() and (planned[0].take() == 0).all()
