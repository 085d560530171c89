## Any of NCHW, NHWC and NC4HW4 to any other, fp32 or fp16 on either side. One item writes one stored
## element, or the four of one pixel where the target is NC4HW4. Neighbours in the target are neighbours.
<%
def read(c):
    if source == "NC4HW4":
        return x.load1("n", c, "p")
    if source == "NHWC":
        return x.load(f"(n * HW + p) * C + {c}")
    return x.load(f"(n * C + {c}) * HW + p")
%>
${k.for_each("i", "TOTAL")} {
% if target == "NC4HW4":
  const int BLOCKS = (C + 3) / 4;
  const int p = i % HW, b = i / HW % BLOCKS, n = i / HW / BLOCKS;
% if source == "NC4HW4":
  ${y.store4("n", "b", "p", x.load4("n", "b", "p"))}
% else:
  const int c = b * 4;
  f32x4 v = SPLAT(0.0);
  v.x = ${read("c")};
  if (c + 1 < C) v.y = ${read("c + 1")};
  if (c + 2 < C) v.z = ${read("c + 2")};
  if (c + 3 < C) v.w = ${read("c + 3")};
  ${y.store4("n", "b", "p", "v")}
% endif
% elif target == "NHWC":
  const int c = i % C, p = i / C % HW, n = i / C / HW;
  ${y.store("i", read("c"))}
% else:
  const int p = i % HW, c = i / HW % C, n = i / HW / C;
  ${y.store("i", read("c"))}
% endif
}
