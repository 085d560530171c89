## ${rows} rows of a times constant weights that are packed as vectors along K: a work-group computes one column, its
## items divide K and add up in a `tree`, or one after the other where barriers cost more than that. Weights are read
## once, in whole vectors; so is a, if K is a multiple of four (`quads`).
## If `ragged`, there are M rows, up to `rows`: others are computed from the last one.
<%
row = lambda m: f"min({m}, M - 1)" if ragged and m else str(m)
k.shared("f32", "part", f"{rows} * LX")
%>
${k.for_groups("n", "COUNT")} {
% for m in range(rows):
  f32 acc${m} = 0.0;
% endfor
  for (int v = LOCAL_X; v < VECTORS; v += LX) {
    const f32x4 b = ${w.vector("n * VECTORS + v")};
${"    const int at = v * 4;" if not quads else ""}
% for m in range(rows):
% if quads:
    const f32x4 a${m} = ${a.load_quad(f"{row(m)} * (K / 4) + v")};
    acc${m} += b.x * a${m}.x;
    acc${m} += b.y * a${m}.y;
    acc${m} += b.z * a${m}.z;
    acc${m} += b.w * a${m}.w;
% else:
    acc${m} += b.x * ${a.load(f"{row(m)} * K + at")};
    if (at + 1 < K) acc${m} += b.y * ${a.load(f"{row(m)} * K + at + 1")};
    if (at + 2 < K) acc${m} += b.z * ${a.load(f"{row(m)} * K + at + 2")};
    if (at + 3 < K) acc${m} += b.w * ${a.load(f"{row(m)} * K + at + 3")};
% endif
% endfor
  }
% for m in range(rows):
  part[${m} * LX + LOCAL_X] = acc${m};
% endfor
  BARRIER;
% if tree:
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) {
% for m in range(rows):
      part[${m} * LX + LOCAL_X] += part[${m} * LX + LOCAL_X + width];
% endfor
    }
    BARRIER;
  }
% endif
  if (LOCAL_X < ${"M" if ragged else rows}) {
    const int m = LOCAL_X, column = FIRST + n;
    f32 sum = part[m * LX];
% if not tree:
    for (int j = 1; j < LX; j++) sum += part[m * LX + j];
% endif
% if k.has("c"):
    const f32 v = ALPHA * sum + BETA * ${k.args["c"].load("m * CM + column * CN")};
% else:
    const f32 v = ALPHA * sum;
% endif
    ${y.store("m * N + column", "v")}
  }
  BARRIER;
}
