## Floats as integers of up to 64 bits, rounded toward zero; for NaN and numbers out of range the device decides.
${k.for_each("i", "TOTAL")} {
  const f32 v = ${x.load("i")};
% if truth:
  const int truth = v != 0.0 ? 1 : 0;
  ${y.store_int("i", "truth")}
% else:
  // Each half is exact: a float has 24 bits, and dividing by 2^32 moves none of them.
  const f32 size = floor(fabs(v)), above = floor(size / 4294967296.0), below = size - above * 4294967296.0;
  uint high = TO_I32(above < 2147483648.0 ? above : ${"fmin(above - 2147483648.0, 2147483520.0)" if y.arg.dtype.value == "uint64" else "0.0"}) + (above < 2147483648.0 ? 0u : 2147483648u);
  uint low = TO_I32(below < 2147483648.0 ? below : below - 2147483648.0) + (below < 2147483648.0 ? 0u : 2147483648u);
  if (v < 0.0) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
  ${y.store_pair("i", "low", "high")}
% endif
}
