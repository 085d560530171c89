"""Order the commands of a recording by dependency levels, with a barrier between each two levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.backends.gpu.device.device import BarrierCommand, Binding, Command, GpuDevice


@dataclass(frozen=True, slots=True)
class Access:
    """A command with the bytes it reads and writes."""

    command: Command
    reads: tuple[Binding, ...]
    writes: tuple[Binding, ...]


_Touched = Sequence[tuple[Sequence[Binding], Sequence[Binding]]]
"""What each command reads, and what it writes, without empty pieces."""


class KeptLevels:
    """The levels of the last commands, which are those of others whose pieces overlap in the same way.

    That is so at most resizes of a network that grows a little, and to find out takes a fraction of the time.
    """

    def __init__(self) -> None:
        self._form: object = None
        self._levels: list[int] = []

    def of(self, touched: _Touched) -> list[int]:
        """Return the level of each command."""
        form = _form(touched)
        if form != self._form:
            self._levels = _levels(touched)
            self._form = form
        return self._levels


def levels(accesses: Sequence[Access], kept: KeptLevels | None = None) -> list[list[Command]]:
    """Return the commands by dependency level: no command of a level touches bytes that another one there writes.

    Hazards are found by byte ranges, so reused memory orders commands like true dependencies.
    """
    touched = [([b for b in a.reads if b.nbytes], [b for b in a.writes if b.nbytes]) for a in accesses]
    found = _levels(touched) if kept is None else kept.of(touched)
    out: list[list[Command]] = [[] for _ in range(max(found, default=-1) + 1)]
    for access, level in zip(accesses, found, strict=True):
        out[level].append(access.command)
    return out


def _by_buffer(touched: _Touched) -> dict[int, list[Binding]]:
    pieces: dict[int, list[Binding]] = {}
    for reads, writes in touched:
        for b in (*reads, *writes):
            pieces.setdefault(id(b.buffer), []).append(b)
    return pieces


def _form(touched: _Touched) -> object:
    """Return what the levels follow from: of each piece its buffer, by number, and the order of its ends in that."""
    places: dict[int, tuple[int, dict[int, int]]] = {}
    for number, (key, held) in enumerate(_by_buffer(touched).items()):
        ends = sorted({end for b in held for end in (b.offset, b.offset + b.nbytes)})
        places[key] = number, {end: k for k, end in enumerate(ends)}
    form: list[object] = []
    for both in touched:
        for pieces in both:
            for b in pieces:
                number, rank = places[id(b.buffer)]
                form.append((number, rank[b.offset], rank[b.offset + b.nbytes], b.blocks))
            form.append(None)
    return form


def _levels(touched: _Touched) -> list[int]:
    """Return the level of each command."""
    buffers = {key: _Buffer(held) for key, held in _by_buffer(touched).items()}
    out: list[int] = []
    for reads, writes in touched:
        found = [buffers[id(b.buffer)].highest(b, written=False) for b in reads]
        found += [buffers[id(b.buffer)].highest(b, written=True) for b in writes]
        level = 1 + max(found, default=-1)
        for written, bindings in ((False, reads), (True, writes)):
            for b in bindings:
                buffers[id(b.buffer)].note(b, level, written=written)
        out.append(level)
    return out


class _Buffer:
    """The levels of the commands that have touched a buffer so far, by byte range.

    Views of one tensor have the same byte range, but two that are written conflict only if they share channels. So
    levels are noted by channels as well, and byte ranges decide only between different tensors. One that is read waits
    for all others that are written, and they for it: it hardly ever costs a level, and what checks a recording, such as
    Vulkan's validation layer, knows bytes alone.
    """

    def __init__(self, pieces: Sequence[Binding]) -> None:
        ends = [end for b in pieces for end in (b.offset, b.offset + b.nbytes)]
        self._bytes = (_Line(ends), _Line(ends))
        self._read = _Line(ends)
        views: dict[tuple[int, int], list[int]] = {}
        for b in pieces:
            if b.blocks is not None:
                views.setdefault((b.offset, b.nbytes), []).extend(b.blocks)
        self._tensors = {key: k for k, key in enumerate(views)}
        self._written = {key: _Line(blocks) for key, blocks in views.items()}

    def highest(self, b: Binding, *, written: bool) -> int:
        """Return the highest level of the commands that must come before this access; -1 for none."""
        line, begin, end = self._bytes[written], b.offset, b.offset + b.nbytes
        if b.blocks is None or not written:
            return line.highest(begin, end)
        key = (b.offset, b.nbytes)
        others = max(line.highest(begin, end, self._tensors[key]), self._read.highest(begin, end))
        return max(others, self._written[key].highest(*b.blocks))

    def note(self, b: Binding, level: int, *, written: bool) -> None:
        """Note an access: later writes wait for every access, later reads for writes."""
        key = (b.offset, b.nbytes)
        for who in (False, True) if written else (True,):
            self._bytes[who].note(b.offset, b.offset + b.nbytes, level, -1 if b.blocks is None else self._tensors[key])
        if not written:
            self._read.note(b.offset, b.offset + b.nbytes, level)
        elif b.blocks is not None:
            self._written[key].note(*b.blocks, level)


_Top = tuple[int, int, int]
"""The highest level, the tensor to whose views it belongs (-1: none), and the highest level of all others."""
_NOTHING: _Top = (-1, -1, -1)


def _higher(a: _Top, b: _Top) -> _Top:
    if b is _NOTHING or a is b:
        return a
    if b[0] > a[0]:
        a, b = b, a
    other = b[2] if a[1] == b[1] else b[0]
    return a if other <= a[2] else (a[0], a[1], other)


class _Line:
    """Levels noted over ranges of a line; a segment tree, so that thousands of ranges are looked up in a few steps."""

    def __init__(self, ends: Iterable[int]) -> None:
        points = sorted(set(ends))
        self._place = {point: k for k, point in enumerate(points)}
        self._leaves = 1 << (len(points) - 1).bit_length()
        self._whole = [_NOTHING] * (2 * self._leaves)
        """For each node, the levels noted for its whole range."""
        self._best = [_NOTHING] * (2 * self._leaves)
        """For each node, the highest level noted for any part of its range."""

    def note(self, begin: int, end: int, level: int, tensor: int = -1) -> None:
        whole, best, mark = self._whole, self._best, (level, tensor, -1)
        first, last = self._place[begin] + self._leaves, self._place[end] + self._leaves - 1
        left, right, covered = first, last + 1, list[int]()
        while left < right:
            if left & 1:
                covered.append(left)
                left += 1
            if right & 1:
                right -= 1
                covered.append(right)
            left, right = left >> 1, right >> 1
        for node in covered:
            whole[node], best[node] = _higher(whole[node], mark), _higher(best[node], mark)
        for above in (first >> 1, last >> 1):
            while above:
                found = best[above]
                best[above] = now = _higher(found, mark)
                if now is found and above not in covered:
                    break  # what is above has the mark, or a higher one, too
                above >>= 1

    def highest(self, begin: int, end: int, apart_from: int = -1) -> int:
        """Return the highest level noted for any part of a range, without those of one tensor's views; -1 for none."""
        first, last = self._place[begin] + self._leaves, self._place[end] + self._leaves - 1
        found, left, right = _NOTHING, first, last + 1
        while left < right:
            if left & 1:
                found = _higher(found, self._best[left])
                left += 1
            if right & 1:
                right -= 1
                found = _higher(found, self._best[right])
            left, right = left >> 1, right >> 1
        for node in (first, last):
            while node := node >> 1:
                found = _higher(found, self._whole[node])
        return found[2] if apart_from >= 0 and found[1] == apart_from else found[0]


def schedule(accesses: Sequence[Access], kept: KeptLevels | None = None) -> list[Command]:
    """Return the commands level by level, with a barrier between levels."""
    commands: list[Command] = []
    for level in levels(accesses, kept):
        if commands:
            commands.append(BarrierCommand())
        commands += level
    return commands


def run_once(device: GpuDevice, accesses: Sequence[Access]) -> None:
    """Record, run and wait for some commands, level by level."""
    run_commands(device, schedule(accesses))


def run_commands(device: GpuDevice, commands: Sequence[Command]) -> None:
    """Record, run and wait for some commands, with the barriers among them."""
    handle = device.record(commands)
    try:
        device.submit(handle)
        device.wait(handle)
    finally:
        device.release(handle)
