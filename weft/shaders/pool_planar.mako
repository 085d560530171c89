## Average or p-norm of doubles over a window of up to three dimensions in NCHW: a work-item computes one element.
## An average divides by the number of window positions in [-LOW, I + HIGH) along each axis.
${k.for_each("i", "TOTAL")} {
  const int plane = i / (OD * OH * OW), d0 = i / (OH * OW) % OD * SD - PD, h0 = i / OW % OH * SH - PH, w0 = i % OW * SW - PW;
  real acc = 0.0;
% if mode == "average":
  int count = 0;
% endif
  for (int kd = 0; kd < KD; kd++) for (int kh = 0; kh < KH; kh++) {
  real row = 0.0;
  for (int kw = 0; kw < KW; kw++) {
    const int d = d0 + kd * DD, h = h0 + kh * DH, w = w0 + kw * DW;
% if mode == "average":
    if (d >= -LOWD && d < ID + HIGHD && h >= -LOWH && h < IH + HIGHH && w >= -LOWW && w < IW + HIGHW) count++;
% endif
    if (d >= 0 && d < ID && h >= 0 && h < IH && w >= 0 && w < IW) {
      const real v = ${x.load("((plane * ID + d) * IH + h) * IW + w")};
      row += ${"v" if mode == "average" else "pow(fabs(v), EXPONENT)"};
    }
  }
  acc += row;
  }
% if mode == "average":
  acc /= TO_REAL(count > 0 ? count : 1);
% else:
  acc = pow(acc, 1.0 / EXPONENT);
% endif
  ${y.store("i", "acc")}
}
