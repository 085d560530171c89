<%namespace name="pairs" file="pairs.parts.mako"/>
## Max pool over a window of up to three dimensions in NCHW, of floats or of integers as pairs of 32-bit halves: a
## work-item computes one element and, where `places` are wanted, the index in the whole input of the first largest one,
## which counts along columns first if `by_columns`.
<%
wanted = k.has("places")
%>
${k.for_each("i", "TOTAL")} {
  const int plane = i / (OD * OH * OW), d0 = i / (OH * OW) % OD * SD - PD, h0 = i / OW % OH * SH - PH, w0 = i % OW * SW - PW;
  bool found = false;
  int place = 0;
% if floats:
  ${k.number} acc = -INFINITY_F, top = 0.0;
% else:
  uint top = 0u, top_high = 0u;
% endif
  for (int kd = 0; kd < KD; kd++) for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {
    const int d = d0 + kd * DD, h = h0 + kh * DH, w = w0 + kw * DW;
    if (d >= 0 && d < ID && h >= 0 && h < IH && w >= 0 && w < IW) {
      const int from = ((plane * ID + d) * IH + h) * IW + w;
% if floats:
      const ${k.number} v = ${x.load("from")};
      acc = fmax(acc, v);
      const bool better = !found || v > top;
% else:
      const uint v = ${x.load("from")};
      const uint v_high = ${x.load_high("from")};
      const bool better = !found || ${pairs.less("top", "top_high", "v", "v_high", wide)};
% endif
      if (better) {
        top = v;
% if not floats:
        top_high = v_high;
% endif
        place = ${"(plane * IW + w) * IH * ID + h * ID + d" if by_columns else "from"};
      }
      found = true;
    }
  }
% if floats:
  ${y.store("i", "acc")}
% else:
  ${y.store_pair("i", "top", "top_high")}
% endif
% if wanted:
  ${k.args["places"].store_int("i", "place")}
% endif
}
