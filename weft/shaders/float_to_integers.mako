## Floats as integers of up to 64 bits, rounded toward zero. Numbers out of range become the nearest in range if it
## `saturates`, and NaN 0; else they become what `weft.ops.conversion.to_integers` says.
<%
dtype = y.arg.dtype
least, largest = dtype.limits if dtype.is_integer else (0, 1)
widest = dtype.value == "uint64"
low_end, high_end = (-(2**63), 2**64 if widest else 2**63)
if dtype.is_integer and dtype.bits <= 32 and dtype.value != "uint32":
    low_end, high_end = -(2**31), 2**31
number = f"fmax({x.load('i')}, {float(least)})" if saturates else x.load("i")
%>
${k.for_each("i", "TOTAL")} {
  const real given = ${number};
% if truth:
  const int truth = given != 0.0 ? 1 : 0;
  ${y.store_int("i", "truth")}
% else:
  // A double just above the least number is rounded to it.
  const real whole = given < 0.0 ? ceil(given) : floor(given);
  const bool fits = whole >= ${float(low_end)} && whole < ${float(high_end)};
  const real v = fits ? whole : 0.0;
  // Each half is exact: dividing by 2^32 moves no bits.
  const real size = fabs(v), above = floor(size / 4294967296.0), below = size - above * 4294967296.0;
  uint high = TO_I32(above < 2147483648.0 ? above : above - 2147483648.0) + (above < 2147483648.0 ? 0u : 2147483648u);
  uint low = TO_I32(below < 2147483648.0 ? below : below - 2147483648.0) + (below < 2147483648.0 ? 0u : 2147483648u);
  if (v < 0.0) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
% if saturates:
  if (given >= ${float(largest + 1)}) {
    low = ${largest & 0xffffffff}u;
    high = ${largest >> 32}u;
  }
% else:
  if (!fits) {
    low = ${low_end & 0xffffffff}u;
    high = ${f"given >= {float(high_end)} ? 0u : {low_end >> 32 & 0xffffffff}u" if widest else f"{low_end >> 32 & 0xffffffff}u"};
  }
% endif
  ${y.store_pair("i", "low", "high")}
% endif
}
