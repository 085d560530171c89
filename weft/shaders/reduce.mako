## Reductions over any axes in NCHW: K0 x K1 x K2 outputs, each of R0 x R1 x R2 elements, at steps KS. and RS..
## `term` is applied to each element, `join` joins two terms, `finish` makes the stored result. With `shifted` the
## greatest element is found first. `way` "items": one work-item for each output; "group": one group, and a tree;
## "columns": one group for LX outputs whose elements adjoin, LY items and a tree for each, with `ahead` loads at a time.
<%page args="ahead=1"/>\
<%
first, step = {"items": ("0", "1"), "group": ("LOCAL_X", "LX"), "columns": ("LOCAL_Y", "LY")}[way]
if way != "items":
    k.shared("real", "part", "LX" if way == "group" else "LX * LY")
mine, beside = ("LOCAL_X", "LOCAL_X + width") if way == "group" else ("LOCAL_Y * LX + LOCAL_X", "(LOCAL_Y + width) * LX + LOCAL_X")
element = "base + {0} / (R1 * R2) * RS0 + {0} / R2 % R1 * RS1 + {0} % R2 * RS2".format
%>
<%def name="gather(value, start, term, join)">
  real ${value} = ${start};
% if way == "columns":
  for (int e = ${first}; e < LENGTH; e += ${ahead} * ${step}) {
% for u in range(ahead):
    const int e${u} = min(e + ${u} * ${step}, LENGTH - 1);
    const real v${u} = ${x.load(element(f"e{u}"))};
% endfor
% for u in range(ahead):
    if (e + ${u} * ${step} < LENGTH) {
      const real v = v${u};
      const real t = ${term};
      ${value} = ${join.format(value, "t")};
    }
% endfor
  }
% else:
  for (int e = ${first}; e < LENGTH; e += ${step}) {
    const real v = ${x.load(element("e"))};
    const real t = ${term};
    ${value} = ${join.format(value, "t")};
  }
% endif
% if way != "items":
  part[${mine}] = ${value};
  BARRIER;
  for (int width = ${"LX" if way == "group" else "LY"} / 2; width > 0; width /= 2) {
    if (${first} < width) {
      const real a = part[${mine}], b = part[${beside}];
      part[${mine}] = ${join.format("a", "b")};
    }
    BARRIER;
  }
  ${value} = part[${"0" if way == "group" else "LOCAL_X"}];
  BARRIER;
% endif
</%def>
% if way == "items":
${k.for_each("i", "OUTPUTS")} {
% elif way == "group":
${k.for_groups("i", "OUTPUTS")} {
% else:
${k.for_groups("tile", "TILES")} {
  const int i = min(tile * LX + LOCAL_X, OUTPUTS - 1);
% endif
  const int base = i / (K1 * K2) * KS0 + i / K2 % K1 * KS1 + i % K2 * KS2;
% if shifted:
  ${gather("top", "-INFINITY_F", "v", "fmax({0}, {1})")}
  const real shift = fabs(top) < INFINITY_F ? top : 0.0;
% endif
  ${gather("acc", start, term, join)}
% if way == "group":
  if (LOCAL_X == 0)
% elif way == "columns":
  if (LOCAL_Y == 0 && tile * LX + LOCAL_X < OUTPUTS)
% endif
  ${y.store("i", finish)}
}
