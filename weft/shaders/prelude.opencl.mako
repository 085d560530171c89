## The names that kernel bodies use, in OpenCL C 1.2, but those of `Dialect.launch`. With `double` the kernel computes in float64.
% if double:
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
% endif
#define real ${"double" if double else "float"}
#define f32 float
#define f32x4 float4
#define i32 int
#define u32x4 uint4
#define F4(a, b, c, d) ((float4)((a), (b), (c), (d)))
#define SPLAT(a) ((float4)(a))
#define TO_F32(a) ((float)(a))
#define TO_REAL(a) ((real)(a))
#define TO_I32(a) ((int)(a))
#define GLOBAL_ID (GROUP_X * LX + LOCAL_X)
#define GLOBAL_SIZE (GROUPS_X * LX)
#define INFINITY_F INFINITY
#define NAN_F NAN
#define is_nan(x) (isnan(x) != 0)
#define is_inf(x) (isinf(x) != 0)
// NaN wins, as in numpy and ONNX; the language's own forms drop it.
real nan_max(real a, real b) { return (a > b || a != a) ? a : b; }
real nan_min(real a, real b) { return (a < b || a != a) ? a : b; }
#define round_near(x) ((x) + 12582912.0 - 12582912.0)
#undef fmax
#undef fmin
#define fmax(a, b) nan_max((a), (b))
#define fmin(a, b) nan_min((a), (b))
f32x4 first_lanes(f32x4 v, int n) {
  return F4(n > 0 ? v.x : 0.0, n > 1 ? v.y : 0.0, n > 2 ? v.z : 0.0, n > 3 ? v.w : 0.0);
}

#ifdef __NV_CL_C_VERSION
// The built-in functions of this compiler move the four halves one by one.
f32x4 load_half4(int i, __global const half* p) {
  const uint2 v = ((__global const uint2*)p)[i];
  f32 a, b, c, d;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(a), "=f"(b) : "r"(v.x));
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(c), "=f"(d) : "r"(v.y));
  return F4(a, b, c, d);
}
uint two_halves(f32 a, f32 b) {
  uint v;
  asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }" : "=r"(v) : "f"(a), "f"(b));
  return v;
}
void store_half4(f32x4 v, int i, __global half* p) {
  ((__global uint2*)p)[i] = (uint2)(two_halves(v.x, v.y), two_halves(v.z, v.w));
}
void store_half8(f32x4 v, f32x4 w, int i, __global half* p) {
  ((__global uint4*)p)[i / 2] = (uint4)(two_halves(v.x, v.y), two_halves(v.z, v.w), two_halves(w.x, w.y), two_halves(w.z, w.w));
}
f32 exchange(f32 v, int mask) {
  f32 other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(v), "r"(mask));
  return other;
}
#define EXCHANGE(v, mask) exchange(v, mask)
#else
#define load_half4(i, p) vloada_half4((i), (p))
#define store_half4(v, i, p) vstorea_half4_rte((v), (i), (p))
#define store_half8(v, w, i, p) { store_half4((v), (i), (p)); store_half4((w), (i) + 1, (p)); }
#endif
