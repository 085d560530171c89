## Reductions over any axes: K0 x K1 x K2 outputs, each of R0 x R1 x R2 elements, at FIRST and steps KS. and RS..
## `term` is applied to each element, `join` joins two terms, `finish` makes the stored result. With `shifted` the
## greatest element is found first. Short reductions: one work-item for each output; long ones: one group for `adjacent`
## outputs, LX / `adjacent` items and a tree for each, which load `ahead` elements before they join them.
<%namespace name="sums" file="sums.parts.mako"/>
<%
if not short:
    k.shared("real", "part", "LX")
first, step = ("0", "1") if short else (f"LOCAL_X / {adjacent}", f"(LX / {adjacent})")
place = "base + {0} / (R1 * R2) * RS0 + {0} / R2 % R1 * RS1 + {0} % R2 * RS2".format
%>
<%def name="elements(value, start, end, term, join)">
% if ahead > 1:
      for (int e = ${start}; e < ${end}; e += ${ahead} * ${step}) {
% for u in range(ahead):
    const int e${u} = min(e + ${u} * ${step}, ${end} - 1);
    const real v${u} = ${x.load(place(f"e{u}"))};
% endfor
% for u in range(ahead):
    if (e + ${u} * ${step} < ${end}) {
      const real v = v${u};
      const real t = ${term};
      ${value} = ${join.format(value, "t")};
    }
% endfor
  }
% else:
      for (int e = ${start}; e < ${end}; e += ${step}) {
        const real v = ${x.load(place("e"))};
        const real t = ${term};
        ${value} = ${join.format(value, "t")};
      }
% endif
</%def>
<%def name="gather(value, start, term, join)">
% if join == "{0} + {1}":
  <%sums:in_parts value="${value}" kind="real" zero="${start}" first="${first}" end="LENGTH" step="${step}">
      ${elements("few", "near", "near_end", term, join)}
  </%sums:in_parts>
% else:
  real ${value} = ${start};
  ${elements(value, first, "LENGTH", term, join)}
% endif
% if not short:
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width >= ${adjacent}; width /= 2) {
    if (LOCAL_X < width) {
      const real a = part[LOCAL_X], b = part[LOCAL_X + width];
      part[LOCAL_X] = ${join.format("a", "b")};
    }
    BARRIER;
  }
  ${value} = part[LOCAL_X % ${adjacent}];
  BARRIER;
% endif
</%def>
% if short:
${k.for_each("i", "OUTPUTS")} {
% else:
${k.for_groups("each", "OUTPUTS", at_once=str(adjacent))} {
  const int i = min(each + LOCAL_X % ${adjacent}, OUTPUTS - 1);
% endif
  const int base = FIRST + i / (K1 * K2) * KS0 + i / K2 % K1 * KS1 + i % K2 * KS2;
% if shifted:
  ${gather("top", "-INFINITY_F", "v", "fmax({0}, {1})")}
  const real shift = fabs(top) < INFINITY_F ? top : 0.0;
% endif
  ${gather("acc", start, term, join)}
% if not short:
  if (LOCAL_X < ${adjacent} && each + LOCAL_X < OUTPUTS)
% endif
  ${y.store("i", finish)}
}
