"""Results in the memory of results that their caller dropped."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.layout import Array
from weft.core.host.result_memory import KEPT

SHAPE = (3, 1 << 18)
"""A result of 3 MiB."""


@pytest.fixture(params=["cpu", "vulkan"])
def session(request: pytest.FixtureRequest) -> Iterator[weft.Session]:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", SHAPE[1])))
    with weft.load(graph, request.param, shapes={"x": SHAPE}, fallback="error") as session:
        yield session


def full(value: float, rows: int = SHAPE[0]) -> Array:
    return np.full((rows, SHAPE[1]), value, np.float32)


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_dropped_result_gives_its_memory_to_a_later_one(session: weft.Session) -> None:
    places = set[int]()
    held = None
    for value in range(8):
        (held,) = session.run(full(value))
        assert (held == value).all()
        places.add(address(held))
    assert len(places) == 2  # the one that is held while a run writes the other


def test_a_result_stays_as_long_as_something_of_it_is_held(session: weft.Session) -> None:
    whole = [session.run(full(value))[0] for value in range(4)]
    parts = [session.run(full(value))[0].reshape(-1)[5::7][None] for value in range(4)]
    seen = [session.run(full(value))[0].data for value in range(4)]
    for value in range(50, 50 + 2 * KEPT):
        session.run(full(value))
    gc.collect()
    for value in range(4):
        assert all((np.asarray(held[value]) == value).all() for held in (whole, parts, seen))


def test_another_shape_and_the_end_leave_what_is_held(session: weft.Session) -> None:
    (before,) = session.run(full(1))
    (after,) = session.run(full(2, rows=5))
    assert after.shape == (5, SHAPE[1])
    session.close()
    assert (before == 1).all()
    assert (after == 2).all()
    before[...] = 3
    assert before.flags.writeable
    assert (after == 2).all()


def test_few_blocks_are_kept(session: weft.Session) -> None:
    given = full(1)
    tracemalloc.start()
    try:
        many = [session.run(given)[0] for _ in range(6)]
        held = tracemalloc.get_traced_memory()[0]
        many.clear()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held // given.nbytes == 6
    assert kept // given.nbytes == KEPT
