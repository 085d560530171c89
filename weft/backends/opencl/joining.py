"""One program of several kernels: what they have alike is printed once, and their names end with them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernels.source import KernelSource, defined, undefined


def may_join(source: KernelSource) -> bool:
    """Tell whether a program of several kernels can hold a kernel; else it is compiled alone."""
    return source.code.in_pieces and not source.has("covered")


def name_of(source: KernelSource, place: int) -> str:
    """Return the name of a kernel in a program in which it is at `place`."""
    return f"{source.entry}_of_{place}"


def joined(kernels: Sequence[tuple[KernelSource, str]]) -> str:
    """Return the program of kernels of one prelude and launch, given with what defines their constants."""
    first = kernels[0][0].code
    pieces, functions = [first.launch, first.prelude], set[str]()
    for place, (source, header) in enumerate(kernels):
        code = source.code
        pieces += [text for text in code.functions if text not in functions]
        functions.update(code.functions)
        pieces += [header, defined([(source.entry, name_of(source, place))]), code.head, code.body, code.end]
        constants = (name for name, _ in source.constants)
        pieces.append(undefined([source.entry, "LATE_CONSTANTS", *constants, *code.macros]))
    return "".join(pieces)
