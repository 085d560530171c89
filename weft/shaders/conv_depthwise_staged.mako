## Depthwise convolution over packed channels, up to two dimensions, with known kernel, strides and dilations: a work-group
## computes rows x columns pixels of `blocks` blocks of channels. All items first load the part of the image that these
## see, and the weights, into work-group memory; each then computes `pixels` adjacent pixels of a row. So a group waits
## for memory once, however large the window is. Pixels outside of the image are loaded from its edge and set to zero.
<%namespace name="windows" file="windows.parts.mako"/>\
<%
items = blocks * rows * columns // pixels
high, wide = (rows - 1) * sh + (kh - 1) * dh + 1, (columns - 1) * sw + (kw - 1) * dw + 1
# Adjacent items have adjacent rows of results, whose rows of the image are sh apart: these adjoin in work-group memory,
# and an odd pitch puts them into different banks.
pitch, adjoining = wide | 1, -(-high // sh)
k.shared("f32x4", "Image", str(sh * adjoining * pitch * blocks))
k.shared("f32x4", "Filters", str(kh * kw * blocks))
image, filters = high * wide * blocks, kh * kw * blocks
rounds = [("Image", u, image) for u in range(-(-image // items))]
rounds += [("Filters", u, filters) for u in range(-(-filters // items))]

read = windows.module.needed(pixels, kw, sw, dw)

def line(row):
    """Return where the row of the image that a row of taps meets lies in work-group memory."""
    if isinstance(row, int):
        return (row * dh % sh * adjoining + row * dh // sh) * pitch * blocks
    return f"({row} * {dh} % {sh} * {adjoining} + {row} * {dh} / {sh}) * {pitch * blocks}"
%>
<%def name="fetch(array, u, total)">
<% number = f"LOCAL_X + {u * items}" if (u + 1) * items <= total else f"min(LOCAL_X + {u * items}, {total - 1})" %>
% if array == "Image":
## Adjacent items load what adjoins in memory: where channels come last, the blocks of a pixel, else the pixels of a row.
  const int e_${u} = ${number}, p_${u} = x_PS != 1 ? e_${u} / ${blocks} : e_${u} % ${high * wide};
  const int b_${u} = x_PS != 1 ? e_${u} % ${blocks} : e_${u} / ${high * wide}, i_${u} = p_${u} / ${wide}, j_${u} = p_${u} % ${wide};
  const int h_${u} = top + i_${u}, w_${u} = left + j_${u};
  const f32x4 x_${u} = ${x.load4("n", f"min(block0 + b_{u}, BLOCKS - 1)", f"min(max(h_{u}, 0), IH - 1) * IW + min(max(w_{u}, 0), IW - 1)")};
% else:
  const int f_${u} = ${number};
  const f32x4 t_${u} = ${w.load4("0", f"min(block0 + f_{u} / {kh * kw}, BLOCKS - 1)", f"f_{u} % {kh * kw}")};
% endif
</%def>
<%def name="stage(array, u)">
% if array == "Image":
  const bool inside_${u} = h_${u} >= 0 && h_${u} < IH && w_${u} >= 0 && w_${u} < IW;
  Image[((i_${u} % ${sh} * ${adjoining} + i_${u} / ${sh}) * ${pitch} + j_${u}) * ${blocks} + b_${u}] = inside_${u} ? x_${u} : SPLAT(0.0);
% else:
  Filters[f_${u} % ${kh * kw} * ${blocks} + f_${u} / ${kh * kw}] = t_${u};
% endif
</%def>
<%def name="add_row(row)">
  {
    const int from = at + ${line(row)}, taps = ${row} * ${kw * blocks} + block;
% for tap in range(kw):
    const f32x4 w${tap} = Filters[taps + ${tap * blocks}];
% endfor
% for right, uses in read:
    const f32x4 v${right} = Image[from + ${right * blocks}];
% for pixel, tap in uses:
    acc${pixel} += v${right} * w${tap};
% endfor
% endfor
  }
</%def>
const int tile = GROUP_X % (TILES_H * TILES_W), part = GROUP_X / (TILES_H * TILES_W);
const int n = part / PARTS, block0 = part % PARTS * ${blocks};
const int oh0 = tile / TILES_W * ${rows}, ow0 = tile % TILES_W * ${columns};
const int top = oh0 * ${sh} - PH, left = ow0 * ${sw} - PW;
const int block = LOCAL_X % ${blocks}, down = LOCAL_X / ${blocks} % ${rows}, across = LOCAL_X / ${blocks * rows} * ${pixels};
const int c = block0 + block, oh = oh0 + down, ow = ow0 + across;
const f32x4 bias = ${k.args["b"].load4("0", "min(c, BLOCKS - 1)", "0") if k.has("b") else "SPLAT(0.0)"};
% for first in range(0, len(rounds), at_once):
{
% for array, u, total in rounds[first : first + at_once]:
  ${fetch(array, u, total)}
% endfor
% for array, u, _ in rounds[first : first + at_once]:
  ${stage(array, u)}
% endfor
}
% endfor
BARRIER;
const int at = (down * ${pitch} + across * ${sw}) * ${blocks} + block;
% for pixel in range(pixels):
f32x4 acc${pixel} = bias;
% endfor
% if unrolled:
% for row in range(kh):
  ${add_row(row)}
% endfor
% else:
${k.repeat("row", kh)} {
  ${add_row("row")}
}
% endif
if (c < BLOCKS && oh < OH) {
% for pixel in range(pixels):
  if (ow + ${pixel} < OW) ${y.store4("n", "c", f"oh * OW + ow + {pixel}", f"acc{pixel}")}
% endfor
}
