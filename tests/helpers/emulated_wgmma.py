"""Hopper's warpgroup instructions in plain OpenCL C, so that kernels written with them run by value on any device.

The kernels say them in inline assembly (see `weft.backends.opencl.ptx`); here each statement becomes a call. What
is asynchronous there happens at once, which the barrier of every step orders as well. Addresses in work-group memory
count from the start of the kernel's one array.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.helpers.emulated_ptx import EmulatedPtx
from weft.backends.opencl.ptx import MARK
from weft.kernels.dialect import KernelParts
from weft.kernels.source import KernelCode

FUNCTIONS = """
#define CALLED __attribute__((noinline))
CALLED void emulated_copy(__local uchar* to, ulong from, int piece, int given) {
  __global const uchar* bytes = (__global const uchar*)from;
  for (int i = 0; i < piece; i++) to[i] = i < given ? bytes[i] : 0;
}
// Element k of row r of a matrix whose rows are 128 bytes, in 16-byte pieces that lie at piece xor (row mod 8).
float element(__local const uchar* memory, ulong matrix, int r, int k) {
  const uint at = ((uint)(matrix & 0x3FFF) << 4) + r * 128 + k * 2;
  return vload_half(0, (__local const half*)(memory + (at ^ (at >> 3 & 0x70))));
}
// Sum i of an item, in the layout of wgmma's accumulators: rows g and g + 8 of 16 a warp, two columns of every eight.
CALLED float emulated_product(__local const uchar* memory, ulong a, ulong b, int item, int i, float before) {
  const int row = item % 128 / 32 * 16 + item % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + item % 4 * 2 + i % 2;
  double d = before;  // exact, and rounded toward zero as the units do
  for (int k = 0; k < 16; k++) d += element(memory, a, row, k) * element(memory, b, column, k);
  return convert_float_rtz(d);
}
"""
_ASM = re.compile(r'asm volatile\("(?P<text>[^"]*)"\s*(?P<operands>(?::[^;]*?)?)\);', re.DOTALL)


def _arguments(operands: str) -> list[str]:
    """Return the expressions of a statement's operands, in order."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(operands):
        if letter == "(":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif letter == ")":
            depth -= 1
            if depth == 0:
                found.append(operands[start:at])
    return found


def _copy(text: str, arguments: list[str]) -> str:
    piece = text.rstrip(";").split(", ")[2]
    given = arguments[2] if len(arguments) > 2 else piece
    return f"emulated_copy(tiles + ({arguments[0]}), {arguments[1]}, {piece}, {given});"


def _multiply(text: str, arguments: list[str]) -> str:
    *sums, a, b = arguments
    lines = [f"{s} = emulated_product(tiles, {a}, {b}, LOCAL_X, {i}, {s});" for i, s in enumerate(sums)]
    return " ".join(lines)


def _nothing(text: str, arguments: list[str]) -> str:
    return ""


def _meet(text: str, arguments: list[str]) -> str:
    return "barrier(CLK_LOCAL_MEM_FENCE);"  # of all items, which all come here equally often


CALLS: tuple[tuple[str, Callable[[str, list[str]], str]], ...] = (
    ("cp.async.commit_group", _nothing),
    ("cp.async.wait_group", _nothing),
    ("cp.async.c", _copy),
    ("fence.proxy.async", _nothing),
    ("bar.sync", _meet),
    ("wgmma.mma_async", _multiply),
    ("wgmma.fence", _nothing),
    ("wgmma.commit_group", _nothing),
    ("wgmma.wait_group", _nothing),
)


def without_assembly(body: str) -> str:
    """Return a kernel's body with calls in place of its inline assembly; an unknown instruction is an error."""

    def call(statement: re.Match[str]) -> str:
        text = statement["text"]
        for name, make in CALLS:
            if name in text:
                return make(text, _arguments(statement["operands"]))
        raise AssertionError(f"nothing emulates {text!r}")

    return _ASM.sub(call, body.replace("(uint)(ulong)tiles", "0"))


@dataclass(frozen=True)
class EmulatedWgmma(EmulatedPtx):
    """OpenCL C in which matrix instructions are functions, those of warpgroups too."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel; those with covered instructions are rewritten."""
        if MARK in parts.body and "wgmma" in parts.body:
            prelude, body = parts.prelude + FUNCTIONS, without_assembly(parts.body)
            parts = replace(parts, prelude=prelude, body=body, traits=())
        return super().assemble(parts)
