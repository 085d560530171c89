## ${rows} rows of a times constant weights that are packed as vectors along K: a work-group computes one column, its
## items divide K and add up in a `tree`, or one after the other where barriers cost more than that. Weights are read
## once, in whole vectors; so is a, if K is a multiple of four (`quads`). An item has ${at_a_time} loads of weights under
## way, because with one the memory's bandwidth is not used up.
## If `ragged`, there are M rows, up to `rows`: others are computed from the last one.
## If `gated`, a group computes the column of a second product beside it, and a gate makes one value of both.
<%
sides = ("", "_beside") if gated else ("",)
first_of = {"": "", "_beside": f"{rows} * LX + "}
row = lambda m: f"min({m}, M - 1)" if ragged and m else str(m)
k.shared("f32", "part", f"{rows * len(sides)} * LX")
%>
${k.for_groups("n", "COUNT")} {
% for side in sides:
% for m in range(rows):
  f32 acc${m}${side} = 0.0;
% endfor
% endfor
  int v = LOCAL_X;
% for count in dict.fromkeys((at_a_time, 1)):
  for (; v + ${count - 1} * LX < VECTORS; v += ${count} * LX) {
% for u in range(count):
    const f32x4 b${u} = ${w.vector(f"n * VECTORS + v + {u} * LX")};
% if gated:
    const f32x4 b${u}_beside = ${w.vector(f"(COUNT + n) * VECTORS + v + {u} * LX")};
% endif
% endfor
% for u in range(count):
${f"    const int at{u} = (v + {u} * LX) * 4;" if not quads else ""}
% for m in range(rows):
% if quads:
    const f32x4 a${m}_${u} = ${a.load_quad(f"{row(m)} * (K / 4) + v + {u} * LX")};
% for side in sides:
    acc${m}${side} += b${u}${side}.x * a${m}_${u}.x;
    acc${m}${side} += b${u}${side}.y * a${m}_${u}.y;
    acc${m}${side} += b${u}${side}.z * a${m}_${u}.z;
    acc${m}${side} += b${u}${side}.w * a${m}_${u}.w;
% endfor
% else:
% for side in sides:
    acc${m}${side} += b${u}${side}.x * ${a.load(f"{row(m)} * K + at{u}")};
    if (at${u} + 1 < K) acc${m}${side} += b${u}${side}.y * ${a.load(f"{row(m)} * K + at{u} + 1")};
    if (at${u} + 2 < K) acc${m}${side} += b${u}${side}.z * ${a.load(f"{row(m)} * K + at{u} + 2")};
    if (at${u} + 3 < K) acc${m}${side} += b${u}${side}.w * ${a.load(f"{row(m)} * K + at{u} + 3")};
% endfor
% endif
% endfor
% endfor
  }
% endfor
% for side in sides:
% for m in range(rows):
  part[${first_of[side]}${m} * LX + LOCAL_X] = acc${m}${side};
% endfor
% endfor
  BARRIER;
% if tree:
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
% for side in sides:
% for m in range(rows):
      part[${first_of[side]}${m} * LX + LOCAL_X] += part[${first_of[side]}${m} * LX + LOCAL_X + width];
% endfor
% endfor
    }
    BARRIER;
  }
% endif
  if (LOCAL_X < ${"M" if ragged else rows}) {
    const int m = LOCAL_X, column = FIRST + n;
% for side in sides:
    f32 sum${side} = part[${first_of[side]}m * LX];
% if not tree:
    for (int j = 1; j < LX; j++) sum${side} += part[${first_of[side]}m * LX + j];
% endif
% if k.has("c"):
    const f32 v${side} = ALPHA * sum${side} + BETA * ${k.args["c"].load("m * CM + column * CN" + (" + N" if side else ""))};
% else:
    const f32 v${side} = ALPHA * sum${side};
% endif
% endfor
    ${y.store_gated("m * N + column", "v", "v_beside") if gated else y.store("m * N + column", "v")}
  }
  BARRIER;
}
