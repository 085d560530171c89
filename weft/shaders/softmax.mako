## Softmax or its logarithm along lines of LENGTH elements INNER apart. Long lines: one work-group for each, with trees in
## work-group memory; short lines: one work-item for each.
<%namespace name="sums" file="sums.parts.mako"/>
<%
if not short:
    k.shared("real", "part", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
%>
<%def name="tree(value, join)">
% if not short:
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
      const real a = part[LOCAL_X], b = part[LOCAL_X + width];
      part[LOCAL_X] = ${join};
    }
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
% endif
</%def>
% if short:
${k.for_each("line", "LINES")} {
% else:
${k.for_groups("line", "LINES")} {
% endif
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  real top = -INFINITY_F;
  for (int e = ${first}; e < LENGTH; e += ${step}) top = fmax(top, ${x.load("base + e * INNER")});
  ${tree("top", "fmax(a, b)")}
  <%sums:in_parts value="sum" kind="real" zero="0.0" first="${first}" end="LENGTH" step="${step}">
      for (int e = near; e < near_end; e += ${step}) few += exp(${x.load("base + e * INNER")} - top);
  </%sums:in_parts>
  ${tree("sum", "a + b")}
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const int at = base + e * INNER;
% if log:
    ${y.store("at", f"{x.load('at')} - top - log(sum)")}
% else:
    ${y.store("at", f"exp({x.load('at')} - top) / sum")}
% endif
  }
}
