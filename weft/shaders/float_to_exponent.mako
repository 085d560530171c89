## Floats as powers of two (float8_e8m0): the exponent, and the next one where `raised` holds; none above `most`.
<%
v = x.load("i")
%>
${k.for_each("i", "TOTAL")} {
  const uint bits = BITS_OF(${f"odd_float({v})" if k.double else v}), e = bits >> 23 & 255u, f = bits & 0x7fffffu;
  const uint code = e < ${most}u && (${raised}) ? e + 1u : e;
  ${y.store("i", "from_float8e8m0(code)")}
}
