"""Cooperative matrices in plain GLSL, laid out as NVIDIA does, so that kernels with them run by value on any device.

As in `emulated_ptx` lanes exchange through work-group memory, in two places by turns. Halves are floats that were
rounded: only their storage is asked of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.helpers.emulated_group_matrices import without_matrices
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.kernels.dialect import KernelParts, View
from weft.kernels.source import Arg, KernelCode

ROUND = """
#define float16_t(value) unpackHalf2x16(packHalf2x16(vec2(value, 0.0))).x
"""
"""For kernels that set elements of matrices; others store to arguments of that type."""
FUNCTIONS = """
#define f16vec2 vec2
#define unpackFloat2x16(word) unpackHalf2x16(word)
#define packFloat2x16(two) packHalf2x16(two)
#define MATRIX_A float[8]
#define MATRIX_B float[8]
#define MATRIX_SUMS float[8]
#define MATRIX_OF_ZEROS(name) float[8] name = float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
shared float exchange[LZ * LY * 1024];
int place = 0;
int next_place() {
  place = 1 - place;
  return ((place * LZ + LOCAL_Z) * LY + LOCAL_Y) * 512;
}
// Element e of lane 4g + t is in row g or g + 8 of A (in column of B) at 2t, 2t + 1, 2t + 8 or 2t + 9.
void emulated_multiply_add(inout float sums[8], float a[8], float b[8]) {
  const int at = next_place();
  for (int e = 0; e < 8; e++) {
    exchange[at + LOCAL_X * 16 + e] = a[e];
    exchange[at + LOCAL_X * 16 + 8 + e] = b[e];
  }
  barrier();
  for (int e = 0; e < 8; e++)
    for (int k = 0; k < 16; k++) {
      const int column = LOCAL_X % 4 * 2 + e % 2 + e % 4 / 2 * 8, holder = k % 8 / 2, slot = k % 2 + k / 8 * 2;
      sums[e] += exchange[at + (LOCAL_X / 4 * 4 + holder) * 16 + e / 4 * 4 + slot]
        * exchange[at + (column % 8 * 4 + holder) * 16 + 8 + column / 8 * 4 + slot];
    }
}
float emulated_shuffle(float from, int mask) {
  const int at = next_place();
  exchange[at + LOCAL_X] = from;
  barrier();
  return exchange[at + (LOCAL_X ^ mask)];
}
#define SCALE_SUMS(sums, by) for (int e = 0; e < 8; e++) sums[e] *= by
#define ADD_SUMS(to, sums) for (int e = 0; e < 8; e++) to[e] += sums[e]
#define WARP_BARRIER barrier()
// Rows lie in arrays of uvec2 (A) and of uvec4 (B), `stride` of them apart.
#define LOAD_A(matrix, from, at, stride) \\
  for (int e = 0; e < 8; e++) { \\
    const int row = LOCAL_X / 4 + e / 4 * 8, column = LOCAL_X % 4 * 2 + e % 2 + e % 4 / 2 * 8; \\
    matrix[e] = unpackHalf2x16(from[(at) + row * (stride) + column / 4][column % 4 / 2])[column % 2]; }
#define LOAD_B(matrix, from, at, stride) \\
  for (int e = 0; e < 8; e++) { \\
    const int row = LOCAL_X % 4 * 2 + e % 2 + e % 4 / 2 * 8, column = LOCAL_X / 4 + e / 4 * 8; \\
    matrix[e] = unpackHalf2x16(from[(at) + row * (stride) + column / 8][column % 8 / 2])[column % 2]; }
// As `staged_matrices.glsl.mako` has them.
#define LOAD_STAGED(matrix, half_there) \\
  for (int e = 0; e < 8; e++) { \\
    const int outer = LOCAL_X / 4 + e / 4 * 8, inner = LOCAL_X % 4 * 2 + e % 2 + e % 4 / 2 * 8; \\
    matrix[e] = half_there; }
#define HALF_OF_8(from, at, n) unpackHalf2x16(from[(at) + (n) / 8][(n) % 8 / 2])[(n) % 2]
#define HALF_OF_4(from, at, n) unpackHalf2x16(from[(at) + (n) / 4][(n) % 4 / 2])[(n) % 2]
#define LOAD_A_WIDE(matrix, from, at, stride) LOAD_STAGED(matrix, HALF_OF_8(from, (at) + outer * (stride), inner))
#define LOAD_A_TURNED(matrix, from, at, stride) LOAD_STAGED(matrix, HALF_OF_8(from, (at) + inner * (stride), outer))
#define LOAD_B_NARROW(matrix, from, at, stride) LOAD_STAGED(matrix, HALF_OF_4(from, (at) + inner * (stride), outer))
#define LOAD_B_TURNED(matrix, from, at, stride) LOAD_STAGED(matrix, HALF_OF_4(from, (at) + outer * (stride), inner))
#define MULTIPLY_ADD(sums, a, b) emulated_multiply_add(sums, a, b)
#define SHUFFLE_XOR(to, from, mask) to = emulated_shuffle(from, mask)
"""


@dataclass(frozen=True)
class EmulatedMatrices(GlslDialect):
    """GLSL in which the types and statements of `matrices.glsl.mako` are arrays and functions."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel; only those that name these get the functions, and not the extensions."""
        if "gl_ScopeWorkgroup" in parts.body:
            parts = without_matrices(parts)
        if "#ifndef MULTIPLY_ADD" in parts.body:
            functions = FUNCTIONS if "LOAD_A_WIDE" in parts.body else ROUND + FUNCTIONS
            parts = replace(parts, prelude=parts.prelude + functions, extensions=())
        return super().assemble(parts)

    def store2(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two elements; the functions above have another meaning of `f16vec2`."""
        if arg.dtype is not DType.FLOAT16:
            return super().store2(arg, index, first, second)
        return f"{arg.name}_twos[{index}] = packHalf2x16(vec2({first}, {second}));"

    def twos_view(self, arg: Arg) -> View | None:
        """Return an argument of halves as an array of words."""
        view = super().twos_view(arg)
        return view and replace(view, type="uint" if arg.dtype is DType.FLOAT16 else view.type)
