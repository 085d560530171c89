<%namespace name="pairs" file="pairs.parts.mako"/>
## Reductions of integers and bools, exact for 64 bits; they walk as those of floats do (reduce.mako). `term` is "value",
## "size" or "square", `join` "add", "multiply", "max" or "min", from START and START_HIGH on; `mean` divides by LENGTH,
## towards zero. `wide` says that the type is unsigned and has 64 bits.
<%
if not short:
    k.shared("uint", "part", "LX")
    k.shared("uint", "part_high", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
%>
<%def name="joined(low, high, l, h)">
% if join == "add":
${pairs.add(low, high, l, h)}
% elif join == "multiply":
${pairs.multiply(low, high, l, h)}
% else:
    if (${pairs.less(low, high, l, h, wide) if join == "max" else pairs.less(l, h, low, high, wide)}) {
      ${low} = ${l};
      ${high} = ${h};
    }
% endif
</%def>
% if short:
${k.for_each("i", "OUTPUTS")} {
% else:
${k.for_groups("i", "OUTPUTS")} {
% endif
  const int base = i / (K1 * K2) * KS0 + i / K2 % K1 * KS1 + i % K2 * KS2;
  uint acc = START, acc_high = START_HIGH;
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const int at = base + e / (R1 * R2) * RS0 + e / R2 % R1 * RS1 + e % R2 * RS2;
    uint v = ${x.load("at")};
    uint v_high = ${x.load_high("at")};
% if term == "size" and not wide:
    if (TO_I32(v_high) < 0) {
      ${pairs.negate("v", "v_high")}
    }
% elif term == "square":
    const uint own = v, own_high = v_high;
    ${pairs.multiply("v", "v_high", "own", "own_high")}
% endif
    ${joined("acc", "acc_high", "v", "v_high")}
  }
% if not short:
  part[LOCAL_X] = acc;
  part_high[LOCAL_X] = acc_high;
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
      const uint l = part[LOCAL_X + width], h = part_high[LOCAL_X + width];
      ${joined("acc", "acc_high", "l", "h")}
      part[LOCAL_X] = acc;
      part_high[LOCAL_X] = acc_high;
    }
    BARRIER;
  }
% endif
% if mean:
  const bool minus = ${"false" if wide else "TO_I32(acc_high) < 0"};
  if (minus) {
    ${pairs.negate("acc", "acc_high")}
  }
  {
    const uint count = LENGTH;
    uint rest = 0u;
    for (int bit = 0; bit < 64 && count != 0u; bit++) {
      rest = rest << 1 | acc_high >> 31;
      acc_high = acc_high << 1 | acc >> 31;
      acc = acc << 1;
      if (rest >= count) {
        rest -= count;
        acc |= 1u;
      }
    }
  }
  if (minus) {
    ${pairs.negate("acc", "acc_high")}
  }
% endif
% if not short:
  if (LOCAL_X == 0)
% endif
  { ${y.store_pair("i", "acc", "acc_high")} }
}
