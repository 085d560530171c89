## Depthwise convolution over NC4HW4, up to two dimensions: a work-item computes one pixel of one block of channels.
## Padding counts as zeros, of which an infinite weight makes NaN.
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "OH * OW", "BLOCKS")}
  const int h0 = p / OW * SH - PH, w0 = p % OW * SW - PW;
% if k.has("b"):
  f32x4 acc = ${k.args["b"].load4("0", "c", "0")};
% else:
  f32x4 acc = SPLAT(0.0);
% endif
  for (int kh = 0; kh < KH; kh++) {
    const int h = h0 + kh * DH;
    const bool fits = h >= 0 && h < IH;
    for (int kw = 0; kw < KW; kw++) {
      const int w_ = w0 + kw * DW;
      const f32x4 v = fits && w_ >= 0 && w_ < IW ? ${x.load4("n", "c", "h * IW + w_")} : SPLAT(0.0);
      acc += v * ${w.load4("0", "c", "kh * KW + kw")};
    }
  }
  ${y.store4("n", "c", "p", "acc")}
}
