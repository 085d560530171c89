## What normalize_images.mako needs of each of SPANS spans of SPAN pixels of the blocks that are normalized together: the
## mean, and the sum of the squares of the differences from this mean. Differences from a mean that is near lose no digits.
<%namespace name="images" file="images.parts.mako"/>
<%
k.shared("f32x4", "part", "LX")
each = "TO_F32(EACH)" if groups else "1.0"
%>
${k.for_groups("g", "SETS * SPANS")} {
  ${images.blocks("g / SPANS")}
  const int start = g % SPANS * SPAN, pixels = min(SPAN, HW - start);
  ${images.add("mean")}
  mean /= TO_F32(pixels) * ${each};
  ${images.add("square", "mean")}
  if (LOCAL_X == 0) {
    ${moments.store_vector("g * 2", "mean")}
    ${moments.store_vector("g * 2 + 1", "square")}
  }
}
