## Convolution of int8 as an implicit GEMM on NVIDIA's matrix units (mma.sync, from sm_80 on). A warp holds ${fm} x ${fq}
## times 16 x 32 sums, each of four tiles of m16n8k32: an item has columns 2t and 2t + 1 of rows g and g + 8 of each tile
## (PTX ISA, mma), which are eight adjacent channels as weights are packed. Rows of `kb` words along K lie in work-group
## memory, 16 bytes apart from the next. `even`: pairs of blocks adjoin in
## memory. `few`: sums are below 2^22. Items fetch the next step while they multiply this one. `wide`: 16 channels of a
## pixel at a time, else four. `last`: channels come last. Zero points: `conv_int8.mako`; `parted`: `split_k.py`.
<%page args="parted=False"/>\
<%
rows, cols, items = 16 * fm * sm, 32 * fq * sn, 32 * sm * sn
each, stride = 4 if wide else 1, kb // 4 + 1
fetched, w_fetched = rows * kb // each // items, cols * kb // 4 // items
begin, end = ("GROUP_Z * EACH", "min((GROUP_Z + 1) * EACH, (STEPS + LZ - 1) / LZ)") if parted else ("0", "(STEPS + LZ - 1) / LZ")
image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else ""
tiles = [(i, h) for i in range(fm) for h in range(4 * fq)]
sums = [(i, h, e) for i, h in tiles for e in range(4)]
piece = "uint4" if wide else "uint"
k.needs_subgroup()
k.shared("uint4", "As", f"LZ * {2 * rows * stride}")
k.shared("uint4", "Bs", f"LZ * {2 * cols * stride}")
if sliced:
    k.shared("i32", "Sum", f"(LZ - 1) * {rows * cols}")
scales_, shifts_ = k.args["scales"], k.args["shifts"]

def number(total):
    """Return a sum as f32: of few products by its bits, near 1.5 * 2^23, which is faster than a conversion."""
    return f"(FLOAT_OF(TO_U32({total}) + 0x4b400000u) - 12582912.0)" if few else f"TO_F32({total})"
%>
<%include file="ptx.opencl.mako"/>
<%namespace name="im2col" file="im2col.parts.mako"/>\
<%def name="fetch(step)">
% for u in range(fetched):
  {
    ${im2col.locate(u, step, kb, pointwise)}
    va${u} = ((__global const ${piece}*)x)[inside${u} ? at / ${each} : 0];
  }
% endfor
% for u in range(w_fetched):
  vb${u} = w[(min(${step}, STEPS - 1) * WIDTH + GROUP_Y * ${cols}) * ${kb // 4} + item + ${u * items}];
% endfor
</%def>\
const int lane = LOCAL_X, part = LOCAL_Y, item = part * 32 + lane;
const int part_m = part % ${sm}, part_n = part / ${sm};
## The addresses for ldmatrix: of A rows 0 to 15 of both halves of 32 bytes, of B columns 0 to 7 of both, then 8 to 15.
const shared_at a_at = SHARED_AT(As + LOCAL_Z * ${2 * rows * stride} + (part_m * ${16 * fm} + lane % 16) * ${stride} + lane / 16);
const shared_at b_at = SHARED_AT(Bs + LOCAL_Z * ${2 * cols * stride} + (part_n * ${32 * fq} + lane / 16 * 8 + lane % 8) * ${stride} + lane / 8 % 2);
% for u in range(w_fetched):
uint4 vb${u};
% endfor
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched):
  const int e${u} = item + ${u * items};
% if last or wide:
  const int ak${u} = e${u} % ${kb // each} * ${each}, am${u} = e${u} / ${kb // each}, row${u} = first_row + am${u};
% else:
  const int ak${u} = e${u} / ${rows}, am${u} = e${u} % ${rows}, row${u} = first_row + am${u};
% endif
  ${im2col.pixel(x, u, pointwise)}
  ${piece} va${u};
  bool inside${u};
% endfor
% for i, h in tiles:
  int ${", ".join(f"acc{i}_{h}_{e} = 0" for e in range(4))};
% endfor
  ${fetch(f"({begin}) * LZ + LOCAL_Z")}
  for (int round = ${begin}; round < ${end}; round++) {
    const int buffer = round % 2;
    const uint outside = round * LZ + LOCAL_Z < STEPS ? (uint)PADDING : 0;
% for u in range(fetched):
    ((__local ${piece}*)As)[((LOCAL_Z * 2 + buffer) * ${rows} + am${u}) * ${stride * 4 // each} + ak${u} / ${each}] = inside${u} ? va${u} : (${piece})(outside);
% endfor
% for u in range(w_fetched):
    Bs[((LOCAL_Z * 2 + buffer) * ${cols} + (item + ${u * items}) / ${kb // 4}) * ${stride} + (item + ${u * items}) % ${kb // 4}] = vb${u};
% endfor
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
% for q in range(kb // 8):
    {
% for j in range(2 * fq):
      uint ${", ".join(f"b{j}_{r}" for r in range(4))};
      LDMATRIX(${", ".join(f"b{j}_{r}" for r in range(4))}, b_at + (buffer * ${cols * stride} + ${16 * j * stride + 2 * q}) * 16);
% endfor
% for i in range(fm):
      uint ${", ".join(f"a{i}_{r}" for r in range(4))};
      LDMATRIX(${", ".join(f"a{i}_{r}" for r in range(4))}, a_at + (buffer * ${rows * stride} + ${16 * i * stride + 2 * q}) * 16);
% for h in range(4 * fq):
      MMA_BYTES(${", ".join([f"acc{i}_{h}_{e}" for e in range(4)] + [f"a{i}_{r}" for r in range(4)])},
          b${h // 2}_${h % 2 * 2}, b${h // 2}_${h % 2 * 2 + 1});
% endfor
% endfor
    }
% endfor
  }
  BARRIER;
% if sliced:
  if (LOCAL_Z > 0) {
% for n, (i, h, e) in enumerate(sums):
    Sum[(LOCAL_Z - 1) * ${rows * cols} + ${n * items} + item] = acc${i}_${h}_${e};
% endfor
  }
  BARRIER;
  for (int s = 0; LOCAL_Z == 0 && s < LZ - 1; s++) {
% for n, (i, h, e) in enumerate(sums):
    acc${i}_${h}_${e} += Sum[s * ${rows * cols} + ${n * items} + item];
% endfor
  }
  BARRIER;
% endif
% for j in range(fq):
  {
    const int block = GROUP_Y * ${cols // 4} + part_n * ${8 * fq} + ${8 * j} + lane % 4 * 2;
    if (LOCAL_Z == 0 && block < COUNT) {
% for half in range(2):
      const int block${half} = ${f"min(block + {half}, COUNT - 1)" if half else "block"};
      const f32x4 bias${half} = ${k.args["b"].load4("0", f"block{half}", "0") if k.has("b") else "SPLAT(0.0)"};
      const f32x4 scale${half} = ${scales_.load4("0", f"block{half}", "0")};
% for c in range(4):
      const int shift${half}_${c} = ${"GROUP_Z > 0 ? 0 : " if parted else ""}${shifts_.load(f"block{half} * 4 + {c}")};
% endfor
% endfor
% for i, down in [(i, down) for i in range(fm) for down in range(2)]:
      {
        const int m = first_row + part_m * ${16 * fm} + ${16 * i + 8 * down} + lane / 4;
% for half in range(2):
<% parts = [f"acc{i}_{4 * j + 2 * half + c // 2}_{2 * down + c % 2} + shift{half}_{c}" for c in range(4)] %>\
        const f32x4 sum${half} = F4(${", ".join(number(part) for part in parts)}) * scale${half} + bias${half};
% endfor
        if (m < PIXELS) {
% if even:
          ${y.store8("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum0", "sum1")}
% else:
          ${y.store4("m / (OH * OW)" + image, "block", "m % (OH * OW)", "sum0")}
          if (block + 1 < COUNT) ${y.store4("m / (OH * OW)" + image, "block + 1", "m % (OH * OW)", "sum1")}
% endif
        }
      }
% endfor
    }
  }
% endfor
}
