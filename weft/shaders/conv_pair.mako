## Two 1 x 1 convolutions of one pixel, one after the other: each group computes all HIDDEN results of the first, LANES of
## them at a time, and then WIDE blocks of four of the second. LX / LANES items share a result of the first, LX / WIDE one
## of the second; one of them adds up their parts, which takes fewer barriers than a tree. Weights lie as vectors, so that
## adjacent items read adjacent ones: w as [block in][hidden], v as [hidden][block out]. An item loads `first_loads` and
## `second_loads` weights before it uses the first of them, since a load takes longer than all that is done with it; with
## `ahead`, it loads the first ones of both, and the biases, while it waits for the pixel. `blocks` and `hidden` are C4 and
## HIDDEN rounded up to powers of two. In software, items that have nothing to add must leave the loops at once: their
## turns would take time there.
<%
k.shared("f32x4", "Pixel", str(blocks))
k.shared("f32x4", "Sums", "LX")
k.shared("f32", "Parts", "LX")
k.shared("f32", "Hidden", str(hidden))
def within(place, size):
    return f"({place} < {size} ? {place} : {size} - 1)"
def bias(j):
    return k.args["b"].load1("0", j, "0") if k.has("b") else "0.0"
last = k.args["d"].load4("0", "block", "0") if k.has("d") else "SPLAT(0.0)"
%>\
<%def name="load_first(kind, at, j)">\
% for i in range(first_loads):
    ${kind}w${i} = ${w.vector(within(f"{at} + {i} * SHARES", "C4") + f" * HIDDEN + {j}")};
% endfor
</%def>\
<%def name="load_second(kind, h)">\
% for i in range(second_loads):
    ${kind}v${i} = ${v.vector(within(f"{h} + {i} * PARTS", "HIDDEN") + " * CO4 + block")};
% endfor
</%def>\
const int SHARES = LX / LANES, PARTS = LX / WIDE;
const int lane = LOCAL_X % LANES, share = LOCAL_X / LANES, part = LOCAL_X / WIDE;
${k.for_groups("g", "GROUPS")} {
  const int n = g / TILES, c = g % TILES * WIDE + LOCAL_X % WIDE, block = ${within("c", "CO4")};
% if ahead:
  const f32x4 pixel = ${x.load4("n", within("LOCAL_X", "C4"), "0")};
  const int early = ${within("lane", "HIDDEN")};
${load_first("f32x4 ", "share", "early")}\
${load_second("f32x4 ", "part")}\
  f32 start = ${bias("early")};
  const f32x4 last = ${last};
  if (LOCAL_X < C4) Pixel[LOCAL_X] = pixel;
% endif
  for (int b = LOCAL_X${" + LX" if ahead else ""}; b < C4; b += LX) Pixel[b] = ${x.load4("n", "b", "0")};
  BARRIER;
  for (int first = 0; first < HIDDEN; first += LANES) {
    const int h = first + lane, j = ${within("h", "HIDDEN")};
    f32x4 acc = SPLAT(0.0);
    for (int at = share; at < C4; at += ${first_loads} * SHARES) {
% if ahead:
      if (first + at != share) {
${load_first("", "at", "j")}\
      }
% else:
${load_first("const f32x4 ", "at", "j")}\
% endif
% for i in range(first_loads):
      acc += at + ${i} * SHARES < C4 ? Pixel[${within(f"at + {i} * SHARES", "C4")}] * w${i} : SPLAT(0.0);
% endfor
    }
    Parts[LOCAL_X] = acc.x + acc.y + acc.z + acc.w;
% if ahead:
    if (first > 0) start = ${bias("j")};
% endif
    BARRIER;
    if (share == 0 && h < HIDDEN) {
      f32 value = ${"start" if ahead else bias("j")};
      for (int s = ${"0" if ahead else "share == 0 ? 0 : SHARES"}; s < SHARES; s++) value += Parts[s * LANES + lane];
      ${k.apply("hidden", "value")}
      Hidden[h] = value;
    }
    BARRIER;
  }
  f32x4 sum = SPLAT(0.0);
  for (int h = part; h < HIDDEN; h += ${second_loads} * PARTS) {
% if ahead:
    if (h != part) {
${load_second("", "h")}\
    }
% else:
${load_second("const f32x4 ", "h")}\
% endif
% for i in range(second_loads):
    sum += h + ${i} * PARTS < HIDDEN ? Hidden[${within(f"h + {i} * PARTS", "HIDDEN")}] * v${i} : SPLAT(0.0);
% endfor
  }
  Sums[LOCAL_X] = sum;
  BARRIER;
  if (part == 0 && c < CO4) {
    f32x4 total = ${"last" if ahead else last};
    for (int s = ${"0" if ahead else "part == 0 ? 0 : PARTS"}; s < PARTS; s++) total += Sums[s * WIDE + LOCAL_X];
    ${y.store4("n", "c", "0", "total")}
  }
  BARRIER;
}
