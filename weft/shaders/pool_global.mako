## The mean or the maximum of all pixels of a block of four channels. A group computes WIDE blocks side by side, so that
## adjacent items read adjacent memory if the blocks of a pixel are adjacent. An item loads `at_once` pixels before it uses
## the first: a load takes longer than all that is done with it. Then the LX / WIDE rows of items join in work-group memory,
## in one step or, `twice`, in two with ROWS rows between them: that takes fewer barriers than a tree.
<%namespace name="sums" file="sums.parts.mako"/>
<%
k.shared("f32x4", "part", "LX")
first = "(c < BLOCKS ? LOCAL_X / WIDE : PLACES)"
def join(a, b):
    if mode == "average":
        return f"{a} + {b}"
    return "F4(" + ", ".join(f"fmax({a}.{l}, {b}.{l})" for l in "xyzw") + ")"
%>\
## In software, items that have nothing to join must leave the loop at once: their turns would take time there.
<%def name="join_rows(rows, apart)">\
    f32x4 total = part[LOCAL_X];
    for (int row = ${f"LOCAL_X < {apart} ? 1 : {rows}" if at_once == 1 else "1"}; row < ${rows}; row++) {
      const f32x4 v = part[LOCAL_X + row * ${apart}];
      total = ${join("total", "v")};
    }\
</%def>\
<%def name="pixels(value, start, end)">\
% if at_once == 1:
  for (int p = ${start}; p < ${end}; p += LX / WIDE) {
    const f32x4 v = ${x.load4("n", "c", "p")};
    ${value} = ${join(value, "v")};
  }
% else:
  for (int p = ${start}; p < ${end}; p += ${at_once} * (LX / WIDE)) {
% for i in range(at_once):
    const int p${i} = p + ${i} * (LX / WIDE);
% endfor
% for i in range(at_once):
    const f32x4 v${i} = ${x.load4("n", "c", f"p{i} < PLACES ? p{i} : PLACES - 1")};
% endfor
% for i in range(at_once):
% if mode == "average":
    ${value} += p${i} < ${end} ? v${i} : SPLAT(0.0);
% else:
    ${value} = ${join(value, f"v{i}")};
% endif
% endfor
  }
% endif
</%def>\
${k.for_groups("g", "GROUPS")} {
  const int tiles = (BLOCKS + WIDE - 1) / WIDE;
  const int c = g % tiles * WIDE + LOCAL_X % WIDE, n = g / tiles;
% if mode == "average":
  <%sums:in_parts value="acc" kind="f32x4" zero="SPLAT(0.0)" first="${first}" end="PLACES" step="(LX / WIDE)">
      ${pixels("few", "near", "near_end")}
  </%sums:in_parts>
% else:
  f32x4 acc = SPLAT(-INFINITY_F);
  ${pixels("acc", first, "PLACES")}
% endif
  part[LOCAL_X] = acc;
  BARRIER;
% if twice:
  if (LOCAL_X < WIDE * ROWS) {
    ${join_rows("LX / WIDE / ROWS", "WIDE * ROWS")}
    part[LOCAL_X] = total;
  }
  BARRIER;
% endif
  if (LOCAL_X < WIDE && c < BLOCKS) {
    ${join_rows("ROWS", "WIDE")}
% if mode == "average":
    total /= TO_F32(PLACES);
% endif
    ${y.store4("n", "c", "0", "total")}
  }
  BARRIER;
}
