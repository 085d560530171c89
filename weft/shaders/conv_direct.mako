## Any convolution of up to three dimensions and any groups, over NC4HW4, channel by channel: a work-item computes one
## pixel of one block. The four output channels of a block may belong to different groups.
${k.for_each("i", "TOTAL")} {
  const int PLACES = OD * OH * OW;
  const int p = i % PLACES, b_ = i / PLACES % COUNT, n = i / PLACES / COUNT;
  const int d0 = p / (OH * OW) * SD - PD, h0 = p / OW % OH * SH - PH, w0 = p % OW * SW - PW;
  f32x4 acc = SPLAT(0.0);
% for lane in "xyzw":
  {
    const int local_channel = b_ * 4 + ${"xyzw".index(lane)}, channel = FIRST * 4 + local_channel;
    if (channel < CO) {
      const int first_in = channel / OUT_GROUP * IN_GROUP;
      f32 sum = 0.0;
      for (int c = 0; c < IN_GROUP; c++) {
        for (int tap = 0; tap < KD * KH * KW; tap++) {
          const int d = d0 + tap / (KH * KW) * DD, h = h0 + tap / KW % KH * DH, w_ = w0 + tap % KW * DW;
          if (d >= 0 && d < ID && h >= 0 && h < IH && w_ >= 0 && w_ < IW)
            sum += ${x.load1("n", "(first_in + c)", "((d * IH + h) * IW + w_)")} * ${w.load1("0", "local_channel", "(c * KD * KH * KW + tap)")};
        }
      }
      acc.${lane} = sum;
    }
  }
% endfor
% if k.has("b"):
  acc += ${k.args["b"].load4("0", "FIRST + b_", "0")};
% endif
  ${y.store4("n", "FIRST + b_", "p", "acc")}
}
