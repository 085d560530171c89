## Whole numbers, as pairs of halves (low, high) in unsigned arithmetic of 32 bits, which has no overflow: exact for
## integers of any size up to 64 bits, that wrap as they are stored. `names` are the operands that are read, of
## `count`; others are the constants K<i> and K<i>_HIGH. D0.. are the sizes of the output's axes and <operand>_S0..
## the steps. `operation` joins the operands from left to right; a relation gives 0 or 1.
<%
def at(name):
    return " + ".join(f"i{d} * {name}_S{d}" for d in range(rank))
relations = {
    "less": "TO_I32(high) < TO_I32(h) || (high == h && low < l)",
    "less_equal": "TO_I32(high) < TO_I32(h) || (high == h && low <= l)",
    "greater": "TO_I32(high) > TO_I32(h) || (high == h && low > l)",
    "greater_equal": "TO_I32(high) > TO_I32(h) || (high == h && low >= l)",
    "equal": "high == h && low == l",
}
takes = {
    "max": relations["less"],
    "min": relations["greater"],
}
%>
<%def name="read(i, low, high)">
% if f"x{i}" in names:
<%
arg = k.args[f"x{i}"]
%>
  uint ${low} = ${arg.load(at(arg.name))};
  uint ${high} = ${arg.load_high(at(arg.name))};
% else:
  uint ${low} = K${i};
  uint ${high} = K${i}_HIGH;
% endif
</%def>
<%def name="negate()">
  low = ~low + 1;
  high = ~high + (low == 0 ? 1 : 0);
</%def>
${k.for_each("i", "TOTAL")} {
  int rest = i;
% for d in reversed(range(rank)):
  const int i${d} = rest % D${d};
  rest /= D${d};
% endfor
  ${read(0, "low", "high")}
% for other in range(1, count):
  {
  ${read(other, "l", "h")}
% if operation == "add":
    low += l;
    high += h + (low < l ? 1 : 0);
% elif operation == "subtract":
    high -= h + (low < l ? 1 : 0);
    low -= l;
% elif operation == "multiply":
    const uint a0 = low % 65536, a1 = low / 65536, b0 = l % 65536, b1 = l / 65536;
    const uint middle = a0 * b0 / 65536 + a0 * b1 % 65536 + a1 * b0 % 65536;
    high = high * l + low * h + a1 * b1 + a0 * b1 / 65536 + a1 * b0 / 65536 + middle / 65536;
    low = a0 * b0 % 65536 + middle % 65536 * 65536;
% elif operation in takes:
    if (${takes[operation]}) {
      low = l;
      high = h;
    }
% else:
    low = ${relations[operation]} ? 1 : 0;
    high = 0;
% endif
  }
% endfor
% if operation == "negate":
  ${negate()}
% elif operation == "size":
  if (TO_I32(high) < 0) {
    ${negate()}
  }
% elif operation == "truth":
  low = low != 0 || high != 0 ? 1 : 0;
  high = 0;
% endif
  ${y.store_pair("i", "low", "high")}
}
