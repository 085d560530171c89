## Max, average or p-norm over a window of up to three dimensions, NC4HW4: a work-item computes one pixel of one block.
## An average divides by the number of window positions in [-LOW, I + HIGH) along each axis.
${k.for_each("i", "TOTAL")} {
  const int PLACES = OD * OH * OW;
  ${k.split(y, "i", "PLACES", "BLOCKS")}
  const int d0 = p / (OH * OW) * SD - PD, h0 = p / OW % OH * SH - PH, w0 = p % OW * SW - PW;
  f32x4 acc = SPLAT(${"-INFINITY_F" if mode == "max" else "0.0"});
% if mode == "average":
  int count = 0;
% endif
  for (int kd = 0; kd < KD; kd++) for (int kh = 0; kh < KH; kh++) {
% if mode != "max":
  f32x4 row = SPLAT(0.0);
% endif
  for (int kw = 0; kw < KW; kw++) {
    const int d = d0 + kd * DD, h = h0 + kh * DH, w = w0 + kw * DW;
% if mode == "average":
    if (d >= -LOWD && d < ID + HIGHD && h >= -LOWH && h < IH + HIGHH && w >= -LOWW && w < IW + HIGHW) count++;
% endif
    if (d >= 0 && d < ID && h >= 0 && h < IH && w >= 0 && w < IW) {
      const f32x4 v = ${x.load4("n", "c", "(d * IH + h) * IW + w")};
% if mode == "max":
      acc = F4(fmax(acc.x, v.x), fmax(acc.y, v.y), fmax(acc.z, v.z), fmax(acc.w, v.w));
% elif mode == "average":
      row += v;
% else:
      row += F4(pow(fabs(v.x), EXPONENT), pow(fabs(v.y), EXPONENT), pow(fabs(v.z), EXPONENT), pow(fabs(v.w), EXPONENT));
% endif
    }
  }
% if mode != "max":
  acc += row;
% endif
  }
% if mode == "average":
  acc /= TO_F32(count > 0 ? count : 1);
% elif mode == "norm":
  acc = F4(pow(acc.x, 1.0 / EXPONENT), pow(acc.y, 1.0 / EXPONENT), pow(acc.z, 1.0 / EXPONENT), pow(acc.w, 1.0 / EXPONENT));
% endif
  ${y.store4("n", "c", "p", "acc")}
}
