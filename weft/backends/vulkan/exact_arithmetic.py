"""Keep drivers from rewriting the float arithmetic of a kernel, by decorations and modes of its SPIR-V.

Vulkan lets a driver compute float expressions as if they were of real numbers: `x + c - c` becomes x, `log(exp(x))`
becomes x, `a * b + c` is rounded once. The decoration NoContraction forbids that for an instruction. In GLSL, `precise`
asks for it, but for a variable: it reaches back to all that the variable was computed from, also to the inner loops of
products, and does not reach into functions. So this pass adds it to the compiler's SPIR-V.

What adds products to a variable, `sum += a * b`, stays as it is: one fused multiply-add instead of two instructions
makes products and convolutions faster, is no less accurate, and there is nothing to cancel. Fused steps never have
this form: `weft.kernels.template` assigns each to the running value, of which the next one reads.

Vulkan also lets a driver assume that there are no infinities, NaN and negative zeros, unless the kernel's mode forbids
it. Not every device has that mode, so it is added as a module is made for one.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from weft.backends.vulkan.spirv_module import DECORATE, ENTRY_POINT, MEMBER_DECORATE, Instruction, read, write

NO_CONTRACTION = 42
PRESERVE = 4461
"""The execution mode that has infinities, NaN and the signs of zeros of one width preserved."""
_EXT_INST, _TYPE_FLOAT, _TYPE_VECTOR, _LOAD, _STORE, _ACCESS_CHAIN = 12, 22, 23, 61, 62, 65
_NEGATE, _ADD, _SUBTRACT, _MULTIPLY, _VECTOR_TIMES_SCALAR = 127, 129, 131, 133, 142
_COMPUTED = frozenset({_NEGATE, _ADD, _SUBTRACT, _MULTIPLY, 136, 140, 141, _VECTOR_TIMES_SCALAR, 148, _EXT_INST})
"""Float instructions whose results are floats: also division, remainders, scalar products and the GLSL functions."""
_COMPARED = frozenset(range(180, 192))
"""Comparisons of floats. Undecorated ones are taken for those of numbers, so that `!(x >= 0)` is false for NaN."""
_FIRST_TYPE, _LAST_TYPE = 19, 39
_EXTENSION, _EXECUTION_MODE, _CAPABILITY, _FLOAT64, _CAN_PRESERVE = 10, 16, 17, 10, 4466


def with_exact_arithmetic(spirv: bytes) -> bytes:
    """Return a module in which drivers must compute floats as the kernel's text says, except for sums of products."""
    module = read(spirv)
    if module is None:
        return spirv
    floats = {words[0] for op, words in module.outside if op == _TYPE_FLOAT}
    floats |= {words[0] for op, words in module.outside if op == _TYPE_VECTOR and words[1] in floats}
    known = {words[0] for op, words in module.outside if op == DECORATE and words[1] == NO_CONTRACTION}
    exact: list[int] = []
    for function in module.functions:
        loose = known.union(*_sums_of_products(function))
        for op, words in function:
            computes = (op in _COMPUTED and words[0] in floats) or op in _COMPARED
            if computes and words[1] not in loose:
                exact.append(words[1])
    at = next(
        i
        for i, (op, _) in enumerate(module.outside)
        if op in (DECORATE, MEMBER_DECORATE) or _FIRST_TYPE <= op <= _LAST_TYPE
    )
    added = [(DECORATE, (result, NO_CONTRACTION)) for result in exact]
    outside = [*module.outside[:at], *added, *module.outside[at:]]
    return write(module.header, module.header[3], outside, module.functions)


def with_special_values(spirv: bytes, widths: Collection[int]) -> bytes:
    """Return a module in which drivers must preserve infinities, NaN and signs of zeros of floats of these widths.

    Of 64 bits only if the kernel has such. It is called for every module that is made, so it reads the beginning alone.
    """
    capabilities, at, end = set[int](), 20, 20
    while True:
        if at + 12 > len(spirv):
            return spirv  # it is no module of a kernel, which the driver will say
        head, first, second = struct.unpack_from("<3I", spirv, at)
        op, after = head & 0xFFFF, at + 4 * max(head >> 16, 1)
        if op == _CAPABILITY:
            capabilities.add(first)
            end = after
        elif op == ENTRY_POINT:
            break
        at = after
    asked = [width for width in widths if width != 64 or _FLOAT64 in capabilities]
    if not asked:
        return spirv
    modes = (struct.pack("<4I", 4 << 16 | _EXECUTION_MODE, second, PRESERVE, width) for width in asked)
    needed = struct.pack("<2I", 2 << 16 | _CAPABILITY, _CAN_PRESERVE)
    needed += struct.pack("<I24s", 7 << 16 | _EXTENSION, b"SPV_KHR_float_controls")
    return spirv[:end] + needed + spirv[end:after] + b"".join(modes) + spirv[after:]


def _sums_of_products(function: Sequence[Instruction]) -> Iterator[frozenset[int]]:
    """Yield the additions and products of each statement `sum += a * b`, or with several products."""
    made = {words[1]: (op, words) for op, words in function if op in (*_COMPUTED, _LOAD, _ACCESS_CHAIN)}
    used = Counter(word for _, words in function for word in words[2:])

    def place(pointer: int) -> tuple[int, ...]:
        op, words = made.get(pointer, (0, ()))
        return words[2:] if op == _ACCESS_CHAIN else (pointer,)

    def terms(value: int) -> Iterator[int]:
        """Yield the additions and products of which a value is the sum, each read once."""
        op, words = made.get(value, (0, ()))
        if op in (_ADD, _SUBTRACT) and used[value] == 1:
            yield value
            yield from terms(words[2])
            yield from terms(words[3])
        elif op in (_MULTIPLY, _VECTOR_TIMES_SCALAR) and used[value] == 1:
            yield value

    for op, words in function:
        if op != _STORE:
            continue
        target, stored = words[:2]
        summed = made.get(stored, (0, ()))
        if summed[0] not in (_ADD, _SUBTRACT):
            continue
        for held, added in (summed[1][2:4], summed[1][3:1:-1]):
            load = made.get(held, (0, ()))
            if load[0] == _LOAD and place(load[1][2]) == place(target):
                found = frozenset(terms(added))
                if any(made[each][0] in (_MULTIPLY, _VECTOR_TIMES_SCALAR) for each in found):
                    yield found | {stored}
