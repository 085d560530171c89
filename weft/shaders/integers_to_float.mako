## Integers of up to 64 bits as floats, rounded once: what has more than 32 bits loses its last ones to a bit that
## tells whether any of them was set, so that the conversion of the rest rounds as it would have with them.
${k.for_each("i", "TOTAL")} {
  uint low = ${x.load("i")};
  uint high = ${x.load_high("i")};
  const bool negative = TO_I32(high) < 0;
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
  f32 scale = negative ? -1.0 : 1.0;
  while (high != 0) {
    low = low / 2 + high % 2 * 2147483648u | low % 2;
    high /= 2;
    scale *= 2.0;
  }
  ${y.store("i", "scale * TO_F32(low)")}
}
