## A convolution with offsets, in NCHW: one item an output. C input channels a group of OUT_C output channels; OFF_C a
## group of offsets; taps KH x KW; images H x W, outputs OH x OW.
<% real, to_real = k.number, k.to_number %>\
${k.for_each("i", "TOTAL")} {
  const int p = i % (OH * OW), oc = i / (OH * OW) % CHANNELS_OUT, n = i / (OH * OW) / CHANNELS_OUT;
  const int oy = p / OW, ox = p % OW, from_c = oc / OUT_C * C;
  ${real} sum = ${k.args["bias"].load("oc") if k.has("bias") else "0.0"};
  for (int t = 0; t < KH * KW; t++) {
    const ${real} base_y = ${to_real("oy * STRIDE_Y + t / KW * DILATION_Y - PAD_Y")};
    const ${real} base_x = ${to_real("ox * STRIDE_X + t % KW * DILATION_X - PAD_X")};
    int before = -1;
    ${real} dy = 0.0, dx = 0.0, factor = 0.0;
    int y0 = 0, x0 = 0;
    for (int c = 0; c < C; c++) {
      const int group = (from_c + c) / OFF_C;
      if (group != before) {
        before = group;
        const int at = (n * GROUPS_OFF + group) * KH * KW + t;
        ${real} py = base_y + ${offset.load("at * 2 * OH * OW + p")};
        ${real} px = base_x + ${offset.load("(at * 2 + 1) * OH * OW + p")};
        py = py > -2.0 ? (py < ${to_real("H + 1")} ? py : ${to_real("H + 1")}) : -2.0;
        px = px > -2.0 ? (px < ${to_real("W + 1")} ? px : ${to_real("W + 1")}) : -2.0;
        const ${real} fy = floor(py), fx = floor(px);
        dy = py - fy;
        dx = px - fx;
        y0 = TO_I32(fy);
        x0 = TO_I32(fx);
        factor = ${k.args["mask"].load("at * OH * OW + p") if k.has("mask") else "1.0"};
      }
      const int image = (n * CHANNELS_IN + from_c + c) * H;
      const int top = y0 < 0 ? 0 : (y0 < H ? y0 : H - 1), low = y0 < -1 ? 0 : (y0 < H - 1 ? y0 + 1 : H - 1);
      const int left = x0 < 0 ? 0 : (x0 < W ? x0 : W - 1), right = x0 < -1 ? 0 : (x0 < W - 1 ? x0 + 1 : W - 1);
      const bool in_top = y0 >= 0 && y0 < H, in_low = y0 >= -1 && y0 < H - 1;
      const bool in_left = x0 >= 0 && x0 < W, in_right = x0 >= -1 && x0 < W - 1;
      // What lies outside is 0, whatever the pixel is that is read in its place.
      const ${real} v00 = ${x.load("(image + top) * W + left")}, v01 = ${x.load("(image + top) * W + right")};
      const ${real} v10 = ${x.load("(image + low) * W + left")}, v11 = ${x.load("(image + low) * W + right")};
      const ${real} upper = (in_top && in_left ? v00 : 0.0) * (1.0 - dx) + (in_top && in_right ? v01 : 0.0) * dx;
      const ${real} lower = (in_low && in_left ? v10 : 0.0) * (1.0 - dx) + (in_low && in_right ? v11 : 0.0) * dx;
      sum += (upper * (1.0 - dy) + lower * dy) * factor * ${w.load("(oc * C + c) * KH * KW + t")};
    }
  }
  ${y.store("i", "sum")}
}
