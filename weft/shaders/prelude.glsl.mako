## The names that kernel bodies use, in Vulkan GLSL, but those of `Dialect.launch`. With `double` the kernel computes in float64.
#define real ${"double" if double else "float"}
#define f32 float
#define f32x4 vec4
#define i32 int
#define u32x4 uvec4
#define F4(a, b, c, d) vec4((a), (b), (c), (d))
#define SPLAT(a) vec4(a)
#define TO_F32(a) float(a)
#define TO_REAL(a) real(a)
#define TO_I32(a) int(a)
#define GLOBAL_ID (GROUP_X * LX + LOCAL_X)
#define GLOBAL_SIZE (GROUPS_X * LX)
#define EXCHANGE(v, mask) subgroupShuffleXor(v, mask)
#define INFINITY_F uintBitsToFloat(0x7f800000u)
#define NAN_F uintBitsToFloat(0x7fc00000u)
#define is_nan(x) isnan(x)
#define is_inf(x) isinf(x)
#define fabs(x) abs(x)
#define rint(x) roundEven(x)
f32x4 first_lanes(f32x4 v, int n) {
  return F4(n > 0 ? v.x : 0.0, n > 1 ? v.y : 0.0, n > 2 ? v.z : 0.0, n > 3 ? v.w : 0.0);
}
// NaN wins, as in numpy and ONNX; the language's own forms drop it.
real nan_max(real a, real b) { return (a > b || isnan(a)) ? a : b; }
real nan_min(real a, real b) { return (a < b || isnan(a)) ? a : b; }
real round_near(real x) { return roundEven(x) == 0.0 ? 0.0 : roundEven(x); }
#define fmax(a, b) nan_max((a), (b))
#define fmin(a, b) nan_min((a), (b))
// Minus what is given if x is negative or -0.
real with_sign(real magnitude, real x) {
  return ${"int(unpackDouble2x32(x).y)" if double else "floatBitsToInt(x)"} < 0 ? -magnitude : magnitude;
}
% if double:
<%include file="doubles.glsl.mako"/>
% else:
<%include file="math.glsl.mako"/>
<%include file="angles.glsl.mako"/>
% endif
<%include file="hyperbolic.glsl.mako"/>
