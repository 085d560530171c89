## Reductions over any axes in NCHW: K0 x K1 x K2 outputs, each of R0 x R1 x R2 elements, at steps KS. and RS..
## `term` is applied to each element, `join` joins two terms, `finish` makes the stored result. With `shifted` the
## greatest element is found first. Short reductions: one work-item for each output; long ones: one group, and a tree.
<%
if not short:
    k.shared("real", "part", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
%>
<%def name="gather(value, start, term, join)">
  real ${value} = ${start};
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const real v = ${x.load("base + e / (R1 * R2) * RS0 + e / R2 % R1 * RS1 + e % R2 * RS2")};
    const real t = ${term};
    ${value} = ${join.format(value, "t")};
  }
% if not short:
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
      const real a = part[LOCAL_X], b = part[LOCAL_X + width];
      part[LOCAL_X] = ${join.format("a", "b")};
    }
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
% endif
</%def>
% if short:
${k.for_each("i", "OUTPUTS")} {
% else:
${k.for_groups("i", "OUTPUTS")} {
% endif
  const int base = i / (K1 * K2) * KS0 + i / K2 % K1 * KS1 + i % K2 * KS2;
% if shifted:
  ${gather("top", "-INFINITY_F", "v", "fmax({0}, {1})")}
  const real shift = fabs(top) < INFINITY_F ? top : 0.0;
% endif
  ${gather("acc", start, term, join)}
% if not short:
  if (LOCAL_X == 0)
% endif
  ${y.store("i", finish)}
}
