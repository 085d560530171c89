## Any convolution of up to three dimensions and any groups, over NC4HW4: a work-item computes one pixel of one block,
## channel by channel of the input. `joint`: the four output channels of a block belong to one group. An item loads
## `wide` taps of a line of the kernel at once. Pixels outside of the image are loaded from its edge and count as zeros, of
## which an infinite weight makes NaN, so that no load waits for a branch.
<% channels = "0" if joint else "0123" %>\
${k.for_each("i", "TOTAL")} {
  const int PLACES = OD * OH * OW;
  const int p = i % PLACES, b_ = i / PLACES % COUNT, n = i / PLACES / COUNT;
  const int d0 = p / (OH * OW) * SD - PD, h0 = p / OW % OH * SH - PH, w0 = p % OW * SW - PW;
% for lane in channels:
  const int first${lane} = min((FIRST + b_) * 4 + ${lane}, CO - 1) / OUT_GROUP * IN_GROUP;
% endfor
  f32x4 acc = SPLAT(0.0);
  for (int c = 0; c < IN_GROUP; c++) {
    for (int line = 0; line < KD * KH; line++) {
      const int d = d0 + line / KH * DD, h = h0 + line % KH * DH;
      const bool inside = d >= 0 && d < ID && h >= 0 && h < IH;
      const int row = (min(max(d, 0), ID - 1) * IH + min(max(h, 0), IH - 1)) * IW;
      for (int kw = 0; kw < KW; kw += ${wide}) {
% for t in range(wide):
        const int across${t} = w0 + (kw + ${t}) * DW, at${t} = row + min(max(across${t}, 0), IW - 1);
        const f32x4 weight${t} = ${w.load4("0", "b_", f"(c * KD * KH + line) * KW + kw + {t}")};
% for lane in channels:
        const f32 v${t}_${lane} = ${x.load1("n", f"(first{lane} + c)", f"at{t}")};
% endfor
% endfor
% for t in range(wide):
        const bool counts${t} = inside && across${t} >= 0 && across${t} < IW;
        const f32x4 value${t} = ${f"SPLAT(v{t}_0)" if joint else f"F4(v{t}_0, v{t}_1, v{t}_2, v{t}_3)"};
        acc += (counts${t} ? value${t} : SPLAT(0.0)) * weight${t};
% endfor
      }
    }
  }
% if k.has("b"):
  acc += ${k.args["b"].load4("0", "FIRST + b_", "0")};
% endif
  ${y.store4("n", "FIRST + b_", "p", "acc")}
}
