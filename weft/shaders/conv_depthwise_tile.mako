## Depthwise convolution over packed channels, up to two dimensions, with known kernel, strides and dilations: a
## work-item computes rows x columns adjacent pixels of one block of channels. It loads each input pixel once, and each
## weight once; with more than nine taps, whose weights would fill the registers, once for each row of input. Pixels
## outside of the image are loaded from its edge and set to zero, so that no load waits for a branch.
<%namespace name="windows" file="windows.parts.mako"/>\
<%
needed = windows.module.needed
down, across = needed(rows, kh, sh, dh), needed(columns, kw, sw, dw)
outputs = [(r, c) for r in range(rows) for c in range(columns)]
kept = kh * kw <= 9
%>
<%def name="weights(taps)">
% for tap in taps:
% for right in range(kw):
  const f32x4 w${tap}_${right} = ${w.load4("0", "c", f"{tap * kw + right}")};
% endfor
% endfor
</%def>
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "TILES_H * TILES_W", "BLOCKS")}
  const int oh = p / TILES_W * ${rows}, ow = p % TILES_W * ${columns};
  const int h0 = oh * ${sh} - PH, w0 = ow * ${sw} - PW;
  const int from = ${x.place4("n", "c", "0")};
% for right, _ in across:
  const bool fits${right} = w0 + ${right} >= 0 && w0 + ${right} < IW;
  const int at${right} = min(max(w0 + ${right}, 0), IW - 1) * x_PS;
% endfor
% if kept:
  ${weights(range(kh))}
% endif
  const f32x4 bias = ${k.args["b"].load4("0", "c", "0") if k.has("b") else "SPLAT(0.0)"};
% for r, c in outputs:
  f32x4 acc${r}_${c} = bias;
% endfor
% for below, lines in down:
  {
    const bool fits = h0 + ${below} >= 0 && h0 + ${below} < IH;
    const int row = from + min(max(h0 + ${below}, 0), IH - 1) * IW * x_PS;
% if not kept:
    ${weights(tap for _, tap in lines)}
% endif
% for right, _ in across:
    f32x4 v${right} = ${x.vector(f"row + at{right}")};
    v${right} = fits && fits${right} ? v${right} : SPLAT(0.0);
% endfor
% for right, places in across:
% for r, tap in lines:
% for c, along in places:
    acc${r}_${c} += v${right} * w${tap}_${along};
% endfor
% endfor
% endfor
  }
% endfor
% for r, c in outputs:
  if (oh + ${r} < OH && ow + ${c} < OW) ${y.store4("n", "c", f"(oh + {r}) * OW + ow + {c}", f"acc{r}_{c}")}
% endfor
}
