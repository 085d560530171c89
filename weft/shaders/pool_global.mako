## The mean or the maximum of all pixels of a block of four channels, by a tree in work-group memory. A group computes
## WIDE blocks side by side, so that adjacent items read adjacent memory if the blocks of a pixel are adjacent.
<%
k.shared("f32x4", "part", "LX")
def join(a, b):
    if mode == "average":
        return f"{a} + {b}"
    return "F4(" + ", ".join(f"fmax({a}.{l}, {b}.{l})" for l in "xyzw") + ")"
%>
for (int g = GROUP_X; g < GROUPS; g += GROUPS_X) {
  const int tiles = (BLOCKS + WIDE - 1) / WIDE;
  const int c = g % tiles * WIDE + LOCAL_X % WIDE, n = g / tiles;
  f32x4 acc = SPLAT(${"-INFINITY_F" if mode == "max" else "0.0"});
  for (int p = c < BLOCKS ? LOCAL_X / WIDE : PLACES; p < PLACES; p += LX / WIDE) {
    const f32x4 v = ${x.load4("n", "c", "p")};
    acc = ${join("acc", "v")};
  }
  part[LOCAL_X] = acc;
  BARRIER;
  for (int width = LX / 2; width >= WIDE; width /= 2) {
    if (LOCAL_X < width) {
      const f32x4 a = part[LOCAL_X], b = part[LOCAL_X + width];
      part[LOCAL_X] = ${join("a", "b")};
    }
    BARRIER;
  }
  if (LOCAL_X < WIDE && c < BLOCKS) {
    const f32x4 total = part[LOCAL_X]${" / TO_F32(PLACES)" if mode == "average" else ""};
    ${y.store4("n", "c", "0", "total")}
  }
  BARRIER;
}
