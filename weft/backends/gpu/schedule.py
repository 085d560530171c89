"""The order of commands in a recording: dependency levels, and a barrier only between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.backends.gpu.device import BarrierCommand, Binding, Command


@dataclass(frozen=True, slots=True)
class Access:
    """A command with the bytes it reads and writes."""

    command: Command
    reads: tuple[Binding, ...]
    writes: tuple[Binding, ...]


def overlap(a: Binding, b: Binding) -> bool:
    """Tell whether two pieces of one buffer share bytes; two views of one tensor do if they share channels."""
    if a.offset >= b.offset + b.nbytes or b.offset >= a.offset + a.nbytes:
        return False
    if a.blocks is None or b.blocks is None or (a.offset, a.nbytes) != (b.offset, b.nbytes):
        return True
    return a.blocks[0] < b.blocks[1] and b.blocks[0] < a.blocks[1]


def covers(a: Binding, b: Binding) -> bool:
    """Tell whether everything that overlaps `b` overlaps `a` as well."""
    if a.blocks is None:
        return a.offset <= b.offset and b.offset + b.nbytes <= a.offset + a.nbytes
    if b.blocks is None or (a.offset, a.nbytes) != (b.offset, b.nbytes):
        return False
    return a.blocks[0] <= b.blocks[0] and b.blocks[1] <= a.blocks[1]


class _Touch(NamedTuple):
    """What a command that has its level does to a piece of a buffer."""

    piece: Binding
    level: int
    wrote: bool

    def outdates(self, earlier: _Touch) -> bool:
        """Tell whether whoever must wait for the earlier one waits for this one, which is no sooner done."""
        return earlier.level <= self.level and self.wrote >= earlier.wrote and covers(self.piece, earlier.piece)


def levels(accesses: Sequence[Access]) -> list[list[Command]]:
    """Return the commands by dependency level: none in a level touches what another there writes.

    Hazards are found by byte ranges, so memory that is reused orders commands as true dependencies do. What is outdated
    is forgotten, or a long network would compare each command with all before it.
    """
    history: dict[int, list[_Touch]] = {}
    out: list[list[Command]] = []
    for access in accesses:
        level = 0
        touched = [(b, False) for b in access.reads] + [(b, True) for b in access.writes]
        for b, written in touched:
            for earlier in history.get(id(b.buffer), ()):
                if (written or earlier.wrote) and earlier.level >= level and overlap(b, earlier.piece):
                    level = earlier.level + 1
        for b, written in touched:
            now = _Touch(b, level, written)
            before = history.get(id(b.buffer), ())
            history[id(b.buffer)] = [*(t for t in before if not now.outdates(t)), now]
        while len(out) <= level:
            out.append([])
        out[level].append(access.command)
    return out


def schedule(accesses: Sequence[Access]) -> list[Command]:
    """Return the commands level by level with a barrier between."""
    commands: list[Command] = []
    for level in levels(accesses):
        if commands:
            commands.append(BarrierCommand())
        commands += level
    return commands
