"""A SPIR-V module as a list of instructions, for the passes that rewrite kernels after the GLSL compiler."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Instruction = tuple[int, tuple[int, ...]]
"""An opcode, and the words after the first."""

ENTRY_POINT, FUNCTION, DECORATE, MEMBER_DECORATE = 15, 54, 71, 72
SPEC_ID = 1
"""The decoration that numbers a specialization constant."""


@dataclass(frozen=True)
class Module:
    """The parts of a SPIR-V module."""

    header: tuple[int, ...]
    outside: list[Instruction]
    """Everything before the first function."""
    functions: list[list[Instruction]]
    entry: int
    """The id of the function that runs."""

    def constants(self) -> dict[int, int]:
        """Return the ids of specialization constants by their numbers."""
        given = (words for op, words in self.outside if op == DECORATE and words[1] == SPEC_ID)
        return {number: result for result, _, number in given}


def read(spirv: bytes) -> Module | None:
    """Return the parts of a module; None if it is not one, or one of another byte order."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv[: len(spirv) // 4 * 4])
    instructions: list[Instruction] = []
    at = 5
    while at < len(words):
        count, op = words[at] >> 16, words[at] & 0xFFFF
        if count == 0:
            return None
        instructions.append((op, words[at + 1 : at + count]))
        at += count
    begins = [i for i, (op, _) in enumerate(instructions) if op == FUNCTION]
    entries = [operands[1] for op, operands in instructions if op == ENTRY_POINT]
    if not begins or len(entries) != 1:
        return None
    functions = [instructions[a:b] for a, b in zip(begins, [*begins[1:], None], strict=True)]
    return Module(words[:5], instructions[: begins[0]], functions, entries[0])


def write(
    header: Sequence[int], bound: int, outside: Iterable[Instruction], functions: Iterable[Iterable[Instruction]]
) -> bytes:
    """Return the bytes of a module whose ids are below `bound`."""
    out = [*header[:3], bound, header[4]]
    for op, words in (*outside, *(i for function in functions for i in function)):
        out += ((len(words) + 1) << 16 | op, *words)
    return struct.pack(f"<{len(out)}I", *out)
