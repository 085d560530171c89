## Trigonometry to a few ulp for arguments of any size; GLSL allows an error of 2^-11. Included by
## prelude.glsl.mako, behind math.glsl.mako.
f32 inverse_sine(f32 x) {
  const f32 a = abs(x), u = a > 0.5 ? 0.5 - 0.5 * a : a * a, s = a > 0.5 ? whole_sqrt(u) : a;
  const f32 p = 0.0445994027 + u * (0.0311006624 + u * (0.0171492379 + u * 0.0336908475));
  const f32 v = s + s * u * (0.166666657 + u * (0.0750009418 + u * p));
  return with_sign(a > 0.5 ? 1.570796327 - 2.0 * v : v, x);
}
f32 inverse_cosine(f32 x) {
  if (abs(x) <= 0.5) return 1.570796327 - inverse_sine(x);
  const f32 p = 2.0 * inverse_sine(whole_sqrt(0.5 - 0.5 * abs(x)));
  return x < 0.0 ? 3.141592654 - p : p;
}
f32 inverse_tangent(f32 x) {
  const f32 a = abs(x), b = a > 1.0 ? 1.0 / a : a;
  const f32 t = b > 0.41421356 ? (b - 1.0) / (b + 1.0) : b, u = t * t;
  const f32 p = -0.142639533 + u * (0.107437052 - u * 0.0645184144);
  const f32 v = t + t * u * (-0.333333313 + u * (0.199995399 + u * p));
  const f32 q = b > 0.41421356 ? 0.7853981634 + v : v;
  return with_sign(a > 1.0 ? 1.570796327 - q : q, x);
}
// |x| less the nearest multiple of pi / 2, whose quadrant is counted modulo 4. Small ones by steps of 8 bits,
// each exact; others (Payne and Hanek) by the 96 bits of 2 / pi that matter to an x of that size.
f32 reduce_angle(f32 x, out int quadrant) {
  const f32 a = abs(x);
  if (a < 6.0e4) {
    const f32 n = roundEven(a * 0.636619772);
    quadrant = int(n);
    const f32 r = a - n * 1.5703125 - n * 0.0004825592041015625;
    return r - n * 1.2665987014770508e-06 - n * 9.920935796805404e-10;
  }
  const uint digits[8] = uint[8](
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
  const int first = min(floatBitsToInt(a) >> 23, 254) - 120, at = first / 32, shift = first % 32;
  const uint m = uint(floatBitsToInt(a) & 0x7fffff) | 0x800000u;
  uvec3 part;
  for (int k = 0; k < 3; k++)
    part[k] = shift == 0 ? digits[at + k] : (digits[at + k] << shift) | (digits[at + k + 1] >> (32 - shift));
  uint low, high, last, carry;
  umulExtended(part.z, m, last, low);
  umulExtended(part.y, m, high, low);
  const uint middle = uaddCarry(low, last, carry), top = part.x * m + high + carry;
  quadrant = int((top + 0x20000000u) >> 30);
  return f32(int(top << 2 | middle >> 30)) * 3.6572952e-10;
}
f32 sine_at(f32 r, int quadrant) {
  const f32 q = r * r;
  const f32 s = r * (1.0 - q * (1.0 / 6.0 - q * (1.0 / 120.0 - q * (1.0 / 5040.0 - q / 362880.0))));
  const f32 c = 1.0 - q * (0.5 - q * (1.0 / 24.0 - q * (1.0 / 720.0 - q * (1.0 / 40320.0 - q / 3628800.0))));
  const f32 v = (quadrant & 1) == 0 ? s : c;
  return (quadrant & 2) == 0 ? v : -v;
}
f32 sine(f32 x) {
  int quadrant;
  const f32 r = reduce_angle(x, quadrant);
  return abs(x) < INFINITY_F ? with_sign(sine_at(r, quadrant), x) : NAN_F;
}
f32 cosine(f32 x) {
  int quadrant;
  const f32 r = reduce_angle(x, quadrant);
  return abs(x) < INFINITY_F ? sine_at(r, quadrant + 1) : NAN_F;
}
#define sin(x) sine(x)
#define cos(x) cosine(x)
#define tan(x) (sine(x) / cosine(x))
#define asin(x) inverse_sine(x)
#define acos(x) inverse_cosine(x)
#define atan(x) inverse_tangent(x)
