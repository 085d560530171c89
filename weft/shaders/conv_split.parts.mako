## Parts of both kernels for convolutions of split fp32.
<%!
def sizes(fm, fn, sm, sn, kb):
    rows, cols, items = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn
    return rows, cols, items, rows * kb // items, cols * kb // items
%>
<%namespace name="im2col" file="im2col.parts.mako"/>
## Fetch the next step of K into registers; pixels outside are set to zero later.
<%def name="fetch(step, weights)">
<% rows, cols, items, fetched, w_fetched = sizes(fm, fn, sm, sn, kb) %>
% for u in range(fetched):
  {
    ${im2col.locate(u, step, kb, pointwise)}
    va${u} = x[inside${u} ? at : 0];
  }
% endfor
% for u in range(w_fetched):
  vb${u} = ${weights}[(GROUP_Y * STEPS + min(${step}, STEPS - 1)) * ${cols * kb} + item + ${u * items}];
% endfor
</%def>
## The indices of a work-item, and the pieces of a step of the weights that it moves.
<%def name="who(vector)">
<% rows, cols, items, fetched, w_fetched = sizes(fm, fn, sm, sn, kb) %>
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${2 * rows * (kb + 2)}, b_base = LOCAL_Z * ${8 * kb * (cols // 8 + 1)};
const int sum_base = part * ${256 * fm * fn}, column16 = GROUP_Y * ${cols // 16} + part_n * ${fn};
% for u in range(w_fetched):
const int e${u} = item + ${u * items};
const int to${u} = b_base + e${u} / ${cols // 8} * ${cols // 8 + 1} + e${u} % ${cols // 8};
${vector} vb${u};
% endfor
</%def>
## The pixels that a work-item fetches for a tile.
<%def name="pixels()">
<% rows, cols, items, fetched, w_fetched = sizes(fm, fn, sm, sn, kb) %>
  const int first_row = tile * ${rows};
% for u in range(fetched):
% if last:
  const int ak${u} = (item + ${u * items}) % ${kb}, am${u} = (item + ${u * items}) / ${kb}, row${u} = first_row + am${u};
% else:
  const int ak${u} = (item + ${u * items}) / ${rows}, am${u} = (item + ${u * items}) % ${rows}, row${u} = first_row + am${u};
% endif
  ${im2col.pixel(x, u, pointwise)}
  f32x4 va${u};
  bool inside${u};
% endfor
</%def>
## An item has four channels of two pixels of a tile, thanks to the order of columns in `halves.LANES`.
<%def name="finish(element)">
% for j in range(fn):
  if (LOCAL_Z == 0 && column16 * 4 + ${4 * j} + lane % 4 < COUNT) {
    const int block = column16 * 4 + ${4 * j} + lane % 4;
    const f32x4 back = ${s.load4("0", "block", "0")};
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, half in [(i, half) for i in range(fm) for half in range(2)]:
    {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * half} + lane / 4;
      const f32x4 sum = F4(${", ".join(element(i, j, e + 4 * half) for e in range(4))}) * back + bias;
      if (m < PIXELS) ${y.store4("m / (OH * OW)", "block", "m % (OH * OW)", "sum")}
    }
% endfor
  }
% endfor
</%def>
