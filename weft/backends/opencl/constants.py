"""How the constants of a kernel reach it: as macros before its text, or as arguments after its buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import CompileError
from weft.kernels.source import LOCAL_SIZE, ConstantKind, KernelSource

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_NUMPY: dict[ConstantKind, Callable[[Any], np.number[Any]]] = {
    "int": np.int32, "float": np.float32, "double": np.float64,
}
Named = tuple[str, ConstantKind]
"""A constant's name and kind."""


def header(source: KernelSource, values: Mapping[str, int | float], late: Sequence[Named]) -> str:
    """Return what stands before a kernel's text: each constant as a macro, but those that are arguments."""
    arguments = {*late}
    early = [c for c in source.constants if c not in arguments]
    return defines(source, values, early) + late_define(late)


def as_arguments(late: Sequence[Named], values: Mapping[str, int | float]) -> tuple[np.generic, ...]:
    """Return the values of the constants that are arguments, in order."""
    return tuple(_NUMPY[kind](values[name]) for name, kind in late)


def late_constants(source: KernelSource, varying: frozenset[str] | None) -> list[tuple[str, ConstantKind]]:
    """Return which constants of a kernel are arguments, if these vary between shapes, or any may (None).

    The local size must be known to the compiler. A source that was not written for this has none.
    """
    if not source.code.late:
        return []
    return [c for c in source.constants if c[0] not in LOCAL_SIZE and (varying is None or c[0] in varying)]


def late_define(late: Sequence[tuple[str, ConstantKind]]) -> str:
    """Return the macro that adds the late constants to the kernel's signature, as arguments."""
    return f"#define LATE_CONSTANTS {''.join(f', const {kind} {name}' for name, kind in late)}\n"


def defines(
    source: KernelSource, values: Mapping[str, int | float], early: Sequence[tuple[str, ConstantKind]] | None = None
) -> str:
    """Return one `#define` line for each constant of the kernel, or for those in `early`."""
    missing = [name for name, _ in source.constants if name not in values]
    if missing:
        raise CompileError(
            f"the kernel {source.entry!r} lacks values for its constants",
            why=f"no value was given for {', '.join(missing)}",
            fix="give one for each of " + ", ".join(name for name, _ in source.constants),
        )
    chosen = source.constants if early is None else early
    return "".join(f"#define {name} {literal(values[name], kind)}\n" for name, kind in chosen)


def literal(value: int | float, kind: ConstantKind) -> str:
    """Return a constant as exact OpenCL C: 32-bit ints, floats rounded to the kind."""
    if kind == "int":
        number = int(value)
        if not _INT_MIN <= number <= _INT_MAX:
            raise CompileError(
                f"the constant {number} does not fit",
                why="constants of kernels are 32-bit ints",
                fix="use a smaller batch, or put the node on another device with `hints`",
            )
        if number == _INT_MIN:
            return f"({_INT_MIN + 1} - 1)"  # in C, the literal 2147483648 is not an int
        return str(number) if number >= 0 else f"({number})"
    with np.errstate(over="ignore"):
        rounded = float(_NUMPY[kind](value))
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "(-INFINITY)"
    # So many digits identify every number of the type.
    text = f"{rounded:.16e}" if kind == "double" else f"{rounded:.8e}f"
    return f"({text})" if text.startswith("-") else text
