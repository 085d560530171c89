## Convolution as an implicit GEMM on NVIDIA's matrix units (mma.sync, from sm_80 on), with the tiles, packing and order
## of work of the GLSL twin. A warp of 32 holds ${fm} x ${fn} tiles of 16 x 16 sums in the layout of m16n8k16: an item
## has columns 2t, 2t + 1, 2t + 8, 2t + 9 of rows g and g + 8 (PTX ISA, mma).
<%page args="parted=False, many=False"/>\
<%
rows, cols, items, depth = 16 * fm * sm, 16 * fn * sn, 32 * sm * sn, kb // 4
each = 2 if wide else 1
stride, fetched = (kb + 2) // each, rows * kb // each // items
w_stride, w_fetched = (cols // 4 + 2) // each, cols * kb // each // items
begin, end = ("begin", "end") if parted else ("0", "(STEPS + LZ - 1) / LZ")
image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else ""
frags = [(i, j) for i in range(fm) for j in range(fn)]
meet = "WARP_BARRIER" if sm * sn == 1 else "BARRIER"
piece = "uint4" if wide else "uint2"
k.needs_subgroup()
k.shared("uint4", "As4", f"LZ * {rows * stride * each // 2}")
k.shared("uint4", "Bs4", f"LZ * {2 * kb * w_stride * each}")
if sliced:
    k.shared("f32", "Sum", f"(LZ - 1) * {rows * cols}")
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="parts" file="conv_matrix.parts.mako"/>\
<%namespace name="im2col" file="im2col.parts.mako"/>\
<%namespace name="pieces" file="pieces.opencl.mako"/>\
<%def name="fetch(step)">${parts.fetch(x, step, kb, fetched, w_fetched, each, pointwise, many, *[f"((__global const {piece}*){name})" for name in "xw"])}</%def>
__local ${piece} *As = (__local ${piece}*)As4, *Bs = (__local ${piece}*)Bs4;
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
const int a_base = LOCAL_Z * ${rows * stride}, b_base = LOCAL_Z * ${4 * kb * w_stride};
const int sum_base = part * ${256 * fm * fn}, column16 = GROUP_Y * ${cols // 16} + part_n * ${fn};
## The address for ldmatrix: row lane % 16; the upper half of the warp has the second half of the columns.
const shared_at a_at = SHARED_AT(As + a_base + (part_m * ${16 * fm} + lane % 16) * ${stride} + lane / 16 * ${2 // each});
const shared_at b_at = SHARED_AT(Bs + b_base + lane % 16 * ${w_stride} + part_n * ${4 * fn // each} + lane / 16 * ${2 // each});
% for u in range(w_fetched):
const int bc${u} = (item + ${u * items}) % ${cols // 4 // each}, bk${u} = (item + ${u * items}) / ${cols // 4 // each};
const int from${u} = bk${u} * (WIDTH / ${each}) + GROUP_Y * ${cols // 4 // each} + bc${u}, to${u} = b_base + bk${u} * ${w_stride} + bc${u};
${piece} vb${u};
% endfor
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched):
  const int e${u} = item + ${u * items};
% if wide:
  const int ak${u} = e${u} % ${kb // 2} * 2, am${u} = e${u} / ${kb // 2}, row${u} = first_row + am${u};
% else:
  const int ak${u} = e${u} / ${rows}, am${u} = e${u} % ${rows}, row${u} = first_row + am${u};
% endif
  ${im2col.pixel(x, u, pointwise)}
  ${piece} va${u};
  bool inside${u};
${parts.variables(x, u, each)}\
% endfor
% for i, j in frags:
  f32 ${", ".join(f"acc{i}_{j}_{e} = 0.0" for e in range(8))};
% endfor
% if parted:
## With split K (`sum_parts.py`), group z computes EACH rounds and stores to images of its own.
  const int begin = GROUP_Z * EACH, end = min(begin + EACH, (STEPS + LZ - 1) / LZ);
% endif
  ${fetch("begin * LZ + LOCAL_Z" if parted else "LOCAL_Z")}
  for (int round = ${begin}; round < ${end}; round++) {
% for u in range(fetched):
${parts.apply(x, u, each, pieces.module)}\
    As[a_base + am${u} * ${stride} + ak${u} / ${each}] = inside${u} ? va${u} : (${piece})(0);
% endfor
% for u in range(w_fetched):
    Bs[to${u}] = vb${u};
% endfor
    ${meet};
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% for q in range(depth):
    {
% for j in range(fn):
      uint ${", ".join(f"b{j}_{r}" for r in range(4))};
      LDMATRIX_TRANS(${", ".join(f"b{j}_{r}" for r in range(4))}, b_at + ${(16 * q * w_stride * each + 4 * j) * 8});
% endfor
% for i in range(fm):
      uint ${", ".join(f"a{i}_{r}" for r in range(4))};
      LDMATRIX(${", ".join(f"a{i}_{r}" for r in range(4))}, a_at + ${(16 * i * stride * each + 4 * q) * 8});
% for j, half in [(j, half) for j in range(fn) for half in range(2)]:
      MMA(${", ".join([f"acc{i}_{j}_{2 * half + e}" for e in (0, 1, 4, 5)] + [f"a{i}_{r}" for r in range(4)])},
          b${j}_${2 * half}, b${j}_${2 * half + 1});
% endfor
% endfor
    }
% endfor
    ${meet};
  }
% if sliced:
  if (LOCAL_Z > 0) {
% for (i, j), e in [(f, e) for f in frags for e in range(8)]:
    Sum[(LOCAL_Z - 1) * ${rows * cols} + sum_base + ${256 * (i * fn + j) + 32 * e} + lane] = acc${i}_${j}_${e};
% endfor
  }
  BARRIER;
  for (int s = 0; LOCAL_Z == 0 && s < LZ - 1; s++) {
% for (i, j), e in [(f, e) for f in frags for e in range(8)]:
    acc${i}_${j}_${e} += Sum[s * ${rows * cols} + sum_base + ${256 * (i * fn + j) + 32 * e} + lane];
% endfor
  }
  BARRIER;
% endif
% for j in range(fn):
  if (LOCAL_Z == 0 && column16 * 4 + ${4 * j} + lane % 4 < COUNT) {
    const int block = column16 * 4 + ${4 * j} + lane % 4;
    const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i, half in [(i, half) for i in range(fm) for half in range(2)]:
    {
      const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * half} + lane / 4;
      const f32x4 sum = F4(${", ".join(f"acc{i}_{j}_{e + 4 * half}" for e in range(4))}) + bias;
      if (m < PIXELS) ${y.store4("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum")}
    }
% endfor
  }
% endfor
}
