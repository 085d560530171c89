## Hyperbolic functions of either type, to a few ulp, by exp, expm1, log, log1p and sqrt; included by prelude.glsl.mako.
real tangent_h(real x) {
  const real t = expm1(-2.0 * abs(x));
  return with_sign(abs(t) / (t + 2.0), x);
}
// Half of exp(a), in a way that overflows no earlier than the result.
real half_exp(real a) {
  const real e = exp(0.5 * a);
  return 0.5 * e * e;
}
real sine_h(real x) {
  const real a = abs(x), t = expm1(a);
  return with_sign(a > 20.0 ? half_exp(a) : 0.5 * (t + t / (t + 1.0)), x);
}
real cosine_h(real x) { return abs(x) > 20.0 ? half_exp(abs(x)) : 0.5 * (exp(x) + exp(-x)); }
real inverse_sine_h(real x) {
  const real a = abs(x), q = a * a;
  return with_sign(a > 1.0e9 ? log(a) + 0.6931471805599453 : log1p(a + q / (1.0 + sqrt(1.0 + q))), x);
}
real inverse_cosine_h(real x) {
  const real t = x - 1.0;
  if (!(t >= 0.0)) return NAN_F;
  return x > 1.0e9 ? log(x) + 0.6931471805599453 : log1p(t + sqrt(t * (t + 2.0)));
}
real inverse_tangent_h(real x) { return with_sign(0.5 * log1p(2.0 * abs(x) / (1.0 - abs(x))), x); }
#define sinh(x) sine_h(x)
#define cosh(x) cosine_h(x)
#define tanh(x) tangent_h(x)
#define asinh(x) inverse_sine_h(x)
#define acosh(x) inverse_cosine_h(x)
#define atanh(x) inverse_tangent_h(x)
