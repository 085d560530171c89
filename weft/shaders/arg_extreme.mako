## The place of the extreme along lines of LENGTH elements INNER apart, among equals the first or the last;
## NaN beats all. Short lines: one item a line; long ones: one group a line, and a tree.
<%
if not short:
    k.shared("f32", "best", "LX")
    k.shared("i32", "places", "LX")
first, step = ("0", "1") if short else ("LOCAL_X", "LX")
sign = ">" if greatest else "<"
%>
<%def name="better(v, at, w, than)">(!is_nan(${w}) && (is_nan(${v}) || ${v} ${sign} ${w})) || ((${v} == ${w} || (is_nan(${v}) && is_nan(${w}))) && ${at} ${">" if last else "<"} ${than})</%def>
% if short:
${k.for_each("line", "LINES")} {
% else:
for (int line = GROUP_X; line < LINES; line += GROUPS_X) {
% endif
  const int base = line / INNER * LENGTH * INNER + line % INNER;
  int place = ${first} < LENGTH ? ${first} : 0;
  f32 top = ${x.load("base + place * INNER")};
  for (int e = ${first} + ${step}; e < LENGTH; e += ${step}) {
    const f32 v = ${x.load("base + e * INNER")};
    if (${better("v", "e", "top", "place")}) { top = v; place = e; }
  }
% if short:
  ${y.store_int("line", "place")}
% else:
  best[LOCAL_X] = top;
  places[LOCAL_X] = place;
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
      const f32 v = best[LOCAL_X + width], w = best[LOCAL_X];
      const int at = places[LOCAL_X + width], than = places[LOCAL_X];
      if (${better("v", "at", "w", "than")}) { best[LOCAL_X] = v; places[LOCAL_X] = at; }
    }
    BARRIER;
  }
  if (LOCAL_X == 0) {
    const int found = places[0];
    ${y.store_int("line", "found")}
  }
  BARRIER;
% endif
}
