## Integers of up to 64 bits as floats, rounded once. Doubles hold both halves, and round their sum. As f32, the last
## of more than 32 bits are replaced by one sticky bit, which tells whether any of them was set, so that the conversion
## rounds as if they were there.
${k.for_each("i", "TOTAL")} {
  uint low = ${x.load("i")};
  uint high = ${x.load_high("i")};
  const bool negative = ${"false" if x.arg.dtype.value == "uint64" else "TO_I32(high) < 0"};
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
  real scale = negative ? -1.0 : 1.0;
% if not k.double:
  while (high != 0) {
    low = low / 2 + high % 2 * 2147483648u | low % 2;
    high /= 2;
    scale *= 2.0;
  }
% endif
<%
value = "scale * (TO_REAL(high) * 4294967296.0 + TO_REAL(low))" if k.double else "scale * TO_F32(low)"
%>
  ${y.store("i", f"fmin(fmax({value}, -{most}), {most})" if most else value)}
}
