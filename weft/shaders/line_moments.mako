## What normalize_lines.mako needs of each of SPANS spans of SPAN elements of a line: with `centred` the mean, and the sum
## of `term`, of elements less this mean. Differences from a mean that is near lose no digits.
<%namespace name="lines" file="lines.parts.mako"/>
<% k.shared("real", "part", "LX") %>
${k.for_groups("g", "LINES * SPANS")} {
  const int line = g / SPANS, start = g % SPANS * SPAN, end = min(start + SPAN, LENGTH);
  ${lines.base("line")}
% if centred:
  ${lines.add("mean", "v", "start + LOCAL_X", "LX", "end", "", True)}
  mean /= TO_REAL(end - start);
% endif
  ${lines.add("total", term, "start + LOCAL_X", "LX", "end", " - mean" if centred else "", True)}
  if (LOCAL_X == 0) {
    ${moments.store("g * 2", "mean" if centred else "0.0")}
    ${moments.store("g * 2 + 1", "total")}
  }
}
