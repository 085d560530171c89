"""Maps of indices against numpy: composed, inverted, cut short."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.run_length import examples
from weft.core.graph.index_map import IDENTITY, IndexMap
from weft.core.graph.layout import Array, row_major

many = settings(max_examples=examples(300), deadline=None)


@st.composite
def moved(draw: st.DrawFn) -> tuple[IndexMap, Array]:
    """Draw a map of several moves, and the same moves done by numpy to the indices of an array."""
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4))
    value = np.arange(prod(dims)).reshape(dims)
    places = IDENTITY
    for _ in range(draw(st.integers(0, 5))):
        shape, steps, rank = value.shape, row_major(value.shape), value.ndim
        axis = draw(st.integers(0, rank - 1))
        match draw(st.sampled_from(["transpose", "slice", "expand", "roll", "reshape"])):
            case "transpose":
                order = draw(st.permutations(range(rank)))
                value = value.transpose(order)
                move = IndexMap.by_steps(value.shape, [steps[a] for a in order])
            case "slice":
                step = draw(st.sampled_from([1, 2, -1]))
                part = range(shape[axis])[draw(st.integers(0, shape[axis] - 1)) :: step]
                value = value.take(list(part), axis)
                changed = [s * (step if a == axis else 1) for a, s in enumerate(steps)]
                move = IndexMap.by_steps(value.shape, changed, part.start * steps[axis])
            case "expand":
                value = np.broadcast_to(np.expand_dims(value, axis), (*shape[:axis], 2, *shape[axis:]))
                move = IndexMap.by_steps(value.shape, (*steps[:axis], 0, *steps[axis:]))
            case "roll":
                by = draw(st.integers(0, shape[axis] - 1))
                value = np.roll(value, -by, axis)
                move = IndexMap.by_steps(shape, steps, 0, [by if a == axis else 0 for a in range(rank)])
            case _:
                columns = draw(st.sampled_from([d for d in (1, 2, 3) if value.size % d == 0]))
                value, move = value.reshape(-1, columns), IDENTITY
        places = move.then(places)
    return places, value


@given(moved())
@many
def test_a_map_is_what_numpy_moves(case: tuple[IndexMap, Array]) -> None:
    places, value = case
    np.testing.assert_array_equal(places.of(np.arange(value.size)), value.reshape(-1))


@given(moved(), st.integers(1, 100))
@many
def test_a_map_of_the_first_indices_is_the_same_for_them(case: tuple[IndexMap, Array], count: int) -> None:
    places, value = case
    first = np.arange(min(count, value.size))
    np.testing.assert_array_equal(places.of_first(len(first)).of(first), value.reshape(-1)[first])


@given(moved())
@many
def test_an_inverse_leads_back(case: tuple[IndexMap, Array]) -> None:
    places, value = case
    back = places.inverse()
    if back is not None:
        np.testing.assert_array_equal(back.of(value.reshape(-1)), np.arange(value.size))


@given(moved(), st.sampled_from([2, 4]))
@many
def test_what_keeps_together_does(case: tuple[IndexMap, Array], count: int) -> None:
    places, value = case
    if value.size % count == 0 and places.keeps_together(count):
        groups = value.reshape(-1, count)
        assert (groups[:, 0] % count == 0).all()
        np.testing.assert_array_equal(groups, groups[:, :1] + np.arange(count))


@given(moved())
@many
def test_steps_say_the_same_as_the_map(case: tuple[IndexMap, Array]) -> None:
    places, value = case
    found = places.steps(value.shape)
    if found is not None:
        grids = np.indices(value.shape).reshape(value.ndim, -1)
        np.testing.assert_array_equal(found[1] + np.array(found[0]) @ grids, value.reshape(-1))


def test_moves_that_undo_each_other_are_nothing() -> None:
    there = IndexMap.by_steps((4, 2, 3), (1, 12, 4))
    back = there.inverse()
    assert back is not None and there.then(back) == IDENTITY == back.then(there)


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_and_one_element_lie_where_they_are(size: int) -> None:
    assert IndexMap.by_steps((3, size, 1) if not size else (1, 1), (5, 1, 1)[: 3 - size]).is_identity


def test_windows_of_a_rolled_image_are_one_map_and_as_text() -> None:
    roll = IndexMap.by_steps((8, 8), (8, 1), 0, (3, 0))
    windows = IndexMap.by_steps((2, 2, 4, 4), (32, 4, 8, 1))
    both = windows.then(roll)
    image = np.roll(np.arange(64).reshape(8, 8), -3, 0)
    expected = image.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(both.of(np.arange(64)), expected.reshape(-1))
    assert "shifted by 3" in str(both)
