## Normalization over NC4HW4 of the images of each channel, or of groups of EACH channels: one work-group for each block,
## or for the fewest whole blocks that hold whole groups, and a tree. (x - mean) / sqrt(variance + EPSILON) * scale + shift;
## with `spread` the root itself.
## `groups` is the number of groups in these PARTS blocks; 0: each channel is normalized by itself. Where there are
## `moments` (image_moments.mako), SPANS work-groups share the blocks, with SPAN pixels each.
<%namespace name="images" file="images.parts.mako"/>
<%namespace name="tree" file="tree.parts.mako"/>
<%
k.shared("f32x4", "part", "LX")
spans = k.has("moments")
each = "TO_F32(EACH)" if groups else "1.0"
%>
${k.for_groups("g", "SETS * SPANS" if spans else "SETS")} {
  ${images.blocks("g / SPANS" if spans else "g")}
% if spans:
  const int start = g % SPANS * SPAN, pixels = min(SPAN, HW - start), held = g / SPANS * SPANS * 2;
  f32x4 mean = SPLAT(0.0);
  for (int s = LOCAL_X; s < SPANS; s += LX) mean += TO_F32(min(SPAN, HW - s * SPAN)) * ${k.args["moments"].vector("held + s * 2")};
  ${tree.sum("mean")}
  mean /= TO_F32(HW);
  f32x4 square = SPLAT(0.0);
  for (int s = LOCAL_X; s < SPANS; s += LX) {
    const f32x4 apart = ${k.args["moments"].vector("held + s * 2")} - mean;
    square += ${k.args["moments"].vector("held + s * 2 + 1")} + TO_F32(min(SPAN, HW - s * SPAN)) * ${each} * apart * apart;
  }
  ${tree.sum("square")}
% else:
  const int start = 0, pixels = HW;
  ${images.add("mean")}
  mean /= TO_F32(HW) * ${each};
  ${images.add("square", "mean")}
% endif
  square /= TO_F32(HW) * ${each};
% for lane in "xyzw":
  square.${lane} = ${"" if spread else "1.0 / "}sqrt(square.${lane} + EPSILON);
% endfor
  for (int e = LOCAL_X; e < parts * pixels; e += LX) {
    ${images.place()}
% if spread:
    ${images.spread("by", "square")}
    ${y.store4("n", "c", "p", "by")}
% else:
    ${images.spread("from", "mean")}
    ${images.spread("by", "square")}
    const f32x4 v = (${x.load4("n", "c", "p")} - from) * by;
    ${y.store4("n", "c", "p", f"v * {k.args['scale'].load4('0', 'c', '0')} + {k.args['shift'].load4('0', 'c', '0')}")}
% endif
  }
}
