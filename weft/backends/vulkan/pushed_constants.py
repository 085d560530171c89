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
    DECORATE,
    ENTRY_POINT,
    FUNCTION,
    MEMBER_DECORATE,
    SPEC_ID,
    Instruction,
    Module,
    read,
    write,
)

FIRST_ID = 3
"""The `constant_id` of a kernel's first constant; before it come those of the local size."""

_EXT_INST, _TYPE_INT, _TYPE_STRUCT, _TYPE_POINTER = 12, 21, 30, 32
_CONSTANT, _SPEC_CONSTANT, _SPEC_CONSTANT_COMPOSITE, _SPEC_CONSTANT_OP = 43, 50, 51, 52
_FUNCTION_END, _VARIABLE, _LOAD, _STORE, _ACCESS_CHAIN = 56, 59, 61, 62, 65
_COMPOSITE_CONSTRUCT, _LABEL = 80, 248
_BLOCK, _OFFSET, _PUSH_CONSTANT = 2, 35, 9
_LISTS_GLOBALS = 0x10400
"""From this version on, an entry point lists all global variables that it uses."""

_NAMES_AND_TYPES = frozenset({
    3, 4, 5, 6, 7, 10, 11, 14, ENTRY_POINT, 16, 17, 19, 20, _TYPE_INT, 22, 23, 29, _TYPE_STRUCT, _TYPE_POINTER, 33,
    41, 42, _CONSTANT, 44, 46, _SPEC_CONSTANT, DECORATE, MEMBER_DECORATE, 330,
})
"""Instructions outside of functions whose operands are literals, types or constants of known value. What is not listed
here may be a type that a constant sizes, such as an array."""
_FIRST_LITERAL = {
    _EXT_INST: 3, FUNCTION: 2, _VARIABLE: 2, _LOAD: 3, _STORE: 2, 79: 4, 81: 3, 82: 4, 246: 2, 247: 1, 250: 3,
}
"""Instructions in functions with literals, by the word in which these begin. An extended instruction and a variable
have ids again behind the first literal."""
_NEEDS_CONSTANT = frozenset({224, 225, *range(227, 243), *range(333, 367)})
"""Barriers, atomic and group operations: their scopes must be known when the pipeline is built."""
_COMMON = 400
"""Instructions from here on are of extensions, such as cooperative matrices; this module does not know them."""


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
        if op == _VARIABLE and words[2] == _PUSH_CONSTANT:
            made = {w[0]: w for o, w in module.outside if o in (_TYPE_STRUCT, _TYPE_POINTER)}
            struct = made[words[0]][2]
            return _Block(struct, words[0], words[1], made[struct][1:])
    return None


def _sources(module: Module) -> dict[int, frozenset[int]]:
    """Return the specialization constants that each constant follows from, by id."""
    found = {words[1]: frozenset({words[1]}) for op, words in module.outside if op == _SPEC_CONSTANT}
    for op, words in module.outside:
        if op in (_SPEC_CONSTANT_OP, _SPEC_CONSTANT_COMPOSITE):
            read = words[2:] if op == _SPEC_CONSTANT_COMPOSITE else words[3:]
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
        if op not in _NAMES_AND_TYPES and op not in (_SPEC_CONSTANT_OP, _SPEC_CONSTANT_COMPOSITE):
            need(words)
        elif op == DECORATE and words[1] != SPEC_ID and words[0] in sources:
            need(words[:1])  # such as the size of a work-group
    for function in module.functions:
        entry = function[0][1][1] == module.entry
        for op, words in function:
            if not entry or op in _NEEDS_CONSTANT or op >= _COMMON:
                need(_ids(op, words))
            elif op == _VARIABLE:
                need(words[3:])  # its first value must be a constant
    return frozenset(found)


def _ids(op: int, words: tuple[int, ...]) -> tuple[int, ...]:
    """Return the words that may be ids."""
    literal = _FIRST_LITERAL.get(op)
    if literal is None:
        return words
    return words[:literal] + (words[literal + 1 :] if op in (_EXT_INST, _VARIABLE) else ())


def _rewritten(module: Module, pushed: Sequence[int], first_byte: int) -> bytes:
    """Return the words of the module with these constants read at the start of the entry point."""
    version, bound = module.header[1], module.header[3]
    sources, given = _sources(module), set(pushed)
    moved = {result for result, read in sources.items() if read & given}
    types = {words[1]: words[0] for op, words in module.outside if op == _SPEC_CONSTANT}

    def new() -> int:
        nonlocal bound
        bound += 1
        return bound - 1

    held = _block(module)
    known = held or _Block(new(), new(), new(), ())
    integer = next((w[0] for op, w in module.outside if op == _TYPE_INT and w[1] == 32), None)
    added: list[Instruction] = []
    if integer is None:
        integer = new()
        added.append((_TYPE_INT, (integer, 32, 1)))
    added += [
        (_TYPE_STRUCT, (known.struct, *known.members, *(types[each] for each in pushed))),
        (_TYPE_POINTER, (known.pointer, _PUSH_CONSTANT, known.struct)),
        (_VARIABLE, (known.pointer, known.variable, _PUSH_CONSTANT)),
    ]
    pointers = {kind: new() for kind in dict.fromkeys(types[each] for each in pushed)}
    added += [(_TYPE_POINTER, (pointer, _PUSH_CONSTANT, kind)) for kind, pointer in pointers.items()]
    decorated: list[Instruction] = [] if held else [(DECORATE, (known.struct, _BLOCK))]
    begin: list[Instruction] = []
    for place, each in enumerate(pushed):
        member = len(known.members) + place
        decorated.append((MEMBER_DECORATE, (known.struct, member, _OFFSET, first_byte + 4 * place)))
        index, pointer = new(), new()
        added.append((_CONSTANT, (integer, index, member)))
        begin.append((_ACCESS_CHAIN, (pointers[types[each]], pointer, known.variable, index)))
        begin.append((_LOAD, (types[each], each, pointer)))

    outside: list[Instruction] = []
    moved_block = {(_TYPE_STRUCT, known.struct), (_TYPE_POINTER, known.pointer), (_VARIABLE, known.variable)}
    for op, words in module.outside:
        if op == DECORATE and words[0] in given and words[1] == SPEC_ID:
            outside += decorated  # among the other decorations
            decorated = []
        elif op == _SPEC_CONSTANT and words[1] in given:
            continue
        elif op == _SPEC_CONSTANT_OP and words[1] in moved:
            begin.append((words[2], words[:2] + words[3:]))
        elif op == _SPEC_CONSTANT_COMPOSITE and words[1] in moved:
            begin.append((_COMPOSITE_CONSTRUCT, words))
        elif held and (op, words[1 if op == _VARIABLE else 0]) in moved_block:
            continue  # behind the types of its new members
        elif op == ENTRY_POINT and version >= _LISTS_GLOBALS and held is None:
            outside.append((op, (*words, known.variable)))
        else:
            outside.append((op, words))
    functions = [_begun(f, begin) if f[0][1][1] == module.entry else f for f in module.functions]
    return write(module.header, bound, [*outside, *added], functions)


def _begun(function: list[Instruction], begin: list[Instruction]) -> list[Instruction]:
    """Return a function with instructions behind its variables, with which its first block begins."""
    label = next(i for i, (op, _) in enumerate(function) if op == _LABEL)
    at = max((i for i, (op, _) in enumerate(function) if op == _VARIABLE), default=label) + 1
    return [*function[:at], *begin, *function[at:]]
