## Sums of the columns of windows over ${rank} axes, one item a pixel: sizes I., kernel K., windows O. an axis, strides
## S., dilations D., padding P. before. A column has TAPS elements a channel, of WINDOWS windows each. Integers are pairs
## of 32-bit halves.
<%namespace name="pairs" file="pairs.parts.mako"/>\
<% whole = x.arg.dtype.is_integer %>\
${k.for_each("i", "TOTAL")} {
  int rest = i;
% for d in reversed(range(rank)):
  const int at${d} = rest % I${d} + P${d};
  rest /= I${d};
% endfor
  const int base = rest * TAPS * WINDOWS;
% if whole:
  uint sum = 0u, sum_high = 0u;
% else:
  ${k.number} sum = 0.0;
% endif
% for d in range(rank):
  for (int t${d} = 0; t${d} < K${d}; t${d}++) {
    const int from${d} = at${d} - t${d} * D${d};
    if (from${d} >= 0 && from${d} % S${d} == 0 && from${d} / S${d} < O${d}) {
% endfor
<%
tap, window = "t0", "from0 / S0"
for d in range(1, rank):
    tap, window = f"({tap}) * K{d} + t{d}", f"({window}) * O{d} + from{d} / S{d}"
%>
% if whole:
  const uint v = ${x.load(f"base + ({tap}) * WINDOWS + {window}")};
  const uint v_high = ${x.load_high(f"base + ({tap}) * WINDOWS + {window}")};
  ${pairs.add("sum", "sum_high", "v", "v_high")}
% else:
  sum += ${x.load(f"base + ({tap}) * WINDOWS + {window}")};
% endif
% for d in range(rank):
  }}
% endfor
% if whole:
  ${y.store_pair("i", "sum", "sum_high")}
% else:
  ${y.store("i", "sum")}
% endif
}
