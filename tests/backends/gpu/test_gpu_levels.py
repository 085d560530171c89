"""Which commands of a plan may run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.gpu_plans import planned
from tests.helpers.nets import Net
from tests.helpers.op_rows import GPUS
from tests.helpers.random_nets import SLOW, assert_session_is_right, networks
from tests.helpers.run_length import examples
from weft.backends.gpu.device.device import BarrierCommand, Binding, CopyCommand, GpuBuffer, MemoryKind
from weft.backends.gpu.memory import slots as memory_module
from weft.backends.gpu.recording import pipeline_recording
from weft.backends.gpu.recording.schedule import Access, KeptLevels, levels, schedule
from weft.core.graph.graph import Graph
from weft.core.graph.tensor import Tensor

Piece = tuple[int, int, int]
pieces = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), st.integers(1, 4)), max_size=3)


def overlap(a: Piece, b: Piece) -> bool:
    return a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def conflict(one: tuple[list[Piece], list[Piece]], other: tuple[list[Piece], list[Piece]]) -> bool:
    """Tell whether the order of two commands, each with what it reads and writes, matters."""
    (r1, w1), (r2, w2) = one, other
    return any(overlap(a, b) for a in w1 for b in (*r2, *w2)) or any(overlap(a, b) for a in r1 for b in w2)


@given(st.lists(st.tuples(pieces, pieces), max_size=12))
@settings(max_examples=examples(300), deadline=None)
def test_commands_of_one_level_may_run_in_any_order(commands: list[tuple[list[Piece], list[Piece]]]) -> None:
    buffers = [GpuBuffer(64, MemoryKind.DEVICE, None) for _ in range(2)]

    def bindings(those: list[Piece]) -> tuple[Binding, ...]:
        return tuple(Binding(buffers[k], start, size) for k, start, size in those)

    dummy = Binding(buffers[0], 0, 1)
    made = [CopyCommand(dummy, dummy, str(k)) for k in range(len(commands))]
    accesses = [Access(c, bindings(r), bindings(w)) for c, (r, w) in zip(made, commands, strict=True)]
    found = {c.label: k for k, level in enumerate(levels(accesses)) for c in level}  # type: ignore[union-attr]
    assert len(found) == len(commands)
    for j, later in enumerate(commands):
        before = [found[str(i)] for i in range(j) if conflict(commands[i], later)]
        assert found[str(j)] == max(before, default=-1) + 1, "as early as it may be, and no earlier"


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=2)


@given(st.lists(st.tuples(ranges, ranges), max_size=25))
@example([([(1, 2)], []), ([], [(2, 3)]), ([], [(0, 6)])])
@settings(max_examples=examples(300), deadline=None)
def test_ranges_of_many_sizes_are_kept_apart(commands: list[tuple[list[Any], list[Any]]]) -> None:
    buffer = GpuBuffer(128, MemoryKind.DEVICE, None)
    dummy = Binding(buffer, 0, 1)
    accesses = [
        Access(CopyCommand(dummy, dummy, str(k)), *(tuple(Binding(buffer, *each) for each in side) for side in sides))
        for k, sides in enumerate(commands)
    ]
    found = {c.label: k for k, level in enumerate(levels(accesses)) for c in level}  # type: ignore[union-attr]
    assert [found[str(k)] for k in range(len(commands))] == simple_levels(accesses)


def share_bytes(a: Binding, b: Binding, *, both_written: bool) -> bool:
    """Tell whether two pieces share bytes; two views of one tensor that are written do if they share channels."""
    if a.buffer is not b.buffer or not a.nbytes or not b.nbytes:
        return False
    if a.offset >= b.offset + b.nbytes or b.offset >= a.offset + a.nbytes:
        return False
    if not both_written or a.blocks is None or b.blocks is None or (a.offset, a.nbytes) != (b.offset, b.nbytes):
        return True
    return a.blocks[0] < b.blocks[1] and b.blocks[0] < a.blocks[1]


def simple_levels(accesses: Sequence[Access]) -> list[int]:
    """Return the level of each command, found by comparing it with all before it."""
    out: list[int] = []
    for j, later in enumerate(accesses):
        waits = [
            out[i]
            for i, earlier in enumerate(accesses[:j])
            for mine, theirs, both_written in (
                (later.writes, earlier.writes, True),
                (later.writes, earlier.reads, False),
                (later.reads, earlier.writes, False),
            )
            if any(share_bytes(a, b, both_written=both_written) for a in mine for b in theirs)
        ]
        out.append(max(waits, default=-1) + 1)
    return out


block_ranges = st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda p: (min(p), max(p) + 1))
places = st.tuples(st.integers(0, 1), st.sampled_from([(0, 4), (0, 8), (4, 4), (2, 4), (4, 0), (8, 8)]), block_ranges)
accessed = st.lists(places, max_size=2)


@given(st.lists(st.tuples(accessed, accessed), max_size=30))
@settings(max_examples=examples(500), deadline=None)
def test_levels_are_those_that_a_comparison_of_all_pairs_gives(commands: list[tuple[list[Any], list[Any]]]) -> None:
    buffers = [GpuBuffer(64, MemoryKind.DEVICE, None) for _ in range(2)]

    def bindings(those: list[Any]) -> tuple[Binding, ...]:
        return tuple(Binding(buffers[k], start, size, blocks) for k, (start, size), blocks in those)

    dummy = Binding(buffers[0], 0, 1)
    made = [CopyCommand(dummy, dummy, str(k)) for k in range(len(commands))]
    accesses = [Access(c, bindings(r), bindings(w)) for c, (r, w) in zip(made, commands, strict=True)]
    found = {c.label: k for k, level in enumerate(levels(accesses)) for c in level}  # type: ignore[union-attr]
    assert [found[str(k)] for k in range(len(commands))] == simple_levels(accesses)


few = st.lists(st.tuples(*[st.lists(st.tuples(st.integers(0, 3), block_ranges), max_size=2)] * 2), max_size=12)
four_places = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=4, max_size=4)


@given(few, four_places, four_places)
@example([([], [(0, None)]), ([(1, None)], [])], [(0, 4), (4, 4)] * 2, [(0, 4), (3, 4)] * 2)
@example([([], [(0, None)]), ([(1, None)], [])], [(0, 4), (4, 4)] * 2, [(0, 3), (4, 7)] * 2)
@settings(max_examples=examples(300), deadline=None)
def test_kept_levels_are_those_of_places_that_have_changed(
    commands: list[tuple[list[Any], list[Any]]], first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    kept = KeptLevels()
    for spots in (first, second, first):
        buffer = GpuBuffer(64, MemoryKind.DEVICE, None)
        dummy, accesses = Binding(buffer, 0, 1), list[Access]()
        for k, sides in enumerate(commands):
            reads, writes = ([(*spots[place], blocks) for place, blocks in side] for side in sides)
            made = (tuple(Binding(buffer, start, size, of) for start, size, of in side) for side in (reads, writes))
            accesses.append(Access(CopyCommand(dummy, dummy, str(k)), *made))
        found = {c.label: k for k, level in enumerate(levels(accesses, kept)) for c in level}  # type: ignore[union-attr]
        assert [found[str(k)] for k in range(len(commands))] == simple_levels(accesses)


def test_there_is_a_barrier_between_two_levels_and_nowhere_else() -> None:
    buffer = GpuBuffer(64, MemoryKind.DEVICE, None)
    a, b, c = (Binding(buffer, k, 1) for k in (0, 8, 16))
    copies = [CopyCommand(a, b), CopyCommand(a, c), CopyCommand(b, c)]
    order = schedule([Access(x, (x.source,), (x.target,)) for x in copies])
    assert [isinstance(x, BarrierCommand) for x in order] == [False, False, True, False]
    assert schedule([]) == []


def touched(tensor: Tensor) -> list[Piece]:
    """Return the bytes of a tensor, image by image where it lies between others."""
    region = tensor.memory
    base = id(region.slot.buffer)
    if not region.blocks:
        # A value that repeats another is read where that lies, and is larger than what is read.
        return [(base, region.slot.offset, min(max(tensor.nbytes, 1), region.binding().nbytes))]
    own, plane = tensor.storage_shape[1], prod(tensor.storage_shape[2:]) * tensor.dtype.itemsize
    starts = [(n * region.blocks + region.first) * plane for n in range(tensor.shape[0])]
    return [(base, region.slot.offset + start, max(own * plane, 1)) for start in starts]


def covers(tensor: Tensor, piece: Piece) -> bool:
    """Tell whether what the schedule takes for a tensor's memory holds this piece of it."""
    taken = memory_module.touched(tensor)
    return taken.offset <= piece[1] and piece[1] + piece[2] <= taken.offset + taken.nbytes


@given(graph=networks(12))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
def test_launches_that_may_run_side_by_side_do_not_touch_each_other(graph: Graph) -> None:
    seen: list[tuple[list[Any], list[Any]]] = []

    def watched(accesses: Sequence[Access], kept: KeptLevels) -> list[Any]:
        seen.append(([a.command for a in accesses], schedule(accesses, kept)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_recording, "schedule", watched)
        with planned(graph) as session:
            assume(session.pipelines)
            launches = session.pipelines[0].backend.recording.run.rest  # type: ignore[attr-defined]
            given_order, recorded = seen[-1]
            level, at = 0, {}
            for command in recorded:
                level += isinstance(command, BarrierCommand)
                at[id(command)] = level
            commands = [c for c in given_order if not isinstance(c, CopyCommand)]
            bytes_of = [
                ([p for t in one.reads for p in touched(t)], [p for t in one.writes for p in touched(t)])
                for one in launches
            ]
            for one in launches:
                assert all(covers(t, p) for t in (*one.reads, *one.writes) for p in touched(t))
            for j in range(len(launches)):
                for i in range(j):
                    if conflict(bytes_of[i], bytes_of[j]):
                        assert at[id(commands[i])] < at[id(commands[j])], f"{launches[i].label}, {launches[j].label}"


def test_branches_of_a_network_share_a_level() -> None:
    net = Net()
    x = net.input("x", 1, 8, 4, 4)
    graph = net.finish(*(net.conv(net.add("Relu", net.conv(x, 8)), 8, name=f"y{k}") for k in range(3)))
    seen: list[list[Any]] = []

    def watched(accesses: Sequence[Access], kept: KeptLevels) -> list[Any]:
        seen.append(schedule(accesses, kept))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_recording, "schedule", watched)
        with planned(graph):
            pass
    barriers = sum(isinstance(c, BarrierCommand) for c in seen[-1])
    assert barriers == 5, "upload, relayout, three first, three second convolutions, three relayouts, downloads"


@pytest.mark.parametrize("device", GPUS)
def test_a_part_of_a_concat_is_read_before_or_after_another_is_written(device: str) -> None:
    """The validation layer, which knows no channels, has nothing to say of a batch whose parts share their bytes."""
    net = Net()
    part = net.conv(net.conv(net.input("x", 2, 4, 8, 8), 8, 3, pads=(1,) * 4), 8)
    other = net.add("Mul", net.add("Neg", part), np.array([2.5], np.float32))
    graph = net.finish(net.add("GlobalAveragePool", net.add("Concat", other, part, axis=1)), part)
    with weft.load(graph, device=device, fallback="error") as session:
        assert_session_is_right(session, graph, 1e-5)
