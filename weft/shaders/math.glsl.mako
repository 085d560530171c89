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
// What a * b is beside p, its rounded product.
f32 product_error(f32 a, f32 b, f32 p) {
  const f32 c = 4097.0 * a, d = 4097.0 * b, a_high = c - (c - a), b_high = d - (d - b);
  const f32 a_low = a - a_high, b_low = b - b_high;
  return ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low;
}
// What a + b is beside s, its rounded sum.
f32 sum_error(f32 a, f32 b, f32 s) {
  const f32 part = s - a;
  return (a - (s - part)) + (b - part);
}
f32 two_to(int n) { return intBitsToFloat((n + 127) << 23); }
// a to the power of y, by a logarithm of two floats, since its error counts y * log2(a) times. So do the first two terms
// of the series in s, a quotient of two floats. The error is below 1.2e-7.
f32 finite_power(f32 a, f32 y) {
  const bool small = a < 1.17549435e-38;
  const int bits = floatBitsToInt(small ? a * 16777216.0 : a);
  int k = (bits >> 23) - (small ? 151 : 127);
  f32 m = intBitsToFloat((bits & 0x7fffff) | 0x3f800000);
  if (m > 1.41421356) {
    m *= 0.5;
    k += 1;
  }
  const f32 f = m - 1.0, d = m + 1.0, d_low = m - (d - 1.0), s = f / d, p = s * d;
  const f32 s_low = ((f - p) - product_error(s, d, p) - s * d_low) / d, z = s * s, cube = s * z;
  const f32 cube_low = product_error(s, z, cube) + s * product_error(s, s, z);
  const f32 first = 2.88539004 * s, third = 0.961796701 * cube, most = f32(k) + first, sum = most + third;
  const f32 third_low = product_error(0.961796701, cube, third) + (0.961796701 * cube_low - 7.02846137e-09 * cube);
  const f32 rest = 2.88539004 * cube * z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z / 11.0)));
  const f32 first_low = product_error(2.88539004, s, first) + (2.88539004 * s_low * (1.0 + z) + 3.85192607e-08 * s);
  f32 low = sum_error(f32(k), first, most) + sum_error(most, third, sum) + (first_low + third_low + rest);
  const f32 high = sum + low;
  low -= high - sum;
  const f32 exponent = y * high, exponent_low = product_error(y, high, exponent) + y * low;
  if (!(abs(exponent) < 200.0)) return exponent < 0.0 ? 0.0 : INFINITY_F;
  const f32 whole = floor(exponent + 0.5), r = (exponent - whole) + exponent_low;
  const f32 q = 0.00961812911 + r * (0.00133335581 + r * (0.000154035304 + r * 1.52527338e-05));
  const int n = int(whole), half_n = n / 2;
  const f32 v = 1.0 + r * (0.693147181 + r * (0.240226507 + r * (0.0555041087 + r * q)));
  return v * two_to(half_n) * two_to(n - half_n);
}
f32 power(f32 x, f32 y) {
  const f32 a = abs(x);
  if (x == 1.0 || y == 0.0) return 1.0;
  if (isnan(x) || isnan(y) || (x < 0.0 && a < INFINITY_F && floor(y) != y)) return NAN_F;
  f32 r = 1.0;
  if (a == 0.0 || a == INFINITY_F) {
    r = (a == 0.0) == (y > 0.0) ? 0.0 : INFINITY_F;
  } else if (y == 1.0) {
    r = a;
  } else if (y == 2.0) {
    r = a * a;
  } else if (y == 3.0) {
    r = a * a * a;
  } else if (a != 1.0) {
    r = abs(y) < 1.0e20 ? finite_power(a, y) : (a > 1.0) == (y > 0.0) ? INFINITY_F : 0.0;
  }
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
