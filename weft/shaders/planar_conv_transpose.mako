## A transposed convolution of up to three dimensions and any groups in NCHW: a work-item computes one element (I. are
## the sizes of y) from those of x (sizes O.) whose windows cover it.
${k.for_each("i", "TOTAL")} {
  const int PLACES = ID * IH * IW;
  const int p = i % PLACES, m = i / PLACES % CO, n = i / PLACES / CO, group = m / OUT_GROUP;
  const int d0 = p / (IH * IW) + PD, h0 = p / IW % IH + PH, w0 = p % IW + PW;
  real sum = ${k.args["b"].load("m") if k.has("b") else "0.0"};
  for (int kd = 0; kd < KD; kd++) for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {
    const int d = d0 - kd * DD, h = h0 - kh * DH, w_ = w0 - kw * DW;
    const bool covers = d >= 0 && d % SD == 0 && d / SD < OD && h >= 0 && h % SH == 0 && h / SH < OH;
    if (covers && w_ >= 0 && w_ % SW == 0 && w_ / SW < OW) {
      const int from = (d / SD * OH + h / SH) * OW + w_ / SW, tap = (kd * KH + kh) * KW + kw;
      for (int c = group * IN_GROUP; c < group * IN_GROUP + IN_GROUP; c++) {
        const int weights = (c * OUT_GROUP + m % OUT_GROUP) * KD * KH * KW;
        sum += ${x.load("(n * CI + c) * OD * OH * OW + from")} * ${w.load("weights + tap")};
      }
    }
  }
  ${y.store("i", "sum")}
}
