## Two 1 x 1 convolutions of one pixel, one after the other: each group computes all HIDDEN results of the first, SPAN
## items one of them, and then WIDE blocks of four of the second, whose sums its items share. Weights lie as vectors: w as
## [hidden][block in], v as [hidden][block out]. `blocks` and `hidden` are C4 and HIDDEN rounded
## up to powers of two. LX is a multiple of SPAN and of WIDE.
<%
k.shared("f32x4", "Pixel", str(blocks))
k.shared("f32x4", "Part", "LX")
k.shared("f32", "Hidden", str(hidden))
%>\
for (int g = GROUP_X; g < GROUPS; g += GROUPS_X) {
  const int n = g / TILES, tile = g % TILES, lane = LOCAL_X % SPAN;
  for (int c = LOCAL_X; c < C4; c += LX) Pixel[c] = ${x.load4("n", "c", "0")};
  BARRIER;
  for (int first = 0; first < HIDDEN; first += LX / SPAN) {
    const int j = first + LOCAL_X / SPAN;
    f32x4 acc = SPLAT(0.0);
    for (int c = j < HIDDEN ? lane : C4; c < C4; c += SPAN) acc += Pixel[c] * ${w.vector("j * C4 + c")};
    Part[LOCAL_X] = acc;
    BARRIER;
    for (int width = SPAN / 2; width > 0; width /= 2) {
      if (lane < width) Part[LOCAL_X] += Part[LOCAL_X + width];
      BARRIER;
    }
    if (lane == 0 && j < HIDDEN) {
      const f32x4 sum = Part[LOCAL_X];
      f32 value = sum.x + sum.y + sum.z + sum.w${f' + {k.args["b"].load1("0", "j", "0")}' if k.has("b") else ""};
      ${k.apply("hidden", "value")}
      Hidden[j] = value;
    }
    BARRIER;
  }
  const int c = tile * WIDE + LOCAL_X % WIDE;
  f32x4 sums = SPLAT(0.0);
  for (int j = c < CO4 ? LOCAL_X / WIDE : HIDDEN; j < HIDDEN; j += LX / WIDE) sums += Hidden[j] * ${v.vector("j * CO4 + c")};
  Part[LOCAL_X] = sums;
  BARRIER;
  for (int width = LX / 2; width >= WIDE; width /= 2) {
    if (LOCAL_X < width) Part[LOCAL_X] += Part[LOCAL_X + width];
    BARRIER;
  }
  if (LOCAL_X < WIDE && c < CO4) {
    const f32x4 total = Part[LOCAL_X]${f' + {k.args["d"].load4("0", "c", "0")}' if k.has("d") else ""};
    ${y.store4("n", "c", "0", "total")}
  }
  BARRIER;
}
