## Normalization over NC4HW4 of the images of each channel, or of groups of EACH channels: one work-group for each block,
## or for the fewest whole blocks that hold whole groups, and a tree. (x - mean) / sqrt(variance + EPSILON) * scale + shift.
## `groups` is the number of groups in these PARTS blocks; 0: each channel is normalized by itself.
<%!
LANES = "xyzw"
def of_group(name, lane, groups):
    """Return what vector `name` holds for the group of the channel in a lane, of which `place` has the number."""
    text = f"{name}.{LANES[groups - 1]}"
    for group in reversed(range(groups - 1)):
        text = f"q{lane} < {group + 1} * EACH ? {name}.{LANES[group]} : {text}"
    return text
%>
<% k.shared("f32x4", "part", "LX") %>
## Neighbouring items take neighbouring vectors: where channels come last, blocks of one pixel.
<%def name="place()">
    const int c = first + (x_PS != 1 ? e % parts : e / HW), p = x_PS != 1 ? e / parts : e % HW;
% if groups > 1:
% for i, lane in enumerate(LANES):
    const int q${lane} = (c - first) * 4 + ${i};
% endfor
% endif
</%def>
<%def name="spread(name, of)">
    const f32x4 ${name} = ${f"F4({', '.join(of_group(of, lane, groups) for lane in LANES)})" if groups > 1 else of};
</%def>
<%def name="sum(value, centred)">
  f32x4 ${value} = SPLAT(0.0);
  for (int e = LOCAL_X; e < parts * HW; e += LX) {
${place()}
    f32x4 v = ${x.load4("n", "c", "p")};
% if centred:
${spread("from", "mean")}
    v = (v - from) * (v - from);
% endif
% if groups > 1:
% for lane in LANES:
    if (c * 4 + ${LANES.index(lane)} < CHANNELS) {
% for group in range(groups):
      ${value}.${LANES[group]} += q${lane} >= ${group} * EACH && q${lane} < ${group + 1} * EACH ? v.${lane} : 0.0;
% endfor
    }
% endfor
% else:
    ${value} += v;
% endif
  }
  part[LOCAL_X] = ${value};
  BARRIER;
  for (int width = LX / 2; width > 0; width /= 2) {
    if (LOCAL_X < width) part[LOCAL_X] += part[LOCAL_X + width];
    BARRIER;
  }
  ${value} = part[0];
  BARRIER;
% if groups == 1:
  ${value} = SPLAT(${value}.x + ${value}.y + ${value}.z + ${value}.w);
% endif
  ${value} /= TO_F32(${"EACH * HW" if groups else "HW"});
</%def>
${k.for_groups("g", "SETS")} {
  const int n = g / (SETS / IMAGES), first = g % (SETS / IMAGES) * PARTS, parts = min(PARTS, BLOCKS - first);
  ${sum("mean", False)}
  ${sum("square", True)}
% for lane in LANES:
  square.${lane} = 1.0 / sqrt(square.${lane} + EPSILON);
% endfor
  for (int e = LOCAL_X; e < parts * HW; e += LX) {
${place()}
${spread("from", "mean")}
${spread("by", "square")}
    const f32x4 v = (${x.load4("n", "c", "p")} - from) * by;
    ${y.store4("n", "c", "p", f"v * {scale.load4('0', 'c', '0')} + {shift.load4('0', 'c', '0')}")}
  }
}
