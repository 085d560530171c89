## Maxima of the bins of regions, ROWS x COLUMNS a region, in NCHW images of C channels, H x W; one item a bin. Corners
## are whole numbers of any size or, out of the range of an int, where nothing is; so all are floats until they are cut
## to the image.
<%
real, to_real = k.number, k.to_number
def corner(at):
    return f"corner(SCALE * ({rois.load('r * 5 + %d' % at)}))"
def place(text, most):
    return f"TO_I32(fmin(fmax({text}, 0.0), {to_real(most)}))"
%>
<% k.defines("corner", "length") %>\
#define corner(v) (fabs(v) < 2147483648.0 ? ((v) < 0.0 ? -floor(0.5 - (v)) : floor((v) + 0.5)) : -2147483648.0)
#define length(first, last) (first > -2147483648.0 ? fmax(last - first + 1.0, 1.0) : 1.0)
${k.for_each("i", "TOTAL")} {
  const int column = i % COLUMNS, row = i / COLUMNS % ROWS, c = i / COLUMNS / ROWS % C, r = i / COLUMNS / ROWS / C;
  int n = ${rois.load_index("r * 5")};
  n = n < 0 ? 0 : (n < N ? n : N - 1);
  const ${real} x1 = ${corner(1)}, y1 = ${corner(2)}, x2 = ${corner(3)}, y2 = ${corner(4)};
  const ${real} high = length(y1, y2) / ${to_real("ROWS")}, wide = length(x1, x2) / ${to_real("COLUMNS")};
  const int top = ${place(f"floor({to_real('row')} * high) + y1", "H")};
  const int low = ${place(f"ceil({to_real('row + 1')} * high) + y1", "H")};
  const int left = ${place(f"floor({to_real('column')} * wide) + x1", "W")};
  const int right = ${place(f"ceil({to_real('column + 1')} * wide) + x1", "W")};
  ${real} best = top < low && left < right ? -INFINITY_F : 0.0;
  for (int y_ = top; y_ < low; y_++) {
    for (int x_ = left; x_ < right; x_++) {
      const ${real} v = ${x.load("((n * C + c) * H + y_) * W + x_")};
      best = fmax(best, v);
    }
  }
  ${y.store("i", "best")}
}
