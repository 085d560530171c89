## The names that kernel bodies use, in Vulkan GLSL; maths that GLSL lacks or leaves loose is supplied.
#define f32 float
#define f32x4 vec4
#define i32 int
#define F4(a, b, c, d) vec4((a), (b), (c), (d))
#define SPLAT(a) vec4(a)
#define TO_F32(a) float(a)
#define TO_I32(a) int(a)
#define LOCAL_X int(gl_LocalInvocationID.x)
#define LOCAL_Y int(gl_LocalInvocationID.y)
#define LOCAL_Z int(gl_LocalInvocationID.z)
#define GROUP_X int(gl_WorkGroupID.x)
#define GROUP_Y int(gl_WorkGroupID.y)
#define GROUP_Z int(gl_WorkGroupID.z)
#define GROUPS_X int(gl_NumWorkGroups.x)
#define GLOBAL_ID (GROUP_X * LX + LOCAL_X)
#define GLOBAL_SIZE (GROUPS_X * LX)
#define BARRIER barrier()
#define INFINITY_F uintBitsToFloat(0x7f800000u)
#define NAN_F uintBitsToFloat(0x7fc00000u)
#define is_nan(x) isnan(x)
#define is_inf(x) isinf(x)
#define fabs(x) abs(x)
#define rint(x) roundEven(x)
// NaN wins, as in numpy and ONNX; the language's own forms drop it.
f32 nan_max(f32 a, f32 b) { return (a > b || isnan(a)) ? a : b; }
f32 nan_min(f32 a, f32 b) { return (a < b || isnan(a)) ? a : b; }
#define fmax(a, b) nan_max((a), (b))
#define fmin(a, b) nan_min((a), (b))
f32x4 first_lanes(f32x4 v, int n) {
  return F4(n > 0 ? v.x : 0.0, n > 1 ? v.y : 0.0, n > 2 ? v.z : 0.0, n > 3 ? v.w : 0.0);
}
// fmod of C: the sign of the dividend; exact for quotients below 2^24.
f32 fmod(f32 a, f32 b) { return a - b * trunc(a / b); }
// Small arguments by series, so that expm1 and log1p keep their digits near zero.
f32 expm1(f32 x) {
  return abs(x) < 0.05 ? x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0))))) : exp(x) - 1.0;
}
f32 log1p(f32 x) {
  if (abs(x) > 0.05) return log(1.0 + x);
  const f32 s = x / (2.0 + x), q = s * s;
  return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0))));
}
// Abramowitz and Stegun 7.1.5 (series) below 1 and 7.1.26's form with exp above would lose digits: the
// series to |x| < 2 and the continued fraction 7.1.14 beyond it keep 1e-6.
f32 erf(f32 x) {
  const f32 a = abs(x);
  if (a < 2.0) {
    f32 term = a, sum = a;
    for (int n = 1; n < 24; n++) { term *= -a * a / f32(n); sum += term / f32(2 * n + 1); }
    return sign(x) * 1.1283791670955126 * sum;
  }
  if (a > 4.0) return sign(x);
  f32 f = 0.0;
  for (int n = 24; n > 0; n--) f = 0.5 * f32(n) / (a + f);
  return sign(x) * (1.0 - exp(-a * a) * 0.5641895835477563 / (a + f));
}
