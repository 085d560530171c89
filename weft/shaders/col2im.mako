## Sums of the columns of windows over ${rank} axes, one item a pixel: sizes I., kernel K., windows O. an axis, strides
## S., dilations D., padding P. before. A column has TAPS elements a channel, of WINDOWS windows each.
${k.for_each("i", "TOTAL")} {
  int rest = i;
% for d in reversed(range(rank)):
  const int at${d} = rest % I${d} + P${d};
  rest /= I${d};
% endfor
  const int base = rest * TAPS * WINDOWS;
  f32 sum = 0.0;
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
  sum += ${x.load(f"base + ({tap}) * WINDOWS + {window}")};
% for d in range(rank):
  }}
% endfor
  ${y.store("i", "sum")}
}
