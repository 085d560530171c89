## NCHW, NHWC or packed (NC4HW4, NHWC4) to any other, fp32 or fp16 on either side. A work-item writes one stored element,
## or the four of one pixel if the target is packed. Adjacent items write adjacent memory.
<%
def read(c):
    if source == "packed":
        return x.load1("n", c, "p")
    if source == "NHWC":
        return x.load(f"(n * HW + p) * C + ({c})")
    return x.load(f"(n * C + ({c})) * HW + p")
%>
${k.for_each("i", "TOTAL")} {
% if target == "packed":
  const int BLOCKS = (C + 3) / 4;
  ${k.split(y, "i", "HW", "BLOCKS")}
% if source == "packed":
  ${y.store4("n", "c", "p", x.load4("n", "c", "p"))}
% else:
  const int first = c * 4;
  f32x4 v = SPLAT(0.0);
  v.x = ${read("first")};
  if (first + 1 < C) v.y = ${read("first + 1")};
  if (first + 2 < C) v.z = ${read("first + 2")};
  if (first + 3 < C) v.w = ${read("first + 3")};
  ${y.store4("n", "c", "p", "v")}
% endif
% elif target == "NHWC":
  const int c = i % C, p = i / C % HW, n = i / C / HW;
  ${y.store("i", read("c"))}
% else:
  const int p = i % HW, c = i / HW % C, n = i / HW / C;
  ${y.store("i", read("c"))}
% endif
}
