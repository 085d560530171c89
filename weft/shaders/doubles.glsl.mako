## Functions of doubles, of which GLSL has few: to a few ulp, for arguments of any size. Included by prelude.glsl.mako.
## Sources: W. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980), for the reduction by constants
## in parts; M. Payne and R. Hanek, "Radian reduction for trigonometric functions" (1983), for large angles; T. Dekker,
## "A floating-point technique for extending the available precision" (1971), for pairs of doubles. Where nothing else
## is said a polynomial is a Taylor series, cut where the next term is below half an ulp.
<%!
from math import atan, factorial


def horner(variable, coefficients):
    """Return the polynomial with these coefficients, the constant term first."""
    *rest, text = [f"{c!r}" if c >= 0 else f"({c!r})" for c in coefficients]
    for c in reversed(rest):
        text = f"({c} + {variable} * {text})"
    return text


# exp(r) = 1 + r + r * r * EXP(r) up to |r| = log(2) / 2
EXP = [1 / factorial(k) for k in range(2, 14)]
# log(1 + f) = 2 * s + s * z * LOG(z), s = f / (2 + f), z = s * s
LOG = [2 / (2 * k + 1) for k in range(1, 11)]
# the same with its first term apart, to the last digit of a double that a power multiplies by up to 709
POWER_LOG = [2 / (2 * k + 1) for k in range(2, 14)]
# sin(r) = r + r * q * SIN(q) and cos(r) = 1 - q / 2 + q * q * COS(q), q = r * r, up to |r| = pi / 4
SIN = [(-1) ** k / factorial(2 * k + 1) for k in range(1, 9)]
COS = [(-1) ** k / factorial(2 * k) for k in range(2, 10)]
# atan(t) = t + t * u * ATAN(u), u = t * t, up to |t| = 1 / 16
ATAN = [(-1) ** k / (2 * k + 1) for k in range(1, 8)]
# Chebyshev fits, computed with 50 digits: erf(x) / x over x * x up to 1, and erfc(x) * exp(x * x) over
# (x - 3) / (x + 3) from 1 to 6, from where on erf is 1
ERF = [
    1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
    -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06,
    -1.6208483801871705e-07, 1.3720064546777686e-08, -7.795898827002142e-10,
]
ERFC = [
    0.17900115118138996, -0.3262335600430372, 0.2456038017123309, -0.15011593650077742, 0.07166583719797347,
    -0.024392499318655416, 0.004269136333148302, 0.0007077464385177353, -0.0005970619586158305, 4.5255298034073955e-05,
    6.405673342206844e-05, -1.2860318447907675e-05, -7.979817704348727e-06, 2.1169509641489688e-06,
    1.2598817267482604e-06, -2.7269500546476834e-07, -2.389387463474792e-07, -2.5925894581233316e-08,
]
# 2 / pi in words, behind two words of zeros: the last bits of the largest double need 1200 of its bits
TWO_BY_PI = """
    0 0 a2f9836e 4e441529 fc2757d1 f534ddc0 db629599 3c439041 fe5163ab debbc561 b7246e3a 424dd2e0 06492eea 09d1921c
    fe1deb1c b129a73e e88235f5 2ebb4484 e99c7026 b45f7e41 3991d639 835339f4 9c845f8b bdf9283b 1ff897ff de05980f
    ef2f118b 5a0a6d1f 6d367ecf 27cb09b7 4f463f66 9e5fea2d 7527bac7 ebe5f17b 3d0739f7 8a5292ea 6bfb5fb1 1f8d5d08
    56033046 fc7b6bab
""".split()
%>
// log(2) and pi / 2 in parts: a number of so many bits times the first ones is exact.
#define LOG2_HIGH 0.6931471804855391
#define LOG2_LOW 7.440617110012397e-11
#define HALF_PI_HIGH 1.5707963267341256
#define HALF_PI_MIDDLE 6.077100506303966e-11
#define HALF_PI_LOW 2.0222662487959506e-21
#define HALF_PI 1.5707963267948966
#define TWO_THIRDS 0.6666666666666666
#define TWO_THIRDS_LOW 3.700743415417188e-17
// The language leaves it undefined where C says NaN.
real whole_sqrt(real x) { return x >= 0.0 ? sqrt(x) : NAN_F; }
bool is_negative(real x) { return int(unpackDouble2x32(x).y) < 0; }
real two_to(int n) { return packDouble2x32(uvec2(0u, uint(n + 1023) << 20)); }
// In three steps, so that none overflows, or rounds a subnormal number, but the last.
real scaled(real x, int n) {
  real r = x * two_to(n / 3);
  r = r * two_to(n / 3);
  r = r * two_to(n - n / 3 * 2);
  return r;
}
// |x| of a finite x other than 0 is from 1 to 2 times two to this.
int exponent_of(real x) {
  const int e = int(unpackDouble2x32(x).y >> 20 & 2047u);
  return e > 0 ? e - 1023 : int(unpackDouble2x32(x * 18014398509481984.0).y >> 20 & 2047u) - 1077;
}
// Powers of two times b are taken off, largest first: each difference is exact.
real fmod(real x, real y) {
  const real b = abs(y);
  real a = abs(x);
  if (!(b > 0.0) || !(a < INFINITY_F)) return NAN_F;
  while (a >= b) {
    const real s = scaled(b, exponent_of(a) - exponent_of(b));
    a -= s > a ? 0.5 * s : s;
  }
  return with_sign(a, x);
}
// x less n * log(2), the n that leaves least.
real reduce_exponent(real x, out int n) {
  const real k = roundEven(x * 1.4426950408889634);
  n = int(k);
  real r = x - k * LOG2_HIGH;
  r = r - k * LOG2_LOW;
  return r;
}
real short_expm1(real r) { return r + r * r * ${horner("r", EXP)}; }
real exponential(real x) {
  if (!(abs(x) < 750.0)) return x < 0.0 ? 0.0 : x > 0.0 ? real(INFINITY_F) : x;
  int n;
  const real r = reduce_exponent(x, n);
  return scaled(1.0 + short_expm1(r), n);
}
real expm1(real x) {
  if (!(abs(x) < 40.0)) return exponential(x) - 1.0;
  if (x == 0.0) return x;
  int n;
  const real p = short_expm1(reduce_exponent(x, n)), s = two_to(n);
  return s * p + (s - 1.0);
}
// log(2^k * (1 + f)) for f from -0.3 to 0.42.
real logarithm_at(real f, real k) {
  const real s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f, more = s * (half_square + z * ${horner("z", LOG)});
  real v = k * LOG2_HIGH - ((half_square - (more + k * LOG2_LOW)) - f);
  return v;
}
// x as 2^k * m, m from sqrt(1/2) to sqrt(2).
real split_exponent(real x, out int k) {
  k = exponent_of(x);
  const real m = scaled(x, -k);
  if (m < 1.4142135623730951) return m;
  k += 1;
  return 0.5 * m;
}
real logarithm(real x) {
  if (!(x > 0.0)) return x == 0.0 ? -real(INFINITY_F) : real(NAN_F);
  if (isinf(x)) return x;
  int k;
  const real m = split_exponent(x, k);
  return logarithm_at(m - 1.0, real(k));
}
real log1p(real x) { return x == 0.0 ? x : x > -0.29 && x < 0.41 ? logarithm_at(x, 0.0) : logarithm(1.0 + x); }
// What a * b is beside p, its rounded product.
real product_error(real a, real b, real p) {
  real c = 134217729.0 * a, d = 134217729.0 * b;
  real a_high = c - (c - a), b_high = d - (d - b);
  real a_low = a - a_high, b_low = b - b_high;
  real e = a_high * b_high - p;
  e = e + a_high * b_low + a_low * b_high;
  e = e + a_low * b_low;
  return e;
}
// What a + b is beside s, its rounded sum.
real sum_error(real a, real b, real s) {
  real part = s - a, e = (a - (s - part)) + (b - part);
  return e;
}
// a to the power of y, by a logarithm of two doubles, since its error counts y * log(a) times. So do the first two terms
// of the series in s, a quotient of two doubles.
real finite_power(real a, real y) {
  int k, n;
  const real m = split_exponent(a, k), f = m - 1.0;
  real d = m + 1.0, d_low = m - (d - 1.0), s = f / d, p = s * d;
  real rest = (f - p) - product_error(s, d, p) - s * d_low;
  real s_low = rest / d, z = s * s, cube = s * z;
  real cube_low = product_error(s, z, cube) + s * product_error(s, s, z);
  real third = TWO_THIRDS * cube;
  real third_low = product_error(TWO_THIRDS, cube, third) + (TWO_THIRDS * cube_low + TWO_THIRDS_LOW * cube);
  real whole = real(k) * LOG2_HIGH, twice = 2.0 * s, most = whole + twice, sum = most + third;
  real low = sum_error(whole, twice, most) + sum_error(most, third, sum);
  real rest_of_s = s_low * (2.0 + 2.0 * z * (1.0 + z));
  low = low + (third_low + (cube * z * ${horner("z", POWER_LOG)} + (rest_of_s + real(k) * LOG2_LOW)));
  real high = sum + low;
  low = low - (high - sum);
  real exponent = y * high, exponent_low = product_error(y, high, exponent) + y * low;
  if (!(abs(exponent) < 750.0)) return exponent < 0.0 ? 0.0 : real(INFINITY_F);
  const real r = reduce_exponent(exponent, n);
  return scaled(1.0 + short_expm1(r + exponent_low), n);
}
real power(real x, real y) {
  const real a = abs(x);
  if (x == 1.0 || y == 0.0) return 1.0;
  if (isnan(x) || isnan(y)) return NAN_F;
  const bool whole = floor(y) == y;
  if (x < 0.0 && a < INFINITY_F && !whole) return NAN_F;
  real r = 1.0;
  if (a == 0.0 || isinf(a)) {
    r = (a == 0.0) == (y > 0.0) ? 0.0 : real(INFINITY_F);
  } else if (y == 2.0) {
    r = a * a;
  } else if (a != 1.0) {
    r = abs(y) < 1.0e20 ? finite_power(a, y) : (a > 1.0) == (y > 0.0) ? real(INFINITY_F) : 0.0;
  }
  const bool odd = whole && abs(y) < 9007199254740992.0 && floor(0.5 * y) != 0.5 * y;
  return is_negative(x) && odd ? -r : r;
}
real erf(real x) {
  const real a = abs(x), u = a * a;
  if (a < 1.0) return x * ${horner("u", ERF)};
  const real t = (a - 3.0) / (a + 3.0);
  return isnan(x) ? x : with_sign(a > 6.0 ? 1.0 : 1.0 - exponential(-u) * ${horner("t", ERFC)}, x);
}
real inverse_tangent(real x) {
  const real a = abs(x), b = a > 1.0 ? 1.0 / a : a;
  const real known[9] = real[9](${", ".join(repr(atan(k / 8)) for k in range(9))});
  if (isnan(x)) return x;
  const int k = int(roundEven(b * 8.0));
  const real c = 0.125 * real(k), t = (b - c) / (1.0 + b * c), u = t * t;
  const real v = known[k] + (t + t * u * ${horner("u", ATAN)});
  return with_sign(a > 1.0 ? HALF_PI - v : v, x);
}
real inverse_sine_at(real s) { return inverse_tangent(s / sqrt(1.0 - s * s)); }
real inverse_sine(real x) {
  const real a = abs(x);
  return a <= 0.5 ? inverse_sine_at(x) : with_sign(HALF_PI - 2.0 * inverse_sine_at(whole_sqrt(0.5 - 0.5 * a)), x);
}
real inverse_cosine(real x) {
  const real a = abs(x);
  if (a <= 0.5) return HALF_PI - inverse_sine_at(x);
  const real p = 2.0 * inverse_sine_at(whole_sqrt(0.5 - 0.5 * a));
  return x < 0.0 ? 2.0 * HALF_PI - p : p;
}
// |x| less the nearest multiple of pi / 2, whose quadrant is counted modulo 4.
real reduce_angle(real x, out int quadrant) {
  const real a = abs(x);
  if (a < 1.0e6) {
    const real n = roundEven(a * 0.6366197723675814);
    quadrant = int(n);
    real r = a - n * HALF_PI_HIGH;
    r = r - n * HALF_PI_MIDDLE;
    r = r - n * HALF_PI_LOW;
    return r;
  }
  // The 192 bits of 2 / pi that matter, times the 53 bits of x, from the last word on; what is beyond the quadrant
  // overflows. A loop that is not written out looks up one word: where an index varies, drivers write many lines.
  const uint digits[${len(TWO_BY_PI)}] = uint[${len(TWO_BY_PI)}](${", ".join(f"0x{word}u" for word in TWO_BY_PI)});
  const uvec2 bits = unpackDouble2x32(a);
  const int first = min(int(bits.y >> 20), 2046) - 1013, at = first / 32, shift = first % 32;
  const uint upper = bits.y & 0xfffffu | 0x100000u;
  uint before = digits[at + 6], low = 0u, middle = 0u, top, under, over, carry, more;
  uint s0 = 0u, s1 = 0u, s2 = 0u, s3 = 0u, s4 = 0u, s5 = 0u;
  for (int word = at + 5; word >= at; word--) {
    const uint here = digits[word], factor = shift == 0 ? here : here << shift | before >> (32 - shift);
    before = here;
    s5 = s4; s4 = s3; s3 = s2; s2 = s1; s1 = s0;
    umulExtended(bits.x, factor, over, under);
    s0 = uaddCarry(low, under, carry);
    low = uaddCarry(middle, over, more);
    top = more;
    low = uaddCarry(low, carry, more);
    top += more;
    umulExtended(upper, factor, over, under);
    low = uaddCarry(low, under, more);
    middle = top + over + more;
  }
  quadrant = int((s0 + 0x20000000u) >> 30);
  const uint flip = (s0 & 0x20000000u) != 0u ? 0xffffffffu : 0u;
  real part = 0.0;
% for k in reversed(range(5)):
  part = (part + real((s${k} << 2 | s${k + 1} >> 30) ^ flip)) * 2.3283064365386963e-10;
% endfor
  return (flip != 0u ? -part : part) * HALF_PI;
}
real sine_at(real r, int quadrant) {
  const real q = r * r;
  const real s = r + r * q * ${horner("q", SIN)}, c = 1.0 - (0.5 * q - q * q * ${horner("q", COS)});
  const real v = (quadrant & 1) == 0 ? s : c;
  return (quadrant & 2) == 0 ? v : -v;
}
real sine(real x) {
  int quadrant;
  const real r = reduce_angle(x, quadrant);
  return abs(x) < INFINITY_F ? with_sign(sine_at(r, quadrant), x) : NAN_F;
}
real cosine(real x) {
  int quadrant;
  const real r = reduce_angle(x, quadrant);
  return abs(x) < INFINITY_F ? sine_at(r, quadrant + 1) : NAN_F;
}
#define sqrt(x) whole_sqrt(x)
#define exp(x) exponential(x)
#define log(x) logarithm(x)
#define pow(x, y) power((x), (y))
#define sin(x) sine(x)
#define cos(x) cosine(x)
#define tan(x) (sine(x) / cosine(x))
#define asin(x) inverse_sine(x)
#define acos(x) inverse_cosine(x)
#define atan(x) inverse_tangent(x)
