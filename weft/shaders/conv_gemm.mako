## Convolution as an implicit GEMM: rows are output pixels, columns blocks of four output channels, K runs over taps and
## blocks of four input channels. A group of ${lx} x ${ly} items computes ${rp * lx} pixels x ${rc * ly} blocks; LZ slices of K work
## side by side and are summed at the end. Items fetch the next step of 4 blocks of K into registers while they compute
## this one, all loads at once: what lies outside is dropped later. Two `buffers` need one barrier a step. `parted`: `sum_parts.py`.
<%page args="parted=False"/><%
rows, cols, items, acc = rp * lx, rc * ly, lx * ly, [(i, j) for i in range(rp) for j in range(rc)]
## Two vectors more than columns: four items that write one column of four rows touch other banks.
fetched_a, fetched_b, pitch = 4 * rows // items, 16 * cols // items, cols + 2
of_part = ("GROUP_Z * EACH", "min((GROUP_Z + 1) * EACH, (STEPS + LZ - 1) / LZ)", " + GROUP_Z * (PIXELS / (OH * OW))")
begin, end, image = of_part if parted else ("0", "(STEPS + LZ - 1) / LZ", "")
k.shared("f32x4", "As", f"LZ * {4 * rows * buffers}")
k.shared("f32x4", "Bs", f"LZ * {16 * pitch * buffers}")
k.shared("f32x4", "Sum", f"LZ > 1 ? (LZ - 1) * {rows * cols} : 1")
%>
<%def name="fetch(step)">
% for u in range(fetched_a):
  {
    const int kk = (${step}) * 4 + ak${u};
% if pointwise:
    inside${u} = row${u} < PIXELS && kk < C4;
    va${u} = ${x.vector("inside%d ? %s : 0" % (u, x.place4(f"an{u}", "kk", f"ap{u}")))};
% else:
    const int tap = kk / C4, ih = ah${u} + tap / KW * DH, iw = aw${u} + tap % KW * DW;
    inside${u} = row${u} < PIXELS && tap < KH * KW && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
    va${u} = ${x.vector("inside%d ? %s : 0" % (u, x.place4(f"an{u}", "kk % C4", "ih * IW + iw")))};
% endif
  }
% endfor
% for u in range(fetched_b):
  vb${u} = ${w.vector(f"min({step}, STEPS - 1) * 16 * COUNT + bfrom{u}")};
% endfor
</%def>
## Of neighbouring items two share a block and the next two a pixel: a load of 16 bytes is served to two at a time.
const int item = LOCAL_Y * ${lx} + LOCAL_X, across = item / 2 % ${lx}, down = item % 2 + item / ${2 * lx} * 2;
const int column0 = GROUP_Y * ${cols};
% for u in range(fetched_b):
const int e${u} = item + ${u * items}, bcolumn${u} = e${u} / 4 % ${cols}, bk${u} = e${u} / ${4 * cols};
const int bfrom${u} = (bk${u} * COUNT + min(column0 + bcolumn${u}, COUNT - 1)) * 4 + e${u} % 4;
const int bto${u} = (bk${u} * 4 + e${u} % 4) * ${pitch} + bcolumn${u};
f32x4 vb${u};
% endfor
for (int tile = GROUP_X; tile < TILES; tile += GROUPS_X) {
  const int first_row = tile * ${rows};
% for u in range(fetched_a):
  const int ak${u} = (item + ${u * items}) / ${rows}, row${u} = first_row + (item + ${u * items}) % ${rows};
  const int an${u} = row${u} / (OH * OW), ap${u} = row${u} % (OH * OW);
% if not pointwise:
  const int ah${u} = ap${u} / OW * SH - PH, aw${u} = ap${u} % OW * SW - PW;
% endif
  f32x4 va${u};
  bool inside${u};
% endfor
% for i, j in acc:
  f32x4 acc${i}_${j} = SPLAT(0.0);
% endfor
  ${fetch(f"{begin} * LZ + LOCAL_Z" if parted else "LOCAL_Z")}
  for (int round = ${begin}; round < ${end}; round++) {
    const int staged = LOCAL_Z${f" * {buffers} + round % {buffers}" if buffers > 1 else ""};
    const int a_base = staged * ${4 * rows}, b_base = staged * ${16 * pitch};
% for u in range(fetched_a):
    As[a_base + item + ${u * items}] = inside${u} ? va${u} : SPLAT(0.0);
% endfor
% for u in range(fetched_b):
    Bs[b_base + bto${u}] = vb${u};
% endfor
    BARRIER;
    ${fetch("(round + 1) * LZ + LOCAL_Z")}
    for (int kk = 0; kk < 4; kk++) {
% for i in range(rp):
      const f32x4 a${i} = As[a_base + kk * ${rows} + ${i * lx} + across];
% endfor
## One product a statement: each becomes one fused multiply-add, where a sum of four takes an addition more.
% for lane, letter in enumerate("xyzw"):
% for j in range(rc):
      const f32x4 b${j}${letter} = Bs[b_base + (kk * 4 + ${lane}) * ${pitch} + ${j * ly} + down];
% endfor
% for i, j in acc:
      acc${i}_${j} += a${i}.${letter} * b${j}${letter};
% endfor
% endfor
    }
% if buffers == 1:
    BARRIER;
% endif
  }
% if buffers > 1:
  BARRIER;
% endif
  if (LZ > 1) {
    if (LOCAL_Z > 0) {
      const int s0 = (LOCAL_Z - 1) * ${rows * cols};
% for i, j in acc:
      Sum[s0 + (${j * ly} + down) * ${rows} + ${i * lx} + across] = acc${i}_${j};
% endfor
    }
    BARRIER;
    if (LOCAL_Z == 0) {
      for (int s = 0; s < LZ - 1; s++) {
% for i, j in acc:
        acc${i}_${j} += Sum[s * ${rows * cols} + (${j * ly} + down) * ${rows} + ${i * lx} + across];
% endfor
      }
    }
    BARRIER;
  }
  if (LOCAL_Z == 0) {
% for j in range(rc):
    if (column0 + ${j * ly} + down < COUNT) {
      const int block = FIRST + column0 + ${j * ly} + down;
      const f32x4 bias = ${k.args["b"].load4("0", "block", "0") if k.has("b") else "SPLAT(0.0)"};
% for i in range(rp):
      if (first_row + ${i * lx} + across < PIXELS) {
        const int row = first_row + ${i * lx} + across;
        ${y.store4("row / (OH * OW)" + image, "block", "row % (OH * OW)", f"acc{i}_{j} + bias")}
      }
% endfor
    }
% endfor
  }
}
