## Convolution in groups of whole blocks of channels, up to two dimensions, with known kernel, strides and dilations: a
## work-item computes rows x columns adjacent pixels of `blocks` adjacent blocks of one group. It takes steps along K: `deep`
## input blocks, and of each lines x wide taps of the kernel. All loads of a step are independent of each other; with
## `at_once` they come before the first use of any, so that the item waits for memory once. Pixels outside of the image are
## loaded from its edge and set to zero, so that no load waits for a branch; so are blocks behind a group's last, if its
## blocks are no multiple of `deep` (`ragged`), and their weights. With several `slices`, the items of a column of the
## work-group (LOCAL_Y) take turns with the steps, and the first adds the sums. Weights lie as vectors [input channel of a
## group][tap][block].
<%namespace name="windows" file="windows.parts.mako"/>\
<%
needed = windows.module.needed
down, across = needed(rows, lines, sh, dh), needed(columns, wide, sw, dw)
outputs = [(r, c, b) for r in range(rows) for c in range(columns) for b in range(blocks)]
turns = [(d, t) for d in range(deep) for t in range(lines)]
parts_down, parts_across = kh // lines, kw // wide
parts = parts_down * parts_across

def of_step(d):
    """Return the input block, counted from the first one of a step; behind the last block the last one again."""
    return f"min({d}, IN_BLOCKS - 1 - channel)" if ragged else str(d)

def counts(d, below, right):
    """Return the condition under which a pixel counts."""
    return f"inside{below} && fits{right}" + (f" && channel + {d} < IN_BLOCKS" if ragged else "")

if slices > 1:
    k.shared("f32x4", "Sum", f"{(slices - 1) * len(outputs)} * LX")
%>\
<%def name="weights(d, t)">
% for right in range(wide):
% for lane in range(4):
% for b in range(blocks):
<% name = f"w{d}_{t}_{right}_{lane}_{b}" %>\
      f32x4 ${name} = ${w.vector(f"weight + (({of_step(d)} * 4 + {lane}) * {kh * kw} + {t * kw + right}) * w_PS + {b} * w_CS")};
% if ragged:
      ${name} = channel + ${d} < IN_BLOCKS ? ${name} : SPLAT(0.0);
% endif
% endfor
% endfor
% endfor
</%def>
<%def name="multiply(d, t)">
% for below, places in down:
% for r, line in places:
% if line == t:
% for lane, letter in enumerate("xyzw"):
% for right, along in across:
% for c, tap in along:
% for b in range(blocks):
      acc${r}_${c}_${b} += v${d}_${below}_${right}.${letter} * w${d}_${t}_${tap}_${lane}_${b};
% endfor
% endfor
% endfor
% endfor
% endif
% endfor
% endfor
</%def>
% if slices > 1:
${k.for_groups("first", "TOTAL", "LX")} {
  const int i = min(first + LOCAL_X, TOTAL - 1);
% else:
${k.for_each("i", "TOTAL")} {
% endif
  ${k.split(y, "i", "TILES_H * TILES_W", f"(BLOCKS / {blocks})")}
  const int oh = p / TILES_W * ${rows}, ow = p % TILES_W * ${columns}, block = c * ${blocks};
  const int image = ${x.place4("n", "block / OUT_BLOCKS * IN_BLOCKS", "0")}, filters = ${w.place4("0", "block", "0")};
% for b in range(blocks):
  const f32x4 bias${b} = ${k.args["b"].load4("0", f"block + {b}", "0") if k.has("b") else "SPLAT(0.0)"};
% endfor
% for r, c, b in outputs:
  f32x4 acc${r}_${c}_${b} = SPLAT(0.0);
% endfor
  for (int step = ${"LOCAL_Y" if slices > 1 else "0"}; step < (IN_BLOCKS + ${deep - 1}) / ${deep} * ${parts}; step += ${slices}) {
    const int channel = step / ${parts} * ${deep}, part = step % ${parts};
    const int line = part / ${parts_across} * ${lines}, column = part % ${parts_across} * ${wide};
    const int h0 = oh * ${sh} - PH + line * ${dh}, w0 = ow * ${sw} - PW + column * ${dw};
    const int weight = filters + (channel * ${4 * kh * kw} + line * ${kw} + column) * w_PS;
    const int from = image + channel * x_CS;
% for right, _ in across:
    const bool fits${right} = w0 + ${right} >= 0 && w0 + ${right} < IW;
    const int at${right} = min(max(w0 + ${right}, 0), IW - 1) * x_PS;
% endfor
% for below, _ in down:
    const bool inside${below} = h0 + ${below} >= 0 && h0 + ${below} < IH;
    const int row${below} = from + min(max(h0 + ${below}, 0), IH - 1) * IW * x_PS;
% endfor
% for d in range(deep):
% for below, _ in down:
% for right, _ in across:
    f32x4 v${d}_${below}_${right} = ${x.vector(f"row{below} + at{right} + {of_step(d)} * x_CS")};
% endfor
% endfor
% endfor
% if at_once:
% for d, t in turns:
    ${weights(d, t)}
% endfor
% endif
% for d in range(deep):
% for below, _ in down:
% for right, _ in across:
    v${d}_${below}_${right} = ${counts(d, below, right)} ? v${d}_${below}_${right} : SPLAT(0.0);
% endfor
% endfor
% endfor
% for d, t in turns:
    {
% if not at_once:
      ${weights(d, t)}
% endif
      ${multiply(d, t)}
    }
% endfor
  }
% if slices > 1:
  if (LOCAL_Y > 0) {
% for o, (r, c, b) in enumerate(outputs):
    Sum[((LOCAL_Y - 1) * ${len(outputs)} + ${o}) * LX + LOCAL_X] = acc${r}_${c}_${b};
% endfor
  }
  BARRIER;
  if (LOCAL_Y == 0 && first + LOCAL_X < TOTAL) {
% for s in range(slices - 1):
% for o, (r, c, b) in enumerate(outputs):
    acc${r}_${c}_${b} += Sum[${s * len(outputs) + o} * LX + LOCAL_X];
% endfor
% endfor
% else:
  {
% endif
% for r, c, b in outputs:
    if (oh + ${r} < OH && ow + ${c} < OW) ${y.store4("n", f"block + {b}", f"(oh + {r}) * OW + ow + {c}", f"acc{r}_{c}_{b} + bias{b}")}
% endfor
  }
% if slices > 1:
  BARRIER;
% endif
}
