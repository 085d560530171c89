## NVIDIA's instructions for matrix units, as statements for kernels in which a warp is the 32 items of LOCAL_X.
## Names and layouts of fragments are those of the PTX ISA (mma.m16n8k16, ldmatrix); in the layouts g is lane / 4 and t is
## lane % 4. A dialect may define them before: tests emulate them on devices without matrix units, so all warps of a group
## must reach each of them together.
<% k.defines("SPLIT_HALVES") %>\
#ifndef MMA
// An address in work-group memory as ldmatrix takes it, in its own type.
#define shared_at uint
#define SHARED_AT(pointer) ((uint)(ulong)(pointer))
// Four tiles of 8 x 8 halves: lane l has the address of row l % 8 of tile l / 8, 16 bytes, and gets elements 2t and
// 2t + 1 of row g of each tile, or of its column g.
#define LDMATRIX(r0, r1, r2, r3, address) asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
  : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory")
#define LDMATRIX_TRANS(r0, r1, r2, r3, address) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
  : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory")
// d += A B for A of 16 x 16 (rows g and g + 8 at k = 2t, then both at k = 2t + 8), B of 16 x 8 (k = 2t and 2t + 8 of
// column g) and sums of 16 x 8 (columns 2t, 2t + 1 of row g, then of row g + 8).
#define MMA(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
  : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
// d += A B for int8: A of 16 x 32 (rows g and g + 8 at k = 4t, then both at k = 4t + 16, four bytes each), B of 32 x 8
// (k = 4t and 4t + 16 of column g) and exact sums of 16 x 8, as those of MMA.
#define MMA_BYTES(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1) \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
  : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
// `to` is `from` of the lane whose number differs in the bits of `mask`.
#define SHUFFLE_XOR(to, from, mask) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, " #mask ", 0x1f, 0xffffffff;" : "=f"(to) : "f"(from))
// Two floats as halves, rounded to the nearest.
#define PACK_HALVES(to, low, high) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(high), "f"(low))
#define UNPACK_HALVES(low, high, from) \
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(low), "=f"(high) : "r"(from))
#define WARP_BARRIER asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#endif
// Two floats as halves and what these leave of them, times 2^11, as halves; nothing is left of what is not finite.
#define SPLIT_HALVES(high, rest, a, b) { \
  f32 near_a, near_b; \
  PACK_HALVES(high, a, b); \
  UNPACK_HALVES(near_a, near_b, high); \
  PACK_HALVES(rest, ((a) - near_a) * 2048.0, ((b) - near_b) * 2048.0); \
  rest = fabs(a) < 65520.0 && fabs(b) < 65520.0 ? rest : 0; }
