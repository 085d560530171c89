"""The numbers of a kernel: its float constants, as push constants, which a compiler does not know.

A driver may simplify arithmetic with constants that it knows, also where each operation is to be exact: llvmpipe takes
`0 * x` for 0, of an infinite x, too, and leaves `x / 0` undefined. A pushed constant has no value when the pipeline is
built. So one pipeline serves all values, too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.kernels.source import ConstantKind, KernelSource

MOST_BYTES = 128
"""Most bytes of push constants: so many every Vulkan device has."""
_BLOCK = "layout(push_constant, std430) uniform Numbers"
_BYTES = {"float": 4, "double": 8}
_HIDDEN = {
    "float": "uintBitsToFloat(floatBitsToUint({0}_known) | ZERO)",
    "double": "packDouble2x32(unpackDouble2x32({0}_known) | ZERO)",
}
"""A specialization constant as a number that the compiler does not know: its bits, or those of a pushed zero."""


@dataclass(frozen=True)
class _Numbers:
    """The positions of the numbers among a kernel's constants."""

    pushed: Sequence[tuple[int, str]]
    kind: ConstantKind
    hidden: Sequence[tuple[int, str]]
    """Those for which there is no room, which stay specialization constants."""


def _numbers(constants: Sequence[tuple[str, ConstantKind]]) -> _Numbers:
    found = [(i, name) for i, (name, kind) in enumerate(constants) if kind != "int"]
    kind = constants[found[0][0]][1] if found else "float"
    room = MOST_BYTES // _BYTES[kind]
    if len(found) > room:
        room = (MOST_BYTES - 4) // _BYTES[kind]
    return _Numbers(found[:room], kind, found[room:])


def declarations(constants: Sequence[tuple[str, ConstantKind]], first_id: int) -> str:
    """Return the text that declares the numbers among a kernel's constants; the first of these has `first_id`."""
    numbers = _numbers(constants)
    if not numbers.pushed:
        return ""
    members = [f"{numbers.kind} {name};" for _, name in numbers.pushed]
    lines = []
    if numbers.hidden:
        members.append("uint ZERO;")
    for i, name in numbers.hidden:
        lines.append(f"layout(constant_id = {i + first_id}) const {numbers.kind} {name}_known = 1;")
        lines.append(f"#define {name} {_HIDDEN[numbers.kind].format(name)}")
    return "\n".join([f"{_BLOCK} {{ {' '.join(members)} }};", *lines])


def positions(source: KernelSource) -> frozenset[int]:
    """Return which of a kernel's constants are pushed numbers; none if it was written by hand."""
    if not source.code.late:
        return frozenset()
    return frozenset(i for i, _ in _numbers(source.constants).pushed)


def packed(source: KernelSource, values: Mapping[str, int | float]) -> bytes:
    """Return the bytes to push for a kernel's numbers."""
    if not source.code.late:
        return b""
    numbers = _numbers(source.constants)
    return b"".join(pack(values[name], numbers.kind) for _, name in numbers.pushed) + bytes(4 * bool(numbers.hidden))


def pack(value: int | float, kind: ConstantKind) -> bytes:
    """Return a constant as bytes; struct.error if it is not a 32-bit int. Floats are rounded to their type."""
    if kind == "int":
        return struct.pack("<i", value)
    with np.errstate(over="ignore"):
        return np.array(value, "<f4" if kind == "float" else "<f8").tobytes()
