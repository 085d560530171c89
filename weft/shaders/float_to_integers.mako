## Floats as integers of up to 64 bits, rounded toward zero. Numbers out of range become the nearest in range if it
## `saturates`, else the device decides; for NaN it always does.
<%
most = "2147483647.0" if k.double else "2147483520.0"
dtype = y.arg.dtype
least, largest = dtype.limits if dtype.is_integer else (0, 1)
%>
${k.for_each("i", "TOTAL")} {
  const real v = ${f"fmax({x.load('i')}, {float(least)})" if saturates else x.load("i")};
% if truth:
  const int truth = v != 0.0 ? 1 : 0;
  ${y.store_int("i", "truth")}
% else:
  // Each half is exact: dividing by 2^32 moves no bits.
  const real size = floor(fabs(v)), above = floor(size / 4294967296.0), below = size - above * 4294967296.0;
  uint high = TO_I32(above < 2147483648.0 ? above : ${f"fmin(above - 2147483648.0, {most})" if y.arg.dtype.value == "uint64" else "0.0"}) + (above < 2147483648.0 ? 0u : 2147483648u);
  uint low = TO_I32(below < 2147483648.0 ? below : below - 2147483648.0) + (below < 2147483648.0 ? 0u : 2147483648u);
  if (v < 0.0) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
% if saturates:
  if (v >= ${float(largest + 1)}) {
    low = ${largest & 0xffffffff}u;
    high = ${largest >> 32}u;
  }
% endif
  ${y.store_pair("i", "low", "high")}
% endif
}
