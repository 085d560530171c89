## Maxima of the bins of regions, ROWS x COLUMNS a region, in NCHW images of C channels, H x W; one item a bin.
<%
real, to_real = k.number, k.to_number
def corner(at):
    return f"whole(SCALE * ({rois.load('r * 5 + %d' % at)}))"
%>
#define whole(v) TO_I32((v) < 0.0 ? -floor(0.5 - (v)) : floor((v) + 0.5))
${k.for_each("i", "TOTAL")} {
  const int column = i % COLUMNS, row = i / COLUMNS % ROWS, c = i / COLUMNS / ROWS % C, r = i / COLUMNS / ROWS / C;
  int n = ${rois.load_index("r * 5")};
  n = n < 0 ? 0 : (n < N ? n : N - 1);
  const int x1 = ${corner(1)}, y1 = ${corner(2)}, x2 = ${corner(3)}, y2 = ${corner(4)};
  const ${real} high = ${to_real("y2 - y1 + 1 > 1 ? y2 - y1 + 1 : 1")} / ${to_real("ROWS")};
  const ${real} wide = ${to_real("x2 - x1 + 1 > 1 ? x2 - x1 + 1 : 1")} / ${to_real("COLUMNS")};
  int top = TO_I32(floor(${to_real("row")} * high)) + y1, low = TO_I32(ceil(${to_real("row + 1")} * high)) + y1;
  int left = TO_I32(floor(${to_real("column")} * wide)) + x1, right = TO_I32(ceil(${to_real("column + 1")} * wide)) + x1;
  top = top < 0 ? 0 : top;
  left = left < 0 ? 0 : left;
  low = low < H ? low : H;
  right = right < W ? right : W;
  ${real} best = top < low && left < right ? -INFINITY_F : 0.0;
  for (int y_ = top; y_ < low; y_++) {
    for (int x_ = left; x_ < right; x_++) {
      const ${real} v = ${x.load("((n * C + c) * H + y_) * W + x_")};
      best = fmax(best, v);
    }
  }
  ${y.store("i", "best")}
}
