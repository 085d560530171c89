## Convolution of int8 as an implicit GEMM: rows are output pixels, columns blocks of four output channels, K runs over
## taps and blocks of four input channels, each of them one word. A group of lx x ly items computes rp * lx rows x
## rc * ly blocks; LZ slices of K work side by side. Items fetch the next step of `depth` words while they multiply this
## one. Sums of integers are exact; `shifts` takes the zero point of the image out of them. Pixels outside of the image
## are PADDING, which stands for zeros. `last`: channels come last. `parted`: `split_k.py`.
<%page args="parted=False"/>\
<%
items, rows, cols = lx * ly, rp * lx, rc * ly
fetched_a, fetched_b = depth * rows // items, depth * cols // items
pitch = rows + 4
acc = [(i, j, c) for i in range(rp) for j in range(rc) for c in "xyzw"]
begin, end = ("GROUP_Z * EACH", "min((GROUP_Z + 1) * EACH, (STEPS + LZ - 1) / LZ)") if parted else ("0", "(STEPS + LZ - 1) / LZ")
image = " + GROUP_Z * (PIXELS / (OH * OW))" if parted else ""
k.shared("uint", "As", f"LZ * {2 * depth * pitch}")
k.shared("u32x4", "Bs", f"LZ * {2 * depth * cols}")
k.shared("i32", "Sum", f"LZ > 1 ? (LZ - 1) * {rows * cols * 4} : 1")
w_, scales_, shifts_ = k.args["w"], k.args["scales"], k.args["shifts"]
%>\
<%namespace name="im2col" file="im2col.parts.mako"/>\
<%def name="fetch(step)">
% for u in range(fetched_a):
  {
    ${im2col.locate(u, step, depth, pointwise)}
    va${u} = x[inside${u} ? at : 0];
  }
% endfor
% for u in range(fetched_b):
  vb${u} = w[(min(${step}, STEPS - 1) * ${depth} + bk${u}) * COUNT + min(column0 + bc${u}, COUNT - 1)];
% endfor
</%def>\
const int item = LOCAL_Y * ${lx} + LOCAL_X, across = LOCAL_X, down = LOCAL_Y, column0 = GROUP_Y * ${cols};
% for u in range(fetched_b):
const int bk${u} = (item + ${u * items}) / ${cols}, bc${u} = (item + ${u * items}) % ${cols};
u32x4 vb${u};
% endfor
${k.for_groups("tile", "TILES")} {
  const int first_row = tile * ${rows};
% for u in range(fetched_a):
% if last:
  const int ak${u} = (item + ${u * items}) % ${depth}, am${u} = (item + ${u * items}) / ${depth}, row${u} = first_row + am${u};
% else:
  const int ak${u} = (item + ${u * items}) / ${rows}, am${u} = (item + ${u * items}) % ${rows}, row${u} = first_row + am${u};
% endif
  ${im2col.pixel(x, u, pointwise)}
  uint va${u};
  bool inside${u};
% endfor
  int ${", ".join(f"acc{i}_{j}{c} = 0" for i, j, c in acc)};
  ${fetch(f"({begin}) * LZ + LOCAL_Z")}
  for (int round = ${begin}; round < ${end}; round++) {
    const int a_base = (LOCAL_Z * 2 + round % 2) * ${depth * pitch}, b_base = (LOCAL_Z * 2 + round % 2) * ${depth * cols};
## Slices may run a step beyond the last: its weights are those of the last step, and count for nothing.
    const uint outside = TO_U32(round * LZ + LOCAL_Z < STEPS ? PADDING : 0);
% for u in range(fetched_a):
    As[a_base + ak${u} * ${pitch} + am${u}] = inside${u} ? va${u} : outside;
% endfor
% for u in range(fetched_b):
    Bs[b_base + item + ${u * items}] = vb${u};
% endfor
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
    for (int kk = 0; kk < ${depth}; kk++) {
% for i in range(rp):
      const uint a${i} = As[a_base + kk * ${pitch} + ${i * lx} + across];
% endfor
% for j in range(rc):
      const u32x4 b${j} = Bs[b_base + kk * ${cols} + ${j * ly} + down];
% endfor
% for i, j, c in acc:
      acc${i}_${j}${c} = ${k.dot4(f"a{i}", f"b{j}.{c}", f"acc{i}_{j}{c}")};
% endfor
    }
  }
  BARRIER;
  if (LZ > 1) {
    if (LOCAL_Z > 0) {
      const int s0 = (LOCAL_Z - 1) * ${rows * cols * 4} + item;
% for n, (i, j, c) in enumerate(acc):
      Sum[s0 + ${n * items}] = acc${i}_${j}${c};
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for n, (i, j, c) in enumerate(acc):
        acc${i}_${j}${c} += Sum[s * ${rows * cols * 4} + item + ${n * items}];
% endfor
      }
    }
    BARRIER;
  }
  if (LOCAL_Z == 0) {
% for j in range(rc):
    if (column0 + ${j * ly} + down < COUNT) {
      const int block = column0 + ${j * ly} + down;
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
      const f32x4 scale = ${scales_.load4("0", "block", "0")};
% for lane, c in enumerate("xyzw"):
      const int shift_${c} = ${"GROUP_Z > 0 ? 0 : " if parted else ""}${shifts_.load(f"block * 4 + {lane}")};
% endfor
% for i in range(rp):
      if (first_row + ${i * lx} + across < PIXELS) {
        const int row = first_row + ${i * lx} + across;
        const f32x4 sum = F4(${", ".join(f"TO_F32(acc{i}_{j}{c} + shift_{c})" for c in "xyzw")}) * scale + bias;
        ${y.store4("row / (OH * OW)" + image, "block", "row % (OH * OW)", "sum")}
      }
% endfor
    }
% endfor
  }
}
