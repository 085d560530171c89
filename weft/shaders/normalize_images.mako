## Normalization over NC4HW4 of the images of each channel, or of groups of PARTS whole blocks of channels: one work-group
## for each block or group of blocks, and a tree. (x - mean) / sqrt(variance + EPSILON) * scale + shift.
<%
k.shared("f32x4", "part", "LX")
%>
<%def name="sum(value, expr)">
  f32x4 ${value} = SPLAT(0.0);
  for (int e = LOCAL_X; e < PARTS * HW; e += LX) {
    const f32x4 v = ${x.load4("n", "first + e / HW", "e % HW")};
    ${value} += ${expr};
  }
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) part[LOCAL_X] += part[LOCAL_X + width];
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
% if grouped:
  ${value} = SPLAT(0.25 * (${value}.x + ${value}.y + ${value}.z + ${value}.w));
% endif
  ${value} /= TO_F32(PARTS * HW);
</%def>
${k.for_groups("g", "GROUPS")} {
  const int n = g / (BLOCKS / PARTS), first = g % (BLOCKS / PARTS) * PARTS;
  ${sum("mean", "v")}
  ${sum("square", "(v - mean) * (v - mean)")}
% for lane in "xyzw":
  square.${lane} = 1.0 / sqrt(square.${lane} + EPSILON);
% endfor
  for (int e = LOCAL_X; e < PARTS * HW; e += LX) {
    const int c = first + e / HW, p = e % HW;
    const f32x4 v = (${x.load4("n", "c", "p")} - mean) * square;
    ${y.store4("n", "c", "p", f"v * {scale.load4('0', 'c', '0')} + {shift.load4('0', 'c', '0')}")}
  }
}
