"""NVIDIA's instructions for matrix units in plain OpenCL C, so that kernels for them run by value on any device.

What lanes exchange goes through work-group memory with barriers of the whole group, so that all warps must
reach each instruction together. There are two places for it, taken in turn: a lane that writes to one again
has passed the barrier of the other, which none reaches before it has read the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.backends.opencl.dialect import OpenCLDialect
from weft.kernels.dialect import KernelParts
from weft.kernels.source import KernelCode, Shared

WORDS = 6
"""What a lane hands over at most: four words of A and two of B."""

FUNCTIONS = f"#define WORDS {WORDS}" + """
// What is called does not grow the kernel, nor do loops that stay loops: a compiler for CPUs takes minutes else.
#define CALLED __attribute__((noinline))
#define LOOP __attribute__((opencl_unroll_hint(1)))
CALLED void hand_over(__local float* mine, uint4 a, uint2 b) {
  uint words[WORDS] = {a.x, a.y, a.z, a.w, b.x, b.y};
  LOOP for (int i = 0; i < 2 * WORDS; i++) mine[i] = vload_half(i, (half*)words);
}
CALLED float4 products(__local const float* all, int lane, float4 before) {
  double4 d = convert_double4(before);  // exact, and rounded toward zero as the units do
  LOOP for (int k = 0; k < 16; k++) {
    __local const float* holder = all + k % 8 / 2 * 2 * WORDS;
    __local const float* row = holder + lane / 4 * 8 * WORDS + k / 8 * 4 + k % 2;
    __local const float* column = holder + lane % 4 * 16 * WORDS + 8 + k / 8 * 2 + k % 2;
    const float4 product = (float4)(row[0], row[0], row[2], row[2])
      * (float4)(column[0], column[8 * WORDS], column[0], column[8 * WORDS]);
    d += convert_double4(product);
  }
  return convert_float4_rtz(d);
}
float4 emulated_mma(__local uint* words, int lane, float4 d, uint4 a, uint2 b) {
  hand_over((__local float*)words + lane * 2 * WORDS, a, b);
  barrier(CLK_LOCAL_MEM_FENCE);
  return products((__local const float*)words, lane, d);
}
int dot_of(uint a, uint b) {
  const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return p.x + p.y + p.z + p.w;
}
CALLED int4 emulated_mma_bytes(__local uint* words, int lane, int4 d, uint4 a, uint2 b) {
  __local uint* mine = words + lane * WORDS;
  mine[0] = a.x; mine[1] = a.y; mine[2] = a.z; mine[3] = a.w; mine[4] = b.x; mine[5] = b.y;
  barrier(CLK_LOCAL_MEM_FENCE);
  LOOP for (int t = 0; t < 4; t++) {
    __local const uint* row = words + (lane / 4 * 4 + t) * WORDS;
    __local const uint* first = words + (lane % 4 * 8 + t) * WORDS;
    __local const uint* second = first + 4 * WORDS;
    LOOP for (int half_ = 0; half_ < 2; half_++) {
      d.x += dot_of(row[2 * half_], first[4 + half_]);
      d.y += dot_of(row[2 * half_], second[4 + half_]);
      d.z += dot_of(row[2 * half_ + 1], first[4 + half_]);
      d.w += dot_of(row[2 * half_ + 1], second[4 + half_]);
    }
  }
  return d;
}
uint4 emulated_ldmatrix(__local uint* words, int lane, __local const ushort* row, bool turned) {
  __local const ushort* __local* rows = (__local const ushort* __local*)words;
  rows[lane] = row;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint got[4];
  for (int tile = 0; tile < 4; tile++) {
    const int g = lane / 4, t = lane % 4 * 2;
    const uint low = turned ? rows[8 * tile + t][g] : rows[8 * tile + g][t];
    const uint high = turned ? rows[8 * tile + t + 1][g] : rows[8 * tile + g][t + 1];
    got[tile] = low | high << 16;
  }
  return (uint4)(got[0], got[1], got[2], got[3]);
}
float emulated_shuffle(__local uint* words, int lane, float from, int mask) {
  words[lane] = as_uint(from);
  barrier(CLK_LOCAL_MEM_FENCE);
  return as_float(words[lane ^ mask]);
}
CALLED uint emulated_pack(float low, float high) {
  ushort pair[2];
  vstore_half_rte(low, 0, (half*)pair);
  vstore_half_rte(high, 1, (half*)pair);
  return pair[0] | (uint)pair[1] << 16;
}
CALLED float2 emulated_unpack(uint from) {
  const ushort pair[2] = {from, from >> 16};
  return (float2)(vload_half(0, (const half*)pair), vload_half(1, (const half*)pair));
}
#define EXCHANGE (ptx_words + ((ptx_turn++ % 2 * LZ + LOCAL_Z) * LY + LOCAL_Y) * 64 * WORDS)
#define shared_at ulong
#define SHARED_AT(pointer) ((ulong)(pointer))
#define EMULATED_LDMATRIX(r0, r1, r2, r3, address, turned) \\
  { const uint4 got = emulated_ldmatrix(EXCHANGE, LOCAL_X, (__local const ushort*)(address), turned); \\
    r0 = got.x; r1 = got.y; r2 = got.z; r3 = got.w; }
#define LDMATRIX(r0, r1, r2, r3, address) EMULATED_LDMATRIX(r0, r1, r2, r3, address, false)
#define LDMATRIX_TRANS(r0, r1, r2, r3, address) EMULATED_LDMATRIX(r0, r1, r2, r3, address, true)
#define MMA(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1) \\
  { const float4 got = emulated_mma(EXCHANGE, LOCAL_X, F4(d0, d1, d2, d3), (uint4)(a0, a1, a2, a3), (uint2)(b0, b1)); \\
    d0 = got.x; d1 = got.y; d2 = got.z; d3 = got.w; }
#define MMA_BYTES(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1) \\
  { const int4 got = \\
      emulated_mma_bytes(EXCHANGE, LOCAL_X, (int4)(d0, d1, d2, d3), (uint4)(a0, a1, a2, a3), (uint2)(b0, b1)); \\
    d0 = got.x; d1 = got.y; d2 = got.z; d3 = got.w; }
#define SHUFFLE_XOR(to, from, mask) to = emulated_shuffle(EXCHANGE, LOCAL_X, from, mask)
#define PACK_HALVES(to, low, high) to = emulated_pack(low, high)
#define UNPACK_HALVES(low, high, from) { const float2 two = emulated_unpack(from); low = two.x; high = two.y; }
#define WARP_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
"""

LATE_COPIES = """#define COPY_16(to, from, bytes) \\
  { copy_to[copies] = to; copy_from[copies] = from; copy_all[copies++] = (bytes) > 0; }
#define COPY_16_CACHED(to, from) COPY_16(to, from, 16)
#define END_OF_COPIES
#define COPIES_ARRIVED \\
  for (int c = 0; c < copies; c++) *copy_to[c] = copy_all[c] ? *copy_from[c] : (uint4)(0); \\
  copies = 0
"""
"""Copies are done when they are waited for: what is read before is old."""

COPIES_AT_ONCE = """#define COPY_16(to, from, bytes) *(to) = (bytes) > 0 ? *(from) : (uint4)(0)
#define COPY_16_CACHED(to, from) COPY_16(to, from, 16)
#define END_OF_COPIES
#define COPIES_ARRIVED
"""
"""What others still read is overwritten."""

COPIES = """__local uint4* copy_to[64];
__global const uint4* copy_from[64];
bool copy_all[64];
int copies = 0;
"""


@dataclass(frozen=True)
class EmulatedPtx(OpenCLDialect):
    """OpenCL C in which the statements of `ptx.opencl.mako` and `async_copies.opencl.mako` are functions."""

    copies_at_once: bool = False

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel; only those that name an instruction get the functions."""
        if "#ifndef MMA" in parts.body or "#ifndef COPY_16" in parts.body:
            parts = replace(
                parts,
                prelude=parts.prelude + FUNCTIONS + (COPIES_AT_ONCE if self.copies_at_once else LATE_COPIES),
                shared=[*parts.shared, Shared("ulong", "ptx_memory", f"LZ * LY * {64 * WORDS}")],
                body=f"__local uint* ptx_words = (__local uint*)ptx_memory;\nuint ptx_turn = 0;\n{parts.body}",
            )
        if "COPIES_ARRIVED" in parts.body:
            parts = replace(parts, body=COPIES + parts.body)
        return super().assemble(parts)

