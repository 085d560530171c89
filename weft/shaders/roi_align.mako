## RoiAlign in NCHW, one item an element: the mean, or the largest, of what is sampled at the points of a bin. RATIO
## points an axis, or if it is 0 as many as the bin is pixels long, but at most one more than the map has. HALF is half a
## pixel or 0. An image out of range reads the nearest one, so that nothing outside is read.
<% real, to_real = k.number, k.to_number %>\
${k.for_each("i", "TOTAL")} {
  const int column = i % COLUMNS, row = i / COLUMNS % ROWS, channel = i / COLUMNS / ROWS % CHANNELS;
  const int roi = i / COLUMNS / ROWS / CHANNELS;
  int image = ${images.load_index("roi")};
  image = image < 0 ? 0 : (image < IMAGES ? image : IMAGES - 1);
  const ${real} left = ${rois.load("roi * 4")} * SCALE - HALF, top = ${rois.load("roi * 4 + 1")} * SCALE - HALF;
  ${real} width = ${rois.load("roi * 4 + 2")} * SCALE - HALF - left;
  ${real} height = ${rois.load("roi * 4 + 3")} * SCALE - HALF - top;
% if not half:
  width = fmax(width, 1.0);
  height = fmax(height, 1.0);
% endif
  const ${real} step_y = height / ${to_real("ROWS")}, step_x = width / ${to_real("COLUMNS")};
  const int ny = RATIO > 0 ? RATIO : (step_y > 0.0 ? TO_I32(fmin(ceil(step_y), ${to_real("HEIGHT + 1")})) : 0);
  const int nx = RATIO > 0 ? RATIO : (step_x > 0.0 ? TO_I32(fmin(ceil(step_x), ${to_real("WIDTH + 1")})) : 0);
  const int base = (image * CHANNELS + channel) * HEIGHT * WIDTH;
  ${real} total = 0.0;
% if largest:
  bool any = false;
% endif
  for (int a = 0; a < ny; a++) {
    const ${real} at_y = top + ${to_real("row")} * step_y + (${to_real("a")} + 0.5) * step_y / ${to_real("ny")};
    const bool in_y = at_y >= -1.0 && at_y <= ${to_real("HEIGHT")};
    const ${real} y_at = fmin(fmax(at_y, 0.0), ${to_real("HEIGHT - 1")});
    const int y0 = TO_I32(floor(y_at)), y1 = y0 + 1 < HEIGHT ? y0 + 1 : HEIGHT - 1;
    const ${real} wy = y_at - ${to_real("y0")};
    for (int b = 0; b < nx; b++) {
      const ${real} at_x = left + ${to_real("column")} * step_x + (${to_real("b")} + 0.5) * step_x / ${to_real("nx")};
      const bool inside = in_y && at_x >= -1.0 && at_x <= ${to_real("WIDTH")};
      const ${real} x_at = fmin(fmax(at_x, 0.0), ${to_real("WIDTH - 1")});
      const int x0 = TO_I32(floor(x_at)), x1 = x0 + 1 < WIDTH ? x0 + 1 : WIDTH - 1;
      const ${real} wx = x_at - ${to_real("x0")};
      ${real} p00 = 0.0, p01 = 0.0, p10 = 0.0, p11 = 0.0;
      if (inside) {
        p00 = ${x.load("base + y0 * WIDTH + x0")} * (1.0 - wy) * (1.0 - wx);
        p01 = ${x.load("base + y0 * WIDTH + x1")} * (1.0 - wy) * wx;
        p10 = ${x.load("base + y1 * WIDTH + x0")} * wy * (1.0 - wx);
        p11 = ${x.load("base + y1 * WIDTH + x1")} * wy * wx;
      }
% if largest:
      const ${real} best = fmax(fmax(p00, p01), fmax(p10, p11));
      total = any ? fmax(total, best) : best;
      any = true;
% else:
      total += p00 + p01 + p10 + p11;
% endif
    }
  }
% if not largest:
  total = total / fmax(${to_real("ny * nx")}, 1.0);
% endif
  ${y.store("i", "total")}
}
