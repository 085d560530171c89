"""Rewrite a kernel's SPIR-V so that it reads some constants when it runs: specialization constants become pushed ones.

Each new value of a specialization constant costs a pipeline, which the driver compiles. A pushed constant is part of a
recorded dispatch. This works on SPIR-V and not on GLSL, so it needs no compiler and serves shipped kernels, too, and
the module itself says which constants must be known when a pipeline is built: those that size arrays and types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from weft.backends.vulkan.pushed_numbers import MOST_BYTES
from weft.backends.vulkan.spirv_module import (
    LISTS_GLOBALS,
    PUSH_CONSTANT,
    Decoration,
    Instruction,
    Module,
    Op,
    read,
    write,
)

FIRST_ID = 3
"""The `constant_id` of a kernel's first constant; before it come those of the local size."""


def pushable(spirv: bytes, wanted: Iterable[int], room: int = MOST_BYTES) -> tuple[int, ...]:
    """Return which of the wanted constants (by position) can be pushed, in order: as many as fit `room` bytes."""
    module = read(spirv)
    if module is None:
        return ()
    ids, needed = module.constants(), _needed(module)
    allowed = (k for k in sorted(wanted) if k + FIRST_ID in ids and ids[k + FIRST_ID] not in needed)
    return tuple(allowed)[: room // 4]


def with_pushed(spirv: bytes, positions: Sequence[int], begin: int = 0) -> bytes:
    """Return the module in which the constants at these positions are pushed: four bytes each, in this order.

    They must be `pushable`. They come behind the `begin` bytes that the module has pushed already.
    """
    module = read(spirv)
    assert module is not None
    ids = module.constants()
    return _rewritten(module, [ids[k + FIRST_ID] for k in positions], begin)


@dataclass(frozen=True)
class _Block:
    """The push constants that a module has: the ids of the struct, of the pointer to it and of the variable."""

    struct: int
    pointer: int
    variable: int
    members: tuple[int, ...]


def _block(module: Module) -> _Block | None:
    """Return the push constants of a module."""
    for op, words in module.outside:
        if op == Op.VARIABLE and words[2] == PUSH_CONSTANT:
            made = {w[0]: w for o, w in module.outside if o in (Op.TYPE_STRUCT, Op.TYPE_POINTER)}
            struct = made[words[0]][2]
            return _Block(struct, words[0], words[1], made[struct][1:])
    return None


def _sources(module: Module) -> dict[int, frozenset[int]]:
    """Return the specialization constants that each constant follows from, by id."""
    found = {words[1]: frozenset({words[1]}) for op, words in module.outside if op == Op.SPEC_CONSTANT}
    for op, words in module.outside:
        if op in (Op.SPEC_CONSTANT_OP, Op.SPEC_CONSTANT_COMPOSITE):
            read = words[2:] if op == Op.SPEC_CONSTANT_COMPOSITE else words[3:]
            found[words[1]] = frozenset().union(*(found.get(word, frozenset()) for word in read))
    return found


def _needed(module: Module) -> frozenset[int]:
    """Return the constants whose values a pipeline must know, or that functions besides the entry point read."""
    sources = _sources(module)
    found: set[int] = set()

    def need(words: Collection[int]) -> None:
        for word in words:
            found.update(sources.get(word, ()))

    for op, words in module.outside:
        if op not in Op.NAMES_AND_TYPES and op not in (Op.SPEC_CONSTANT_OP, Op.SPEC_CONSTANT_COMPOSITE):
            need(words)
        elif op == Op.DECORATE and words[1] != Decoration.SPEC_ID and words[0] in sources:
            need(words[:1])  # such as the size of a work-group
    for function in module.functions:
        entry = function[0][1][1] == module.entry
        for op, words in function:
            if not entry or op in Op.NEEDS_CONSTANT or op >= Op.COMMON:
                need(_ids(op, words))
            elif op == Op.VARIABLE:
                need(words[3:])  # its first value must be a constant
    return frozenset(found)


def _ids(op: int, words: tuple[int, ...]) -> tuple[int, ...]:
    """Return the words that may be ids."""
    literal = Op.FIRST_LITERAL.get(op)
    if literal is None:
        return words
    return words[:literal] + (words[literal + 1 :] if op in (Op.EXT_INST, Op.VARIABLE) else ())


def _rewritten(module: Module, pushed: Sequence[int], first_byte: int) -> bytes:
    """Return the words of the module with these constants read at the start of the entry point."""
    version, bound = module.header[1], module.header[3]
    sources, given = _sources(module), set(pushed)
    moved = {result for result, read in sources.items() if read & given}
    types = {words[1]: words[0] for op, words in module.outside if op == Op.SPEC_CONSTANT}

    def new() -> int:
        nonlocal bound
        bound += 1
        return bound - 1

    held = _block(module)
    known = held or _Block(new(), new(), new(), ())
    integer = next((w[0] for op, w in module.outside if op == Op.TYPE_INT and w[1] == 32), None)
    added: list[Instruction] = []
    if integer is None:
        integer = new()
        added.append((Op.TYPE_INT, (integer, 32, 1)))
    added += [
        (Op.TYPE_STRUCT, (known.struct, *known.members, *(types[each] for each in pushed))),
        (Op.TYPE_POINTER, (known.pointer, PUSH_CONSTANT, known.struct)),
        (Op.VARIABLE, (known.pointer, known.variable, PUSH_CONSTANT)),
    ]
    pointers = {kind: new() for kind in dict.fromkeys(types[each] for each in pushed)}
    added += [(Op.TYPE_POINTER, (pointer, PUSH_CONSTANT, kind)) for kind, pointer in pointers.items()]
    decorated: list[Instruction] = [] if held else [(Op.DECORATE, (known.struct, Decoration.BLOCK))]
    begin: list[Instruction] = []
    for place, each in enumerate(pushed):
        member = len(known.members) + place
        decorated.append((Op.MEMBER_DECORATE, (known.struct, member, Decoration.OFFSET, first_byte + 4 * place)))
        index, pointer = new(), new()
        added.append((Op.CONSTANT, (integer, index, member)))
        begin.append((Op.ACCESS_CHAIN, (pointers[types[each]], pointer, known.variable, index)))
        begin.append((Op.LOAD, (types[each], each, pointer)))

    outside: list[Instruction] = []
    moved_block = {(Op.TYPE_STRUCT, known.struct), (Op.TYPE_POINTER, known.pointer), (Op.VARIABLE, known.variable)}
    for op, words in module.outside:
        if op == Op.DECORATE and words[0] in given and words[1] == Decoration.SPEC_ID:
            outside += decorated  # among the other decorations
            decorated = []
        elif op == Op.SPEC_CONSTANT and words[1] in given:
            continue
        elif op == Op.SPEC_CONSTANT_OP and words[1] in moved:
            begin.append((words[2], words[:2] + words[3:]))
        elif op == Op.SPEC_CONSTANT_COMPOSITE and words[1] in moved:
            begin.append((Op.COMPOSITE_CONSTRUCT, words))
        elif held and (op, words[1 if op == Op.VARIABLE else 0]) in moved_block:
            continue  # behind the types of its new members
        elif op == Op.ENTRY_POINT and version >= LISTS_GLOBALS and held is None:
            outside.append((op, (*words, known.variable)))
        else:
            outside.append((op, words))
    functions = [_begun(f, begin) if f[0][1][1] == module.entry else f for f in module.functions]
    return write(module.header, bound, [*outside, *added], functions)


def _begun(function: list[Instruction], begin: list[Instruction]) -> list[Instruction]:
    """Return a function with instructions behind its variables, with which its first block begins."""
    label = next(i for i, (op, _) in enumerate(function) if op == Op.LABEL)
    at = max((i for i, (op, _) in enumerate(function) if op == Op.VARIABLE), default=label) + 1
    return [*function[:at], *begin, *function[at:]]
