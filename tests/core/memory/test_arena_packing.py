"""The packing of an arena: never wrong, as small as the bound where a search finds that, and quick for any number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.run_length import examples
from weft.core.memory.arena_packing import SEARCH_VISITS, Block, live_peak, pack

Blocks = list[Block]


def chain(count: int) -> Blocks:
    return [Block(64 + 64 * (k % 3), 2 * k, 2 * k + 3) for k in range(count)]


def fan(count: int) -> Blocks:
    """One value read by many nodes, whose results are joined at the end."""
    return [Block(64 * (1 + k % 5), k, count + k) for k in range(count)]


def ladder(count: int) -> Blocks:
    """Values that are read in the reverse of the order in which they are made."""
    return [Block(64 * (1 + k % 7), k, 2 * count - k) for k in range(count)]


def window(count: int) -> Blocks:
    """Many gaps of many sizes: each value is read far behind where it is made."""
    return [Block(64 * (1 + k * 7919 % 997), 3 * k, 3 * k + 301 + 600 * (k % 2)) for k in range(count)]


def assert_apart(blocks: Blocks, offsets: list[int], size: int) -> None:
    """Check that blocks which live together lie apart, looking at those that live at each birth."""
    live: list[tuple[int, int, int]] = []
    for block, offset in sorted(zip(blocks, offsets, strict=True), key=lambda pair: pair[0].birth):
        assert 0 <= offset <= size - block.size
        live = [piece for piece in live if piece[2] > block.birth]
        assert all(offset + block.size <= low or high <= offset for low, high, _ in live)
        live.append((offset, offset + block.size, block.death))


@pytest.mark.parametrize("shape", [chain, fan, ladder, window])
def test_M8_the_work_grows_with_the_blocks_and_not_with_their_square(shape: Callable[[int], Blocks]) -> None:
    small, large = shape(2_000), shape(8_000)
    few, many = pack(small), pack(large)
    assert many.visits <= 5 * few.visits + SEARCH_VISITS
    assert_apart(small, few.offsets, few.size)
    assert few.size <= 1.25 * live_peak(small) and many.size <= 1.25 * live_peak(large)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 900)), min_size=330, max_size=400))
@settings(max_examples=examples(20), deadline=None)
def test_M8_blocks_that_live_together_lie_apart_beyond_the_pairs_that_are_looked_at(
    given_blocks: list[tuple[int, int]],
) -> None:
    blocks = [Block(64 * size, k, k + 300 + life) for k, (size, life) in enumerate(given_blocks)]
    made = pack(blocks)
    assert_apart(blocks, made.offsets, made.size)
    assert live_peak(blocks) <= made.size


def test_M8_the_search_finds_what_no_order_does() -> None:
    # Largest first, largest and longest first, births and deaths in order: each of them leaves 16 units where 15 live.
    pieces = [(2, 1), (4, 3), (3, 4), (3, 3), (4, 3), (3, 1), (2, 1)]
    blocks = [Block(64 * size, 2 * k, 2 * (k + life) + 1) for k, (size, life) in enumerate(pieces)]
    made = pack(blocks)
    assert_apart(blocks, made.offsets, made.size)
    assert made.size == live_peak(blocks) == 15 * 64


def test_M8_nothing_is_packed_into_nothing() -> None:
    assert pack([]) == ([], 0, 0)


def test_M8_once_the_bound_is_reached_nothing_more_is_tried() -> None:
    assert pack(ladder(100)).visits < 20_000 < SEARCH_VISITS
