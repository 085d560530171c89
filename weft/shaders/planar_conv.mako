## A convolution of up to three dimensions and any groups in NCHW: a work-item computes one element. Padding
## counts as zeros, of which an infinite weight makes NaN.
${k.for_each("i", "TOTAL")} {
  const int PLACES = OD * OH * OW;
  const int p = i % PLACES, m = i / PLACES % CO, n = i / PLACES / CO;
  const int d0 = p / (OH * OW) * SD - PD, h0 = p / OW % OH * SH - PH, w0 = p % OW * SW - PW;
  real sum = ${k.args["b"].load("m") if k.has("b") else "0.0"};
  for (int c = 0; c < IN_GROUP; c++) {
    const int plane = (n * CI + m / OUT_GROUP * IN_GROUP + c) * ID, taps = (m * IN_GROUP + c) * KD;
    for (int kd = 0; kd < KD; kd++) for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {
      const int d = d0 + kd * DD, h = h0 + kh * DH, w_ = w0 + kw * DW;
      const bool inside = d >= 0 && d < ID && h >= 0 && h < IH && w_ >= 0 && w_ < IW;
      const real v = inside ? ${x.load("((plane + d) * IH + h) * IW + w_")} : 0.0;
      sum += v * ${w.load("((taps + kd) * KH + kh) * KW + kw")};
    }
  }
  ${y.store("i", "sum")}
}
