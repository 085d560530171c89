## Transposed convolution of up to three dimensions over NC4HW4: a work-item computes one pixel (I. are the sizes of y) of
## one block of channels from the pixels of x (sizes O.) whose windows cover it. Ungrouped weights are packed as vectors
## [tap][block of x][block of y][4 in][4 out]; grouped ones channel by channel, because a block may span groups.
<%
def product(a, w):
    return " + ".join(f"{a}.{lane} * {w(i)}" for i, lane in enumerate("xyzw"))
%>
${k.for_each("i", "TOTAL")} {
  const int PLACES = ID * IH * IW;
  const int p = i % PLACES, own = i / PLACES % COUNT, n = i / PLACES / COUNT;
  const int d0 = p / (IH * IW) + PD, h0 = p / IW % IH + PH, w0 = p % IW + PW;
% if k.has("b"):
  f32x4 acc = ${k.args["b"].load4("0", "FIRST + own", "0")};
% else:
  f32x4 acc = SPLAT(0.0);
% endif
  for (int kd = 0; kd < KD; kd++) {
    const int d = d0 - kd * DD;
    if (d < 0 || d % SD != 0 || d / SD >= OD) continue;
    for (int kh = 0; kh < KH; kh++) {
      const int h = h0 - kh * DH;
      if (h < 0 || h % SH != 0 || h / SH >= OH) continue;
      for (int kw = 0; kw < KW; kw++) {
        const int w_ = w0 - kw * DW;
        if (w_ < 0 || w_ % SW != 0 || w_ / SW >= OW) continue;
        const int from = (d / SD * OH + h / SH) * OW + w_ / SW, tap = (kd * KH + kh) * KW + kw;
% if grouped:
% for lane, letter in enumerate("xyzw"):
        {
          const int channel = own * 4 + ${lane}, first = (FIRST * 4 + channel) / OUT_GROUP * IN_GROUP;
          if (FIRST * 4 + channel < CHANNELS) {
            for (int c = 0; c < IN_GROUP; c++)
              acc.${letter} += ${x.load1("n", "first + c", "from")} * ${w.load1("0", "channel", "c * KD * KH * KW + tap")};
          }
        }
% endfor
% else:
        for (int c = 0; c < C4; c++) {
          const f32x4 v = ${x.load4("n", "c", "from")};
          const int at = ((tap * C4 + c) * COUNT + own) * 4;
          acc += ${product("v", lambda i: w.vector(f"at + {i}"))};
        }
% endif
      }
    }
  }
  ${y.store4("n", "FIRST + own", "p", "acc")}
}
