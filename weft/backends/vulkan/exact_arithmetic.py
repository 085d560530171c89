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

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from weft.backends.vulkan.spirv_module import (
    CAN_PRESERVE,
    FLOAT64,
    PRESERVE,
    Decoration,
    Instruction,
    Op,
    beginning,
    instruction,
    read,
    write,
)


def with_exact_arithmetic(spirv: bytes) -> bytes:
    """Return a module in which drivers must compute floats as the kernel's text says, except for sums of products."""
    module = read(spirv)
    if module is None:
        return spirv
    floats = {words[0] for op, words in module.outside if op == Op.TYPE_FLOAT}
    floats |= {words[0] for op, words in module.outside if op == Op.TYPE_VECTOR and words[1] in floats}
    known = {words[0] for op, words in module.outside if op == Op.DECORATE and words[1] == Decoration.NO_CONTRACTION}
    exact: list[int] = []
    for function in module.functions:
        loose = known.union(*_sums_of_products(function))
        for op, words in function:
            computes = (op in Op.COMPUTED and words[0] in floats) or op in Op.COMPARED
            if computes and words[1] not in loose:
                exact.append(words[1])
    at = next(
        i
        for i, (op, _) in enumerate(module.outside)
        if op in (Op.DECORATE, Op.MEMBER_DECORATE) or op in Op.TYPES
    )
    added = [(Op.DECORATE, (result, Decoration.NO_CONTRACTION)) for result in exact]
    outside = [*module.outside[:at], *added, *module.outside[at:]]
    return write(module.header, module.header[3], outside, module.functions)


def with_special_values(spirv: bytes, widths: Collection[int]) -> bytes:
    """Return a module in which drivers must preserve infinities, NaN and signs of zeros of floats of these widths.

    Of 64 bits only if the kernel has such. It is called for every module that is made, so it reads the beginning alone.
    """
    found = beginning(spirv)
    if found is None:
        return spirv  # it is no module of a kernel, which the driver will say
    *before, (at, (_, (_, entry))) = found
    capabilities = {words[0]: begin + 8 for begin, (op, words) in before if op == Op.CAPABILITY}
    asked = [width for width in widths if width != 64 or FLOAT64 in capabilities]
    if not asked:
        return spirv
    end = max(capabilities.values(), default=20)
    after = at + 4 * (int.from_bytes(spirv[at + 2 : at + 4], "little"))
    needed = instruction(Op.CAPABILITY, CAN_PRESERVE) + instruction(Op.EXTENSION, text=b"SPV_KHR_float_controls\0")
    modes = (instruction(Op.EXECUTION_MODE, entry, PRESERVE, width) for width in asked)
    return spirv[:end] + needed + spirv[end:after] + b"".join(modes) + spirv[after:]


def _sums_of_products(function: Sequence[Instruction]) -> Iterator[frozenset[int]]:
    """Yield the additions and products of each statement `sum += a * b`, or with several products."""
    made = {words[1]: (op, words) for op, words in function if op in (*Op.COMPUTED, Op.LOAD, Op.ACCESS_CHAIN)}
    used = Counter(word for _, words in function for word in words[2:])

    def place(pointer: int) -> tuple[int, ...]:
        op, words = made.get(pointer, (0, ()))
        return words[2:] if op == Op.ACCESS_CHAIN else (pointer,)

    def terms(value: int) -> Iterator[int]:
        """Yield the additions and products of which a value is the sum, each read once."""
        op, words = made.get(value, (0, ()))
        if op in (Op.ADD, Op.SUBTRACT) and used[value] == 1:
            yield value
            yield from terms(words[2])
            yield from terms(words[3])
        elif op in (Op.MULTIPLY, Op.VECTOR_TIMES_SCALAR) and used[value] == 1:
            yield value

    for op, words in function:
        if op != Op.STORE:
            continue
        target, stored = words[:2]
        summed = made.get(stored, (0, ()))
        if summed[0] not in (Op.ADD, Op.SUBTRACT):
            continue
        for held, added in (summed[1][2:4], summed[1][3:1:-1]):
            load = made.get(held, (0, ()))
            if load[0] == Op.LOAD and place(load[1][2]) == place(target):
                found = frozenset(terms(added))
                if any(made[each][0] in (Op.MULTIPLY, Op.VECTOR_TIMES_SCALAR) for each in found):
                    yield found | {stored}
