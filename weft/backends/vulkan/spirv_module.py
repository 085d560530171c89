"""A SPIR-V module as a list of instructions, for the passes that rewrite kernels after the GLSL compiler.

What the words of SPIR-V mean to them stands here alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

Instruction = tuple[int, tuple[int, ...]]
"""An opcode, and the words after the first."""

LISTS_GLOBALS = 0x10400
"""The version from which on an entry point lists all global variables that it uses."""


class Op:
    """Opcodes of instructions."""

    EXTENSION, EXT_INST, ENTRY_POINT, EXECUTION_MODE, CAPABILITY = 10, 12, 15, 16, 17
    TYPE_INT, TYPE_FLOAT, TYPE_VECTOR, TYPE_STRUCT, TYPE_POINTER = 21, 22, 23, 30, 32
    CONSTANT, SPEC_CONSTANT, SPEC_CONSTANT_COMPOSITE, SPEC_CONSTANT_OP = 43, 50, 51, 52
    FUNCTION, FUNCTION_END, VARIABLE, LOAD, STORE, ACCESS_CHAIN = 54, 56, 59, 61, 62, 65
    DECORATE, MEMBER_DECORATE, COMPOSITE_CONSTRUCT = 71, 72, 80
    ADD, SUBTRACT, MULTIPLY, VECTOR_TIMES_SCALAR, LABEL = 129, 131, 133, 142, 248

    TYPES = range(19, 40)
    NAMES_AND_TYPES = frozenset({
        3, 4, 5, 6, 7, EXTENSION, 11, 14, ENTRY_POINT, EXECUTION_MODE, CAPABILITY, 19, 20, TYPE_INT, TYPE_FLOAT,
        TYPE_VECTOR, 29, TYPE_STRUCT, TYPE_POINTER, 33, 41, 42, CONSTANT, 44, 46, SPEC_CONSTANT, DECORATE,
        MEMBER_DECORATE, 330,
    })
    """Those outside of functions whose operands are literals, types or constants of known value. What is not listed
    here may be a type that a constant sizes, such as an array."""
    FIRST_LITERAL: ClassVar[Mapping[int, int]] = {
        EXT_INST: 3, FUNCTION: 2, VARIABLE: 2, LOAD: 3, STORE: 2, 79: 4, 81: 3, 82: 4, 246: 2, 247: 1, 250: 3,
    }
    """Those in functions with literals, by the word in which these begin. An extended instruction and a variable have
    ids again behind the first literal."""
    NEEDS_CONSTANT = frozenset({224, 225, *range(227, 243), *range(333, 367)})
    """Barriers, atomic and group operations: their scopes must be known when the pipeline is built."""
    COMMON = 400
    """Those from here on are of extensions, such as cooperative matrices; nothing is known of their operands."""
    COMPUTED = frozenset({127, ADD, SUBTRACT, MULTIPLY, 136, 140, 141, VECTOR_TIMES_SCALAR, 148, EXT_INST})
    """Float instructions whose results are floats: also negation, division, remainders, scalar products and the GLSL
    functions."""
    COMPARED = range(180, 192)
    """Comparisons of floats. Undecorated ones are taken for those of numbers, so that `!(x >= 0)` is false for NaN."""


class Decoration:
    """What `Op.DECORATE` says of an id, or `Op.MEMBER_DECORATE` of a member."""

    SPEC_ID, BLOCK, OFFSET, NO_CONTRACTION = 1, 2, 35, 42


PUSH_CONSTANT = 9
"""The storage class of push constants."""
PRESERVE = 4461
"""The execution mode that has infinities, NaN and the signs of zeros of one width preserved."""
CAN_PRESERVE, FLOAT64 = 4466, 10
"""Capabilities: to have that mode, and floats of 64 bits."""


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
        given = (words for op, words in self.outside if op == Op.DECORATE and words[1] == Decoration.SPEC_ID)
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
    begins = [i for i, (op, _) in enumerate(instructions) if op == Op.FUNCTION]
    entries = [operands[1] for op, operands in instructions if op == Op.ENTRY_POINT]
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


def beginning(spirv: bytes) -> list[tuple[int, Instruction]] | None:
    """Return the instructions up to the entry point, with where each begins; None if that is not a module.

    What is made for each device and pipeline need not read the rest.
    """
    found: list[tuple[int, Instruction]] = []
    at = 20
    while at + 12 <= len(spirv):
        head, *words = struct.unpack_from("<3I", spirv, at)
        count, op = head >> 16, head & 0xFFFF
        found.append((at, (op, tuple(words[: count - 1]))))
        if op == Op.ENTRY_POINT:
            return found
        at += 4 * max(count, 1)
    return None


def instruction(op: int, *words: int, text: bytes = b"") -> bytes:
    """Return the bytes of an instruction, with a text behind its words, if it has one."""
    text += bytes(-len(text) % 4)
    size = 1 + len(words) + len(text) // 4
    return struct.pack(f"<{1 + len(words)}I", size << 16 | op, *words) + text
