## Functions that GLSL lacks, leaves undefined or specifies loosely, to a few ulp; included by prelude.glsl.mako.
## The polynomials are Chebyshev interpolants.
// The language leaves these undefined where C says NaN or minus infinity.
f32 whole_sqrt(f32 x) { return x >= 0.0 ? sqrt(x) : NAN_F; }
// Some drivers read the exponent of a subnormal number as it stands.
f32 whole_log(f32 x) {
  const bool small = x < 1.17549435e-38;
  const f32 y = log(small ? x * 16777216.0 : x) - (small ? 16.63553233 : 0.0);
  return x > 0.0 ? y : (x == 0.0 ? -INFINITY_F : NAN_F);
}
// Powers of two times b are taken off, largest first: each difference is exact. A subnormal b counts as 0.
f32 fmod(f32 x, f32 y) {
  const f32 b = abs(y);
  f32 a = abs(x);
  if (!(b >= 1.17549435e-38) || !(a < INFINITY_F)) return NAN_F;
  while (a >= b) {
    const f32 s = ldexp(b, (floatBitsToInt(a) >> 23) - (floatBitsToInt(b) >> 23));
    a -= s > a ? 0.5 * s : s;
  }
  return with_sign(a, x);
}
// Series near zero, so that the digits are kept that the other form cancels.
f32 expm1(f32 x) {
  if (abs(x) > 0.5) return exp(x) - 1.0;
  const f32 p = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0)));
  return x == 0.0 ? x : x + x * x * (0.5 + x * (1.0 / 6.0 + x * p));
}
f32 log1p(f32 x) {
  if (!(abs(x) < 0.5)) return whole_log(1.0 + x);
  const f32 s = x / (2.0 + x), q = s * s;
  const f32 p = 0.2 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q / 13.0)));
  return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * p));
}
f32 power(f32 x, f32 y) {
  const f32 a = abs(x);
  if (x == 1.0 || y == 0.0) return 1.0;
  if (isnan(y) || (x < 0.0 && a < INFINITY_F && floor(y) != y)) return NAN_F;
  f32 r = y == 2.0 ? a * a : exp2(y * log2(a));
  if (a == 0.0) r = y > 0.0 ? 0.0 : INFINITY_F;
  if (a == 1.0) r = 1.0;
  const bool odd = abs(y) < 16777216.0 && floor(y) == y && floor(0.5 * y) != 0.5 * y;
  return floatBitsToInt(x) < 0 && odd ? -r : r;
}
f32 erf(f32 x) {
  const f32 a = abs(x), u = a * a;
  if (a < 1.0) {
    const f32 p = -0.0268542115 + u * (0.00518908724 + u * (-0.00080168643 + u * 7.87587487e-05));
    return x * (1.12837911 + u * (-0.37612626 + u * (0.112835944 + u * p)));
  }
  const f32 p = -0.0618560947 + a * (0.0133717693 + a * (-0.00191210944 + a * (0.000162007389 - a * 6.14593546e-06)));
  const f32 r = 0.986994207 + a * (-1.05592477 + a * (0.816736281 + a * (-0.470379919 + a * (0.200398102 + a * p))));
  return with_sign(a > 4.0 ? 1.0 : 1.0 - exp(-u) * r, x);
}
#define sqrt(x) whole_sqrt(x)
#define log(x) whole_log(x)
#define pow(x, y) power((x), (y))
